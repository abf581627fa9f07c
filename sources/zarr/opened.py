"""Open stores of zarr-python that have no path or URL, such as a session of Icechunk.

They are read by their own methods, in the event loop of zarr-python.

Invariants: a store is only read. Only keys of Zarr are asked for, since stores may refuse others. A
session of Icechunk that may still change is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Coroutine
from typing import Any, Final

from windrow.errors import ArgumentError, SourceError
from windrow.sources.zarr.error_text import bare, single
from windrow.sources.zarr.folders import Folder, known_below
from windrow.sources.zarr.stored_objects import StoredObjects
from windrow.sources.zarr.stores import Access

_SHOWN_CHARACTERS: Final = 100
METADATA: Final = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


@dataclasses.dataclass(frozen=True, slots=True)
class OpenedStore:
    """A node of an open store of zarr-python. Pickles if the store does.

    Args:
        store: The `zarr.abc.store.Store`.
        path: Path of the node in it; '' for its root.
        shown: The store, for people.
        version: What the store calls the state of its data, for fingerprints; '' if it has no such name.
    """

    store: Any = dataclasses.field(repr=False)  # it may hold credentials
    path: str
    shown: str
    version: str = ""

    def get(self, key: str, timeout_s: float, byte_range: Any = None) -> bytes | None:
        """The value at a key of the node, or a part of it; None if it is absent. Waits.

        Raises:
            OSError: If the store cannot read it, or not in time.
        """
        from zarr.core.buffer import default_buffer_prototype

        full = f"{self.path}/{key}" if self.path else key
        found = _waited(self.store.get(full, default_buffer_prototype(), byte_range), timeout_s)
        return None if found is None else found.to_bytes()

    def names(self, timeout_s: float) -> list[str] | None:
        """The keys, and the names before a slash, in the node; None if the store cannot list. Waits.

        Raises:
            OSError: If the store cannot list it, or not in time.
        """
        if not self.store.supports_listing:
            return None

        async def listed() -> list[str]:
            return [name async for name in self.store.list_dir(self.path)]

        return sorted({name.strip("/") for name in _waited(listed(), timeout_s)})

    def at(self, path: str) -> OpenedStore:
        """The node at another path of the store."""
        return dataclasses.replace(self, path=path)


def opened_store(what: str, store: Any, path: str) -> OpenedStore:
    """The node at `path` of an open store of zarr-python.

    Raises:
        ArgumentError: If it is a session of Icechunk that may be written to.
    """
    kind = type(store)
    if kind.__module__.partition(".")[0] != "icechunk":
        shown = str(store)
        if len(shown) > _SHOWN_CHARACTERS or "\n" in shown:
            shown = f"{kind.__name__}({id(store):#x})"
        return OpenedStore(store, path, shown)
    session = store.session
    if not session.read_only:
        raise ArgumentError(
            f"{what}: the session of Icechunk may be written to, so that its data has no name; commit it, and"
            " open the group from repo.readonly_session('main')"
        )
    snapshot = str(session.snapshot_id)
    return OpenedStore(store, path, f"{kind.__name__}({snapshot})", f"snapshot {snapshot}")


def _waited(coroutine: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
    from zarr.core.sync import sync

    try:
        return sync(coroutine, timeout=timeout_s)
    except TimeoutError:
        raise TimeoutError(f"no answer within {timeout_s:,.1f} s") from None
    except Exception as raised:  # each store has errors of its own
        error = single(raised)
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise OSError(f"{type(error).__name__}: {said}") from error


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OpenedFolder(Folder, StoredObjects):
    """A node of an open store of zarr-python as a folder."""

    what: str
    opened: OpenedStore
    access: Access
    known: tuple[str, ...] = ()

    @property
    def where(self) -> str:  # type: ignore[override]
        path = f"{self.opened.path}/" if self.opened.path else ""
        return self.access.hide(f"{self.opened.shown}/{path}")

    @bare
    def read(self, key: str) -> bytes | None:
        try:
            return self.whole(key) if key in METADATA else None
        except OSError as error:
            why = self.access.reason(error)
            raise SourceError(f"{self.what}: {self.where}{key} cannot be read: {why}") from None

    def whole(self, key: str) -> bytes | None:
        return self.opened.get(key, self.access.options.longest_s)

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

        wanted: Any = OffsetByteRequest(start)
        if start < 0:
            wanted = SuffixByteRequest(-start)
        elif stop is not None:
            wanted = RangeByteRequest(start, stop)
        return self.opened.get(key, self.access.options.longest_s, wanted)

    @bare
    def listed(self) -> list[str] | None:
        try:
            names = self.opened.names(self.access.options.longest_s)
        except OSError as error:
            why = self.access.reason(error)
            raise SourceError(f"{self.what}: {self.where} cannot be listed: {why}") from None
        if names is None:
            return sorted({path.partition("/")[0] for path in self.known}) or None
        return [name for name in names if name not in METADATA]

    def child(self, path: str) -> OpenedFolder:
        known = known_below(self.known, path)
        at = f"{self.opened.path}/{path}" if self.opened.path else path
        return dataclasses.replace(self, opened=self.opened.at(at), known=known)

    def parent(self) -> tuple[OpenedFolder, str] | None:
        up, _, name = self.opened.path.rpartition("/")
        if not name:
            return None
        return dataclasses.replace(self, opened=self.opened.at(up), known=()), name
