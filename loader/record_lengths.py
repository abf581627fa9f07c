"""`windrow.lengths` counts how long each record is, once, and keeps the result in a file.

What is planned from lengths needs them before anything is read. A source may know them; where
functions make the sequences, such as a tokenizer, each record must be read once.

Invariant: length `r` belongs to record `r` of its source, whatever order the dataset has.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from windrow.core.progress import ProgressMeter, ShowProgress
from windrow.core.text import with_article
from windrow.errors import ArgumentError, ElementError, PlanError
from windrow.iterator import DatasetIterator
from windrow.kept_file import KeptFile
from windrow.map_dataset import MapDataset
from windrow.sources.base import IntArray
from windrow.transforms.arguments import at_least
from windrow.transforms.functions import name_of
from windrow.transforms.nodes import Node, fingerprint, function_names, source_of, sources_of

# Lengths that are gathered together.
_BATCH: Final = 4_096
_VERSION: Final = 1


def lengths(
    dataset: MapDataset[Any],
    function: Callable[[Any], int] = len,
    path: str | os.PathLike[str] | None = None,
    *,
    workers: int = 0,
    progress: ShowProgress = True,
) -> list[IntArray]:
    """Count the length of what a dataset makes of each record: one pass over its sources.

    Records are read ahead and decoded in parallel; with `workers` functions run in processes.

    Args:
        dataset: A dataset with random access. Only its sources and maps count: shuffles, slices and
            mixtures choose and order records, and the length of every record is counted.
        function: Gives the length of an element, at least 0. The default takes arrays, strings and
            bytes; for a dict give one, such as `lambda element: len(element["tokens"])`.
        path: A local file that keeps the result. If it is there, nothing is counted, provided that
            it was counted of the same data with functions of the same names; other data is refused.
            It is written in one step, once all is counted.
        workers: Worker processes for the maps and `function`; 0 runs them on threads.
        progress: Whether to show a bar on a terminal, and elsewhere to log a line every 10 seconds;
            or a function that is called with a `windrow.progress.Progress`.

    Returns:
        One array for each source, in the order in which the chain has them: int64 `(records,)`.

    Raises:
        ArgumentError: If `dataset` is not a `MapDataset`, or `function` is not a function.
        PlanError: If elements are not made of single records, by the record alone.
        ElementError: If a length is not an integer of at least 0, or an element is absent.
        SourceError: If the file was counted of other data, or is not a file of lengths.
        NotFoundError: If the folder of `path` does not exist.

    Example:
        >>> import windrow
        >>> dataset = windrow.MapDataset.source(["one", "two", "three"]).shuffle(seed=0)
        >>> windrow.lengths(dataset, progress=False)
        [array([3, 3, 5])]
    """
    count = at_least(0, workers, "lengths: workers")
    counting = Counting.of(dataset, function, path)
    found = counting.kept()
    if found is None:
        chains = counting.chains
        found = [_counted(chain, function, count, progress) for chain in chains]
        counting.keep(found)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Counting:
    """What is counted, and the file that keeps it.

    Args:
        chains: The maps over each source.
        function: Gives the length of an element.
        file: The file, if there is one.
    """

    chains: tuple[Node, ...]
    function: Callable[[Any], int]
    file: KeptFile | None

    @classmethod
    def of(cls, dataset: Any, function: Any, path: str | os.PathLike[str] | None) -> Counting:
        """Check the arguments of `lengths`, and raise what it raises for them."""
        if not isinstance(dataset, MapDataset):
            raise ArgumentError(f"lengths: needs a windrow.MapDataset, got {dataset!r:.200}")
        if not callable(function):
            raise ArgumentError(f"lengths: function must be a function, got {function!r:.200}")
        chains = tuple(_over_records(dataset._node))
        about = {
            "version": _VERSION,
            "chains": [fingerprint(chain) for chain in chains],
            "functions": [name for chain in chains for name in function_names(chain)],
            "lengths of": name_of(function),
        }
        file = None
        if path is not None:
            file = KeptFile.at(path, about, "lengths")
        return cls(chains, function, file)

    def kept(self) -> list[IntArray] | None:
        """The lengths in the file; None if it is not there. Raises a SourceError for other data."""
        stored = None if self.file is None else self.file.read()
        if stored is None or self.file is None:
            return None
        found = [np.asarray(stored.get(str(number), ()), np.int64) for number in range(len(stored))]
        if [len(one) for one in found] != [chain.length for chain in self.chains]:
            raise self.file.damaged()
        return found

    def part(self, number: int, start: int, stop: int) -> IntArray:
        """Count records `[start, stop)` of source `number`."""
        chain = MapDataset[Any](self.chains[number])[start:stop]._node
        return _counted(chain, self.function, 0, False, start)

    def keep(self, found: Sequence[IntArray]) -> None:
        """Write the file, if there is one."""
        if self.file is not None:
            self.file.write({str(number): one for number, one in enumerate(found)})


def _counted(
    chain: Node,
    function: Callable[[Any], int],
    workers: int,
    progress: ShowProgress,
    first: int = 0,
) -> IntArray:
    """The length of each element of a chain, in order; `first` is the record of element 0."""
    source = sources_of(chain)[0]
    batches: Any = MapDataset[Any](chain).map(_Measured(function)).batch(_BATCH, batch_fn=_joined)
    batches = batches.mp_prefetch(workers) if workers else batches.to_iter_dataset()
    parts: list[IntArray] = []
    iterator: DatasetIterator[IntArray]
    with iter(batches) as iterator, ProgressMeter("lengths", None, progress) as meter:
        for part in iterator:
            meter.add(len(part), 0)
            parts.append(part)
    found = np.concatenate([np.zeros(0, np.int64), *parts])
    if found.size and found.min() < 0:
        raise ElementError(
            f"lengths: record {first + int(np.argmax(found < 0)):,} of {source!r} is absent: a map"
            " returned None, and each record needs an element"
        )
    return found


class _Measured:
    """Calls the function of the user, and checks what it returns."""

    def __init__(self, function: Callable[[Any], int]) -> None:
        self._function = function

    def __call__(self, element: Any) -> int:
        if self._function is len and isinstance(element, (dict, tuple)):
            raise ElementError(
                f"lengths: an element is {with_article(type(element).__name__)}, whose len is not the length of a"
                " sequence; give a function, such as lambda element: len(element['tokens'])"
            )
        found = self._function(element)
        try:
            length = operator.index(found)
        except TypeError:
            length = -1
        if length < 0:
            raise ElementError(
                f"lengths: {name_of(self._function)} returned {found!r:.200}; it must return an"
                " integer of at least 0"
            )
        return length


def _joined(values: Sequence[int | None]) -> IntArray:
    """Lengths as an array, -1 for an absent element."""
    return np.array([-1 if value is None else value for value in values], np.int64)


def _over_records(node: Node) -> list[Node]:
    """The functions of a chain over each of its sources, as one chain per source.

    Element `r` of such a chain is made from record `r` of its source; nothing else decides it.

    Raises:
        PlanError: If something else does: a filter, a batch, a zip or a function that is given the
            index; or if functions differ between two ways to one source.
    """
    found: dict[int, Node] = {}
    ways: dict[int, list[object]] = {}
    waiting: list[tuple[Node, list[Node]]] = [(node, [])]
    while waiting:
        at, functions = waiting.pop()
        if source_of(at) is not None:
            key = id(source_of(at))
            way: list[object] = [(type(each), *map(id, each.functions)) for each in functions]
            if ways.setdefault(key, way) != way:
                raise PlanError(
                    f"lengths: two ways lead to {source_of(at)!r}, with different functions; count"
                    " the lengths of each by itself"
                )
            chain = at
            for each in reversed(functions):
                chain = dataclasses.replace(each, parents=(chain,))
            found[key] = chain
        elif at.makes_values and at.follows_batch:
            waiting.append((at.parent, [*functions, at]))
        elif at.chooses:
            waiting.extend((parent, functions) for parent in reversed(at.parents))
        else:
            raise PlanError(
                f"lengths: {at.written} does not make one element of each record, by the record"
                " alone; count lengths before it"
            )
    return list(found.values())
