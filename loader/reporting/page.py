"""`windrow.report`: writes a page about a chain, its costs, its order and its elements.

1. `windrow.explain` and `windrow.stats` provide the predicted and the measured numbers.
2. `values` and `charts` turn them into plain values, and `elements` makes the first elements.
3. One template, `report.html`, is filled with these values.

Invariant: the file is a whole page or does not exist; the page needs no other file and loads nothing;
the template escapes every string, so nothing that comes from the data or the chain becomes part of
its code.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import uuid
from pathlib import Path
from typing import Any, Final

from windrow.core.optional_imports import optional
from windrow.errors import (
    ArgumentError,
    ConversionError,
    NotFoundError,
)
from windrow.iter_dataset import IterDataset
from windrow.iterator import DatasetIterator
from windrow.map_dataset import MapDataset
from windrow.reporting.elements import sample_of
from windrow.reporting.values import values_of
from windrow.stats.stats import Stats
from windrow.transforms.arguments import at_least, integer

_SUFFIXES: Final = (".html", ".htm")
_TEMPLATE: Final = "report.html"


def report(
    ds_or_iterator: MapDataset[Any] | IterDataset[Any] | DatasetIterator[Any],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    elements: int = 8,
) -> Path:
    """Write a page about a chain: its plan, its costs, its order and its first elements.

    The page is one file that needs no network. It shows what `explain()` predicts and, for an
    iterator, what `stats()` has measured alongside.

    Args:
        ds_or_iterator: A dataset, or an iterator, whose position does not change.
        path: The file, which ends in .html; an existing file is replaced.
        title: The heading.
        elements: How many of the first elements to show, or rows of the first batches. They are made
            for the page, in this thread and with the chain's functions; with 0 nothing is read.

    Returns:
        The path of the file.

    Raises:
        ArgumentError: If it is neither a dataset nor an iterator, or the path does not end in .html.
        MissingExtraError: If Jinja2, Plotly or matplotlib is not installed.
        NotFoundError: If the folder of the file does not exist.
        ConversionError: If the file cannot be written.

    Example:
        >>> import tempfile, numpy as np, windrow
        >>> dataset = windrow.MapDataset.source(np.arange(100)).shuffle(seed=0).batch(10)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = windrow.report(dataset, f"{folder}/report.html")
        ...     page.name, "shuffle(seed=0)" in page.read_text(encoding="utf-8")
        ('report.html', True)
    """
    target = _checked(path)
    at_least(0, integer(elements, "report: elements"), "report: elements")
    _check_packages()
    dataset, stats = _of(ds_or_iterator)
    node = dataset._node
    sample = sample_of(node, elements) if elements else None
    values = values_of(dataset.explain(), stats, node, sample)
    _write(target, filled(title, values))
    return target


def filled(title: str | None, values: dict[str, Any]) -> str:
    """Fill the template."""
    jinja2 = optional("jinja2", "windrow.report", "report")
    library = optional("plotly.offline", "windrow.report", "report").get_plotlyjs()
    template = (importlib.resources.files(__package__) / _TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    page: str = environment.from_string(template).render(
        title=title or "Data report",
        browser_title=title or f"Data report: {values['sources']}",
        # Nothing in it may end the script that holds it.
        library=library.replace("</script", "<\\/script"),
        **values,
    )
    return page


def _checked(path: str | os.PathLike[str]) -> Path:
    try:
        target = Path(path)
    except TypeError as error:
        raise ArgumentError(f"report: path must be the path of a file, got {path!r}") from error
    if target.suffix.lower() not in _SUFFIXES:
        raise ArgumentError(f"report: {target} must end in .html, which browsers open")
    if not target.absolute().parent.is_dir():
        raise NotFoundError(f"report: there is no folder {target.absolute().parent}; make it first")
    return target


def _check_packages() -> None:
    """Check for packages before anything is read, which may take long."""
    for package in ("jinja2", "plotly", "matplotlib"):
        optional(package, "windrow.report", "report")


def _of(given: Any) -> tuple[MapDataset[Any] | IterDataset[Any], Stats | None]:
    if isinstance(given, DatasetIterator):
        stats = given.stats()
        return IterDataset(given._node), stats if stats.elements else None
    if isinstance(given, (MapDataset, IterDataset)):
        return given, None
    raise ArgumentError(
        "report: needs a windrow.MapDataset, a windrow.IterDataset or an iterator of one, got"
        f" {given!r:.200}"
    )


def _write(target: Path, text: str) -> None:
    temporary = target.with_name(f".windrow-{uuid.uuid4().hex}.tmp")
    try:
        try:
            temporary.write_text(text, encoding="utf-8", errors="replace")
            os.replace(temporary, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as error:
        raise ConversionError(
            f"report: {target} cannot be written: {error.strerror or error}"
        ) from error
