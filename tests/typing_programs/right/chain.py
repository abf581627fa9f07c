"""Types of elements from the source to the loop."""

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import windrow
from windrow import DatasetIterator, IterDataset, MapDataset


def halved(number: int) -> float:
    return number / 2


def positive(number: int) -> int | None:
    return number if number > 0 else None


def noisy(number: float, rng: np.random.Generator) -> float:
    return number + float(rng.normal())


def numbered(index: int, text: str) -> tuple[int, str]:
    return index, text


def copies(number: int) -> list[str]:
    return [str(number)] * number


numbers = MapDataset.range(10)
assert_type(numbers, MapDataset[int])
assert_type(numbers[3], int | None)
assert_type(numbers[np.int64(3)], int | None)
assert_type(numbers[2:4], MapDataset[int])
assert_type(numbers.slice([1, 2]).shuffle(seed=1).repeat(2).seed(3), MapDataset[int])
assert_type(numbers.map(halved), MapDataset[float])
assert_type(numbers.map(positive), MapDataset[int])
assert_type(numbers.map(lambda number: str(number)), MapDataset[str])
assert_type(numbers.map(str).map(len), MapDataset[int])
assert_type(numbers.map(halved).random_map(noisy, seed=1), MapDataset[float])
assert_type(numbers.map(str).map_with_index(numbered), MapDataset[tuple[int, str]])
assert_type(numbers.flat_map(copies, max_fan_out=9), MapDataset[str])
assert_type(numbers.filter(lambda number: number % 2), MapDataset[int])
assert_type(numbers.map(np.sqrt, batched=True, local="x"), MapDataset[Any])
assert_type(numbers.on_bad("skip"), MapDataset[int])
for number in numbers.map(halved):
    assert_type(number, float)

# A dataset of numbers is a dataset of what numbers are.
wider: MapDataset[int | str] = numbers
objects: MapDataset[object] = numbers

# --- batches -------------------------------------------------------------------------------------

assert_type(numbers.batch(4), MapDataset[npt.NDArray[Any]])
assert_type(numbers.map(halved).batch(4, drop_remainder=True), MapDataset[npt.NDArray[Any]])
assert_type(numbers.batch(4, batch_fn=sum), MapDataset[int])
assert_type(numbers.batch(4, remainder="pad"), MapDataset[Any])
assert_type(numbers.map(str).batch(4), MapDataset[Any])
records = MapDataset.source({"x": np.zeros((10, 3)), "y": np.arange(10)})
assert_type(records.batch(4, remainder="pad"), MapDataset[dict[str, Any]])
anything: MapDataset[Any] = numbers
assert_type(anything.batch(4), MapDataset[Any])

# --- streams -------------------------------------------------------------------------------------

stream = numbers.to_iter_dataset(windrow.ReadOptions(num_threads=4))
assert_type(stream, IterDataset[int])
assert_type(stream.map(halved).filter(bool).window_shuffle(8, seed=1), IterDataset[float])
assert_type(stream.map(positive), IterDataset[int])
assert_type(stream.flat_map(copies).map_with_index(numbered), IterDataset[tuple[int, str]])
assert_type(stream.batch(4).rebatch(3).limit(2), IterDataset[npt.NDArray[Any]])
assert_type(stream.batch(4, batch_fn=len).repeat().cache(), IterDataset[int])
assert_type(stream.mp_prefetch(2), IterDataset[int])
assert_type(numbers.mp_prefetch(windrow.MultiprocessingOptions(2)), IterDataset[int])
assert_type(numbers.to_iter_dataset(allow_nones=True), IterDataset[Any])  # or None
assert_type(iter(stream), DatasetIterator[int])
assert_type(next(iter(numbers.map(str))), str)

# --- several datasets ----------------------------------------------------------------------------

assert_type(MapDataset.mix([numbers, numbers], [1, 2]), MapDataset[int])
assert_type(MapDataset.concatenate([numbers, numbers]), MapDataset[int])
assert_type(MapDataset.zip((numbers, numbers.map(str))), MapDataset[tuple[int, str]])
triples = MapDataset.zip((numbers, numbers.map(str), numbers.map(halved)))
assert_type(triples, MapDataset[tuple[int, str, float]])
assert_type(MapDataset.zip([numbers, numbers.map(str)]), MapDataset[tuple[Any, ...]])
assert_type(IterDataset.zip((stream, stream.map(str))), IterDataset[tuple[int, str]])
assert_type(IterDataset.mix({"a": stream, "b": stream}), IterDataset[int])
assert_type(IterDataset.interleave([stream, stream], cycle_length=2), IterDataset[int])


# --- steps of one's own --------------------------------------------------------------------------


def batches(dataset: MapDataset[int], size: int, *, shuffled: bool = True) -> MapDataset[Any]:
    return (dataset.shuffle(seed=1) if shuffled else dataset).batch(size)


assert_type(numbers.pipe(batches, 4, shuffled=False), MapDataset[Any])
