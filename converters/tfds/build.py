"""`tfds build` with Zarr alongside the record files, for any unchanged builder.

tfds' own command reads its flags and makes the builders. Each builder is checked before an old
dataset is removed, and gets the export before it is used. tfds keeps the examples of a split, up to
1 GB, in memory until they are shuffled. Here, files of Windrow take them from 64 MB on.

Invariant: nothing of tfds is changed once `build` has returned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from windrow.converters.tfds.builder import (
    AlsoZarr,
    check_builder,
    check_exported,
    check_version,
    export,
)
from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError, ConversionError
from windrow.sources.remote.paths import is_remote

_PURPOSE: Final = "building datasets"
# The most bytes of a split in memory before it is shuffled by files.
_HELD_BYTES: Final = 64 << 20
_WRITTEN_BYTES: Final = 32 << 10
_HEAD: Final = struct.Struct(">16sQ")


def build(arguments: Sequence[str], *, also_zarr: bool, images: bool = False) -> None:
    """Do what `tfds build ARGUMENTS` does, with ArrayRecord as the default format.

    Args:
        arguments: The arguments of `tfds build`, as the command line has them.
        also_zarr: Whether Zarr is written, too.
        images: Whether images are decoded in Zarr, whatever the builder has as `also_zarr`.

    Raises:
        MissingExtraError: If tfds is not installed, or Pillow, and images are to be decoded.
        ArgumentError: If the arguments do not go together.
        ConversionError: If tfds is of a version that was not tested, Zarr cannot be written, or the
            dataset is there from an earlier build in another format, or without Zarr.
        SystemExit: If tfds does not know the arguments, or was asked for help.
        Exception: As tfds, or the code of a builder, raises it.
    """
    check_version()
    tfds = optional("tensorflow_datasets", _PURPOSE)
    cli = optional("tensorflow_datasets.scripts.cli.build", _PURPOSE)
    utils = optional("tensorflow_datasets.scripts.cli.cli_utils", _PURPOSE)
    parse = utils.make_flags_parser(cli.Args, description="The flags of `tfds build`")
    args = parse(["windrow tfds-build", *_with_format(arguments)])
    _check(args, also_zarr=also_zarr)
    kinds = tfds.core.visibility.DatasetType
    visible = (kinds.TFDS_PUBLIC, kinds.COMMUNITY_PUBLIC)
    with contextlib.ExitStack() as stack:
        stack.enter_context(tfds.core.visibility.set_availables_tmp(visible))
        stack.enter_context(_tfds_messages())
        if not is_remote(os.fspath(args.paths.data_dir)):
            stack.enter_context(_shuffling_by_files())
        asked = _BuildRequest(args.generation.file_format, also_zarr, images)
        make = functools.partial(_made, cli._make_builder, asked)
        stack.enter_context(_replaced(cli, "_make_builder", make))
        prepare = functools.partial(_prepared, utils.download_and_prepare, asked)
        stack.enter_context(_replaced(utils, "download_and_prepare", prepare))
        args.execute()


@dataclasses.dataclass(frozen=True, slots=True)
class _BuildRequest:
    """What to build: the file format, whether also Zarr, and whether with decoded images."""

    file_format: str
    also_zarr: bool
    images: bool


def _with_format(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, with a file format."""
    given = [text.partition("=")[0].replace("-", "_") for text in arguments]
    if "__file_format" in given:
        return list(arguments)
    return [*arguments, "--file_format=array_record"]


def _check(args: Any, *, also_zarr: bool) -> None:
    """Refuse what cannot be built, or not with Zarr."""
    if args.generation.file_format == "parquet":
        raise ArgumentError(
            "--file_format=parquet: the parquet files of tfds lack most of the records; write"
            " array_record"
        )
    if args.generation.num_processes != 1 and multiprocessing.get_start_method() != "fork":
        raise ArgumentError(
            f"--num_processes: processes are started by {multiprocessing.get_start_method()!r} here,"
            " and tfds would not pass them the format; leave it out, and build several datasets with"
            " several commands"
        )
    if not also_zarr:
        return
    if args.publishing.publish_dir is not None:
        raise ArgumentError(
            "--publish_dir does not go with --also zarr: tfds publishes files alone, and no folders;"
            " copy the folder of the dataset yourself"
        )
    if args.generation.download_only or args.generation.update_metadata_only:
        raise ArgumentError("--also zarr is for builds, and nothing is built here; leave it out")


@contextlib.contextmanager
def _tfds_messages() -> Iterator[None]:
    """Show the messages of tfds about its work."""
    log = optional("absl.logging", _PURPOSE)
    before = log.get_verbosity()
    log.set_verbosity(log.INFO)
    try:
        yield
    finally:
        log.set_verbosity(before)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _made(
    make: Callable[..., Any],
    asked: _BuildRequest,
    builder_cls: Callable[..., Any],
    overwrite: bool,
    fail_if_exists: bool,
    *,
    file_format: str,
    **settings: Any,
) -> Any:
    """Return a builder as tfds makes it; an old dataset is removed after the last check."""
    # Without a format, since tfds refuses one that differs from the format of the files.
    there = builder_cls(**settings)
    if asked.also_zarr:
        _set_images(there, asked)
        check_builder(there, file_format)
    if there.is_prepared() and not fail_if_exists:
        folder, found = os.fspath(there.data_dir), there.info.file_format.value
        if overwrite:
            there.data_path.rmtree()
        elif found != file_format:
            raise ConversionError(
                f"{folder} is there from an earlier build, in format {found}, and {file_format} is"
                f" asked for; build it anew with --overwrite, take it with --file_format={found}, or"
                f" convert it: windrow convert {folder} DST --to zarr"
            )
    return make(builder_cls, overwrite, fail_if_exists, file_format=file_format, **settings)


def _set_images(builder: Any, asked: _BuildRequest) -> None:
    if asked.images:
        builder.also_zarr = {**getattr(builder, "also_zarr", {}), "images": True}


def _prepared(
    prepare: Callable[..., None], asked: _BuildRequest, builder: Any, **settings: Any
) -> None:
    """Prepare a builder's dataset."""
    if builder.info.file_format.value != asked.file_format and not builder.is_prepared():
        # tfds forgets it of builders that it sends to other processes.
        builder.info.set_file_format(asked.file_format, override=True)
    if not asked.also_zarr:
        prepare(builder=builder, **settings)
        return
    _set_images(builder, asked)
    if isinstance(builder, AlsoZarr):  # which sees to it
        prepare(builder=builder, **settings)
        return
    # Datasets that others have built have no Zarr.
    settings["download_config"].try_download_gcs = False
    builder._download_and_prepare = functools.partial(
        _download_and_prepare, builder, builder._download_and_prepare
    )
    try:
        prepare(builder=builder, **settings)
    finally:
        del builder._download_and_prepare
    check_exported(builder)


def _download_and_prepare(
    builder: Any, inner: Callable[..., None], *args: Any, **settings: Any
) -> None:
    inner(*args, **settings)
    export(builder)


# Shuffling: what tfds does with files of TensorFlow's, and so with TensorFlow in memory.


@contextlib.contextmanager
def _shuffling_by_files() -> Iterator[None]:
    shuffle = optional("tensorflow_datasets.core.shuffle", _PURPOSE)
    held = min(_HELD_BYTES, shuffle.MAX_MEM_BUFFER_SIZE)
    with (
        _replaced(shuffle, "MAX_MEM_BUFFER_SIZE", held),
        _replaced(shuffle, "_Bucket", Bucket),
    ):
        yield


class Bucket:
    """Examples of some keys, in a file; replaces tfds' class of this name.

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
