"""Programs of one expression, run with Windrow and with the model, and compared.

A program is the text of a dataset, such as `MapDataset.source(numbers(5)).shuffle(1).batch(2)`. It names
`index` and `count` where it has a shard. A failure shows the text and the lines that make it run.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import windrow
from tests.model import base, datasets, elements, streams
from tests.model.trees import (
    UnsureError,
    columns_in,
    is_branch,
    is_tree,
    joined,
    put_together,
    stacked,
)
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
    "Schedule": transforms.Schedule,
}
_PRODUCT = {
    **_NAMES,
    **{s.__name__: (lambda n, s=s: s(n).source) for s in elements.SOURCES},
    "MapDataset": windrow.MapDataset,
    "IterDataset": windrow.IterDataset,
    "Schedule": transforms.Schedule,
}
HANGS_AFTER_S = 240  # 16,000 epochs of a mixture in which all is bad take 25 s of one core
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


def _hangs(*_: Any) -> None:
    raise TimeoutError(f"no element for {HANGS_AFTER_S} s")


def outcome(make: Callable[[], Any], elements_of: Callable[[Any], Iterable[Any]] = iter) -> Outcome:
    """What making a dataset and asking for its first elements gives."""
    values: list[Any] = []
    built = False
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(HANGS_AFTER_S)
    iterator: Any = None
    base.Patience.asked = 0
    try:
        dataset = make()
        built = True
        iterator = iter(elements_of(dataset))
        for value in itertools.islice(iterator, MOST):
            values.append(value)
            base.Patience.asked = 0
    except UnsureError:
        raise
    except Exception as error:
        return Outcome(values, error, built)
    finally:
        if hasattr(iterator, "close"):
            iterator.close()
        signal.alarm(0)
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
    if "not known which are the first" in str(found.error):  # a limit of lanes, and a None
        expected = Outcome(expected.values[: len(found.values)], found.error)
    both = f"expected\n    {expected}\n  found\n    {found}"
    if is_refused(expected):
        return f"must be refused; {both}"
    either = (elements.BadError, ElementError)  # of two mistakes in a batch, any may be found first
    if type(expected.error) is not type(found.error) and not (
        isinstance(expected.error, either) and isinstance(found.error, either)
    ):
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
        "import tempfile\n"
        "from pathlib import Path\n"
        "from tests.model import elements, programs\n"
        "elements.FOLDER.append(Path(tempfile.mkdtemp()))\n"
        f"print(programs.checked({text!r}))\n"
        f"dataset = programs.product({text!r})\n"
    )


def compared(text: str, counts: Sequence[int] = (2, 4, 8)) -> tuple[str | None, dict[int, str]]:
    """How a program differs from the model, and messages of refusals, by the number of processes.

    Its shards are put together, if it has one. What the model refuses too is no such refusal.
    """
    expected = modelled(text)
    whole = outcome(lambda: product(text))
    if problem := difference(expected, whole):
        return problem, {}
    if is_refused(whole):
        is_pinned = expected is None or expected.values or not expected.error
        return None, {1: str(whole.error)} if is_pinned else {}
    refused = {}
    for count in counts if "(index, count)" in text else ():
        shards = shards_of(text, count)
        if problem := apart(whole, shards):
            return f"{count} shards: {problem}", {}
        if no := [str(shard.error) for shard in shards if is_refused(shard)]:
            refused[count] = no[0]
    return None, refused


def checked(text: str) -> str | None:
    """How a program differs from the model."""
    return compared(text)[0]


def shards_of(text: str, count: int) -> list[Outcome]:
    return [outcome(functools.partial(product, text, i, count)) for i in range(count)]


def apart(whole: Outcome, shards: Sequence[Outcome]) -> str | None:
    """How the shards of a program, put together, differ from the whole."""
    inside = next((found for shard in shards if (found := difference(None, shard))), None)
    if inside:
        return inside
    # Elements that do not fit together may lie in rows of different shards. See also `says_no`.
    if whole.error or any(map(says_no, shards)):
        return None
    return joined_differ("put together", whole, shards)


def says_no(shard: Outcome) -> bool:  # of lanes also where a function returns None
    return is_refused(shard) or "cannot know where the stream ends" in str(shard.error)


def joined_differ(
    name: str, whole: Outcome, shards: Sequence[Outcome], before: Sequence[Any] = ()
) -> str | None:
    """How rows of shards, put together, differ from the whole, which may have had batches before."""
    batches = [*before, *whole.values]
    if any(map(elements.has_lists_of_trees, batches)):
        return None  # whether such rows are a list, or refused, depends on those that are together
    if len({len(shard.values) for shard in shards}) > 1:
        return f"{name}: {[len(shard.values) for shard in shards]} batches"
    shapes = {str(joined([batch], row_shape, is_branch)) for batch in batches}
    if any(map(has_mask, batches)) and any("None" in repr(batch) for batch in batches):
        return None  # whether padding is None too depends on the elements that a shard has seen
    if len(shapes) > 1 and any(map(has_mask, batches)):
        # Padding in place of all rows of a shard is as its batch before, whatever its tree and shapes.
        most = 0 if before else 1
        shards = [dataclasses.replace(shard, values=shard.values[:most]) for shard in shards]
        whole = dataclasses.replace(whole, values=whole.values[:most])
    values = []
    for k, parts in enumerate(zip(*(shard.values for shard in shards), strict=True)):
        wanted = whole.values[k : k + 1]
        found = list(ways_together(parts, batches))
        if UnsureError in map(type, found):
            return None  # rows with and without strings are in other columns than both together
        equal = (each for each in found if not difference(Outcome(wanted), Outcome([each])))
        values.append(next(equal, found[0]))
        if isinstance(values[-1], Exception):
            return f"{name}: {values[-1]}\n    {shards[0]}"
    problem = difference(whole, Outcome(values, shards[0].error))
    return problem and f"{name}: {problem}"


def ways_together(parts: Sequence[Any], batches: Sequence[Any]) -> Iterator[Any]:
    """A batch of the parts of shards, or an error. A list may be rows or a tree: the value does not say."""
    for is_inner in (is_branch, has_lists, is_tree):
        for without in ((), batches):
            try:
                yield put_together(with_rows(parts, without, is_inner), is_inner)
            except Exception as error:
                yield error


def has_mask(batch: Any) -> bool:
    last = (list(columns_in(batch)) or [None])[-1]
    return isinstance(last, np.ndarray) and last.dtype == bool


def row_shape(columns: Sequence[Any]) -> Any:
    """What batches of as many rows have alike; a list may be a tree, which has another length then."""
    if isinstance(columns[0], list):
        inside = [np.shape(x)[1:] for x in columns[0] if isinstance(x, np.ndarray)]
        return len(columns[0]), inside
    return np.shape(columns[0])[1:]


def has_lists(value: Any) -> bool:
    """Whether a batch has its columns in here, where lists of trees are trees too."""
    return is_branch(value) or (isinstance(value, list) and any(map(is_tree, value)))


def with_rows(
    parts: Sequence[Any], wholes: Sequence[Any], is_inner: Callable[[Any], bool]
) -> list[Any]:
    """The parts of a batch but those without rows that are as the rows of another batch are."""
    none = [joined([batch], lambda columns: columns[0][:0], is_inner) for batch in wholes]
    return [part for part in parts if not any(same(part, other) for other in none)] or list(parts)


# --- laws of one program -------------------------------------------------------------------------


def conforms(spec: Any, value: Any) -> bool:
    """Whether an element is as its spec says."""
    if value is None:
        return True
    if isinstance(spec, dict):
        return (
            isinstance(value, dict)
            and list(value) == list(spec)
            and all(conforms(spec[key], value[key]) for key in spec)
        )
    if isinstance(spec, (tuple, list)):
        return (
            type(value) is type(spec)
            and len(value) == len(spec)
            and all(map(conforms, spec, value))
        )
    if isinstance(spec, type):
        return type(value) is spec
    found = np.asarray(value)
    return (
        found.dtype == spec.dtype
        and found.ndim == len(spec.shape)
        and all(want in (None, size) for want, size in zip(spec.shape, found.shape, strict=True))
    )


def misdescribed(text: str) -> str | None:
    """How the length or the spec of a program differs from its elements."""
    whole = outcome(lambda: product(text))
    if not whole.built:
        return None
    dataset = product(text)
    if isinstance(dataset, windrow.MapDataset):
        try:
            expected = len(model(text))
        except (UnsureError, WindrowError):
            expected = len(dataset)
        if len(dataset) != expected:
            return f"length {len(dataset)}, not {expected}"
    try:
        spec = dataset.element_spec
    except PlanError:
        return None
    except Exception as error:
        return f"element_spec: {type(error).__name__}: {error}"
    wrong = [value for value in whole.values if not conforms(spec, value)]
    return f"element_spec is {spec}, and an element {wrong[0]!r}" if wrong else None


def accessed(text: str, indices: Sequence[int]) -> str | None:
    """How `ds[i]`, `read` and `records_of` differ from the model."""
    if not outcome(lambda: product(text), lambda dataset: ()).built:
        return None
    dataset = product(text)
    if not isinstance(dataset, windrow.MapDataset):
        return None
    try:
        meant = model(text)
        values = [outcome(lambda: meant, lambda d, i=i: [d[i]]) for i in indices]  # type: ignore[misc]
        expected = outcome(lambda: meant, lambda d: [read(d, indices)])
    except (UnsureError, WindrowError):
        return None
    for i, value in zip(indices, values, strict=True):
        found = difference(value, outcome(lambda: dataset, lambda d, i=i: [d[i]]))  # type: ignore[misc]
        if found:
            return f"[{i}]: {found}"
        if not value.error:
            records = ordered(text, numbered(meant, meant.at(i).records))
            # Of a bad element the model has none.
            if records and records != ordered(text, flat(dataset.records_of(i))):
                return f"records_of({i}): {dataset.records_of(i)}, not {records}"
    found = difference(expected, outcome(lambda: dataset, lambda d: [d.read(list(indices))]))
    return found and f"read({list(indices)}): {found}"


def read(dataset: datasets.MapDataset, indices: Sequence[int]) -> Any:
    """Columns of the model, or a list where there may be absent elements or different trees."""
    values = [dataset[i] for i in indices]
    if not values:
        raise UnsureError("columns of nothing")
    if dataset.gaps or any(value is None for value in values):
        return values
    if any(isinstance(column, list) for value in values for column in columns_in(value)):
        raise UnsureError("lists that are columns or trees")
    return joined(values, column)


def column(leaves: Sequence[Any]) -> Any:
    """An array where all agree, else a list."""
    if any(map(is_tree, leaves)) or len({np.shape(leaf) for leaf in leaves}) > 1:
        return list(leaves)
    if len({isinstance(leaf, (int, float)) for leaf in leaves}) > 1:
        raise UnsureError("numbers of Python and of NumPy")
    return list(leaves) if len({np.asarray(x).dtype for x in leaves}) > 1 else stacked(leaves)


def ordered(text: str, records: Iterable[Any]) -> list[tuple[int, int]]:
    """Records as pairs; those of zipped batches of batches have no order that the pages say."""
    found = [tuple(record) for record in records]
    return sorted(found) if "zip" in text else found


def flat(records: Any) -> Iterator[Any]:
    """The records of an element; those of a packed row are in a list of their own."""
    for each in records:
        yield from flat(each) if isinstance(each, list) else [each]


def numbered(dataset: Any, records: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Records with the numbers of their sources."""
    sources = dataset.sources()
    return ((sources.index(source), record) for source, record in records)


def taken(dataset: Any, most: int, start: Callable[[Any], Any]) -> Outcome:
    """The next elements of a fresh iterator, after `start` was called with it."""

    def elements_of(dataset: Any) -> Iterator[Any]:
        with iter(dataset) as iterator:
            start(iterator)
            yield from itertools.islice(iterator, most)

    return outcome(lambda: dataset, elements_of)


def restore(state: Any, iterator: Any) -> None:
    iterator.set_state(state)


def restored(state: Any, ahead: int, iterator: Any) -> None:
    """Restores a state in an iterator that was used before."""
    for _ in itertools.islice(iterator, ahead):
        pass
    iterator.set_state(state)
    if iterator.get_state() != state:
        raise AssertionError(f"{iterator.get_state()} after set_state({state})")


def skipped(count: int, iterator: Any) -> None:
    iterator.skip(count)


def sought(step: int, iterator: Any) -> None:
    iterator.seek(step)


def resumed(text: str, ahead: int, steps: int = 8) -> str | None:
    """How a fresh iterator with a state, or after `skip` or `seek`, differs from the rest."""
    states: list[Any] = []

    def noted(dataset: Any) -> Iterator[Any]:
        with iter(dataset) as iterator:
            states.append(json.loads(json.dumps(iterator.get_state())))
            for value in itertools.islice(iterator, steps + 3):
                states.append(json.loads(json.dumps(iterator.get_state())))
                yield value

    whole = outcome(lambda: product(text), noted)
    if not whole.built or not is_documented(whole.error):
        return difference(None, whole)
    for k, state in enumerate(states[: steps + 1]):
        name = f"set_state({state})"
        starts: dict[str, Callable[[Any], Any]] = {name: functools.partial(restored, state, ahead)}
        if ".map(gone)" not in text:  # what such a map leaves out is not noticed
            starts[f"skip({k})"] = functools.partial(skipped, k)
            starts[f"seek({k})"] = functools.partial(sought, k)
        if ahead and whole.error:
            del starts[name]
        for name, start in starts.items():
            rest = taken(product(text), 3, start)
            error = whole.error if k + 3 > len(whole.values) else None
            found = difference(Outcome(whole.values[k : k + 3], error), rest)
            if found or (is_refused(rest) and not error):
                return f"after {k} elements, {name}: {found or rest}"
    return None


def recorded(text: str) -> str | None:
    """How the records of the first elements differ from the model."""
    try:
        meant = model(text)
        found = outcome(lambda: meant, lambda m: item_records(text, m))
    except (UnsureError, WindrowError):
        return None
    try:
        dataset = product(text)
    except WindrowError:
        return None

    def last(dataset: Any) -> Iterator[Any]:
        with iter(dataset) as iterator:
            for _ in iterator:
                yield ordered(text, flat(iterator.records_of_last()))

    def known(given: Outcome) -> Outcome:
        """Without the records of bad elements, of which the model has none."""
        pairs = itertools.zip_longest(given.values, found.values)
        values = [g if f or "on_bad" not in text else f for g, f in pairs][: len(given.values)]
        return dataclasses.replace(given, values=values)

    given = known(outcome(lambda: dataset, last))
    if problem := difference(found, given):
        return f"records_of_last: {problem}"
    if ".map(gone)" in text or isinstance(dataset, windrow.MapDataset):
        return None

    def asked(dataset: Any) -> Iterator[Any]:
        for k in range(len(found.values)):
            yield ordered(text, flat(dataset.records_of(k)))

    given = known(outcome(lambda: dataset, asked))
    problem = difference(Outcome(found.values), given)
    return problem and f"records_of: {problem}"


def item_records(text: str, dataset: Any) -> Iterator[Any]:
    stream = dataset.to_iter_dataset() if isinstance(dataset, datasets.MapDataset) else dataset
    return (ordered(text, numbered(dataset, item.records)) for item in stream.items())


def resized(text: str, sizes: tuple[int, int], end: str) -> str | None:
    """How a state of batches of one size, restored under another, differs from the rows left."""
    try:
        meant = model(text)
        stream = (
            meant
            if isinstance(meant, streams.IterDataset)
            else meant.to_iter_dataset(allow_nones=True)
        )
    except (UnsureError, WindrowError):
        return None
    first, second = (f".batch({size}{end})" for size in sizes)
    states: list[Any] = []

    def noted(dataset: Any) -> Iterator[Any]:
        with iter(dataset) as iterator:
            for value in itertools.islice(iterator, 5):
                states.append(json.loads(json.dumps(iterator.get_state())))
                yield value

    outcome(lambda: product(text + first), noted)
    for k, state in enumerate(states, 1):
        each, stop = k * sizes[0] // stream.lanes, None
        if meant is not stream and "drop" in end:  # with random access it reads whole batches only
            stop = len(meant) - (len(meant) - each) % sizes[1]

        def rest(lane: int, skip: bool, ends: Any = (each, stop)) -> Iterator[base.Item]:
            return itertools.islice(stream.run(lane, skip), *ends)

        left = streams.IterDataset(stream.lanes, rest, stream)
        try:
            expected = outcome(functools.partial(eval, f"left{second}", {"left": left}))
        except UnsureError:
            return None
        found = taken(product(text + second), MOST, functools.partial(restore, state))
        problem = difference(expected, found)
        if problem or (is_refused(found) and not expected.error):
            return f"after {k} of {first}, {second}: {problem or found}"
    return None


def merged(text: str, steps: int = 2) -> str | None:
    """How the whole, or other shards, resume with the states of shards that were merged."""
    whole = outcome(lambda: product(text))
    if whole.error or len(whole.values) < steps:
        return None
    for count in (2, 4):
        states = []
        try:
            for index in range(count):
                with iter(product(text, index, count)) as iterator:
                    for _ in range(steps):
                        next(iterator)
                    states.append(json.loads(json.dumps(iterator.get_state())))
        except (PlanError, ArgumentError, ElementError):  # `checked` judges it
            continue
        state = windrow.merge_states(states)
        rest = Outcome(whole.values[steps:])
        found = taken(product(text), MOST - steps, functools.partial(restore, state))
        if problem := difference(rest, found):
            return f"merged states of {count} shards, in the whole: {problem}"
        parts = [
            taken(product(text, index, 2), MOST - steps, functools.partial(restore, state))
            for index in range(2)
        ]
        if any(map(says_no, parts)):
            continue
        name = f"merged states of {count} shards, in two"
        if problem := joined_differ(name, rest, parts, whole.values[:steps]):
            return problem
    return None


def explained(text: str) -> str | None:
    """Whether `explain()` returns, and its number of elements is right where it is exact."""
    whole = outcome(lambda: product(text))
    if not whole.built:
        return None
    try:
        explanation = product(text).explain()
    except (PlanError, ArgumentError) as error:
        return None if is_refused(whole) else f"explain: {error}"
    except Exception as error:
        return f"explain: {type(error).__name__}: {error}"
    said = explanation.length
    # It predicts as if a filter dropped nothing, and no function gave None.
    if (
        ".map(gone)" in text
        or whole.error
        or said is None
        or explanation.is_endless
        or len(whole.values) == MOST
    ):
        return None
    if isinstance(product(text), windrow.MapDataset):
        return None if said == len(product(text)) else f"explain: {said} elements"
    return None if said == len(whole.values) else f"explain: {said}, not {len(whole.values)}"
