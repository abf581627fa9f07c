"""Describes a path or URL, and reads names, sizes and first bytes there.

Invariant: no error shows a credential. Only the needed bytes of a remote file are fetched.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from windrow.core.redaction import shown_url
from windrow.errors import NotFoundError, ReadError
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.paths import LOCAL, Names, is_remote, joined, local_path, split_path
from windrow.sources.zarr.error_text import is_refused

if TYPE_CHECKING:
    from windrow.sources.remote.fetcher import Fetcher, FileTail

# The end of a remote file comes with its size; a small file comes whole.
_TAIL_BYTES: Final = 64 << 10


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Location:
    """A path of a local disk, or a URL.

    Args:
        path: The path or URL; a local path is absolute.
        caller: Name of the calling command or function, for messages.
        storage_options: Settings of fsspec's file systems.
        fetcher: Reads URLs; None for a local path.
    """

    path: str
    caller: str
    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    fetcher: Fetcher | None = dataclasses.field(default=None, repr=False)
    _ends: dict[str, FileTail] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether the location is on a local disk."""
        return self.fetcher is None

    @property
    def names(self) -> Names:
        """The object that lists and finds files by name at this location."""
        return LOCAL if self.fetcher is None else self.fetcher

    @property
    def shown(self) -> str:
        """The path or URL without secrets, for messages."""
        return self.path if self.is_local else shown_url(self.path)

    @property
    def name(self) -> str:
        """The last name of the path."""
        return split_path(self.path.rstrip("/"))[1]

    def child(self, name: str) -> Location:
        """The location of `name` in this folder, with `/` between names."""
        return dataclasses.replace(self, path=joined(self.path, name))

    def at(self, path: str) -> Location:
        """Another path or URL, reached with the same settings."""
        return dataclasses.replace(self, path=path)

    def small_file(self, name: str) -> bytes | None:
        """The content of the small file `name` in this folder; None if it is absent or refused.

        S3 refuses an absent file to users who may not list the bucket.
        """
        if "|" in self.path:  # only TensorStore opens it, such as an archive
            return None
        try:
            return self.names.read_small(joined(self.path, name))
        except ReadError as error:
            if not is_refused(error):
                raise
            return None

    def size_bytes(self) -> int:
        """The size of this file.

        Raises:
            NotFoundError: If there is no such file.
            ReadError: If its size cannot be read.
        """
        if self.fetcher is not None:
            return self._end(self.fetcher).file.size_bytes
        try:
            return os.path.getsize(self.path)
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.caller}: {self.path} does not exist") from error
        except OSError as error:
            raise ReadError(f"{self.path}: cannot be read: {error.strerror}") from error

    def head(self, size_bytes: int) -> bytes:
        """The first `size_bytes` bytes of this file, or all bytes of a shorter one.

        Raises:
            NotFoundError, ReadError: As `size_bytes` raises them.
        """
        if self.fetcher is None:
            try:
                with open(self.path, "rb") as file:
                    return file.read(size_bytes)
            except OSError as error:
                raise ReadError(f"{self.path}: cannot be read: {error.strerror}") from error
        end = self._end(self.fetcher)
        if end.file.size_bytes <= len(end.data):
            return end.data[:size_bytes]
        from windrow.sources.remote.fetcher import ByteRange

        stop = min(size_bytes, end.file.size_bytes)
        (data,) = self.fetcher.read([ByteRange(end.file, 0, stop)])
        return data

    def _end(self, fetcher: Fetcher) -> FileTail:
        """The last bytes of this file, fetched once."""
        if self.path not in self._ends:
            self._ends[self.path] = fetcher.tails([self.path], _TAIL_BYTES)[0]
        return self._ends[self.path]


def location_of(
    url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, *, caller: str
) -> Location:
    """The location that a user names; nothing is read yet. `caller` is named in messages.

    Raises:
        ArgumentError: If it is not a path.
    """
    text = os.fspath(url)
    if isinstance(text, str) and (is_remote(text) or ("|" in text and "://" in text)):
        from windrow.sources.remote.fetcher import Fetcher

        fetcher = Fetcher(caller, storage_options, RemoteOptions())
        return Location(text, caller, storage_options, fetcher)
    return Location(local_path(text, what=caller), caller)
