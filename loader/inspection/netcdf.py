"""Describes a NetCDF file, with xarray if it is installed.

Invariant: no values are read. Without xarray, and for classic or remote files, only the format and the
size are described.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

from windrow.core.text import listing
from windrow.errors import ReadError, SourceError
from windrow.inspection.facts import ArrayFacts, Inspection
from windrow.sources.detection import Contents


def inspect_netcdf(contents: Contents, sizes: bool | None = None) -> Inspection:
    """Describe a NetCDF file.

    Raises:
        SourceError: If there are several files.
        NotFoundError: If the file does not exist.
        ReadError: If it cannot be opened.
    """
    place, (file, *others) = contents.location, contents.files
    if others:
        held = f"matches {len(contents.files)} NetCDF files"
        if contents.names is not None:
            names = listing([one.name for one in contents.files])
            held = f"holds {len(contents.files)} NetCDF files: {names}"
        raise SourceError(f"{place.caller}: {place.shown} {held}; inspect them one by one")
    size = file.size_bytes()
    classic = file.head(4).startswith(b"CDF")
    bare = Inspection(file.shown, "netcdf", "3" if classic else "4 (HDF5)", None, size, None)
    if classic or not file.is_local or not _installed():
        return bare
    import xarray

    try:
        with xarray.open_dataset(file.path, engine="h5netcdf", decode_cf=False) as data:
            coordinates = {*data.coords, *data.dims}
            arrays = tuple(
                _array(str(name), variable, name not in coordinates)
                for name, variable in data.variables.items()
            )
            attributes = {str(key): _plain(value) for key, value in data.attrs.items()}
    except ImportError:  # h5netcdf needs another package to read
        return bare
    except Exception as error:  # h5py may raise anything, depending on the file
        raise ReadError(
            f"{file.shown}: cannot be opened as NetCDF: {error}; write or copy it again"
        ) from error
    decoded = [array.decoded_bytes or 0 for array in arrays]
    return dataclasses.replace(
        bare, arrays=arrays, attributes=attributes, decoded_bytes=sum(decoded)
    )


def _installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("xarray", "h5netcdf"))


def _array(name: str, variable: Any, holds_records: bool) -> ArrayFacts:
    encoding = variable.encoding
    chunks = encoding.get("chunksizes")
    codecs = []
    if encoding.get("shuffle"):
        codecs.append("shuffle")
    if encoding.get("zlib"):
        codecs.append(f"zlib(level={encoding.get('complevel')})")
    elif encoding.get("compression"):
        codecs.append(str(encoding["compression"]))
    return ArrayFacts(
        name=name,
        shape=tuple(int(size) for size in variable.shape),
        dtype=str(variable.dtype),
        dims=tuple(str(dim) for dim in variable.dims),
        chunks=None if not chunks else tuple(int(size) for size in chunks),
        codecs=tuple(codecs),
        decoded_bytes=int(variable.nbytes),
        holds_records=holds_records,
        attributes={str(key): _plain(value) for key, value in variable.attrs.items()},
    )


def _plain(value: Any) -> Any:
    """Return the value of an attribute as JSON takes it."""
    return value.tolist() if hasattr(value, "tolist") else value
