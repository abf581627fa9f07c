"""Tokenizers: a `tokenizer.json` of Hugging Face's `tokenizers`, and what it makes of documents.

The content of the file is the tokenizer, wherever it lies: it travels with the work to other
processes and machines, and its hash is a setting of the plan.

Invariants: equal files and documents give equal tokens. A document becomes all of its tokens: the file's own
settings for cutting documents off and for padding them are not used.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.converters.records.tfrecord import open_to_read
from windrow.core.optional_imports import optional
from windrow.core.redaction import shown_url
from windrow.errors import ArgumentError, ConversionError, ReadError
from windrow.sources.tf_example.features import Feature, Ragged, offsets_of

EXTRA: Final = "tokenizers"
# Characters that are tokenised together: a token takes some 100 bytes while it is in a batch.
_BATCH_CHARACTERS: Final = 1 << 18
_BATCH_TEXTS: Final = 1 << 10
_NEAR: Final = 3
_LARGEST_FILE_BYTES: Final = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class Tokens:
    """Makes tokens of documents. Picklable.

    Args:
        name: The name of the tokenizer's file, without folders.
        data: Its content.
        dtype: The smallest unsigned dtype that holds all ids.
        end: The id of the token that is added to the end of every document; None for no such token.
    """

    name: str
    data: bytes = dataclasses.field(repr=False)
    dtype: str
    end: int | None

    @property
    def feature(self) -> Feature:
        """The tokens of a document as a row of a column."""
        return Feature(self.dtype, (None,))

    def to_json(self) -> dict[str, Any]:
        """The settings of a plan: another tokenizer gives others, also under the same name."""
        return {"tokenizer": {"name": self.name, "sha256": self.sha256}, "end_token": self.end}

    @property
    def sha256(self) -> str:
        """The hash of the tokenizer."""
        return hashlib.sha256(self.data).hexdigest()

    def encode(self, texts: Sequence[str]) -> Ragged:
        """Return the tokens of documents.

        Raises:
            TokenizerError: If the tokenizer fails at one of the documents.
        """
        dtype = np.dtype(self.dtype)
        ends = [] if self.end is None else [self.end]
        values: list[npt.NDArray[Any]] = [np.zeros(0, dtype)]
        lengths: list[int] = []
        tokenizer = _loaded(self.data)
        for first, batch in _batches(texts):
            ids: list[int] = []
            for found in _encoded(tokenizer, first, batch):
                own = found.ids
                ids += own
                ids += ends
                lengths.append(len(own) + len(ends))
            values.append(np.array(ids, dtype))
        return Ragged(np.concatenate(values), offsets_of(np.array(lengths, np.int64)))


class TokenizerError(Exception):
    """The tokenizer failed at text number `at` of those given."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


def tokens_of(
    tokenizer: str | os.PathLike[str],
    end_token: str | int | None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Tokens:
    """Read a tokenizer, and find its end token.

    Args:
        tokenizer: A path or URL of a `tokenizer.json`.
        end_token: The name or the id of a token; None for no end token.
        storage_options: Settings of its file system, as in fsspec.

    Raises:
        NotFoundError: If there is no such file.
        ReadError: If it is not a tokenizer.
        ArgumentError: If it has no such token.
        MissingExtraError: If the package tokenizers is not installed.
    """
    if not isinstance(tokenizer, str | os.PathLike):
        raise ArgumentError(f"tokenizer is the path of a tokenizer.json, got {tokenizer!r:.80}")
    path = os.fspath(tokenizer)
    shown = shown_url(path)
    if os.path.isdir(path):
        raise ArgumentError(f"tokenizer: {shown} is a folder; name the file {shown}/tokenizer.json")
    with open_to_read(path, storage_options) as file:
        data: bytes = file.read(_LARGEST_FILE_BYTES)
    try:
        ids = _loaded(data).get_vocab(with_added_tokens=True)
    except ReadError as error:
        raise ReadError(f"tokenizer {shown}: {error}", file=shown, why=str(error)) from error
    if not ids:
        raise ReadError(
            f"tokenizer {shown}: has no tokens; train it, and save it again", file=shown
        )
    end = _end(shown, ids, end_token)
    name = shown.rstrip("/").rpartition("/")[2]
    return Tokens(name, data, np.min_scalar_type(max(ids.values())).name, end)


def refuse_no_tokens(tokens: Tokens, records: int, items: int) -> None:
    """Refuse the result of a tokenizer that gave `items` tokens for all of `records` documents.

    Raises:
        ConversionError: If it gave none, the end tokens not counted.
    """
    if records and items <= (0 if tokens.end is None else records):
        raise ConversionError(
            f"tokenizer {tokens.name}: gave no token for any of {records:,} documents; check that it is"
            " trained on such documents, and that field= names the text"
        )


def _end(shown: str, ids: Mapping[str, int], end_token: str | int | None) -> int | None:
    if end_token is None:
        return None
    if isinstance(end_token, int) and not isinstance(end_token, bool):
        if end_token in ids.values():
            return end_token
        raise ArgumentError(
            f"end_token={end_token}: tokenizer {shown} has no token of this id; its ids lie in"
            f" [{min(ids.values())}, {max(ids.values())}]"
        )
    if not isinstance(end_token, str):
        raise ArgumentError(f"end_token is the name or the id of a token, got {end_token!r:.80}")
    if end_token in ids:
        return ids[end_token]
    near = difflib.get_close_matches(end_token, ids, _NEAR, cutoff=0.4)
    hint = f"; near it are {', '.join(map(repr, near))}" if near else "; give its id"
    raise ArgumentError(f"end_token={end_token!r:.80}: tokenizer {shown} has no such token{hint}")


def _batches(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield documents that are tokenised together, and the number of the first of them."""
    first = size = 0
    for at, text in enumerate(texts):
        if at > first and (size + len(text) > _BATCH_CHARACTERS or at - first == _BATCH_TEXTS):
            yield first, texts[first:at]
            first, size = at, 0
        size += len(text)
    if first < len(texts):
        yield first, texts[first:]


def _encoded(tokenizer: Any, first: int, texts: Sequence[str]) -> Sequence[Any]:
    """Tokenise documents; the first one has the number `first`."""
    try:
        found: Sequence[Any] = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return found
    except Exception as error:  # the package raises bare exceptions
        for at, text in enumerate(texts):
            try:
                tokenizer.encode(text, add_special_tokens=False)
            except Exception as one:
                raise TokenizerError(first + at, str(one)) from one
        raise TokenizerError(first, str(error)) from error


_lock: Final = threading.Lock()


def _loaded(data: bytes) -> Any:
    """Return the tokenizer of a file's content, kept for later calls."""
    with _lock:  # so that threads that begin together do not load it several times
        return _tokenizer(data)


@functools.lru_cache(maxsize=4)
def _tokenizer(data: bytes) -> Any:
    """Load a tokenizer.

    Raises:
        ReadError: If the content is not a tokenizer.
    """
    package = optional("tokenizers", "tokenizer=", EXTRA)
    try:
        json.loads(data)  # else the package's error says less
        tokenizer = package.Tokenizer.from_str(data.decode())
    except Exception as error:  # the package raises bare exceptions
        raise ReadError(
            f"cannot be read as a tokenizer.json: {error}; save it again by Tokenizer.save"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
