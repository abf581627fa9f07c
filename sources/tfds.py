"""Datasets that tfds built, read without TensorFlow: records of ArrayRecord files, decoded.

Where the records lie, and reading them, is `ArrayRecordDataSource`; which files, and which records
of them, a folder and a split name is `TfdsFolder`; what records become is `decode_records`.

Invariant: record `i` is example `i` of `tfds.data_source` of the same folder and split.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from windrow.errors import ArgumentError, ReadError, SourceError
from windrow.sources.array_record import ArrayRecordDataSource
from windrow.sources.array_record_parts import RecordGroups
from windrow.sources.base import Columns, IntArray, checked_indices
from windrow.sources.pieces import LaidOutSource
from windrow.sources.remote import RemoteOptions
from windrow.sources.tfds_columns import decode_records
from windrow.sources.tfds_features import TfdsFeatures
from windrow.sources.tfds_folder import ARRAY_RECORD, FEATURES, TfdsFolder
from windrow.sources.tfds_splits import Split

WHAT: Final = "TFDSDataSource"


class TFDSDataSource(LaidOutSource):
    """The examples of a dataset that tfds built in ArrayRecord form, as columns."""

    def __init__(
        self,
        path_or_name: str | os.PathLike[str],
        *,
        split: Split | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        images: bool = False,
        names: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        remote: RemoteOptions | None = None,
        direct: bool | None = None,
        verify: Literal["all", "headers"] = "all",
    ) -> None:
        """Find the dataset and check its files; no record is read.

        Args:
            path_or_name: The folder of a version, `DATA_DIR/mnist/3.0.1`, or one above it, which
                stands for its newest version; a URL of one; or the name of a dataset in `data_dir`:
                'mnist', 'mnist/config', 'mnist:3.*.*'.
            split: 'train', 'train[:80%]', 'train[10%:20%]+test', 'train[2shard]', 'all', or a part
                that `even_splits` gives. None where there is one split only.
            data_dir: Where names are looked up: a path or URL. By default what TFDS_DATA_DIR says,
                else ~/tensorflow_datasets.
            images: Whether images become arrays `(height, width, channels)`; else they are the
                bytes of their files, PNG or JPEG. Needs windrow[images].
            names: The features wanted, of those at the top; by default all.
            storage_options: Settings of fsspec's file systems, such as credentials.
            remote: Limits of reading from URLs.
            direct: As for `ArrayRecordDataSource`.
            verify: As for `ArrayRecordDataSource`.

        Raises:
            ArgumentError: If an argument is of the wrong kind.
            NotFoundError: If there is no such dataset, split or feature, or a file is missing.
            PlanError: If a split names records that are not there, or can not be read.
            SourceError: If the dataset is not in ArrayRecord form, a feature is of a type that is
                not known, a file is broken, a split must be chosen, or the one that is has no
                files, as those of no records have.
            ConversionError: If tfds has not finished the dataset.
            ReadError: If a store can not be read.
            MissingExtraError: If a protocol, or decoding images, needs a package that is not
                installed.
        """
        self._folder = TfdsFolder.found(
            path_or_name,
            data_dir=data_dir,
            storage_options=storage_options,
            remote=remote,
            what=WHAT,
        )
        _check_format(self._folder)
        if type(images) is not bool:
            raise ArgumentError(f"{WHAT}: images must be a bool, got {images!r:.80}")
        self._images = images
        self._features = self._folder.features_of(names)
        self._names = None if names is None else tuple(names)
        self._split = self._folder.chosen(split)
        self._instructions = tuple(self._folder.instructions(self._split))
        self._records = ArrayRecordDataSource(
            self._instructions,
            storage_options=storage_options,
            remote=remote,
            direct=direct,
            verify=verify,
        )
        self.is_far = self._records.is_far
        """Whether a file is read over a network."""
        # So that a decoder that is not installed is missed here, and the spec is that of columns.
        decode_records([], self._features, images=self._images)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return (
            f"{WHAT}({len(self):,} examples of {self._folder.full_name}, split {self._split!s},"
            f" in {self._folder.shown})"
        )

    @property
    def folder(self) -> TfdsFolder:
        """What the small files of the dataset say: name, config, version, splits."""
        return self._folder

    @property
    def splits(self) -> dict[str, int]:
        """Number of examples of each split of the dataset."""
        return {name: split.records for name, split in self._folder.splits.items()}

    @property
    def split(self) -> Split:
        """What of them this is."""
        return self._split

    @property
    def features(self) -> TfdsFeatures:
        """What an example is made of."""
        return self._features

    def class_names(self, name: str) -> tuple[str, ...] | None:
        """Names of the classes of a feature, by label; None if the dataset has none.

        Raises:
            ArgumentError: If there is no such feature; inner ones are named as "objects/label".
        """
        return self._features.class_names(name)

    @property
    def fingerprint(self) -> str:
        """Name, config and version, a hash of features and classes, and what names the records."""
        classes = {leaf.name: leaf.names for leaf in self._features.leaves if leaf.names}
        told = json.dumps([self._folder.features_json, self._names, classes], sort_keys=True)
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        images = ", images decoded" if self._images else ""
        return (
            f"tfds({self._folder.full_name}, features sha256:{digest}{images},"
            f" {self._records.fingerprint})"
        )

    @property
    def spec(self) -> Any:
        """Of each feature an `ArraySpec`, or the type of its values."""
        return self._features.spec(self._images)

    @property
    def parts(self) -> tuple[RecordGroups]:
        """One part: all the files, in record groups."""
        return self._records.parts

    def blocks(self) -> IntArray:
        """Bounds of the record groups: 0, ..., length."""
        return self._records.blocks()

    def stats(self) -> dict[str, Any]:
        """What was asked of a network so far, as `ArrayRecordDataSource` counts it."""
        return self._records.stats()

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        """The records in the part's column, decoded.

        Raises:
            ReadError: If one can not be decoded; the message names file and record.
        """
        try:
            return decode_records(columns[0], self._features, images=self._images)
        except ReadError as error:
            raise self._damage(error, indices) from error

    def read(self, indices: IntArray) -> Columns:
        """The examples at `indices`, in that order, as nested dicts of columns.

        Raises:
            ReadError: If a record is damaged or can not be decoded, or its file changed; the
                message names both.
        """
        wanted = checked_indices(indices, len(self), WHAT)
        return self.assembled([self._records.read(wanted)], wanted)

    def _damage(self, error: ReadError, indices: IntArray) -> ReadError:
        """The error of one record of those at `indices`, told by its place in a file."""
        if error.records is None:
            return error
        index = int(indices[error.records[0]])
        ends = np.cumsum([one.take for one in self._instructions])
        one = self._instructions[at := int(np.searchsorted(ends, index, side="right"))]
        file = self._records.files[at].shown
        position = index - int(ends[at]) + one.take + one.skip
        why = error.why or str(error)
        return ReadError(
            f"{WHAT}: record {position} of {file}, record {index} of this source, can not be"
            f" decoded: {why}. The file is not what {FEATURES} tells: build or copy the dataset"
            " again, or leave the record out by a split of two parts, such as"
            " 'train[:5]+train[6:]'",
            file=file,
            records=(index, index + 1),
            why=why,
        )


def _check_format(folder: TfdsFolder) -> None:
    if ARRAY_RECORD not in folder.formats:
        raise SourceError(
            f"{WHAT}: {folder.shown} is of format {folder.formats[0]}, which has no random access;"
            f" convert it (windrow convert {folder.shown} DST --to zarr), or build it with"
            " --file_format=array_record"
        )
