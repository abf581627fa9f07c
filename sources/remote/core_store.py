"""Stores that the native core reads: servers of HTTP, S3, Google Cloud Storage, Azure.

The crate `object_store` makes the requests, and tries them again (`loader/core/native/src/objects.rs`).
"""

from __future__ import annotations

import collections
import html.parser
import itertools
import logging
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from windrow.core.cancellation import current_scope, stopped
from windrow.core.native import native
from windrow.sources.remote.faults import Cause, RequestError, status_fault
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.settings import CoreSettings
from windrow.sources.remote.stores import Arrivals, Fetched, Part, What, fetch_one

_log = logging.getLogger("windrow.remote")
MESSAGE_EVERY_S: Final = 60.0
_CAUSES: Final[dict[str, Cause]] = {
    "missing": "missing",
    "denied": "denied",
    "changed": "changed",
    "no ranges": "unusable",
    "compressed": "unusable",
}
# What an error says, by the kind and cause of the fault; the first that fits.
_TEXTS: Final[tuple[tuple[str, str, Cause], ...]] = (
    (r"CONTENT_RANGE header", "no size", "unusable"),
    (r"[Cc]ertificate", "certificate refused", "other"),
    (r"timed out", "timeout", "network"),
    (r"dns error", "host not found", "network"),
    (r"\(Connect\)", "no connection", "network"),
    (r"error (sending|reading|decoding)|closed|reset", "connection broken", "network"),
)
_NOISE: Final = (
    r"Generic \w+ error: |HTTP error: |Server returned non-2xx status code: |Error performing "
    r"|Object at location \S+ not found: |The operation lacked .* for path \S+: "
)
_TRIED: Final = r" in ([\d.]+)([mµn]?s)(?:, after (\d+) retries, [^-]*)?\s*- "
# The body of an answer may hold credentials.
_BODY: Final = r"(?s)( \d{3} [A-Z][\w -]*): .*"
_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
_DETAIL_CHARACTERS: Final = 300


_Counted: TypeAlias = tuple[int, int, dict[str, int], list[float]]


class CoreStore:
    """A bucket, a container or a server."""

    confirms = True

    def __init__(self, what: str, settings: CoreSettings, options: RemoteOptions) -> None:
        """Request nothing yet; `what` is the name of the reader, for messages."""
        core: Any = native()
        self._what, self._settings, self._options = what, settings, options
        self._objects = core.Objects(
            settings.url,
            list(settings.options),
            headers=list(settings.headers),
            at_once=options.max_requests,
            per_host=options.max_requests_per_host,
            in_flight_bytes=options.in_flight_bytes,
            most_whole=options.max_request_bytes,
            timeout_s=options.timeout_s,
            stall_s=options.stall_s,
            retries=options.retries,
            backoff_s=options.backoff_s,
            max_backoff_s=options.max_backoff_s,
            outage_s=options.outage_s,
        )
        self.counts: Callable[[], _Counted] = self._objects.counts
        """Requests, those made again, faults by kind, and seconds until the last answers began."""

    def fetch(self, parts: Sequence[Part], *, patient: bool) -> Iterator[Arrivals]:
        """Yield parts as they arrive, each once: all that are there at a time."""
        wanted = [(p.path, p.start, p.stop, p.version, p.weight_bytes) for p in parts]
        waits = patient and self._options.outage_s > 0
        yield from self._answers(self._objects.fetch(wanted, patient=waits), len(parts))

    def _answers(self, fetching: Any, left: int) -> Iterator[Arrivals]:
        scope, waited_s = current_scope(), 0.0
        if scope is not None:
            scope.add(fetching, fetching.cancel)
        try:
            while left:
                try:
                    arrived = fetching.take(MESSAGE_EVERY_S)
                except TimeoutError:
                    waited_s += MESSAGE_EVERY_S
                    self._tell(waited_s)
                    continue
                if not arrived:
                    raise stopped()
                if waited_s:
                    _log.warning("%s: %s answers again", self._what, self._shown)
                    waited_s = 0.0
                left -= len(arrived)
                yield [
                    (place, _fault(kind, text) if kind else Fetched(data, size, text, is_page))
                    for place, data, size, text, is_page, kind in arrived
                ]
        finally:
            fetching.cancel()
            if scope is not None:
                scope.remove(fetching)

    @property
    def _shown(self) -> str:
        """The host or bucket, for people."""
        return "/".join(self._settings.url.partition("?")[0].split("/")[:3])

    def _tell(self, waited_s: float) -> None:
        _, _, faults, _ = self.counts()
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in faults.items())
        _log.warning(
            "%s: %s has not answered for %.0f s; requests failed: %s. Reading waits for it, for up to %g s in"
            " all (RemoteOptions.outage_s)",
            *(self._what, self._shown, waited_s, kinds or "none", self._options.outage_s),
        )

    def what(self, path: str) -> What:
        """Find what a path names."""
        if path and not path.endswith("/"):
            try:
                fetch_one(self, Part(path, None, 1))
                return "file"
            except RequestError as fault:
                if fault.cause != "missing":
                    raise
        return "folder" if self._listed(path) else "nothing"

    def names(self, path: str) -> list[str]:
        """List the names in a folder, sorted; folders end in a slash."""
        found = self._listed(path)
        if not found:
            raise RequestError("not found", cause="missing")
        return found

    def _listed(self, path: str) -> list[str]:
        (((_, answer),),) = self._answers(self._objects.list(path.strip("/")), 1)
        if isinstance(answer, RequestError):
            if answer.cause == "missing":
                return []
            raise answer
        return sorted(set(answer.data.decode().split("\0")) - {""})


class WebStore(CoreStore):
    """A server of HTTP, whose folders are pages of links."""

    def __init__(self, what: str, settings: CoreSettings, options: RemoteOptions) -> None:
        super().__init__(what, settings, options)
        self._pages: dict[str, CoreStore] = {}
        own = self.counts
        self.counts = lambda: _sum_of([own(), *(page.counts() for page in [*self._pages.values()])])

    def what(self, path: str) -> What:
        """Find what a path names."""
        if path and not path.endswith("/"):
            try:
                # A server redirects from a folder without a slash to its page.
                if not fetch_one(self, Part(path, None, 1)).is_page:
                    return "file"
            except RequestError as fault:
                if fault.cause == "unusable":
                    return "file"
                if fault.cause != "missing":
                    raise
            else:
                return "folder" if self._listed(path) else "file"
        return "folder" if self._listed(path) else "nothing"

    def _listed(self, path: str) -> list[str]:
        if "?" in self._settings.url:
            return []  # one file, as it is signed
        url = f"{self._settings.url.rstrip('/')}/{path.strip('/')}".rstrip("/") + "/"
        page = self._pages.get(url)
        if page is None:
            settings = CoreSettings(url, "", (), self._settings.headers)
            page = self._pages[url] = CoreStore(self._what, settings, self._options)
        try:
            found = fetch_one(page, Part(""))
        except RequestError as fault:
            if fault.cause in ("missing", "unusable") or fault.kind == "status 405":
                return []
            raise
        links = _Links()
        links.feed(found.data.decode("utf-8", "replace"))
        names = set()
        for link in links.found:
            target = urllib.parse.urljoin(url, link)
            rest = target.removeprefix(url)
            name, slash, deeper = rest.partition("/")
            # Skip links that sort the list, lead to other folders, or to this one.
            if rest != target and name.strip(".") and not deeper and "?" not in name:
                names.add(urllib.parse.unquote(name) + slash)
        return sorted(names)


class _Links(html.parser.HTMLParser):
    """The targets of the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _sum_of(all_counts: Sequence[_Counted]) -> _Counted:
    """The counts of several stores together."""
    requests, again, faults, took_s = zip(*all_counts, strict=True)
    kinds: collections.Counter[str] = collections.Counter()
    for some in faults:
        kinds.update(some)
    return sum(requests), sum(again), dict(kinds), list(itertools.chain(*took_s))


def _fault(kind: str, detail: str) -> RequestError:
    """Describe an error of the crate, whose text says how often and how long it tried."""
    tried, again = re.search(_TRIED, detail), 0
    status = re.search(r"non-2xx status code: (\d{3})", detail)
    code = re.search(r"<Code>(\w+)</Code>", detail)
    shown = re.sub(_NOISE, "", re.sub(_TRIED, " - ", detail, count=1))
    shown = re.sub(_BODY, r"\1", shown)
    if len(shown) > _DETAIL_CHARACTERS:
        shown = shown[:_DETAIL_CHARACTERS] + "..."
    if status is not None:
        fault = status_fault(int(status[1]), code=code[1] if code else "")
        fault.detail = shown
    else:
        cause: Cause = _CAUSES.get(kind, "network")
        if kind not in _CAUSES:
            known = (one for one in _TEXTS if re.search(one[0], detail))
            _, kind, cause = next(known, ("", kind, cause))
        fault = RequestError(kind, cause=cause, detail=shown)
    if tried is not None:
        again = int(tried[3] or 0)
        attempts = f"{again + 1} attempts" if again else "1 attempt"
        fault.tried = f"{attempts} in {float(tried[1]) * _SECONDS[tried[2]]:.1f} s"
    return fault
