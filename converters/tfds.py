"""Datasets of tfds with Zarr beside their record files: `AlsoZarr`, for one's own builder.

What tfds builds lies in a folder `incomplete...` until all of it is there, and gets its name by one
rename. The Zarr groups are written into that folder, so that records and arrays appear together.

Invariant: a dataset that a builder with `AlsoZarr` has built has `zarr/SPLIT` for every split; if
they can not be written, the build fails, and tfds removes the folder.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from windrow.converters.job import carry_out
from windrow.converters.row_files import Storage
from windrow.converters.tfds_to_zarr import FORMATS, folder_conversion, read_split, tfds_to_zarr
from windrow.errors import ArgumentError, ConversionError, MissingExtraError
from windrow.sources.paths import is_remote
from windrow.sources.tfds_folder import TfdsFolder

__all__ = [
    "FOLDER",
    "TESTED",
    "AlsoZarr",
    "check_builder",
    "check_version",
    "export",
    "read_split",
    "tfds_to_zarr",
]

# Names of tfds that are its own are used: only of these versions it is known that they fit.
TESTED: Final = ("4.9.10",)
# Of the groups, in the folder of the dataset.
FOLDER: Final = "zarr"

# TensorFlow may be in the process, too.
_MEMORY_BYTES: Final = 400 << 20
_WAY: Final = (
    "or build without it, and convert then: windrow convert DATASET_FOLDER DST --to zarr, which needs"
    " no tfds"
)


class AlsoZarr:
    """Mixed into a builder of tfds, so that what it builds has Zarr beside its record files.

    It comes before the builder's class. Splits become the groups `zarr/train`, `zarr/test`, ... of
    the dataset's folder, as `tfds_to_zarr` writes them. Builders with configs and Beam builders are
    alike. A builder pins the versions of tfds: on another than those of `TESTED` it fails.

    Attributes:
        also_zarr: What `tfds_to_zarr` is given: `splits`, `names`, `images`, `chunk_rows`,
            `shard_rows`, `codecs`, `memory_bytes`.

    Raises:
        ArgumentError: Where a class comes before it, if `also_zarr` has other names, or if the
            dataset is to be built anywhere but on a local disk, or in a format that is not read.
        ConversionError: If tfds is of a version that was not tested, or Zarr cannot be written.

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

    def _download_and_prepare(self, *args: Any, **settings: Any) -> None:
        check_builder(self)
        super()._download_and_prepare(*args, **settings)  # type: ignore[misc]
        export(self, self.also_zarr)


def check_version() -> None:
    """Refuse a tfds that was not tested.

    Raises:
        MissingExtraError: If tfds is not installed.
        ConversionError: If it is of another version.
    """
    try:
        version = importlib.metadata.version("tensorflow-datasets")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError(
            "building datasets needs tensorflow-datasets; pip install 'windrow[tfds]'"
        ) from error
    if version not in TESTED:
        raise ConversionError(
            f"tensorflow-datasets {version} is installed, and writing Zarr within its build was tested"
            f" with {', '.join(TESTED)} alone, since it uses names that are private to tfds; pip"
            f" install 'windrow[tfds]', {_WAY}"
        )


def check_builder(builder: Any) -> None:
    """Refuse, before anything is built, what could not be exported.

    Raises:
        ArgumentError, ConversionError, MissingExtraError: As `AlsoZarr` tells.
    """
    check_version()
    name = type(builder).__qualname__
    where = os.fspath(builder.data_dir)
    if is_remote(where):
        raise ArgumentError(
            f"{name}: Zarr is written beside a dataset on a local disk, and data_dir is {where}; build"
            f" it on a disk and copy it, {_WAY}"
        )
    file_format = builder.info.file_format.value
    if file_format not in FORMATS:
        raise ArgumentError(
            f"{name}: Zarr is written of {' and '.join(FORMATS)}, and file_format is {file_format!r};"
            " build with file_format='array_record'"
        )


def export(builder: Any, settings: Mapping[str, Any]) -> None:
    """Write the Zarr groups of what a builder has built into its folder, which is not finished yet.

    Raises:
        WindrowError: As `tfds_to_zarr` raises it.
    """
    if not builder.info.splits:
        return  # it was asked for no examples
    folder = os.fspath(builder.data_dir)
    # tfds writes it again when all is done, with what is known then.
    builder.info.write_to_directory(folder)
    given: dict[str, Any] = {"splits": None, "names": None, "images": False}
    given |= {"chunk_rows": None, "shard_rows": None, "codecs": Storage().codecs}
    given |= {"memory_bytes": _MEMORY_BYTES}
    unknown = sorted(set(settings) - set(given))
    if unknown:
        raise ArgumentError(f"also_zarr: {unknown[0]!r} is none of {', '.join(given)}")
    given |= settings
    storage = Storage(*(given.pop(name) for name in ("chunk_rows", "shard_rows", "codecs")))
    found = TfdsFolder.being_built(folder, what="also_zarr")
    conversion = folder_conversion(found, storage=storage, **given)
    carry_out(conversion, os.path.join(folder, FOLDER))
