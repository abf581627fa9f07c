"""Paths and URLs: split, join and resolve them, and describe what exists if they name nothing.

Invariant: this module reads names and small files that describe others, never a record.
"""

from __future__ import annotations

import difflib
import glob
import json
import os
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from windrow.core.redaction import shown_url
from windrow.core.text import listing
from windrow.errors import ArgumentError, ConversionError

UNFINISHED_MARKER: Final = "_WINDROW_UNFINISHED"
# The name that tfds gives to a folder until it is complete.
_BUILT_BY_TFDS: Final = r"incomplete\.[A-Z0-9]{6}_"
_LONGEST_COMMAND: Final = 2000
# Protocols that may stand before the path of a local archive, as in `zip::/data/a.zip`.
_ARCHIVES: Final = ("zip", "tar", "libarchive")


def is_remote(text: str) -> bool:
    """Whether `text` is a URL other than `file://`."""
    if "://" in text:
        return not text.startswith("file://")
    return text.partition("::")[0] in _ARCHIVES and "::" in text


def zip_url(path: str) -> str:
    """Return the URL of the content of a local zip file."""
    return f"file://{urllib.parse.quote(path)}|zip:"


def parted(path: str) -> tuple[str, str]:
    """Split a path or URL after its last name.

    The rest is a query, or the URLs that contain a chained URL. A cache that is chained before a
    URL, as in `simplecache::s3://bucket/name`, has no names of its own.
    """
    if not is_remote(path):
        return path, ""
    parts = path.split("::")
    named = next((at for at, part in enumerate(parts) if "://" in part), None)
    if named is None:  # such as zip::/data/a.zip
        named, parts[0] = 0, f"{parts[0]}://"
    head = "::".join(parts[: named + 1])
    rest = "".join("::" + part for part in parts[named + 1 :])
    if _is_web(parts[named]):
        head, mark, query = head.partition("?")
        rest = mark + query + rest
    return head, rest


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def joined(folder: str, name: str) -> str:
    """Return the path or URL of `name` in a folder."""
    head, rest = parted(folder)
    if is_remote(head) and _is_web(head.rpartition("::")[2]):
        # In an address these characters would end the name, or stand for another character.
        name = name.replace("%", "%25").replace("#", "%23").replace("?", "%3F")
    return f"{head.removesuffix('/')}/{name}{rest}"


def split_path(path: str) -> tuple[str, str]:
    """Split a path or URL into its folder and the name."""
    head, rest = parted(path)
    scheme, mark, body = head.rpartition("://")
    folder, slash, name = body.rpartition("/")
    return scheme + mark + (folder or slash) + rest, name


class Names(Protocol):
    """Files by name, on a local disk or remote."""

    def is_file(self, path: str) -> bool:
        """Whether the path names a file."""
        ...

    def is_folder(self, path: str) -> bool:
        """Whether the path names a folder."""
        ...

    def names_in(self, folder: str) -> list[str]:
        """List the names in a folder, sorted; none without a listing."""
        ...

    def glob(self, pattern: str) -> list[str]:
        """List the files that match, sorted."""
        ...

    def read_small(self, path: str) -> bytes | None:
        """Read a file; None if it does not exist."""
        ...


class LocalNames:
    """Files of a local disk."""

    def is_file(self, path: str) -> bool:
        """Whether the path names a file."""
        return os.path.isfile(path)

    def is_folder(self, path: str) -> bool:
        """Whether the path names a folder."""
        return os.path.isdir(path)

    def names_in(self, folder: str) -> list[str]:
        """List the names in a folder, sorted; none without a listing."""
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []

    def glob(self, pattern: str) -> list[str]:
        """List the files that match, sorted."""
        matches = glob.glob(pattern, recursive=True)
        return [path for path in sorted(matches) if os.path.isfile(path)]

    def read_small(self, path: str) -> bytes | None:
        """Read a file; None if it does not exist."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError:
            return None


LOCAL: Final = LocalNames()


def local_path(path: str | os.PathLike[str], *, what: str) -> str:
    """Make a path absolute, also a `file://` URL or one with `~`.

    Raises:
        ArgumentError: If the path is empty, is of bytes, or is a `file://` URL of another host.
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise ArgumentError(f"{what}: a path must be a non-empty string, got {text!r}")
    if text.startswith("file://"):
        # Not urlsplit, which would take the ? of a glob for a query.
        host, slash, rest = text.removeprefix("file://").partition("/")
        if host not in ("", "localhost"):
            raise ArgumentError(
                f"{what}: {text!r} names the host {host!r}; write file:/// with three slashes for"
                " a file of this machine"
            )
        text = urllib.parse.unquote(slash + rest)
    return os.path.abspath(os.path.expanduser(text))


def options_for(paths: Iterable[Any], options: Mapping[str, Any] | None) -> Any:
    """Return `options` if one of the paths is a URL, else None."""
    return options if any(is_remote(os.fspath(path)) for path in paths) else None


def what_is_there(path: str, *, reads: Callable[[str], bool] | None = None) -> str:
    """Describe the nearest folder that exists, for an error about `path`.

    Args:
        path: The path that does not exist.
        reads: Whether the caller may read what has that name; other names are not suggested.
    """
    folder = os.path.dirname(path)
    while folder and not os.path.isdir(folder):
        up = os.path.dirname(folder)
        if up == folder:
            return "none of its parent folders exists"
        folder = up
    wanted, _, end = os.path.relpath(path, folder).split(os.sep)[0].partition(".")
    names = LOCAL.names_in(folder)
    # The ends of names are alike among all files of a format, and show no likeness. If some names
    # differ in their ends alone, the one that ends as wanted is suggested, else the first one.
    likely = [name for name in reversed(names) if reads is None or reads(name)]
    likely.sort(key=lambda name: name.partition(".")[2] == end)
    by_stem = {name.partition(".")[0]: name for name in likely}
    close = difflib.get_close_matches(wanted, by_stem, n=1, cutoff=0.7)
    if close:
        return f"did you mean {os.path.join(folder, by_stem[close[0]])}?"
    return f"{folder} exists and holds {listing(names)}"


def refuse_unfinished(folder: str, *, what: str, names: Names = LOCAL) -> None:
    """Refuse a folder that a conversion has left unfinished.

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
    """Refuse a local path in a folder that tfds is building.

    Raises:
        ConversionError: If the path lies in such a folder.
    """
    for part in os.path.abspath(path).split(os.sep):
        if re.match(_BUILT_BY_TFDS, part):
            raise ConversionError(
                f"{what}: {path} lies in {part}, which tfds is building or has left incomplete;"
                " build the dataset again"
            )


def unfinished(shown: str, *, what: str, marker: bytes | None) -> ConversionError:
    """Make the error for an unfinished folder with this marker file."""
    return ConversionError(
        f"{what}: the conversion that writes {shown} has not finished (it holds"
        f" {UNFINISHED_MARKER}); run the same conversion again: it keeps the finished parts and"
        f" resumes{_resume(marker)}"
    )


def _resume(marker: bytes | None) -> str:
    """The command that the marker of an unfinished folder names, as the end of a sentence."""
    try:
        command = json.loads(marker or b"")["resume"]
    except (ValueError, KeyError, TypeError, RecursionError):
        command = None
    # A string from a disk goes to a terminal: it must have no control characters and an end.
    if isinstance(command, str) and command.isprintable() and len(command) <= _LONGEST_COMMAND:
        return f":\n  {command}"
    return ""
