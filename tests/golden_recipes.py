"""The recipes of golden chains: each source under some tails, each node over some sources, and
compositions drawn from a seeded generator.

Only the maker draws; tests build what the golden files hold.
"""

from __future__ import annotations

import random
from typing import Any

from tests.golden_chains import Recipe

Step = list[Any]
DRAWN = 260
_SLOW = frozenset({73, 108, 232})  # filters that leave nearly nothing of an endless stream
_SHORT = {"num_threads": 2, "prefetch_buffer_size": 8}
_SYNCHRONOUS = {"num_threads": 0, "prefetch_buffer_size": 0}
_SMALL = {"prefetch_buffer_size": 8, "resident_bytes": 2_000, "in_flight_bytes": 500}
_TINY = {"num_threads": 1, "prefetch_buffer_size": 1, "block_bytes": 1}
_OPTIONS = (_SHORT, _SYNCHRONOUS, _SMALL, _TINY)


def s(name: str, **arguments: Any) -> Step:
    """A step."""
    return [name, arguments]


def several(name: str, parts: list[Recipe], **arguments: Any) -> Step:
    """A step over recipes."""
    return [name, arguments, parts]


def cut(*bounds: int | None) -> Step:
    """A slice."""
    return s("slice", sl={"slice": list(bounds)})


def stream(options: Any = None, **more: Any) -> Step:
    """The step to a stream."""
    return s("to_iter_dataset", **({"read_options": options} if options else {}), **more)


def zarr(store: Any, **more: Any) -> Step:
    return s("zarr", store=store, **more)


FIELDS = {
    "x": {"offsets": {"t": [-2, -1, 0]}},
    "y": {"offsets": {"t": 1}, "sizes": {"y": 2, "x": 2}},
}
SOURCES: dict[str, Step] = {
    "range": s("range", start=23),
    "range with a step": s("range", start=40, stop=-20, step=-3),
    "array": s("array", length=30),
    "array of bytes": s("array", length=30, dtype="u1"),
    "matrix": s("matrix", length=20),
    "columns": s("columns", length=31),
    "mapped": s("mapped"),
    "dates": s("dates", length=20),
    "booleans": s("booleans", length=20),
    "list": s("list", length=25),
    "tuples": s("tuples", length=17),
    "points": s("points", length=19),
    "ragged": s("ragged", length=21),
    "texts": s("texts", length=13),
    "range source": s("range source", start=5, stop=80, step=4),
    "squares": s("squares", length=24),
    "squares of many": s("squares of many", length=24),
    "deque": s("deque", length=11),
    "pieces": s("pieces", sizes=[3, 1, 7, 2, 9]),
    "zarr chunks": zarr("chunks"),
    "zarr sharded": zarr("sharded"),
    "zarr inner": zarr("inner"),
    "zarr raw": zarr("raw"),
    "zarr second": zarr("second"),
    "zarr delta": zarr("delta"),
    "zarr big-endian": zarr("big-endian"),
    "zarr sparse": zarr("sparse"),
    "zarr one": zarr("one"),
    "zarr group": zarr("group"),
    "zarr names": zarr("group", names=["y", "x"]),
    "zarr group v2": zarr("group-v2"),
    "zarr dict": zarr({"a": "chunks", "b": {"c": "chunks"}}),
    "zarr not direct": zarr("chunks", direct=False),
    "zarr inner not direct": zarr("inner", direct=False),
    "zarr view": s("view", store="chunks", start=3, stop=77),
    "windows of tokens": s("windows", store="tokens", sizes={"t": 32}, strides={"t": 25}),
    "windows of field": s(
        "windows", store="field", sizes={"y": 6, "x": 6}, strides={"y": 3, "x": 3}
    ),
    "windows fields": s("windows", store="field", sizes={"y": 6, "x": 6}, fields=FIELDS),
    "windows padded": s("windows", store="field", sizes={"t": 3}, pad="constant", fill=-1),
    "windows reflected": s("windows", store="field", sizes={"y": 5, "x": 5}, pad="reflect"),
    "windows bounds": s(
        "windows", store="field", sizes={"t": 2, "x": 4}, start={"t": 3, "x": 2}, stop={"t": 15}
    ),
    "windows dims": s("windows", store="second", sizes={"t": 6}, strides={"t": 4}, dims=["t", "x"]),
    "windows axes": s("windows", store="raw", sizes={"0": 4}, strides={"0": 4}),
    "windows not direct": s("windows", store="tokens", sizes={"t": 32}, direct=False),
    "windows climate": s(
        "windows", store="climate", sizes={"time": 4, "lat": 2}, names=["t2m", "height"]
    ),
    "windows decoded": s("windows", store="climate", sizes={"time": 3}, names=["t2m"], decode=True),
    "windows coordinates": s(
        "windows", store="climate", sizes={"time": 3, "lon": 3}, names=["t2m"], coordinates=True
    ),
    "windows selected": s(
        "windows",
        store="climate",
        sizes={"time": 4},
        names=["t2m"],
        select={"lat": 30.0},
        method="nearest",
    ),
    "windows anchors": s(
        "windows", store="climate", sizes={"time": 2}, names=["t2m"], anchors={"time": [3, 9, 4]}
    ),
    "array_record single": s("array_record", store="single.array_record"),
    "array_record groups": s("array_record", store="groups.array_record"),
    "array_record raw": s("array_record", store="raw.array_record"),
    "array_record direct": s("array_record", store="groups.array_record", direct=True),
    "array_record headers": s(
        "array_record", store="groups.array_record", direct=True, verify="headers"
    ),
    "array_record parts": s("array_record", store="part-*.array_record"),
    "array_record list": s("array_record", store=["part-2.array_record", "part-0.array_record"]),
    "array_record span": s("array_record", store="single.array_record[20:60]"),
    "array_record examples": s("array_record", store="examples.array_record"),
    "tfds train": s("tfds", store="counts/1.0.0", split="train"),
    "tfds test": s("tfds", store="counts/1.0.0", split="test"),
    "tfds part": s("tfds", store="counts/1.0.0", split="train[10:70%]", names=["id", "text"]),
    "tfds both": s("tfds", store="counts/1.0.0", split="train+test"),
}
TAILS: dict[str, list[Step]] = {
    "in order": [],
    "shuffled, batched, in two epochs": [
        s("shuffle", seed=1),
        s("repeat", num_epochs=2),
        s("batch", batch_size=4),
    ],
    "by blocks": [s("block_shuffle", seed=2, window_blocks=3), s("batch", batch_size=5)],
    "backwards as a stream": [cut(None, None, -2), stream(_SMALL), s("filter", transform="@odd")],
    "mapped in batches": [
        s("map", transform="@bump_columns", batched=True),
        s("random_map", transform="@with_rng", seed=3),
        stream(_SHORT),
        s("batch", batch_size=3, drop_remainder=True),
    ],
}
_BASES: dict[str, Recipe] = {
    "range": [s("range", start=20)],
    "columns": [s("columns", length=31)],
    "chunks": [zarr("chunks"), cut(0, 60, None)],
}
MAP_NODES: dict[str, list[Step]] = {
    "seed, shuffle": [s("seed", seed=42), s("shuffle")],
    "seed twice": [
        s("seed", seed=1),
        s("shuffle"),
        s("seed", seed=2),
        s("random_map", transform="@with_rng"),
    ],
    "seeds in a row": [
        s("seed", seed=7),
        s("random_map", transform="@with_rng"),
        s("shuffle"),
        s("window_shuffle", window_size=4),
    ],
    "large seed": [s("seed", seed=2**63 + 5), s("shuffle"), s("block_shuffle", block=3)],
    "window_shuffle": [s("window_shuffle", window_size=7, seed=3)],
    "block_shuffle of blocks": [s("block_shuffle", seed=5, block=4, window_blocks=2)],
    "block_shuffle in one window": [s("block_shuffle", seed=5, block=3, window_blocks=1)],
    "slice, shuffle": [cut(2, -3, None), s("shuffle", seed=9)],
    "shuffle, slice": [s("shuffle", seed=9), cut(1, None, 3)],
    "listed": [s("slice", sl=[5, 0, -1, 5, 3])],
    "empty": [cut(4, 4, None), s("shuffle", seed=1)],
    "repeat": [s("shuffle", seed=3), s("repeat", num_epochs=3)],
    "repeat the same": [s("shuffle", seed=3), s("repeat", num_epochs=3, reseed_each_epoch=False)],
    "repeat for ever": [s("shuffle", seed=3), s("repeat")],
    "repeat for ever the same": [
        s("random_map", transform="@with_rng", seed=3),
        s("repeat", reseed_each_epoch=False),
    ],
    "repeat, shuffle": [s("repeat", num_epochs=2), s("shuffle", seed=3)],
    "map": [s("map", transform="@bump")],
    "Map": [s("map", transform="@Bump")],
    "apply": [
        s("apply", transformations=["@Bump", "@Odd", "@Numbered"]),
        s("seed", seed=3),
        s("apply", transformations=["@Noise"]),
    ],
    "apply a batch": [s("apply", transformations=["@Bump", "@Batch:3"])],
    "map to pairs": [s("map", transform="@Shaped"), s("batch", batch_size=4)],
    "map to None": [s("map", transform="@none_of_three")],
    "map_with_index": [
        s("shuffle", seed=1),
        s("map_with_index", transform="@with_index"),
        s("repeat", num_epochs=2),
    ],
    "random_map": [s("random_map", transform="@with_rng", seed=11), s("repeat", num_epochs=2)],
    "random_map twice": [
        s("random_map", transform="@with_rng", seed=11),
        s("random_map", transform="@Noise", seed=12),
    ],
    "filter": [s("filter", transform="@odd")],
    "filter twice": [
        s("filter", transform="@odd"),
        s("map", transform="@bump"),
        s("filter", transform="@not_of_five"),
    ],
    "filter of all": [s("filter", transform="@nothing")],
    "filter, shuffle": [s("filter", transform="@odd"), s("shuffle", seed=4)],
    "filter, nones": [s("filter", transform="@odd"), stream(_SHORT, allow_nones=True)],
    "batch": [s("batch", batch_size=6)],
    "batch, dropped": [s("batch", batch_size=6, drop_remainder=True)],
    "batch_fn": [s("batch", batch_size=6, batch_fn="@total")],
    "batch_fn of a tuple": [
        s("batch", batch_size=6, batch_fn="@first_and_count", drop_remainder=True)
    ],
    "batch of batches": [s("batch", batch_size=3), s("batch", batch_size=2)],
    "batch, shuffle": [s("batch", batch_size=3), s("shuffle", seed=8), s("map", transform="@bump")],
    "batch, filter": [s("batch", batch_size=3), s("filter", transform="@odd")],
    "batched map": [s("map", transform="@bump_columns", batched=True), s("batch", batch_size=7)],
    "a failing function": [s("map_with_index", transform="@fails_at_seven")],
    "no seed": [s("shuffle")],
}
STREAM_NODES: dict[str, list[Step]] = {
    "options": [stream(_SHORT)],
    "synchronous": [s("shuffle", seed=1), stream(_SYNCHRONOUS)],
    "tiny": [s("shuffle", seed=1), stream(_TINY), s("batch", batch_size=4)],
    "map": [stream(), s("map", transform="@bump")],
    "map to None": [stream(), s("map", transform="@none_of_three"), s("batch", batch_size=4)],
    "batched map": [stream(), s("map", transform="@bump_columns", batched=True), s("batch", batch_size=4)],
    "batched map after a filter": [stream(), s("filter", transform="@odd"), s("map", transform="@bump_columns", batched=True)],
    "map_with_index": [s("filter", transform="@odd"), stream(), s("map_with_index", transform="@with_index")],
    "map_with_index twice": [stream(), s("map_with_index", transform="@with_index"), s("filter", transform="@odd"), s("map_with_index", transform="@Numbered")],
    "random_map": [stream(), s("random_map", transform="@with_rng", seed=5)],
    "seeded": [stream(), s("seed", seed=5), s("random_map", transform="@with_rng"), s("window_shuffle", window_size=5)],
    "seeded before": [s("seed", seed=5), s("shuffle"), stream(), s("random_map", transform="@with_rng")],
    "filter": [stream(), s("filter", transform="@odd")],
    "filter of all": [stream(), s("filter", transform="@nothing"), s("batch", batch_size=2)],
    "filter, repeat": [stream(), s("filter", transform="@odd"), s("repeat", num_epochs=3)],
    "window_shuffle": [stream(), s("window_shuffle", window_size=6, seed=2)],
    "window_shuffle, batch": [stream(_SHORT), s("window_shuffle", window_size=9, seed=2), s("batch", batch_size=4)],
    "window_shuffle of a window_shuffle": [stream(_SHORT), s("window_shuffle", window_size=9, seed=2), s("filter", transform="@odd"), s("window_shuffle", window_size=4, seed=3)],
    "batch, dropped": [stream(), s("batch", batch_size=7, drop_remainder=True)],
    "batch_fn": [stream(), s("batch", batch_size=7, batch_fn="@total")],
    "batch, batch": [s("batch", batch_size=3), stream(), s("batch", batch_size=2)],
    "repeat": [s("shuffle", seed=2), stream(), s("repeat", num_epochs=2), s("batch", batch_size=8)],
    "repeat for ever": [stream(), s("repeat"), s("batch", batch_size=9)],
    "limit": [s("shuffle", seed=2), stream(), s("limit", count=11)],
    "repeat, limit": [stream(), s("repeat"), s("limit", count=45), s("filter", transform="@odd"), s("limit", count=12)],
    "apply": [stream(), s("apply", transformations=["@Bump", "@Odd", "@Batch:3"])],
    "workers": [s("shuffle", seed=2), s("map", transform="@bump"), s("mp_prefetch", options=0)],
    "workers of a stream": [stream(), s("map", transform="@bump"), s("mp_prefetch", options=0), s("batch", batch_size=4)],
    "a failing function": [stream(), s("map_with_index", transform="@fails_at_seven"), s("batch", batch_size=3)],
}  # fmt: skip


def hand_written() -> dict[str, Recipe]:
    """Each source under each tail, each node over each base, and combinations of several."""
    found: dict[str, Recipe] = {}
    for name, source in SOURCES.items():
        for tail, steps in TAILS.items():
            found[f"{name}: {tail}"] = [source, *steps]
    for base, recipe in _BASES.items():
        for node, steps in MAP_NODES.items():
            found[f"{node} of {base}"] = [*recipe, *steps]
        for node, steps in STREAM_NODES.items():
            found[f"stream: {node} of {base}"] = [*recipe, *steps]
    found.update(_of_several())
    return found


def _of_several() -> dict[str, Recipe]:
    ten: Recipe = [s("range", start=10)]
    chunks: Recipe = [zarr("chunks"), s("block_shuffle", seed=1)]
    raw: Recipe = [zarr("raw"), s("shuffle", seed=2)]
    inner: Recipe = [zarr("inner")]
    records: Recipe = [s("array_record", store="groups.array_record"), s("block_shuffle", seed=4)]
    seeded: Recipe = [*ten, s("seed", seed=3), s("shuffle")]
    flows: list[Recipe] = [[*part, stream(_SHORT)] for part in (chunks, inner, seeded)]
    batch = s("batch", batch_size=6)
    pair: list[Recipe] = [[zarr("inner")], [zarr("sharded"), s("shuffle", seed=1)]]
    named = {"names": ["b", "a"], "weights": [2, 1]}
    return {
        "mix": [several("mix", [chunks, inner])],
        "mix, weights": [several("mix", [chunks, inner, raw], weights=[1, 2.5, 0.3]), batch],
        "mix, shuffled": [several("mix", [ten, ten], weights=[1, 3]), s("shuffle", seed=1), s("repeat")],
        "mix of one": [several("mix", [ten])],
        "mix of seeded": [several("mix", [seeded, seeded]), s("shuffle")],
        "mix of records": [several("mix", [records, [s("texts", length=9)]]), s("batch", batch_size=3)],
        "mix of mixtures": [several("mix", [[several("mix", [ten, seeded])], ten], weights=[3, 1])],
        "mix, repeat": [several("mix", [[*chunks, s("repeat")], [*inner, s("repeat")]], weights=[1, 2]), batch],
        "mix, block_shuffle": [several("mix", [chunks, inner]), s("block_shuffle", seed=3, block=8)],
        "mix of what does not stack": [several("mix", [ten, [s("list", length=9)]]), s("batch", batch_size=3)],
        "select": [several("select", [ten, seeded], length=14)],
        "select with a fingerprint": [several("select", [ten, chunks], length=14, fingerprint="z"), s("shuffle", seed=2)],
        "select, repeat": [several("select", [inner, chunks], length=30), s("repeat", num_epochs=2), batch],
        "concatenate": [several("concatenate", [chunks, inner]), s("batch", batch_size=20)],
        "concatenate, by blocks": [several("concatenate", [[zarr("chunks")], inner]), s("block_shuffle", seed=6), s("batch", batch_size=20)],
        "concatenate, shuffle": [several("concatenate", [ten, seeded, ten]), s("shuffle", seed=6), s("repeat", num_epochs=2)],
        "concatenate with empty": [several("concatenate", [[*ten, cut(0, 0, None)], ten])],
        "zip": [several("zip", pair), s("batch", batch_size=10)],
        "zip, filter": [several("zip", [[*ten, s("filter", transform="@odd")], ten]), s("map_with_index", transform="@with_index")],
        "zip, shuffle": [several("zip", [ten, seeded]), s("shuffle", seed=2), s("repeat")],
        "zip, filtered as a stream": [several("zip", pair), stream(_SHORT), s("filter", transform="@odd"), batch],
        "streams: mix": [several("mix", flows, weights=[1, 2, 1])],
        "streams: mix by name": [several("mix", flows[:2], **named), batch],
        "streams: mix, filter, shuffle": [several("mix", [[*flow, s("filter", transform="@odd")] for flow in flows[:2]]), s("window_shuffle", window_size=7, seed=2)],
        "streams: mix of repeated": [several("mix", [[*flow, s("repeat")] for flow in flows[:2]], weights=[3, 1]), batch],
        "streams: zip": [several("zip", [[*part, stream(_SHORT)] for part in pair]), batch],
        "streams: zip to the shorter": [several("zip", flows, strict=False), s("map", transform="@bump")],
        "streams: zip that ends unevenly": [several("zip", flows[1:]), s("batch", batch_size=4)],
        "streams: zip of a mixture": [several("zip", [[several("mix", flows[:2])], [*flows[0], s("window_shuffle", window_size=4, seed=1)]], strict=False), s("repeat", num_epochs=2)],
        "streams: all": [several("mix", [[*flow, s("random_map", transform="@with_rng", seed=3), s("repeat", num_epochs=2)] for flow in flows[:2]]), s("map_with_index", transform="@with_index"), s("filter", transform="@odd"), s("window_shuffle", window_size=8, seed=5), s("batch", batch_size=3), s("limit", count=13)],
    }  # fmt: skip


# --- drawn ---------------------------------------------------------------------------------------

_MIXED = ("range", "array", "columns", "pieces", "zarr chunks", "zarr group", "zarr inner",
          "array_record parts", "tfds train", "squares", "windows of tokens")  # fmt: skip


class _Drawing:
    """Compositions of nodes over sources."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def recipe(self) -> Recipe:
        """A chain with random access, or a stream."""
        chain = self._map_chain(most=4)
        return self._stream(chain, most=4) if self._random.random() < 0.55 else chain

    def _one(self, few: Any) -> Any:
        return few[self._random.randrange(len(few))]

    def _seed(self) -> dict[str, Any]:
        return {"seed": self._random.randrange(2**32)}

    def _source(self) -> Recipe:
        names = tuple(SOURCES) if self._random.random() < 0.5 else _MIXED
        return [SOURCES[self._one(names)]]

    def _map_chain(self, most: int) -> Recipe:
        chain = self._source()
        if most > 2 and self._random.random() < 0.25:
            parts = [self._map_chain(2), self._map_chain(1)]
            chain = self._one(
                [
                    [several("mix", parts, weights=[1, self._random.randrange(1, 5)])],
                    [several("concatenate", parts)],
                    [several("select", parts, length=self._random.randrange(5, 40))],
                    [several("zip", [[*part, cut(0, 9, None)] for part in parts])],
                ]
            )
        for _ in range(self._random.randrange(most + 1)):
            chain = [*chain, self._map_step()]
        return chain

    def _map_step(self) -> Step:
        size = self._random.randrange(1, 9)
        return list(
            self._one(
                [
                    s("shuffle", **self._seed()),
                    s("seed", **self._seed()),
                    s("window_shuffle", window_size=size * 3, **self._seed()),
                    s("block_shuffle", block=size, window_blocks=size % 3 + 1, **self._seed()),
                    s("block_shuffle", window_blocks=size, **self._seed()),
                    cut(self._random.randrange(4), None, self._one([None, 2, 3])),
                    cut(None, None, self._one([-1, -2])),
                    s("repeat", num_epochs=self._one([2, 3, None]), reseed_each_epoch=size > 3),
                    s("map", transform=self._one(["@bump", "@Bump", "@Shaped"])),
                    s("map", transform="@bump_columns", batched=True),
                    s("map_with_index", transform="@with_index"),
                    s("random_map", transform="@with_rng", **self._seed()),
                    s("filter", transform=self._one(["@odd", "@not_of_five"])),
                    s("batch", batch_size=size, drop_remainder=size % 2 == 0),
                    s("batch", batch_size=size, batch_fn="@total"),
                ]
            )
        )

    def _stream(self, chain: Recipe, most: int) -> Recipe:
        more = {"allow_nones": True} if self._random.random() < 0.1 else {}
        chain = [*chain, stream(self._one(_OPTIONS), **more)]
        for _ in range(self._random.randrange(most + 1)):
            chain = [*chain, self._stream_step()]
        if most > 2 and self._random.random() < 0.2:
            other = self._stream(self._map_chain(1), 2)
            joined = several("zip", [chain, other], strict=False)
            if self._random.random() < 0.5:
                joined = several("mix", [chain, other], weights=[2, 1])
            chain = [joined, self._stream_step()]
        return chain

    def _stream_step(self) -> Step:
        size = self._random.randrange(1, 9)
        return list(
            self._one(
                [
                    s("map", transform=self._one(["@bump", "@Bump", "@none_of_three"])),
                    s("map", transform="@bump_columns", batched=True),
                    s("map_with_index", transform="@with_index"),
                    s("random_map", transform="@with_rng", **self._seed()),
                    s("filter", transform=self._one(["@odd", "@not_of_five"])),
                    s("window_shuffle", window_size=size + 1, **self._seed()),
                    s("repeat", num_epochs=self._one([2, 3, None])),
                    s("limit", count=size * 4),
                    s("batch", batch_size=size, drop_remainder=size % 2 == 0),
                    s("batch", batch_size=size, batch_fn="@first_and_count"),
                    s("seed", **self._seed()),
                ]
            )
        )


def drawn() -> dict[str, Recipe]:
    """Compositions, the same in each run."""
    found: dict[str, Recipe] = {}
    drawing = _Drawing(seed=21)
    for number in range(DRAWN):
        recipe = drawing.recipe()
        if number not in _SLOW:
            found[f"drawn {number:03}"] = recipe
    return found


def recipes() -> dict[str, Recipe]:
    """All recipes by their names."""
    return {**hand_written(), **drawn(), **later()}


def later() -> dict[str, Recipe]:
    """Nodes that came after the first golden files."""
    numbers = [s("range", start=37), s("shuffle", seed=2)]
    lanes = [*numbers, stream(_SHORT, lanes=3)]
    tokens = [*numbers, s("map", transform="@as_tokens")]
    texts = [*tokens, stream(_SHORT)]
    short = [s("range", start=9), s("map", transform="@as_tokens"), stream()]
    failing = [*numbers, s("map", transform="@fails_at_some")]
    ragged = [s("ragged", length=30), s("shuffle", seed=5)]
    lengths = [n % 4 for n in range(30)]
    parts = [[s("range", start=a, stop=a + n), stream()] for a, n in ((0, 5), (10, 9), (30, 3))]
    packed = {"length_struct": {"t": 8}, "num_packing_bins": 3}
    return {
        "later: lanes": [*lanes, s("batch", batch_size=6)],
        "later: lanes after a filter": [*lanes, s("filter", transform="@odd"), s("repeat")],
        "later: a shard of lanes": [
            *[*numbers, stream(lanes=2)],
            *[s("batch", batch_size=4), s("shard", index=1, count=2)],
        ],
        "later: flat_map": [
            *numbers,
            *[
                s("flat_map", transform="@copies", max_fan_out=2),
                stream(),
                s("batch", batch_size=5),
            ],
        ],
        "later: flat_map of a stream": [*lanes, s("flat_map", transform="@copies")],
        "later: rebatch": [
            *numbers,
            s("batch", batch_size=5),
            stream(),
            s("rebatch", batch_size=3),
        ],
        "later: interleave": [several("interleave", parts, cycle_length=2)],
        "later: mix to the end of all": [several("mix", parts, weights=[3, 2, 1], at_end="drop")],
        "later: mix again and again": [several("mix", parts, weights=[3, 2, 1], at_end="repeat")],
        "later: mix by tokens": [
            several("mix", [texts, short], weights=[2, 1], by="tokens", tokens="t", at_end="drop")
        ],
        "later: mix by name": [
            several("mix", parts[:2], weights=[2, 1], names=["a", "b"]),
            s("batch", batch_size=2),
        ],
        "later: cache": [*lanes, s("cache"), s("repeat", num_epochs=3)],
        "later: sample": [*numbers, s("sample", num_elements=50, seed=3)],
        "later: a padded remainder": [*numbers, s("batch", batch_size=8, remainder="pad")],
        "later: padded leaves": [*tokens, s("batch", batch_size=4, pad_to=6)],
        "later: skipped": [
            *failing,
            s("on_bad", action="skip"),
            stream(),
            s("batch", batch_size=3),
        ],
        "later: replaced": [*failing, s("on_bad", action="replace"), s("batch", batch_size=4)],
        "later: skipped in lanes": [
            *[*lanes, s("map", transform="@fails_at_some"), s("on_bad", action="skip")],
        ],
        "later: first fit": [*texts, s("pack", **packed)],
        "later: best fit": [
            *texts,
            s("pack", **packed, method="best_fit"),
            s("batch", batch_size=2),
        ],
        "later: concat then split": [
            *texts,
            s("pack", length_struct={"t": 8}, method="concat_then_split"),
        ],
        "later: planned rows": [*ragged, s("pack", row_length=6, lengths=lengths, seed=1)],
        "later: buckets": [
            *ragged,
            s("bucket", boundaries=[1, 2, 4], batch_sizes=[4, 3, 2], lengths=lengths, seed=1),
        ],
        "later: chunks of sequences": [*ragged, s("chunks_of", size=2, lengths=[lengths])],
    }
