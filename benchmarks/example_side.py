"""tf.train.Examples to columns: ours, a loop over protobuf's upb, and the floor.

The records hold a picture of 32 x 32 x 3 bytes, a label and 8 floats. In the second case labels have
one to three bytes, so that lengths are mixed. Ours and upb give the same columns; the floor copies
the finished ones once, to memory of its own as the others do.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from windrow.converters.zarr.example_encode import encode_examples
from windrow.sources.tf_example.columns import decode_examples
from windrow.sources.tf_example.features import Array, Column, Feature
from windrow.sources.tf_example.message import example_class

FEATURES = {
    "image": Feature("uint8", (32, 32, 3), raw=True),
    "label": Feature("int64"),
    "box": Feature("float32", (8,)),
}
LABELS = {"one layout": 100, "labels of 1 to 3 bytes": 20_000}
"""The labels of each case are below this."""


def records_of(case: str, *, records: int) -> list[bytes]:
    """The records of a case."""
    draw = np.random.default_rng(0)
    columns: dict[str, Column] = {
        "image": draw.integers(0, 256, (records, 32, 32, 3), np.uint8),
        "label": draw.integers(0, LABELS[case], records),
        "box": draw.random((records, 8), np.float32),
    }
    return encode_examples(columns, FEATURES)


def ours(records: Sequence[bytes], features: Mapping[str, Feature]) -> dict[str, Column]:
    """Windrow's."""
    return decode_examples(records, features)


def upb(records: Sequence[bytes], features: Mapping[str, Feature]) -> dict[str, Array]:
    """A loop that parses each record and puts its values into arrays made beforehand."""
    parse = example_class().FromString
    columns = {
        name: np.empty((len(records), *feature.item_shape), feature.numpy_dtype)
        for name, feature in features.items()
    }
    image, label, box = columns["image"], columns["label"], columns["box"]
    shape = image.shape[1:]
    for number, record in enumerate(records):
        found = parse(record).features.feature
        data = found["image"].bytes_list.value[0]
        image[number] = np.frombuffer(data, np.uint8).reshape(shape)
        label[number] = found["label"].int64_list.value[0]
        box[number] = found["box"].float_list.value
    return columns


def floor(columns: Mapping[str, Array]) -> list[npt.NDArray[np.uint8]]:
    """The values copied once."""
    return [column.copy() for column in columns.values()]


@dataclasses.dataclass(frozen=True, slots=True)
class _Timed:
    """Seconds of each side, round by round: the sides take turns."""

    ours_s: list[float]
    upb_s: list[float]
    floor_s: list[float]


def run(case: str, *, records: int = 20_000, rounds: int = 9) -> dict[str, object]:
    """Medians over `rounds`, after one that warms up; `ratio` is ours to upb, of records/s."""
    messages = records_of(case, records=records)
    made = upb(messages, FEATURES)
    for name, column in ours(messages, FEATURES).items():
        if not np.array_equal(column, made[name]):  # type: ignore[arg-type]
            raise AssertionError(f"{case}: {name} differs")
    timed = _Timed([], [], [])
    for _ in range(rounds + 1):
        timed.ours_s.append(_seconds(lambda: ours(messages, FEATURES)))
        timed.upb_s.append(_seconds(lambda: upb(messages, FEATURES)))
        timed.floor_s.append(_seconds(lambda: floor(made)))
    ours_s, upb_s, floor_s = (
        statistics.median(seconds[1:]) for seconds in (timed.ours_s, timed.upb_s, timed.floor_s)
    )
    return {
        "case": f"examples, {case}",
        "records": records,
        "record_bytes": round(sum(map(len, messages)) / records),
        "ours_records_per_s": round(records / ours_s),
        "upb_records_per_s": round(records / upb_s),
        "floor_records_per_s": round(records / floor_s),
        "ratio": round(upb_s / ours_s, 2),
        "of_floor": round(floor_s / ours_s, 2),
        "rounds": rounds,
    }


def _seconds(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def main() -> int:
    """Print a line of JSON for each case."""
    for case in LABELS:
        print(json.dumps(run(case)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
