"""Statements that are wrong by their types, and each is an error at its line."""

from typing import Any

import numpy as np

from windrow import MapDataset
from windrow.transforms import Batch, Filter, Map

NUMBERS = MapDataset.range(10)
STREAM = NUMBERS.to_iter_dataset()


def halved(number: int) -> float:
    return number / 2


def shout(text: str) -> str:
    return text.upper()


def copies(number: int) -> list[int]:
    return [number] * number


def mean(image: np.ndarray) -> float:
    return float(image.mean())


def total(one: int, other: int) -> int:
    return one + other


def joined(texts: list[str]) -> str:
    return " ".join(texts)


def is_long(text: str) -> bool:
    return len(text) > 10


def named(pair: tuple[str, int]) -> str:
    return pair[0] * pair[1]


def numbered(text: str, index: int) -> str:
    return f"{index} {text}"


def batches(dataset: MapDataset[Any], size: int) -> MapDataset[Any]:
    return dataset.batch(size)


class Shout(Map):
    def map(self, element: str) -> str:
        return element.upper()


class Even(Filter):
    def filter(self, element: int) -> bool:
        return element % 2 == 0


# --- sources and datasets ------------------------------------------------------------------------

MapDataset.source(3)  # error: call-overload, reportCallIssue
# A generator has no random access.
MapDataset.source(number for number in range(3))  # error: call-overload, reportCallIssue
MapDataset.concatenate(NUMBERS)  # error: arg-type, reportArgumentType
MapDataset.mix([NUMBERS, NUMBERS], at_end="repeated")  # error: arg-type, reportArgumentType
MapDataset.mix([NUMBERS, NUMBERS], "equal")  # error: arg-type, reportArgumentType
MapDataset.zip([NUMBERS, STREAM])  # error: list-item, reportCallIssue
# The number comes first.
MapDataset.zip((NUMBERS, NUMBERS.map(str))).map(named)  # error: arg-type, reportArgumentType
# The function needs a size.
NUMBERS.pipe(batches)  # error: call-arg, reportCallIssue

# --- functions -----------------------------------------------------------------------------------

NUMBERS.map(3)  # error: call-overload, reportArgumentType
NUMBERS.map(shout)  # error: arg-type, reportArgumentType
NUMBERS.map(total)  # error: arg-type, reportArgumentType
NUMBERS.map(str).map(halved)  # error: arg-type, reportArgumentType
# A batch of numbers is an array.
NUMBERS.batch(4).map(halved)  # error: arg-type, reportArgumentType
# The elements of a dict of arrays are dicts.
MapDataset.source({"image": np.zeros((3, 8, 8))}).map(mean)  # error: arg-type, reportArgumentType
NUMBERS.map(lambda number: number.upper())  # error: attr-defined, reportAttributeAccessIssue
NUMBERS.map(abs, batch=True)  # error: call-overload, reportCallIssue
NUMBERS.map(Even())  # error: call-overload, reportArgumentType
NUMBERS.map(Shout())  # error: arg-type, reportArgumentType
# The index comes first.
MapDataset.source(["a", "b"]).map_with_index(numbered)  # error: arg-type, reportArgumentType
# The function gets a generator, not a seed, and not nothing.
NUMBERS.random_map(total, seed=1)  # error: arg-type, reportArgumentType
NUMBERS.random_map(halved, seed=1)  # error: arg-type, reportArgumentType
NUMBERS.filter("label")  # error: arg-type, reportArgumentType
NUMBERS.filter(is_long)  # error: arg-type, reportArgumentType
NUMBERS.flat_map(halved, max_fan_out=2)  # error: arg-type, reportCallIssue
# Random access needs max_fan_out.
NUMBERS.flat_map(copies)  # error: call-overload, reportArgumentType
NUMBERS.apply(Batch)  # error: arg-type, reportArgumentType
NUMBERS.apply(halved)  # error: arg-type, reportArgumentType

# --- batches, orders, streams --------------------------------------------------------------------

NUMBERS.batch("4")  # error: call-overload, reportCallIssue
NUMBERS.batch(4, True)  # error: call-overload, reportCallIssue
NUMBERS.batch(4, remainder="padd")  # error: call-overload, reportCallIssue
NUMBERS.batch(4, batch_fn=joined)  # error: arg-type, reportCallIssue
NUMBERS.shuffle(seed="1")  # error: arg-type, reportArgumentType
STREAM.shuffle(seed=1)  # error: attr-defined, reportAttributeAccessIssue
len(STREAM)  # error: arg-type, reportArgumentType
NUMBERS.to_iter_dataset(4)  # error: call-overload, reportArgumentType
NUMBERS.mp_prefetch("two")  # error: arg-type, reportArgumentType
iter(NUMBERS).set_state("{}")  # error: arg-type, reportArgumentType

# --- elements ------------------------------------------------------------------------------------

STREAM[0]  # error: index, reportIndexIssue
NUMBERS[[1, 2]]  # error: call-overload, reportCallIssue
# After a filter an element may be None.
NUMBERS.filter(bool)[0] + 1  # error: operator, reportOptionalOperand
joined(list(NUMBERS))  # error: arg-type, reportArgumentType


def texts() -> MapDataset[str]:
    return NUMBERS  # error: return-value, reportReturnType
