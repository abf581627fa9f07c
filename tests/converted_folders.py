"""Folders as conversions leave them: files, and the manifest that lists them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import zarr
import zarr.codecs

from tests.array_record_bytes import write
from windrow.converters.job.folder import output_file
from windrow.converters.job.manifest import MANIFEST_NAME, UNFINISHED, InputFile, Manifest

RECORDS = 60


def manifest_for(folder: Path, format: str, counts: dict[str, int]) -> Manifest:
    """The manifest of all files that lie in a folder, written into it.

    Args:
        folder: Where they are.
        format: What they are.
        counts: Records of those files that hold any.
    """
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    files = [output_file(str(folder / n), n, records=counts.get(n, 0)) for n in names]
    manifest = Manifest(format, (InputFile("input", 1, RECORDS),), {}, tuple(files))
    write_manifest(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it, or one in its place."""
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest.to_json()))


def record_folder(folder: Path, *, files: int = 3) -> Manifest:
    """A folder of ArrayRecord files with 60 records, `files` of them."""
    random = np.random.default_rng(files)
    names = [f"data.array_record-{number:05}-of-{files:05}" for number in range(files)]
    counts = dict.fromkeys(names, RECORDS // files)
    for name, count in counts.items():
        write(folder / name, (random.bytes(40) for _ in range(count)), "group_size:1,zstd:3")
    return manifest_for(folder, "array_record", counts)


def zarr_folder(folder: Path) -> Manifest:
    """A group of two arrays of 60 rows, one in shards, and a ragged one of another length."""
    group = zarr.create_group(str(folder))
    random = np.random.default_rng(0)
    for name, shape, chunks, shards in (
        ("image", (RECORDS, 4, 4), (2, 4, 4), (20, 4, 4)),
        ("label", (RECORDS,), (20,), None),
        ("words/values", (137,), (50,), None),
    ):
        array = group.create_array(
            name,
            shape=shape,
            dtype="int32",
            chunks=chunks,
            shards=shards,
            compressors=zarr.codecs.ZstdCodec(level=1, checksum=True),
        )
        array[...] = random.integers(1, 2**31, shape, dtype=np.int32)
    return manifest_for(folder, "zarr", {})


def unfinished(folder: Path, resume: str) -> None:
    """Leave the marker of a conversion that was killed in a folder."""
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    (folder / UNFINISHED).write_text(json.dumps({"note": "", "resume": resume}))


def flip(file: Path, place: int = -1) -> None:
    """Change a bit of a file: of its byte `place`, or of one in the middle."""
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2 if place < 0 else place] ^= 4
    file.write_bytes(stored)
