"""Secrets: what must not be seen of URLs and storage options, and hiding it in text.

Credentials come in a URL (`user:password@`, a signed query) or in `storage_options`; libraries repeat
both in their errors.

Invariant: a text that went through `hide` holds no value of the storage options but those that
`_HARMLESS` names, no user and password, and no query of a URL.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

HIDDEN: Final = "***"
# Settings whose texts are no secret, and help to understand an error.
_HARMLESS: Final = frozenset(
    {
        *("endpoint_url", "endpoint", "region", "region_name", "profile", "project", "protocol"),
        *("target_protocol", "fo", "cache_type", "cache_storage", "host", "default_cache_type"),
        *("signature_version", "addressing_style", "requester_pays", "location", "compression"),
    }
)
# Shorter texts are parts of other words.
_SHORTEST: Final = 4
_USER: Final = r"([a-zA-Z][\w+.\-]*://)[^/\s'\"]*@"
# A ? before the @ of a user: it is not to be told which of them is the end of what.
_UNCLEAR: Final = r"([a-zA-Z][\w+.\-]*://)[^/?\s'\"]*\?[^/\s'\"]*@[^\s'\"]*"
_QUERY: Final = r"([a-zA-Z][\w+.\-]*://[^\s?'\"<>]*)\?(?!\*\*\*)[^\s'\"<>|)]+"
# Between the URLs of a chain; not within an address such as [::1].
_CHAIN: Final = r"::(?![^\[\]/]*\])"
_HIDING: Final = (
    (_UNCLEAR, rf"\1{HIDDEN}"),
    (_USER, rf"\1{HIDDEN}@"),
    (_QUERY, rf"\1?{HIDDEN}"),
)


def shown_url(url: str) -> str:
    """`url` for people: without user, password and query."""
    return "::".join(map(_shown_part, re.split(_CHAIN, url)))


def _shown_part(part: str) -> str:
    scheme, mark, rest = part.partition("://")
    if not mark:
        return part
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    port = authority.rpartition("]")[2].partition(":")[2]
    # A user whose password has a ? or a / in it: where it ends is not to be told.
    if "?" in user or ("@" in path and not at and port and not port.isdigit()):
        return scheme + mark + HIDDEN
    shown = f"{HIDDEN}@{host}" if at else authority
    head, asked, query = (shown + slash + path).partition("?")
    return scheme + mark + head + asked + (HIDDEN if query else "")


def _without_urls_secrets(text: str) -> str:
    """A text of which URLs are a part, each up to a space or a quote."""
    for pattern, shown in _HIDING:
        text = re.sub(pattern, shown, text)
    return text


class Secrets:
    """The secrets of storage options. They pickle with the source, and have no repr of their own."""

    def __init__(self, storage_options: Mapping[str, Any] | None) -> None:
        """Collect them; nested settings too."""
        found = {text for text in _texts(storage_options or {}) if len(text) >= _SHORTEST}
        # As they are in a URL, too.
        found |= {urllib.parse.quote(text, safe) for text in found for safe in ("", "/")}
        # The longest first: one may be a part of another.
        self._found = tuple(sorted(found, key=lambda text: (-len(text), text)))

    def hide(self, text: str) -> str:
        """`text` without them."""
        for secret in self._found:
            text = text.replace(secret, HIDDEN)
        return _without_urls_secrets(text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _HARMLESS:
                yield from _texts(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, bytes):
        yield from _texts(value.decode("utf-8", "replace"))
    elif isinstance(value, str):
        yield value
        # Of "Bearer abc" an error may repeat the second word alone.
        yield from (word for word in value.split() if word != value and len(word) > 8)
