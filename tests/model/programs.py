"""Programs of one expression, run with Windrow and with the model, and compared.

A program is the text of a dataset, such as `MapDataset.source(numbers(5)).shuffle(1).batch(2)`. It names
`index` and `count` where it has a shard. A failure shows the text and the lines that make it run.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

import windrow
from tests.model import base, datasets, elements, streams
from tests.model.trees import UnsureError, put_together
from tests.strategies import same
from windrow import transforms
from windrow.errors import ArgumentError, ElementError, PlanError, WindrowError

_NAMES = {
    **{function.__name__: function for function in elements.FUNCTIONS},
    "Turns": elements.Turns,
    "Declared": elements.Declared,
    "transforms": transforms,
    "list": list,
}
_MODEL = {
    **_NAMES,
    **{source.__name__: source for source in elements.SOURCES},
    "MapDataset": datasets.MapDataset,
    "IterDataset": streams.IterDataset,
    "Schedule": base.Schedule,
}
_PRODUCT = {
    **_NAMES,
    **{s.__name__: (lambda n, s=s: s(n).source) for s in elements.SOURCES},
    "MapDataset": windrow.MapDataset,
    "IterDataset": windrow.IterDataset,
    "Schedule": transforms.Schedule,
}
MOST = 40  # elements of an endless stream that are compared


def product(text: str, index: int = 0, count: int = 1) -> Any:
    """Windrow's dataset of a program."""
    return eval(text, {**_PRODUCT, "index": index, "count": count})


def model(text: str) -> Any:
    """The model's dataset of a program."""
    return eval(text, {**_MODEL, "index": 0, "count": 1})


@dataclasses.dataclass
class Outcome:
    """The elements that came, and the error at the end; `built` says whether there was a dataset."""

    values: list[Any]
    error: BaseException | None = None
    built: bool = True

    def __str__(self) -> str:
        said = [repr(value) for value in self.values[:12]]
        if self.error is not None:
            said.append(f"{type(self.error).__name__}: {str(self.error)[:300]}")
        return "\n    ".join(said) or "nothing"


def outcome(make: Callable[[], Any], elements_of: Callable[[Any], Iterable[Any]] = iter) -> Outcome:
    """What making a dataset and asking for its first elements gives."""
    values: list[Any] = []
    built = False
    try:
        dataset = make()
        built = True
        for value in itertools.islice(elements_of(dataset), MOST):
            values.append(value)
    except UnsureError:
        raise
    except Exception as error:
        return Outcome(values, error, built)
    return Outcome(values)


def is_documented(error: BaseException | None) -> bool:
    """Whether an error is one that the pages name, or that of the program's own function."""
    return error is None or isinstance(error, (WindrowError, elements.BadError))


def is_refused(found: Outcome) -> bool:
    """Whether a chain was refused, when it was written or before its first element."""
    return isinstance(found.error, (PlanError, ArgumentError)) and not found.values


def difference(expected: Outcome | None, found: Outcome) -> str | None:
    """How an outcome differs from the expected one; None if it does not, or the chain is refused."""
    if not is_documented(found.error):
        return f"error from inside\n    {found}"
    if expected is None or is_refused(found):
        return None
    both = f"expected\n    {expected}\n  found\n    {found}"
    if is_refused(expected):
        return f"must be refused; {both}"
    if type(expected.error) is not type(found.error):
        return f"another end; {both}"
    if len(expected.values) != len(found.values):
        return f"{len(found.values)} elements, not {len(expected.values)}; {both}"
    if not all(map(same, expected.values, found.values)):
        return f"other values; {both}"
    return None


def modelled(text: str) -> Outcome | None:
    """What the model gives for a program; None where the pages leave it open."""
    try:
        return outcome(lambda: model(text))
    except UnsureError:
        return None


def pasted(text: str) -> str:
    """The lines that run a program."""
    return (
        "from tests.model import elements, programs\n"
        "from pathlib import Path; elements.FOLDER.append(Path(tempfile.mkdtemp()))\n"
        f"dataset = programs.product({text!r})\n"
    )


def checked(text: str, counts: Iterable[int] = (2, 4, 8)) -> str | None:
    """How a program differs from the model; its shards are put together, if it has one."""
    expected = modelled(text)
    whole = outcome(lambda: product(text))
    found = difference(expected, whole)
    if found is None and "(index, count)" in text:
        found = next(filter(None, (apart(text, whole, count) for count in counts)), None)
    return found


def apart(text: str, whole: Outcome, count: int) -> str | None:
    """How the shards of a program, put together, differ from the whole."""
    shards = [outcome(lambda i=i: product(text, i, count)) for i in range(count)]  # type: ignore[misc]
    inside = next((found for shard in shards if (found := difference(None, shard))), None)
    if inside:
        return f"{count} shards: {inside}"
    if any(is_refused(shard) for shard in shards):
        return None
    steps = {len(shard.values) for shard in shards}
    if len(steps) > 1:
        return f"{count} shards: {[len(shard.values) for shard in shards]} batches"
    try:
        values = [put_together(rows) for rows in zip(*(s.values for s in shards), strict=True)]
    except Exception as error:
        return f"{count} shards: cannot be put together: {error}\n    {shards[0]}"
    together = Outcome(values, shards[0].error)
    found = difference(whole, together)
    return found and f"{count} shards put together: {found}"
