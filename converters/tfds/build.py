"""Datasets of tfds with Zarr alongside their record files: `AlsoZarr`, and `tfds build` with it.

tfds builds in a folder `incomplete...`, and at the end gives it its name by one rename.
The Zarr groups are written into that folder, so that records and arrays appear together. For one's
own builder there is the mixin `AlsoZarr`. For any unchanged builder there is `build`: tfds' own
command reads its flags and makes the builders. Each builder is checked before an old dataset is
removed, and gets the export before it is used. tfds keeps the examples of a split, up to 1 GB, in
memory until they are shuffled; here, files of Windrow take them from 64 MB on.

Invariants: once a build with Zarr has returned, there is `zarr/SPLIT` for every split that was asked
for; if they cannot be written, the build fails, and tfds removes the folder. Nothing of tfds is
changed once `build` has returned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import multiprocessing
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from windrow.converters.job.job import carry_out
from windrow.converters.job.manifest import Manifest
from windrow.converters.tfds.conversions import (
    FORMATS,
    Wanted,
    folder_conversion,
    tfds_to_zarr,
)
from windrow.converters.zarr.rows import Storage
from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError, ConversionError, NotFoundError, missing_extra
from windrow.sources.remote.paths import is_remote, refuse_unfinished
from windrow.sources.tfds.folder import TfdsFolder

# The code uses private names of tfds, which are known to fit in these versions only.
TESTED: Final = ("4.9.10",)
# The folder of the groups, in the folder of the dataset.
FOLDER: Final = "zarr"

# The second is the first, built every night.
_PACKAGES: Final = ("tensorflow-datasets", "tfds-nightly")
_STORAGE: Final = ("chunk_rows", "shard_rows", "codecs")
_SETTINGS: Final = (*tfds_to_zarr.settings, "memory_bytes")
# TensorFlow may be in the process, too.
_MEMORY_BYTES: Final = 344 << 20
_PURPOSE: Final = "building datasets"
# The most bytes of a split in memory before it is shuffled by files.
_HELD_BYTES: Final = 64 << 20
_WRITTEN_BYTES: Final = 32 << 10
_HEAD: Final = struct.Struct(">16sQ")
_WAY: Final = (
    "or build without it, and convert then: windrow convert DATASET_FOLDER DST --to zarr, which needs"
    " no tfds"
)


class AlsoZarr:
    """Mixed into a builder of tfds, so that its dataset has Zarr alongside its record files.

    It comes before the builder's class. Splits become the groups `zarr/train`, `zarr/test`, ... of
    the dataset's folder, as `tfds_to_zarr` writes them. Builders with configs and Beam builders work
    in the same way. A dataset that is hosted ready-made is built all the same, since the hosted one
    has no Zarr. A builder fails with a version of tfds that is not in `TESTED`.

    Attributes:
        also_zarr: Arguments of `tfds_to_zarr`: `splits`, `names`, `images`, `chunk_rows`,
            `shard_rows`, `codecs`, `memory_bytes`.

    Raises:
        ArgumentError: Where a class comes before it, if `also_zarr` has other names, or if the
            dataset is to be built anywhere but on a local disk, or in a format that is not read.
        NotFoundError: If `also_zarr` names a feature or split that does not exist. Splits are
            checked after they are built, features before.
        SourceError: If a feature has no mapping to arrays.
        ConversionError: If tfds is of a version that was not tested, Zarr cannot be written, or the
            dataset is there from an earlier build without it.
        MissingExtraError: If images are to be decoded, and Pillow is not installed.

    Example:
        >>> import tensorflow_datasets as tfds  # doctest: +SKIP
        >>> class Digits(AlsoZarr, tfds.core.GeneratorBasedBuilder):  # doctest: +SKIP
        ...     also_zarr = {"images": True}
    """

    also_zarr: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        for base in cls.__mro__[: cls.__mro__.index(AlsoZarr)]:
            if base.__module__.startswith("tensorflow_datasets."):
                raise ArgumentError(
                    f"class {cls.__qualname__}: AlsoZarr comes after {base.__qualname__}, and would do"
                    f" nothing there; write class {cls.__name__}(AlsoZarr, {base.__name__})"
                )
        wanted_of(cls.also_zarr)

    def download_and_prepare(
        self, *, download_config: Any = None, file_format: Any = None, **settings: Any
    ) -> None:
        """Prepare the dataset as tfds does; all groups asked for are there when it returns."""
        tfds = optional("tensorflow_datasets", "building datasets")
        config = download_config or tfds.download.DownloadConfig()
        # Datasets that others have built have no Zarr.
        config = dataclasses.replace(config, try_download_gcs=False)
        if config.download_mode.overwrite_dataset or not self.is_prepared():  # type: ignore[attr-defined]
            check_builder(self, file_format)
        super().download_and_prepare(  # type: ignore[misc]
            download_config=config, file_format=file_format, **settings
        )
        check_exported(self)

    def _download_and_prepare(self, *args: Any, **settings: Any) -> None:
        super()._download_and_prepare(*args, **settings)  # type: ignore[misc]
        export(self)


def check_version() -> None:
    """Refuse a tfds that was not tested.

    Raises:
        MissingExtraError: If tfds is not installed.
        ConversionError: If it is of another version.
    """
    for package in _PACKAGES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if package == _PACKAGES[0] and version in TESTED:
            return
        raise ConversionError(
            f"{package} {version} is installed, and writing Zarr within its build was tested with"
            f" {_PACKAGES[0]} {', '.join(TESTED)} alone, since it uses names that are private to tfds;"
            f" pip install {_PACKAGES[0]}=={TESTED[-1]}, {_WAY}"
        )
    raise missing_extra("building a dataset", "tfds")


def wanted_of(settings: Mapping[str, Any]) -> Wanted:
    """Return the request in `also_zarr`.

    Raises:
        ArgumentError: If it has names of its own, or values of the wrong kind.
    """
    if not isinstance(settings, Mapping):
        raise ArgumentError(f"also_zarr is a dict of {', '.join(_SETTINGS)}, got {settings!r:.80}")
    unknown = [name for name in settings if name not in _SETTINGS]
    if unknown:
        raise ArgumentError(f"also_zarr: {unknown[0]!r} is not one of {', '.join(_SETTINGS)}")
    given = {"memory_bytes": _MEMORY_BYTES, **settings}
    storage = Storage(**{name: given.pop(name) for name in _STORAGE if name in given})
    return Wanted(storage=storage, **given)


def check_builder(builder: Any, file_format: Any = None) -> None:
    """Refuse a dataset that could not be exported, before anything is built or removed.

    Args:
        builder: A builder; its `also_zarr` is the request.
        file_format: The format that it is going to build; None for its own.

    Raises:
        WindrowError: As described in `AlsoZarr`.
    """
    check_version()
    name = type(builder).__qualname__
    where = os.fspath(builder.data_dir)
    if is_remote(where):
        raise ArgumentError(
            f"{name}: Zarr is written into a dataset on a local disk, and data_dir is {where}; build"
            f" it on a disk and copy it, {_WAY}"
        )
    formats = optional("tensorflow_datasets.core.file_adapters", _PURPOSE).FileFormat
    kind = formats.from_value(file_format or builder.info.file_format).value
    if kind not in FORMATS:
        raise ArgumentError(
            f"{name}: Zarr is written of {' and '.join(FORMATS)}, and file_format is {kind!r};"
            " build with file_format='array_record'"
        )
    wanted, features = wanted_of(_also_zarr(builder)), builder.info.features
    if features is not None:  # else tfds reports it
        to_dict = optional("google.protobuf.json_format", _PURPOSE).MessageToDict
        described = to_dict(features.to_proto())
        version = str(builder.version)
        wanted.arrays(TfdsFolder(where, builder.name, None, version, (kind,), {}, described, {}))


def export(builder: Any) -> None:
    """Write the Zarr groups of a built dataset into its folder, which is not finished yet.

    Raises:
        WindrowError: As `tfds_to_zarr` raises it.
    """
    if not builder.info.splits:
        return  # it was asked for no examples
    folder = os.fspath(builder.data_dir)
    # tfds writes it again at the end, with all facts.
    builder.info.write_to_directory(folder)
    found = TfdsFolder.being_built(folder, what="also_zarr")
    conversion = folder_conversion(found, wanted_of(_also_zarr(builder)))
    carry_out(conversion, os.path.join(folder, FOLDER))


def check_exported(builder: Any) -> None:
    """Check that a dataset on a local disk has the groups that were asked for.

    Raises:
        ConversionError: If one is missing: it was built without, or their writing has not finished.
        ReadError: If their metadata are damaged.
    """
    folder = os.fspath(builder.data_dir)
    if is_remote(folder):
        return  # it was copied there, as it was
    place = os.path.join(folder, FOLDER)
    refuse_unfinished(place, what="also_zarr")
    try:
        there = Manifest.read(place).settings.get("splits", {})
    except NotFoundError:
        there = {}
    wanted = wanted_of(_also_zarr(builder)).splits
    missing = [split for split in wanted or builder.info.splits if split not in there]
    if missing and builder.info.splits:
        raise ConversionError(
            f"{folder} is there, without Zarr of {', '.join(missing)}; build it anew (--overwrite, or"
            " download_mode=REUSE_CACHE_IF_EXISTS), or write Zarr alongside: windrow convert"
            f" {folder} {place} --to zarr"
        )


def _also_zarr(builder: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(builder, "also_zarr", {})
    return found


# `tfds build` for any builder.


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
    """The build to do: the file format, whether also Zarr, and whether with decoded images."""

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
    """Refuse arguments that cannot be built, or not with Zarr."""
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


# Shuffling. tfds does it with TensorFlow's files, and so with TensorFlow in memory.


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

    It is not kept open, since a split has a thousand of these files.
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
        """Write the waiting examples."""
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
