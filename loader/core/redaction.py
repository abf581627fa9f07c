"""Redaction: hides secrets of URLs and storage options in text.

Credentials come in a URL (`user:password@`, a signed query) or in `storage_options`; libraries repeat
both in their errors.

Invariant: a string that went through `hide` holds no value of the storage options except those that
`_HARMLESS` names, no user and password, and no query of a URL.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

HIDDEN: Final = "***"
# Settings whose values are not secret and help to understand an error.
_HARMLESS: Final = frozenset(
    {
        *("endpoint_url", "endpoint", "region", "region_name", "profile", "project", "protocol"),
        *("target_protocol", "fo", "cache_type", "cache_storage", "host", "default_cache_type"),
        *("signature_version", "addressing_style", "requester_pays", "location", "compression"),
    }
)
# Shorter strings are parts of other words.
_SHORTEST: Final = 4
_USER: Final = r"([a-zA-Z][\w+.\-]*://)[^/\s'\"]*@"
# A ? before the @ of a user: the end of each part is ambiguous.
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
    """Return `url` without user, password and query."""
    return "::".join(map(_shown_part, re.split(_CHAIN, url)))


def _shown_part(part: str) -> str:
    scheme, mark, rest = part.partition("://")
    if not mark:
        return part
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    port = authority.rpartition("]")[2].partition(":")[2]
    # A user whose password has a ? or a / in it: its end is ambiguous.
    if "?" in user or ("@" in path and not at and port and not port.isdigit()):
        return scheme + mark + HIDDEN
    shown = f"{HIDDEN}@{host}" if at else authority
    head, asked, query = (shown + slash + path).partition("?")
    return scheme + mark + head + asked + (HIDDEN if query else "")


def _without_secrets_of_urls(text: str) -> str:
    """Redact the URLs in a string; each ends at a space or a quote."""
    for pattern, shown in _HIDING:
        text = re.sub(pattern, shown, text)
    return text


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings whose values are not secret: numbers, and strings of harmless names."""
    found: dict[str, Any] = {}
    for key, value in sorted(settings.items()):
        if isinstance(value, Mapping):
            found[key] = without_secrets(value)
        elif isinstance(value, int | float) or (isinstance(value, str) and key in _HARMLESS):
            found[key] = value
    return found


class Redaction:
    """The secrets of storage options. They pickle with the source, and have no repr of their own."""

    def __init__(self, storage_options: Mapping[str, Any] | None) -> None:
        """Collect the secrets, also of nested settings."""
        found = {text for text in _texts(storage_options or {}) if len(text) >= _SHORTEST}
        # Also in the form that they have in a URL.
        found |= {urllib.parse.quote(text, safe) for text in found for safe in ("", "/")}
        # The longest first: one secret may be a part of another.
        self._found = tuple(sorted(found, key=lambda text: (-len(text), text)))

    def hide(self, text: str) -> str:
        """Return `text` without the secrets."""
        for secret in self._found:
            text = text.replace(secret, HIDDEN)
        return _without_secrets_of_urls(text)


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
        # An error may repeat only the second word of "Bearer abc".
        yield from (word for word in value.split() if word != value and len(word) > 8)
