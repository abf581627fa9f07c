"""The parsers of the native core, on the corpus of their fuzz targets and on damage to it."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools.build_native import CRATE
from windrow.core import native

core: Any = native.native()
FUZZ = CRATE / "fuzz"
pytestmark = [
    pytest.mark.skipif(core is None, reason="there is no native core"),
    pytest.mark.skipif(not FUZZ.is_dir(), reason="an sdist has no corpus"),
]
PARSERS = core.PARSERS if core else []


def corpus(name: str) -> list[Path]:
    return sorted((FUZZ / "corpus" / name).iterdir())


def damaged(data: bytes, draw: random.Random) -> bytes:
    """The bytes with some of them changed, put in, taken out or repeated."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(found) + 1)
        size = draw.choice((1, 1, 2, 8, 40))
        way = draw.randrange(4)
        if way == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif way == 1:
            found[at : at + size] = draw.choice((draw.randbytes(size), b"\xff" * size, bytes(size)))
        elif way == 2:
            del found[at : at + size]
        else:
            found[at:at] = found[at : at + size]
    return bytes(found)


@pytest.mark.parametrize("name", PARSERS)
def test_the_corpus_is_replayed(name: str) -> None:
    for file in corpus(name):
        core.parse_for_test(name, file.read_bytes())


@pytest.mark.parametrize("name", PARSERS)
def test_damage_to_the_corpus_neither_ends_the_process_nor_panics(name: str) -> None:
    draw = random.Random(7)
    files = [file.read_bytes() for file in corpus(name)]
    for _ in range(3_000):
        data = damaged(draw.choice(files), draw)
        try:
            core.parse_for_test(name, data)
        except RuntimeError as error:
            pytest.fail(f"{error}: {data.hex()}")


def test_each_parser_has_a_fuzz_target_and_a_small_corpus() -> None:
    targets = tomllib.loads((FUZZ / "Cargo.toml").read_text())["bin"]
    assert [target["name"] for target in targets] == PARSERS
    for name in PARSERS:
        assert f'parse("{name}", data)' in (FUZZ / "targets" / f"{name}.rs").read_text()
        assert 0 < sum(file.stat().st_size for file in corpus(name)) < 2**16
    with pytest.raises(ValueError, match='no parser "other"'):
        core.parse_for_test("other", b"")
