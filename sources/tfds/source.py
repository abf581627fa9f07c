"""Reads datasets that tfds built, without TensorFlow, from ArrayRecord files.

`TfdsFolder` finds the files, and the records in them, of a folder and a split.
`ArrayRecordDataSource` locates and reads the records. `decode_records` decodes them.

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
from windrow.sources.array_record.records import RecordGroups
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.base import Columns, IntArray, checked_indices
from windrow.sources.chunks import LaidOutSource
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.tfds.columns import decode_records
from windrow.sources.tfds.features import TfdsFeatures
from windrow.sources.tfds.folder import ARRAY_RECORD, FEATURES, TfdsFolder
from windrow.sources.tfds.splits import Split

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
        """Finds the dataset and checks its files; no record is read.

        Args:
            path_or_name: The folder of a version, `DATA_DIR/mnist/3.0.1`, or one above it, which
                stands for its newest version; a URL of one; or the name of a dataset in `data_dir`:
                'mnist', 'mnist/config', 'mnist:3.*.*'.
            split: 'train', 'train[:80%]', 'train[10%:20%]+test', 'train[2shard]', 'all', or a part
                that `even_splits` gives. None if the dataset has one split only.
            data_dir: Where names are looked up: a path or URL. By default TFDS_DATA_DIR, else
                ~/tensorflow_datasets.
            images: Whether images become arrays `(height, width, channels)`; else they are the
                bytes of their files, PNG or JPEG. Needs windrow-data[images].
            names: Names of the features to read, out of the features at the top; by default all.
            storage_options: Settings of fsspec's file systems, such as credentials.
            remote: Limits of reading from URLs.
            direct: As for `ArrayRecordDataSource`.
            verify: As for `ArrayRecordDataSource`.

        Raises:
            ArgumentError: If an argument is of the wrong kind.
            NotFoundError: If there is no such dataset, split or feature, or a file is missing.
            PlanError: If a split cannot be parsed, or names records that the dataset does not have.
            SourceError: If the dataset is not in ArrayRecord form, a feature is of an unknown type,
                a file is broken, a split must be chosen, or the chosen one has no files, since it has
                no records.
            ConversionError: If tfds has not finished the dataset.
            ReadError: If a store cannot be read.
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
        self.is_remote_source = self._records.is_remote_source
        """Whether a file is read over a network."""
        # So that a missing decoder, or a feature without a column, is an error here.
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
        """The facts in the small files of the dataset: name, config, version, splits."""
        return self._folder

    @property
    def splits(self) -> dict[str, int]:
        """Number of examples of each split of the dataset."""
        return {name: split.records for name, split in self._folder.splits.items()}

    @property
    def split(self) -> Split:
        """The split, or the part of splits, that this source reads."""
        return self._split

    @property
    def features(self) -> TfdsFeatures:
        """The features of an example."""
        return self._features

    def class_names(self, name: str) -> tuple[str, ...] | None:
        """Names of the classes of a feature, by label; None if the dataset has none.

        Raises:
            ArgumentError: If no feature has that name. Inner names are such as "objects/label".
        """
        return self._features.class_names(name)

    @property
    def fingerprint(self) -> str:
        """Name, config and version, a hash of features and classes, and the records' fingerprint."""
        classes = {leaf.name: leaf.names for leaf in self._features.leaves if leaf.names}
        declared = json.dumps([self._folder.features_json, self._names, classes], sort_keys=True)
        digest = hashlib.sha256(declared.encode()).hexdigest()[:16]
        images = ", images decoded" if self._images else ""
        return (
            f"tfds({self._folder.full_name}, features sha256:{digest}{images},"
            f" {self._records.fingerprint})"
        )

    @property
    def spec(self) -> Any:
        """An `ArraySpec`, or the type of its values, for each feature."""
        return self._features.spec(self._images)

    @property
    def parts(self) -> tuple[RecordGroups]:
        """One part: all the files, in record groups."""
        return self._records.parts

    def blocks(self) -> IntArray:
        """Bounds of the record groups: 0, ..., length."""
        return self._records.blocks()

    def stats(self) -> dict[str, Any]:
        """Network requests so far, as `ArrayRecordDataSource` counts them."""
        return self._records.stats()

    @property
    def remote_stats(self) -> RemoteStats:
        """The counts of network requests."""
        return self._records.remote_stats

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        """Decodes the records in the part's column.

        Raises:
            ReadError: If a record cannot be decoded; the message names file and record.
        """
        try:
            return decode_records(columns[0], self._features, images=self._images)
        except ReadError as error:
            raise self._damage(error, indices) from error

    def read(self, indices: IntArray) -> Columns:
        """Reads the examples at `indices`, in that order, as nested dicts of columns.

        Raises:
            ReadError: If a record is damaged or cannot be decoded, or its file changed; the
                message names both.
        """
        wanted = checked_indices(indices, len(self), WHAT)
        return self.assembled([self._records.read(wanted)], wanted)

    def _damage(self, error: ReadError, indices: IntArray) -> ReadError:
        """The error of one of the records at `indices`, with its file and its place there."""
        if error.records is None:
            return error
        index = int(indices[error.records[0]])
        ends = np.cumsum([one.take for one in self._instructions])
        one = self._instructions[at := int(np.searchsorted(ends, index, side="right"))]
        file = self._records.files[at].shown
        position = index - int(ends[at]) + one.take + one.skip
        why = error.why or str(error)
        return ReadError(
            f"{WHAT}: record {position} of {file}, record {index} of this source, cannot be"
            f" decoded: {why}. The file does not match {FEATURES}: build or copy the dataset again,"
            " or leave the record out by a split of two parts, such as"
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
