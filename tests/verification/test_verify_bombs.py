"""Data that is made to fill the memory: it is refused in a process that has little of it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import zstandard

from tests.sources.array_record import test_sources_array_record_crafted as crafted

pytestmark = pytest.mark.jobs

# What is verified has a few KB; a bomb has at least twice the memory that the process may take.
GROWTH_BYTES = 256 * 2**20
BOMB_BYTES = 2**29
CHUNK = bytes(2**24)
VALUES = np.arange(1, 2049, dtype="i4").reshape(8, 256)

# Verifies the source that each line names, with little memory, and answers with a line.
PROGRAM = f"""
import json, resource, sys
import windrow
from windrow.sources import ArrayRecordDataSource, ZarrDataSource

def opened(kind, place):
    if kind == "records":
        return ArrayRecordDataSource(place)
    if kind == "n5":
        return ZarrDataSource({{"driver": "n5", "kvstore": "file://" + place + "/"}})
    return ZarrDataSource(place, direct=kind == "direct")

def used():
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale

def limit():
    if sys.platform == "linux":  # elsewhere only the peak of memory is checked
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + {GROWTH_BYTES}, -1))

first = None
for line in sys.stdin:
    case = json.loads(line)
    try:
        source = opened(**case)
        if first is None:  # all threads and libraries are there
            windrow.verify(source, progress=False)
            first = used()
            limit()
        report = windrow.verify(source, progress=False)
        answer = {{"bad": [bad.chunk for bad in report.bad], "why": [bad.error for bad in report.bad]}}
        last = report.bad[-1].stop_record if report.bad else 0
        few = range(last, min(last + 2, len(source))) if len(source) < 100 else ()
        answer["rest"] = [len(source[k]) for k in few]
        answer["missing"] = report.missing
    except windrow.WindrowError as error:
        answer = {{"refused": str(error)}}
    answer["grew"] = used() - first
    print(json.dumps(answer), flush=True)
"""


def verified(cases: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """What the program says of each case but the first, which is a sound store."""
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=lines, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(answers) == len(cases)
    assert answers[0]["bad"] == []
    for found in answers:
        assert found["grew"] < GROWTH_BYTES
    return answers[1:]


@functools.cache
def zeros(bits: int) -> bytes:
    """A stream of zlib that expands. Its checksum is not right: nothing may get that far."""
    packer = zlib.compressobj(1, zlib.DEFLATED, bits)
    head = packer.compress(CHUNK) + packer.flush(zlib.Z_FULL_FLUSH)
    # What follows a full flush refers to nothing before it, and so can be repeated.
    again = packer.compress(CHUNK) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + again * (BOMB_BYTES // len(CHUNK) - 1) + packer.flush()


@functools.cache
def zstd_zeros(*, sized: bool) -> bytes:
    """A frame of zstd that expands, with its size or without."""
    packer = zstandard.ZstdCompressor(level=1).compressobj(size=BOMB_BYTES if sized else -1)
    parts = [packer.compress(CHUNK) for _ in range(BOMB_BYTES // len(CHUNK))]
    return b"".join((*parts, packer.flush()))


def zstd_claim(size: int, *, whole: bool) -> bytes:
    """A frame of four bytes that declares `size`; `whole` asks for a window of that size too."""
    window = b"" if whole else b"\x00"
    head = bytes([0b11100000 if whole else 0b11000000]) + window + size.to_bytes(8, "little")
    return b"\x28\xb5\x2f\xfd" + head + (4 << 3 | 1).to_bytes(3, "little") + b"bomb"


def blosc_claim(size: int, block: int) -> bytes:
    numbers = b"".join(n.to_bytes(4, "little") for n in (size, block, 64))
    return bytes([2, 1, 0x21, 4]) + numbers + bytes(48)


V2_CODECS: dict[str, Any] = {
    "gzip": {"id": "gzip", "level": 1},
    "zlib": {"id": "zlib", "level": 1},
    "zstd": {"id": "zstd", "level": 1},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "raw": None,
}


def v2(folder: Path, codec: str) -> Path:
    """A store of chunks of one row each, in files `0.0`, `1.0` and so on."""
    meta = {"shape": [8, 256], "chunks": [2, 256], "dtype": "<i4", "compressor": V2_CODECS[codec]}
    spec = {"driver": "zarr", "kvstore": f"file://{folder}/", "metadata": meta}
    ts.open(spec, create=True).result().write(VALUES).result()
    return folder


def bombs() -> dict[str, tuple[str, bytes]]:
    """Codec and stored bytes of each bomb."""
    return {
        "gzip": ("gzip", zeros(31)),
        "zlib": ("zlib", zeros(15)),
        "zstd": ("zstd", zstd_zeros(sized=True)),
        "zstd, size unknown": ("zstd", zstd_zeros(sized=False)),
        "zstd, claim": ("zstd", zstd_claim(2**40, whole=False)),
        "zstd, claim of a window": ("zstd", zstd_claim(2**40, whole=True)),
        "zstd, claim of the right size and a large window": (
            *(
                "zstd",
                b"\x28\xb5\x2f\xfd\x80\xf8" + (2048).to_bytes(4, "little") + b"\x41\0\0bombbomb",
            ),
        ),
        "blosc, claim": ("blosc", blosc_claim(2**31 - 1, 2**31 - 1)),
        "blosc, claim of a block": ("blosc", blosc_claim(2048, 2**31 - 1)),
        "raw": ("raw", b"x" * 3000),
    }


@pytest.mark.parametrize("way", ["direct", "tensorstore"])
def test_chunks_that_expand_or_claim_to(tmp_path: Path, way: str) -> None:
    cases = [{"kind": way, "place": str(v2(tmp_path / "sound", "zstd"))}]
    for name, (codec, stored) in bombs().items():
        folder = v2(tmp_path / name, codec)
        (folder / "1.0").write_bytes(stored)
        cases.append({"kind": way, "place": str(folder)})
    # Far larger than a chunk can be, and not even on the disk.
    with (v2(tmp_path / "sparse", "zstd") / "1.0").open("r+b") as file:
        file.truncate(2**40)
    if way == "direct":
        cases.append({"kind": way, "place": str(tmp_path / "sparse")})
    for case, answer in zip(cases[1:], verified(cases), strict=True):
        assert answer["bad"] == [1], case
        assert answer["rest"] == [256, 256], case


def test_a_size_before_lz4(tmp_path: Path) -> None:
    meta = {"shape": [8, 256], "chunks": [2, 256], "dtype": "<i4", "zarr_format": 2, "order": "C"}
    more = {"compressor": {"id": "lz4", "acceleration": 1}, "fill_value": 0, "filters": None}
    folder = tmp_path / "lz4"
    folder.mkdir()
    (folder / ".zarray").write_text(json.dumps({**meta, **more}))
    (folder / "1.0").write_bytes((2**31 - 1).to_bytes(4, "little") + b"\x10bomb")
    sound = {"kind": "direct", "place": str(v2(tmp_path / "sound", "raw"))}
    (answer,) = verified([sound, {"kind": "direct", "place": str(folder)}])
    assert answer["bad"] == [1]
    assert answer["missing"] == 3


def compressed(size: int) -> bytes:
    """A chunk of one record that is as large as it says."""
    sizes, values = crafted.varint(size), crafted.varint(size) + zstd_zeros(sized=True)
    packed = crafted.varint(len(sizes)) + zstandard.compress(sizes)
    data = b"z" + crafted.varint(len(packed)) + packed + values
    return crafted.chunk(b"r", data, 1, size)


def record_bombs() -> dict[str, bytes]:
    """Chunks of one record, all with right checksums."""
    sizes, record = crafted.varint(4), b"bomb"
    absurd = 2**50
    small = b"\0" + crafted.varint(1) + sizes + record
    return {
        "decoded bytes": crafted.chunk(b"r", small, 1, absurd),
        "size of the record": crafted.chunk(
            b"r", b"\0" + crafted.varint(8) + crafted.varint(absurd) + record, 1, 4
        ),
        "size of the sizes": crafted.chunk(
            b"r", b"\0" + crafted.varint(absurd) + sizes + record, 1, 4
        ),
        "count": crafted.chunk(b"r", small, absurd, 4),
        "expands": compressed(BOMB_BYTES),
    }


def test_groups_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [[b"first"], [b"bomb"], [b"third"]]
    sound = crafted.craft(tmp_path / "sound.array_record", groups, group_size=1)
    cases = [{"kind": "records", "place": str(sound)}]
    plain = crafted.simple
    for name, bomb in record_bombs().items():
        with monkeypatch.context() as patched:
            patched.setattr(
                crafted, "simple", lambda r, bomb=bomb: bomb if r == [b"bomb"] else plain(r)
            )
            path = crafted.craft(tmp_path / f"{name}.array_record", groups, group_size=1)
        cases.append({"kind": "records", "place": str(path)})
    for case, answer in zip(cases[1:], verified(cases), strict=True):
        assert answer["bad"] == [1], case
        assert answer["rest"] == [5], case
