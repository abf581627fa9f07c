"""The files a conversion reads: a path, a glob or a list of them, found and measured.

Invariant: every file named exists, none comes twice, and their order is that of the list given,
sorted by name within one glob: the order of the records of the output.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

import fsspec
from fsspec.core import url_to_fs

from windrow.errors import ArgumentError, ConversionError, NotFoundError, ReadError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_MAGIC = frozenset("*?[")


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """One file to convert: where it is, its name without folders, and its size."""

    url: str
    name: str
    size_bytes: int


def find_inputs(paths: Paths) -> tuple[Input, ...]:
    """The files that `paths` names.

    Raises:
        ArgumentError: If a path is not a path.
        NotFoundError: If a path or a glob names nothing.
        ReadError: If the files cannot be listed.
        ConversionError: If a path is a folder, a file comes twice, or fsspec lacks a package.
    """
    patterns = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not patterns:
        raise NotFoundError("inputs is an empty list; name at least one file")
    inputs: list[Input] = []
    for pattern in patterns:
        if not isinstance(pattern, str | os.PathLike):
            raise ArgumentError(
                f"inputs: {pattern!r} is {type(pattern).__name__}; give paths, globs or URLs as str"
            )
        inputs += _matches(os.fspath(pattern))
    seen: set[str] = set()
    for found in inputs:
        if found.url in seen:
            raise ConversionError(f"inputs: {found.url} comes twice; name each file once")
        seen.add(found.url)
    return tuple(inputs)


def _matches(pattern: str) -> list[Input]:
    try:
        fs, path = url_to_fs(pattern)
        # A file may have a bracket in its name, so that a name that exists is never a glob.
        if not _MAGIC & set(path) or fs.exists(path):
            listed = {path: fs.info(path)}
        else:
            listed = fs.glob(path, detail=True)
    except FileNotFoundError as error:
        raise NotFoundError(f"inputs: {pattern} does not exist; check the path") from error
    except (ImportError, ValueError) as error:
        raise ConversionError(f"inputs: {pattern} cannot be opened: {error}") from error
    except OSError as error:
        raise ReadError(f"inputs: {pattern} cannot be listed: {error}") from error
    files = sorted((name, info) for name, info in listed.items() if info["type"] != "directory")
    if not files and listed:
        raise ConversionError(
            f"inputs: {pattern} is a folder; name its files: {pattern}/*.tfrecord*"
        )
    if not files:
        raise NotFoundError(f"inputs: {pattern} matches no file; check the pattern")
    return [_measured(fs, name, info) for name, info in files]


def _measured(fs: Any, path: str, info: dict[str, Any]) -> Input:
    local = isinstance(fs, fsspec.get_filesystem_class("file"))
    url = path if local else fs.unstrip_protocol(path)
    size = info.get("size")
    if size is None:
        raise ReadError(f"inputs: {url} does not tell its size; copy it to a disk first")
    return Input(url, path.rsplit("/", 1)[-1], size)
