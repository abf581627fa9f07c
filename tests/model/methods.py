"""The methods of both datasets as texts of programs: `$n` is a small number and `$s` a seed.

A dataset of several others names them `{0}` and `{1}`.
"""

from __future__ import annotations

from typing import Final

_BOTH: Final = {
    "apply": ".apply([Declared(), transforms.Batch($n)])",
    "batch": ".batch($n)",
    "batch drop": ".batch($n, drop_remainder=True)",
    "batch pad": ".batch($n, remainder='pad')",
    "batch_fn": ".batch($n, batch_fn=list)",
    "batch pad_to": ".batch($n, pad_to=8)",
    "filter": ".filter(keep)",
    "map": ".map(plus)",
    "map declared": ".map(Declared())",
    "map total": ".map(total)",
    "map batched": ".map(plus, batched=True)",
    "map gone": ".map(gone)",
    "map bad": ".map(bad)",
    "map_with_index": ".map_with_index(indexed)",
    "mp_prefetch": ".mp_prefetch(0)",
    "on_bad": ".on_bad('skip')",
    "pipe": ".pipe(lambda ds: ds)",
    "random_map": ".random_map(noisy, seed=$s)",
    "random_map derived": ".random_map(noisy)",
    "repeat": ".repeat(2)",
    "repeat endless": ".repeat()",
    "seed": ".seed($s)",
    "shard": ".shard(index, count)",
    "window_shuffle": ".window_shuffle($n, $s)",
}
MAP: Final = {
    **_BOTH,
    "block_shuffle": ".block_shuffle($s, block=$n, window_blocks=2)",
    "block_shuffle own": ".block_shuffle($s, window_blocks=$n)",
    "bucket": ".bucket([4, 8], [4, 2])",
    "chunks_of": ".chunks_of($n)",
    "flat_map": ".flat_map(several, 2)",
    "map keeps_length": ".map(plus, keeps_length=True)",
    "on_bad replace": ".on_bad('replace')",
    "pack": ".pack(8)",
    "pack truncate": ".pack(6, too_long='truncate')",
    "repeat same": ".repeat(2, reseed_each_epoch=False)",
    "sample": ".sample($n, $s)",
    "shuffle": ".shuffle($s)",
    "shuffle derived": ".shuffle()",
    "slice": "[1::2]",
    "slice back": "[::-1]",
    "slice list": ".slice([3, 0, -1])",
    "to_iter": ".to_iter_dataset()",
    "to_iter nones": ".to_iter_dataset(allow_nones=True)",
    "to_iter lanes": ".to_iter_dataset(lanes=2)",
}
STREAM: Final = {
    **_BOTH,
    "cache": ".cache()",
    "flat_map": ".flat_map(several)",
    "limit": ".limit($n)",
    "map as_x": ".map(as_x)",
    "pack": ".pack({'x': 8}, 'first_fit', num_packing_bins=2, shuffle_bins=False)",
    "pack cut": ".pack({'x': 8}, 'concat_then_split')",
    "rebatch": ".rebatch($n)",
    "rebatch drop": ".rebatch($n, drop_remainder=True)",
}
MAPS: Final = {
    "concatenate": "MapDataset.concatenate([{0}, {1}])",
    "zip": "MapDataset.zip([{0}, {0}])",
    "mix": "MapDataset.mix([{0}, {1}], [2, 1])",
    "mix repeat": "MapDataset.mix([{0}, {1}], at_end='repeat')",
    "mix drop": "MapDataset.mix([{0}, {1}], at_end='drop')",
    "mix schedule": "MapDataset.mix([{0}, {1}], Schedule([(0, [1, 0]), (3, [1, 2])]))",
    "select": "MapDataset.select_from_datasets([{0}, {1}], Turns())",
}
STREAMS: Final = {
    "zip": "IterDataset.zip([{0}, {1}], strict=False)",
    "zip strict": "IterDataset.zip([{0}, {0}])",
    "mix": "IterDataset.mix([{0}, {1}], [2, 1])",
    "mix repeat": "IterDataset.mix([{0}, {1}], at_end='repeat')",
    "mix drop": "IterDataset.mix([{0}, {1}], at_end='drop')",
    "mix schedule": "IterDataset.mix([{0}, {1}], Schedule([(0, [1, 0]), (3, [1, 2])]))",
    "mix named": "IterDataset.mix(dict(a={0}, b={1}), dict(b=1, a=2))",
    "mix tokens": "IterDataset.mix([{0}, {1}], by='tokens')",
    "interleave": "IterDataset.interleave([{0}, {1}, {0}], 2)",
}
# Methods of a MapDataset that make a stream.
MAKE_STREAMS: Final = frozenset(
    {"bucket", "mp_prefetch", "pack", "pack truncate", "to_iter", "to_iter nones", "to_iter lanes"}
)
# Those that mean something for elements of different lengths alone.
OF_LENGTHS: Final = frozenset(
    {
        "batch pad_to",
        "bucket",
        "chunks_of",
        "map as_x",
        "map keeps_length",
        "mix tokens",
        "pack",
        "pack cut",
        "pack truncate",
    }
)

# Variants of other methods: the matrix has them first in a chain, and not second.
ALIKE: Final = frozenset(
    {
        "batch drop",
        "map declared",
        "map keeps_length",
        "map total",
        "mix named",
        "mix schedule",
        "mp_prefetch",
        "pack truncate",
        "pipe",
        "random_map derived",
        "rebatch drop",
        "repeat same",
        "shuffle derived",
        "slice back",
        "slice list",
    }
)


def filled(text: str, n: int = 4, s: int = 7) -> str:
    """The text with its numbers."""
    return text.replace("$n", str(n)).replace("$s", str(s))


def over(template: str, *parts: str) -> str:
    """The text of a dataset of several."""
    for i, part in enumerate(parts):
        template = template.replace(f"{{{i}}}", part)
    return template
