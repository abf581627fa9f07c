"""Parses the splits of a tfds dataset and parts of them, strings such as `train[10%:20%]+test`.

A string names the same records in the same order as in tfds, or raises an error. Forms that tfds
accepts without a useful meaning (bounds of two units, an end before its beginning) are errors.

Invariant: the records that a string names follow from the lengths of the shards alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from windrow.core.text import listing
from windrow.errors import ArgumentError, NotFoundError, PlanError

Shards: TypeAlias = Mapping[str, Sequence[int]]
"""Lengths of the shards of each split, by its name."""

ALL: Final = "all"
_ADDED: Final = r"\s*\+\s*"
_TERM: Final = r"(?P<name>[\w-]+)(\[(?P<part>[\w%:.-]+)\])?"
_BOUND: Final = r"((?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?"
_WAY: Final = (
    "write a split, or part of one, or several with + between: train, train[:80%],"
    " train[100:200]+test, train[2shard]"
)


@dataclasses.dataclass(frozen=True, slots=True)
class SplitRange:
    """The records `[start, stop)` of a split."""

    split: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclasses.dataclass(frozen=True, slots=True)
class EvenSplit:
    """Part `index` of `count` equal parts of a split, as `even_splits` makes them.

    It is used like the string of a split, and `+` adds it to other parts and to strings.

    Raises:
        ArgumentError: If `split` is not a split, or a number is not an integer.
        PlanError: If `count` or `index` is out of range.
    """

    split: Split
    index: int
    count: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        check_split(self.split)
        for name in ("index", "count"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int):
                raise ArgumentError(f"even_splits: {name} must be an integer, got {number!r}")
        if self.count < 1:
            raise PlanError(f"even_splits: count must be at least 1, got {self.count}")
        if not 0 <= self.index < self.count:
            raise PlanError(
                f"even_splits: index must be from 0 to {self.count - 1} for count={self.count}, got"
                f" {self.index}"
            )

    def __add__(self, other: Split) -> AddedSplits:
        return AddedSplits((self, other))

    def __radd__(self, other: str) -> AddedSplits:
        return AddedSplits((other, self))

    def __str__(self) -> str:
        dropped = ", without the remainder" if self.drop_remainder else ""
        return f"part {self.index} of {self.count} of {self.split}{dropped}"


@dataclasses.dataclass(frozen=True, slots=True)
class AddedSplits:
    """The records of several splits, one after another."""

    splits: tuple[Split, ...]

    def __add__(self, other: Split) -> AddedSplits:
        return AddedSplits((*self.splits, other))

    def __radd__(self, other: str) -> AddedSplits:
        return AddedSplits((other, *self.splits))

    def __str__(self) -> str:
        return " + ".join(map(str, self.splits))


Split: TypeAlias = str | EvenSplit | AddedSplits


def even_splits(split: Split, count: int, *, drop_remainder: bool = False) -> list[EvenSplit]:
    """Divides a split into `count` parts that share no record, for example one for each host.

    Args:
        split: Any value that `split=` takes. Each part of `train+test` has records of both.
        count: Number of parts.
        drop_remainder: Whether all parts have the same number of records, so that up to
            `count - 1` records of each split are left out. Else the first parts have one more.

    Returns:
        Values that `split=` takes. They name the same records as in tfds.

    Raises:
        ArgumentError: If `split` is not a split, or `count` is not an integer.
        PlanError: If `count` is less than 1.

    Example:
        >>> [str(part) for part in even_splits("train[:80%]", 2)]
        ['part 0 of 2 of train[:80%]', 'part 1 of 2 of train[:80%]']
    """
    EvenSplit(split, 0, count)  # checks the arguments
    return [EvenSplit(split, index, count, bool(drop_remainder)) for index in range(count)]


def check_split(split: object) -> None:
    """Checks the type of a split, which needs no dataset.

    Raises:
        ArgumentError: If it is neither a string nor a part from `even_splits`.
    """
    if isinstance(split, AddedSplits):
        for one in split.splits:
            check_split(one)
    elif isinstance(split, EvenSplit):
        check_split(split.split)
    elif not isinstance(split, str):
        raise ArgumentError(
            f"split must be a string such as 'train[:80%]', or a part from even_splits, got {split!r}"
        )


def checked_names(names: Any, argument: str, *, what: str) -> tuple[str, ...]:
    """Returns the names in a list as a tuple.

    Raises:
        ArgumentError: If `names` is not a list of strings.
    """
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise ArgumentError(f"{what}: {argument} must be a list of names, got {names!r:.80}")
    return tuple(names)


def split_ranges(split: Split, shards: Shards) -> list[SplitRange]:
    """The records that `split` names, in order.

    Args:
        split: A string, or a part from `even_splits`.
        shards: Lengths of the shards of each split of the dataset.

    Returns:
        Ranges of splits; a range may be empty.

    Raises:
        ArgumentError: If `split` is not a split.
        PlanError: If it cannot be parsed, or names records that a split does not have.
        NotFoundError: If it names a split that the dataset does not have.

    Example:
        >>> split_ranges("train[10%:20%]+test", {"train": [60, 40], "test": [7]})
        [SplitRange(split='train', start=10, stop=20), SplitRange(split='test', start=0, stop=7)]
    """
    check_split(split)
    if isinstance(split, AddedSplits):
        return [found for one in split.splits for found in split_ranges(one, shards)]
    if isinstance(split, EvenSplit):
        return [_part(whole, split) for whole in split_ranges(split.split, shards)]
    # The name of a split wins over any other meaning of the string.
    if split in shards:
        return [SplitRange(split, 0, sum(shards[split]))]
    return [found for term in re.split(_ADDED, split) for found in _ranges(term, split, shards)]


def _part(whole: SplitRange, part: EvenSplit) -> SplitRange:
    each, rest = divmod(len(whole), part.count)
    rest = 0 if part.drop_remainder else rest
    start, stop = (whole.start + each * at + min(at, rest) for at in (part.index, part.index + 1))
    return SplitRange(whole.split, start, stop)


def _ranges(term: str, text: str, shards: Shards) -> list[SplitRange]:
    match = re.fullmatch(_TERM, term)
    if match is None:
        raise PlanError(f"split {text!r}: {term!r} is not a split; {_WAY}")
    name, part = match["name"], match["part"]
    if name == ALL:
        if part is not None:
            raise PlanError(
                f"split {text!r}: 'all' means every split as a whole; write the part of each:"
                f" {'+'.join(f'{one}[{part}]' for one in shards)}"
            )
        return [SplitRange(one, 0, sum(lengths)) for one, lengths in shards.items()]
    if name not in shards:
        raise NotFoundError(
            f"split {text!r}: there is no split {name!r}; there is {listing(list(shards))}"
        )
    if part is None:
        return [SplitRange(name, 0, sum(shards[name]))]
    start, stop = _bounds(part, text, shards[name])
    if stop < start:
        raise PlanError(
            f"split {text!r}: {term} ends at record {stop:,}, before it begins at {start:,}"
        )
    return [SplitRange(name, start, stop)]


def _bounds(part: str, text: str, lengths: Sequence[int]) -> tuple[int, int]:
    """The records `[start, stop)` of a split that the part in brackets names."""
    found = [re.fullmatch(_BOUND, bound) for bound in part.split(":")]
    matches = [match for match in found if match is not None]
    given = [match for match in matches if match["value"]]
    if len(matches) < len(found) or not given or len(found) > 2:
        raise PlanError(f"split {text!r}: [{part}] names no records; {_WAY}")
    units = {match["unit"] for match in given} - {None}
    if len(units) > 1:
        raise PlanError(f"split {text!r}: [{part}] has two units; give both bounds in one")
    unit = units.pop() if units else None
    try:
        numbers = [
            (float(match["value"]) if unit == "%" else int(match["value"]))
            if match["value"]
            else None
            for match in matches
        ]
    except ValueError:
        what = "a number" if unit == "%" else "a whole number, or a share with % behind it"
        raise PlanError(f"split {text!r}: a bound in [{part}] is not {what}") from None
    if unit == "shard":
        return _of_shards([None if n is None else int(n) for n in numbers], text, part, lengths)
    if len(numbers) == 1:
        raise PlanError(
            f"split {text!r}: [{part}] is one number, which counts shards only ([2shard]); write"
            " the first and the one after the last, such as [5:6]"
        )
    records = sum(lengths)
    most = 100 if unit == "%" else records
    if any(abs(number) > most for number in numbers if number is not None):
        held = "between -100% and 100%" if unit == "%" else f"of {records:,} records"
        raise PlanError(f"split {text!r}: a bound in [{part}] is not {held}")
    if unit == "%":
        counts = [n if n is None else round(n * records / 100.0) for n in numbers]
        if records and any(
            n and n < 0 and not count for n, count in zip(numbers, counts, strict=True)
        ):
            raise PlanError(
                f"split {text!r}: a bound in [{part}] is less than half a record from the end, of"
                f" {records:,} records, and tfds then counts it from the beginning; give it in records"
            )
        numbers = [*counts]
    start, stop = (None if number is None else int(number) for number in numbers)
    return _counted(start, 0, records), _counted(stop, records, records)


def _counted(bound: int | None, default: int, records: int) -> int:
    """A bound counted from the first record; a negative bound counts from the end."""
    if bound is None:
        return default
    return records + bound if bound < 0 else bound


def _of_shards(
    numbers: Sequence[int | None], text: str, part: str, lengths: Sequence[int]
) -> tuple[int, int]:
    """The records `[start, stop)` of shards, whose numbers are from `-count` to `count`."""
    count = len(lengths)
    first = numbers[0]
    if len(numbers) == 2:
        stop = numbers[1]
        if stop == 0:
            raise PlanError(
                f"split {text!r}: [{part}] ends at shard 0, where tfds takes every shard; leave the"
                " end out for all, or the split for none"
            )
    else:
        stop = None if first in (None, -1) else int(first or 0) + 1
    if any(abs(number) > count for number in (first, stop) if number is not None):
        raise PlanError(f"split {text!r}: a bound in [{part}] is not of {count:,} shards")
    start = sum(lengths[: _counted(first, 0, count)])
    return start, sum(lengths[: _counted(stop, count, count)])
