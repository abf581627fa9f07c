"""States that tests change by hand."""

from __future__ import annotations

from typing import Any


def at_row(state: dict[str, Any], row: int) -> dict[str, Any]:
    """The state of a chain with one integer, moved to a row."""
    return {**state, "rows": row, "lanes": [[row]]}
