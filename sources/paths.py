"""Paths: from what a user names to files on a local disk, and what is there when it names nothing.

Invariant: nothing here reads a record; it looks at names, and at small files that tell of others.
"""

from __future__ import annotations

import difflib
import glob
import json
import os
import re
import urllib.parse
from typing import Final, Protocol

from windrow.errors import ArgumentError, ConversionError
from windrow.sources.secrets import shown_url

UNFINISHED_MARKER: Final = "_WINDROW_UNFINISHED"
# As tfds names what it builds, until all of it is there.
_BUILT_BY_TFDS: Final = r"incomplete\.[A-Z0-9]{6}_"
_SHOWN = 8
# By names of files: who reads them.
_READERS: Final = {
    r"\.array_?record": "ArrayRecordDataSource",
    r"^(zarr\.json|\.zarray|\.zgroup)$": "ZarrDataSource",
}
_LONGEST_COMMAND: Final = 2000


def is_remote(text: str) -> bool:
    """Whether `text` is a URL that is not a local path, `file://` being local."""
    return "://" in text and not text.startswith("file://")


def parted(path: str) -> tuple[str, str]:
    """A path or URL up to its last name, and what follows.

    That is a query, or the URLs that a chained one lies in. A cache that is chained before a URL,
    as in `simplecache::s3://bucket/name`, has no names of its own.
    """
    if not is_remote(path):
        return path, ""
    parts = path.split("::")
    named = next(at for at, part in enumerate(parts) if "://" in part)
    head = "::".join(parts[: named + 1])
    rest = "".join("::" + part for part in parts[named + 1 :])
    if _is_web(parts[named]):
        head, query, asked = head.partition("?")
        rest = query + asked + rest
    return head, rest


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def joined(folder: str, name: str) -> str:
    """The path or URL of `name` in a folder."""
    head, rest = parted(folder)
    if is_remote(head) and _is_web(head.rpartition("::")[2]):
        # In an address these would end the name, or stand for another character.
        name = name.replace("%", "%25").replace("#", "%23").replace("?", "%3F")
    return f"{head.removesuffix('/')}/{name}{rest}"


def split_path(path: str) -> tuple[str, str]:
    """The folder that a path or URL lies in, and its name there."""
    head, rest = parted(path)
    scheme, mark, body = head.rpartition("://")
    folder, slash, name = body.rpartition("/")
    return scheme + mark + (folder or slash) + rest, name


class Names(Protocol):
    """Files by name, on a local disk or far away."""

    def is_file(self, path: str) -> bool:
        """Whether there is a file."""
        ...

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder."""
        ...

    def names_in(self, folder: str) -> list[str]:
        """Names of what lies in a folder, sorted; none where it can not be listed."""
        ...

    def glob(self, pattern: str) -> list[str]:
        """The files that match, sorted."""
        ...

    def read_small(self, path: str) -> bytes | None:
        """What a file holds; None if there is none."""
        ...


class LocalNames:
    """Files of a local disk."""

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def names_in(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []

    def glob(self, pattern: str) -> list[str]:
        found = glob.glob(pattern, recursive=True)
        return [path for path in sorted(found) if os.path.isfile(path)]

    def read_small(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError:
            return None


LOCAL: Final = LocalNames()


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
    names = LOCAL.names_in(folder)
    close = difflib.get_close_matches(wanted, names, n=1)
    if close:
        return f"did you mean {os.path.join(folder, close[0])}?"
    return f"{folder} exists and holds {listing(names)}"


def listing(names: list[str]) -> str:
    """`names` for people: the first few, and how many more there are."""
    if not names:
        return "nothing"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def other_reader(names: list[str], what: str) -> str:
    """The end of an error of `what`: who reads files that are named like these; empty if nobody."""
    for pattern, reader in _READERS.items():
        if reader != what and any(re.search(pattern, name) for name in names):
            return f"; {reader} reads that"
    return ""


def refuse_unfinished(folder: str, *, what: str, names: Names = LOCAL) -> None:
    """Refuse a folder that a conversion has not finished.

    Raises:
        ConversionError: If the folder holds the marker of an unfinished conversion.
    """
    marker = joined(folder, UNFINISHED_MARKER)
    if names is LOCAL and not os.path.lexists(marker):
        return
    data = names.read_small(marker)
    if data is not None or names is LOCAL:
        raise unfinished(shown_url(folder), what=what, marker=data)


def refuse_left_by_tfds(path: str, *, what: str) -> None:
    """Refuse a local path in a folder that tfds builds, which has a name of its own until the end.

    Raises:
        ConversionError: If it lies in one.
    """
    for part in os.path.abspath(path).split(os.sep):
        if re.match(_BUILT_BY_TFDS, part):
            raise ConversionError(
                f"{what}: {path} is of {part}, which tfds is building or has left incomplete; build"
                " the dataset again"
            )


def unfinished(shown: str, *, what: str, marker: bytes | None) -> ConversionError:
    """The error for a folder that a conversion has not finished; `marker` is what its marker holds."""
    return ConversionError(
        f"{what}: the conversion that writes {shown} has not finished (it holds"
        f" {UNFINISHED_MARKER}); run the same conversion again: it keeps what is done and goes"
        f" on from there{_resume(marker)}"
    )


def _resume(marker: bytes | None) -> str:
    """The command that the marker of an unfinished folder names, to end a sentence."""
    try:
        found = json.loads(marker or b"")["resume"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    # What was read from a disk goes to a terminal: no control characters, and not without end.
    if isinstance(found, str) and found.isprintable() and len(found) <= _LONGEST_COMMAND:
        return f":\n  {found}"
    return ""
