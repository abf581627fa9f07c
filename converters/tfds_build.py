"""`tfds build` with Zarr beside the record files, for any builder, as it is.

tfds' own command reads its flags and makes the builders; each gets the export before it is used. And
tfds keeps the examples of a split, up to 1 GB, in memory until they are shuffled: here, files of
Windrow take them from 64 MB on.

Invariant: nothing of tfds is changed once `build` has returned.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from windrow.converters.tfds import FOLDER, check_builder, check_version, export
from windrow.errors import ArgumentError, ConversionError
from windrow.sources.extras import optional

FILE_FORMATS: Final = ("array_record", "tfrecord", "riegeli")

# What a split may have in memory before it is shuffled by files.
_HELD_BYTES: Final = 64 << 20
_WRITTEN_BYTES: Final = 32 << 10
_HEAD: Final = struct.Struct(">16sQ")


def build(arguments: Sequence[str], *, also_zarr: bool) -> None:
    """Do what `tfds build ARGUMENTS` does, with ArrayRecord as the default format.

    Args:
        arguments: Those of `tfds build`, as the command line has them.
        also_zarr: Whether Zarr is written, too.

    Raises:
        MissingExtraError: If tfds is not installed.
        ArgumentError: If the arguments do not go together.
        ConversionError: If tfds is of a version that was not tested, or Zarr cannot be written.
        SystemExit: If tfds does not know the arguments, or was asked for help.
    """
    check_version()
    purpose = "building datasets"
    tfds = optional("tensorflow_datasets", purpose)
    cli = optional("tensorflow_datasets.scripts.cli.build", purpose)
    utils = optional("tensorflow_datasets.scripts.cli.cli_utils", purpose)
    parse = utils.make_flags_parser(cli.Args, description="The flags of `tfds build`")
    args = parse(["windrow tfds-build", *_with_format(arguments)])
    if also_zarr:
        _check(args)
    kinds = tfds.core.visibility.DatasetType
    tfds.core.visibility.set_availables([kinds.TFDS_PUBLIC, kinds.COMMUNITY_PUBLIC])
    optional("absl.logging", purpose).set_verbosity(logging.INFO)
    with contextlib.ExitStack() as stack:
        if not _is_far(args):
            stack.enter_context(_shuffling_by_files())
        if also_zarr:
            prepare = functools.partial(_prepared, utils.download_and_prepare)
            stack.enter_context(_replaced(utils, "download_and_prepare", prepare))
        args.execute()


def _with_format(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a file format."""
    given = [text.partition("=")[0].replace("-", "_") for text in arguments]
    if "__file_format" in given:
        return list(arguments)
    return [*arguments, "--file_format=array_record"]


def _check(args: Any) -> None:
    """Refuse what can not be built with Zarr."""
    if args.generation.num_processes != 1 and multiprocessing.get_start_method() != "fork":
        raise ArgumentError("--num_processes does not go with --also zarr here; leave it out")
    if args.publishing.publish_dir is not None:
        raise ArgumentError(
            "--publish_dir does not go with --also zarr: tfds publishes files alone, and no folders;"
            " copy the folder of the dataset yourself"
        )
    if args.generation.download_only or args.generation.update_metadata_only:
        raise ArgumentError("--also zarr is for builds, and nothing is built here; leave it out")


def _is_far(args: Any) -> bool:
    return "://" in os.fspath(args.paths.data_dir or "")


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _prepared(prepare: Callable[..., None], builder: Any, **settings: Any) -> None:
    """Have a builder prepared, with Zarr."""
    check_builder(builder)
    folder = os.fspath(builder.data_dir)
    config = settings["download_config"]
    if os.path.exists(folder) and not (settings["overwrite"] or _overwrites(config)):
        _check_zarr(folder, "is there from an earlier build")
        return
    # What others have built has no Zarr.
    config.try_download_gcs = False
    builder._download_and_prepare = functools.partial(
        _download_and_prepare, builder, builder._download_and_prepare
    )
    try:
        prepare(builder=builder, **settings)
    finally:
        del builder._download_and_prepare
    if builder.info.splits:
        _check_zarr(folder, "was built")


def _overwrites(config: Any) -> bool:
    return bool(config.download_mode.overwrite_dataset)


def _check_zarr(folder: str, what: str) -> None:
    place = os.path.join(folder, FOLDER)
    if not os.path.isdir(place):
        raise ConversionError(
            f"{folder} {what}, without Zarr; build it anew with --overwrite, or write Zarr beside it:"
            f" windrow convert {folder} {place} --to zarr"
        )


def _download_and_prepare(
    builder: Any, inner: Callable[..., None], *args: Any, **settings: Any
) -> None:
    inner(*args, **settings)
    export(builder, getattr(builder, "also_zarr", {}))


# Shuffling: what tfds does with files of TensorFlow's, and so with TensorFlow in memory.


@contextlib.contextmanager
def _shuffling_by_files() -> Iterator[None]:
    shuffle = optional("tensorflow_datasets.core.shuffle", "building datasets")
    held = min(_HELD_BYTES, shuffle.MAX_MEM_BUFFER_SIZE)
    with (
        _replaced(shuffle, "MAX_MEM_BUFFER_SIZE", held),
        _replaced(shuffle, "_Bucket", Bucket),
    ):
        yield


class Bucket:
    """Examples of some keys, in a file; in the place of tfds' class of this name.

    It is not held open: a split has a thousand of them.
    """

    def __init__(self, path: os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._waiting = bytearray()
        self._length = self._size = 0

    def __len__(self) -> int:
        return self._length

    @property
    def size(self) -> int:
        """Bytes of the examples."""
        return self._size

    def add(self, key: int, data: bytes) -> None:
        """Add an example."""
        self._waiting += _HEAD.pack(key.to_bytes(16), len(data))
        self._waiting += data
        self._length += 1
        self._size += len(data)
        if len(self._waiting) >= _WRITTEN_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "ab") as file:
                file.write(self._waiting)
            self._waiting = bytearray()

    def read_values(self) -> Iterator[tuple[int, bytes]]:
        """All keys and examples, in the order in which they came."""
        self.flush()
        if not os.path.exists(self._path):
            return
        with open(self._path, "rb") as file:
            while head := file.read(_HEAD.size):
                key, size = _HEAD.unpack(head)
                yield int.from_bytes(key), file.read(size)

    def del_file(self) -> None:
        """Remove the file."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._path)
