"""Datasets of tfds with Zarr alongside their record files: `AlsoZarr`, for one's own builder.

tfds builds in a folder `incomplete...` until all is there, and then gives it its name by one rename.
The Zarr groups are written into that folder, so that records and arrays appear together.

Invariant: once `download_and_prepare` of a builder with `AlsoZarr` has returned, there is
`zarr/SPLIT` for every split that was asked for; if they cannot be written, the build fails, and
tfds removes the folder. All checks come before an earlier dataset is removed.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from windrow.converters.job.job import carry_out
from windrow.converters.job.manifest import Manifest
from windrow.converters.tfds.to_zarr import (
    FORMATS,
    Wanted,
    folder_conversion,
    read_split,
    tfds_to_zarr,
)
from windrow.converters.zarr.rows import Storage
from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError, ConversionError, MissingExtraError, NotFoundError
from windrow.sources.remote.paths import is_remote, refuse_unfinished
from windrow.sources.tfds.folder import TfdsFolder

__all__ = [
    "FOLDER",
    "TESTED",
    "AlsoZarr",
    "check_builder",
    "check_exported",
    "check_version",
    "export",
    "read_split",
    "tfds_to_zarr",
    "wanted_of",
]

# The code uses private names of tfds, which are known to fit in these versions only.
TESTED: Final = ("4.9.10",)
# The folder of the groups, in the folder of the dataset.
FOLDER: Final = "zarr"

# The second is the first, built every night.
_PACKAGES: Final = ("tensorflow-datasets", "tfds-nightly")
_STORAGE: Final = ("chunk_rows", "shard_rows", "codecs")
_SETTINGS: Final = tuple(name for name in tfds_to_zarr.settings if name != "storage_options")
# TensorFlow may be in the process, too.
_MEMORY_BYTES: Final = 344 << 20
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
        also_zarr: What `tfds_to_zarr` is given: `splits`, `names`, `images`, `chunk_rows`,
            `shard_rows`, `codecs`, `memory_bytes`.

    Raises:
        ArgumentError: Where a class comes before it, if `also_zarr` has other names, or if the
            dataset is to be built anywhere but on a local disk, or in a format that is not read.
        NotFoundError: If `also_zarr` names a feature or split that there is not. Splits are known
            when they are built, all else before.
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
            f" pip install 'windrow-data[tfds]', {_WAY}"
        )
    raise MissingExtraError(
        "building datasets needs tensorflow-datasets; pip install 'windrow-data[tfds]'"
    )


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
    """Refuse, before anything is built or removed, what could not be exported.

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
    formats = optional("tensorflow_datasets.core.file_adapters", "building datasets").FileFormat
    kind = formats.from_value(file_format or builder.info.file_format).value
    if kind not in FORMATS:
        raise ArgumentError(
            f"{name}: Zarr is written of {' and '.join(FORMATS)}, and file_format is {kind!r};"
            " build with file_format='array_record'"
        )
    wanted, features = wanted_of(_also_zarr(builder)), builder.info.features
    if features is not None:  # else tfds reports it
        to_dict = optional("google.protobuf.json_format", "building datasets").MessageToDict
        described = to_dict(features.to_proto())
        version = str(builder.version)
        wanted.arrays(TfdsFolder(where, builder.name, None, version, (kind,), {}, described, {}))


def export(builder: Any) -> None:
    """Write the Zarr groups of what a builder has built into its folder, which is not finished yet.

    Raises:
        WindrowError: As `tfds_to_zarr` raises it.
    """
    if not builder.info.splits:
        return  # it was asked for no examples
    folder = os.fspath(builder.data_dir)
    # tfds writes it again when all is done, with what is known then.
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
