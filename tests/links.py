"""Links of pages: which lead nowhere."""

from __future__ import annotations

import re
import string
from pathlib import Path

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: str) -> set[str]:
    """The anchors that the headings of a page get."""
    kept = string.ascii_lowercase + string.digits + "_- "
    prose = FENCE.sub("", page)
    slugs = ("".join(c for c in text.lower() if c in kept) for text in _HEADING.findall(prose))
    return {slug.replace(" ", "-") for slug in slugs}


def broken_links(path: Path, page: str | None = None) -> list[str]:
    """The relative links of a page that lead nowhere; `page` is its text, if the file is not."""
    broken = []
    text = path.read_text(encoding="utf-8") if page is None else page
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = path.parent / target if target else path
        found = file.exists()
        if found and anchor:
            found = anchor in anchors(file.read_text(encoding="utf-8"))
        if not found:
            broken.append(link)
    return broken
