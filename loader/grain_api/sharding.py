"""Which part of the data a process takes, in Grain's words: a number of shards, and one of them.

The chain's own ways are `ds[i::n]` and `IterDataset.shard`; these classes are for `DataLoader`,
samplers and `ElasticIterator`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from windrow.core.process import jax_process
from windrow.errors import PlanError
from windrow.transforms.arguments import at_least, integer


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """One of several shards of the records.

    Args:
        shard_index: The number of the shard, from 0.
        shard_count: The number of shards.
        drop_remainder: Whether all shards have the same number of records: records that cannot be
            shared equally are left out. Otherwise the first shards have one record more.

    Raises:
        ArgumentError: If a number is not an integer.
        PlanError: If they are not `0 <= shard_index < shard_count`.

    Example:
        >>> import windrow
        >>> windrow.sharding.ShardOptions(1, 4)
        ShardOptions(shard_index=1, shard_count=4, drop_remainder=False)
    """

    shard_index: int
    shard_count: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        count = at_least(1, self.shard_count, "ShardOptions: shard_count")
        index = integer(self.shard_index, "ShardOptions: shard_index")
        if not 0 <= index < count:
            raise PlanError(
                f"ShardOptions: shard_index must be in [0, {count}), the number of shards, got {index}"
            )


def as_shard(options: Any) -> ShardOptions:
    """Return shard options of Grain, or of a sampler of the user, as Windrow's.

    Raises:
        AttributeError: If they have no numbers of shards.
    """
    drop_remainder = getattr(options, "drop_remainder", False)
    return ShardOptions(options.shard_index, options.shard_count, drop_remainder)


class NoSharding(ShardOptions):
    """The only shard: every process takes all records."""

    def __init__(self) -> None:
        super().__init__(shard_index=0, shard_count=1, drop_remainder=False)


class ShardByJaxProcess(ShardOptions):
    """The shard of this JAX process, of as many as there are processes; the only one without JAX."""

    def __init__(self, drop_remainder: bool = False) -> None:
        index, count = jax_process()
        super().__init__(index, count, drop_remainder)


def elements_of_shard(elements: int, options: ShardOptions) -> int:
    """The number of elements that a shard gets of those that are dealt out to all shards in turn."""
    if options.drop_remainder:
        return elements // options.shard_count
    return len(range(options.shard_index, elements, options.shard_count))


def even_split(records: int, options: ShardOptions) -> tuple[int, int]:
    """The records `[start, stop)` of a shard, which lie one after the other."""
    each, more = divmod(records, options.shard_count)
    index = options.shard_index
    if options.drop_remainder:
        return index * each, (index + 1) * each
    return index * each + min(index, more), (index + 1) * each + min(index + 1, more)
