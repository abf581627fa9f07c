"""Texts, a tokenizer that is trained on them, and files of them in every form that is converted."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zstandard
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

END = "<|endoftext|>"
TEXTS = [
    "a row of cut grain",
    "",
    "laid out to be gathered \u00e4\u20ac",
    "grain " * 40,
    "a\nrow",
    " ",
]


def texts(count: int) -> list[str]:
    """So many texts, all different but for the empty ones."""
    return [f"{TEXTS[at % 6]}{at if at % 6 != 1 else ''}" for at in range(count)]


@functools.cache
def trained(vocabulary: int = 300) -> Any:
    """A tokenizer of bytes, which has a token for every text and pads and cuts off in its file."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def saved(path: Path, vocabulary: int = 300) -> str:
    """The file of the tokenizer; it says to pad, and to cut off, which is not to be done."""
    tokenizer = Tokenizer.from_str(trained(vocabulary).to_str())
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5)
    tokenizer.save(str(path))
    return str(path)


def tokens_of(found: Sequence[str], end: Sequence[int] = ()) -> list[list[int]]:
    """What the tokenizer makes of texts, one by one."""
    tokenizer = trained()
    return [[*tokenizer.encode(text, add_special_tokens=False).ids, *end] for text in found]


def lines_of(found: Sequence[str]) -> bytes:
    """Texts as JSON Lines."""
    return b"".join(
        json.dumps({"id": at, "text": text}).encode() + b"\n" for at, text in enumerate(found)
    )


def write_lines(path: Path, found: Sequence[str]) -> None:
    """Write texts as JSON Lines, compressed as the name says."""
    path.write_bytes(packed(path.name, lines_of(found)))


def packed(name: str, data: bytes) -> bytes:
    """Bytes as a file of that name has them."""
    if name.endswith(".gz"):
        return gzip.compress(data, mtime=0)
    if name.endswith(".zst"):
        return zstandard.ZstdCompressor(write_checksum=True).compress(data)
    return data


def ragged(output: Path, name: str = "tokens") -> list[Any]:
    """The rows of a ragged array, by zarr alone."""
    group: Any = zarr.open_group(str(output), mode="r")
    assert name in group.attrs["windrow_ragged"]
    values, offsets = group[f"{name}/values"][:], group[f"{name}/offsets"][:]
    assert offsets[0] == 0
    assert offsets[-1] == len(values)
    assert offsets.dtype == np.int64
    return [values[begin:end] for begin, end in itertools.pairwise(offsets)]


def rows_of(output: Path, name: str = "tokens") -> list[list[int]]:
    """The same as lists."""
    return [row.tolist() for row in ragged(output, name)]


def texts_in(output: Path, name: str = "text") -> list[str]:
    """The texts of a ragged array of bytes."""
    return [row.tobytes().decode() for row in ragged(output, name)]
