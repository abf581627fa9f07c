"""Writes the ERA5 field of the examples, `examples/data/era5_uk_t2m_2019_03.zarr`.

    python -m tools.write_era5 era5_uk_t2m_2019_03.nc

The file is that of the repository pydata/xarray-data as NetCDF; to read it xarray needs h5netcdf and
h5py. The store is Zarr v3 as xarray writes it: a chunk per day, all days in one shard, and the
coordinates beside them. No value is changed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import xarray
from zarr.codecs import BloscCodec

STORE = Path(__file__).resolve().parent.parent / "examples/data/era5_uk_t2m_2019_03.zarr"
CHUNK_HOURS = 24


def write(field: xarray.Dataset, store: Path) -> None:
    """Write a dataset with `t2m` `(time, latitude, longitude)`; what was at `store` is replaced."""
    for variable in field.variables.values():
        variable.encoding = {}  # that of the NetCDF file
    hours, *area = field["t2m"].shape
    # Shuffled bytes: the exponents of a smooth field are alike, the last bits of its values not.
    blosc = BloscCodec(cname="zstd", clevel=9, shuffle="shuffle")
    as_stored = {
        "chunks": (CHUNK_HOURS, *area),
        "shards": (hours, *area),
        "compressors": [blosc],
    }
    shutil.rmtree(store, ignore_errors=True)
    field.to_zarr(
        store,
        zarr_format=3,
        consolidated=False,  # four arrays in a folder
        encoding={"t2m": as_stored, "time": {"units": "hours since 2019-03-01"}},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Write the store and say how large it is."""
    parser = argparse.ArgumentParser(prog="write_era5", description="Write the ERA5 example data.")
    parser.add_argument("netcdf", type=Path, help="era5_uk_t2m_2019_03.nc")
    parser.add_argument("--store", type=Path, default=STORE, help="folder to write")
    args = parser.parse_args(argv)
    field = xarray.load_dataset(args.netcdf)
    write(field, args.store)
    if not xarray.open_zarr(args.store, consolidated=False).identical(field):
        print(f"write_era5: {args.store} is not what {args.netcdf} holds", file=sys.stderr)
        return 1
    sizes = [path.stat().st_size for path in args.store.rglob("*") if path.is_file()]
    print(f"wrote {args.store}: {len(sizes)} files, {sum(sizes):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
