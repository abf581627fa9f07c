"""Paths: from what a user names to files on a local disk, and what is there when it names nothing.

Invariant: nothing here opens a file or reads a record; it looks at names only.
"""

from __future__ import annotations

import difflib
import os
import urllib.parse
from typing import Final

from windrow.errors import ArgumentError, ConversionError

UNFINISHED_MARKER: Final = "_WINDROW_UNFINISHED"
_SHOWN = 8


def is_remote(text: str) -> bool:
    """Whether `text` is a URL that is not a local path, `file://` being local."""
    return "://" in text and not text.startswith("file://")


def local_path(path: str | os.PathLike[str], *, what: str) -> str:
    """`path` as a plain absolute path; `file://` URLs and `~` are taken.

    Raises:
        ArgumentError: If the path is empty, of bytes, or a `file://` URL of another host.
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise ArgumentError(f"{what}: a path must be a text that is not empty, got {text!r}")
    if text.startswith("file://"):
        # Not urlsplit: it would take the ? of a glob for a query.
        host, slash, rest = text.removeprefix("file://").partition("/")
        if host not in ("", "localhost"):
            raise ArgumentError(
                f"{what}: {text!r} names the host {host!r}; write file:/// with three slashes for"
                " a file of this machine"
            )
        text = urllib.parse.unquote(slash + rest)
    return os.path.abspath(os.path.expanduser(text))


def what_is_there(path: str) -> str:
    """One sentence on the nearest folder above `path` that exists, for an error about `path`."""
    folder = os.path.dirname(path)
    while folder and not os.path.isdir(folder):
        up = os.path.dirname(folder)
        if up == folder:
            return "no folder above it exists"
        folder = up
    wanted = os.path.relpath(path, folder).split(os.sep)[0]
    names = _names(folder)
    close = difflib.get_close_matches(wanted, names, n=1)
    if close:
        return f"did you mean {os.path.join(folder, close[0])}?"
    return f"{folder} exists and holds {listing(names)}"


def folder_listing(folder: str) -> str:
    """What `folder` holds, in a few words."""
    return listing(_names(folder))


def listing(names: list[str]) -> str:
    """`names` for people: the first few, and how many more there are."""
    if not names:
        return "nothing"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def refuse_unfinished(folder: str, *, what: str) -> None:
    """Refuse a folder that a conversion has not finished.

    Raises:
        ConversionError: If the folder holds the marker of an unfinished conversion.
    """
    marker = os.path.join(folder, UNFINISHED_MARKER)
    if os.path.lexists(marker):
        raise ConversionError(
            f"{what}: the conversion that writes {folder} has not finished (it holds"
            f" {UNFINISHED_MARKER}); run the same conversion again: it keeps what is done and goes"
            " on from there"
        )
