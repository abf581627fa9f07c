"""Places: a path or URL, and what can be asked about it without reading all that is there.

Invariant: no error names a credential; a file far away is asked for the bytes wanted and no more.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from windrow.errors import NotFoundError, ReadError
from windrow.sources.paths import LOCAL, Names, is_remote, joined, local_path, split_path
from windrow.sources.remote import RemoteOptions
from windrow.sources.secrets import shown_url
from windrow.sources.zarr_reasons import is_refused

if TYPE_CHECKING:
    from windrow.sources.fetching import Fetcher, Tail

WHAT: Final = "inspect"
# The end of a file far away comes with its size; of a small one that is all of it.
_TAIL_BYTES: Final = 64 << 10


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A path of a local disk, or a URL.

    Args:
        path: Absolute, where it is local.
        storage_options: Settings of fsspec's file systems.
        fetcher: Asks about URLs; None for a local path.
        what: Who asks, for messages.
    """

    path: str
    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    fetcher: Fetcher | None = dataclasses.field(default=None, repr=False)
    what: str = WHAT
    _ends: dict[str, Tail] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is on a local disk."""
        return self.fetcher is None

    @property
    def names(self) -> Names:
        """Files by name, around it."""
        return LOCAL if self.fetcher is None else self.fetcher

    @property
    def shown(self) -> str:
        """It, for people."""
        return self.path if self.is_local else shown_url(self.path)

    @property
    def name(self) -> str:
        """Its last name."""
        return split_path(self.path.rstrip("/"))[1]

    def child(self, name: str) -> Place:
        """What lies in it under `name`, with `/` between names."""
        return dataclasses.replace(self, path=joined(self.path, name))

    def at(self, path: str) -> Place:
        """Another place, reached as this one."""
        return dataclasses.replace(self, path=path)

    def small_file(self, name: str) -> bytes | None:
        """What the small file `name` in this folder holds; None if there is none, or it is refused.

        S3 refuses what is not there to those who may not list a bucket.
        """
        if "|" in self.path:  # what only TensorStore opens, such as an archive
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
            ReadError: If it can not be asked.
        """
        if self.fetcher is not None:
            return self._end(self.fetcher).file.size_bytes
        try:
            return os.path.getsize(self.path)
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.what}: {self.path} does not exist") from error
        except OSError as error:
            raise ReadError(f"{self.path}: cannot be read: {error.strerror}") from error

    def head(self, size_bytes: int) -> bytes:
        """The first bytes of this file, as many as it has.

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
        from windrow.sources.fetching import ByteRange

        stop = min(size_bytes, end.file.size_bytes)
        (data,) = self.fetcher.start([ByteRange(end.file, 0, stop)]).result()
        return data

    def _end(self, fetcher: Fetcher) -> Tail:
        """Its last bytes, asked for once."""
        if self.path not in self._ends:
            self._ends[self.path] = fetcher.tails([self.path], _TAIL_BYTES)[0]
        return self._ends[self.path]


def place_of(
    url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, *, what: str = WHAT
) -> Place:
    """The place that a user names; nothing is asked yet. `what` is who asks, for messages.

    Raises:
        ArgumentError: If it is no path.
    """
    text = os.fspath(url)
    if isinstance(text, str) and (is_remote(text) or ("|" in text and "://" in text)):
        from windrow.sources.fetching import Fetcher

        fetcher = Fetcher(what, storage_options, RemoteOptions())
        return Place(text, storage_options, fetcher, what)
    return Place(local_path(text, what=what), what=what)
