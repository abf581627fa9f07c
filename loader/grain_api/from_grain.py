"""`from_grain`: a dataset that was built with Grain, as a chain of Windrow.

Grain's nodes are walked from the last one to the sources, and `grain_nodes.NODES` says what each
becomes. A node that is not there is named in an error, or runs as it is.

Invariant: the result has Grain's elements, in its order, with its random values, also for the number of
workers that Grain's dataset has.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from windrow import sources
from windrow.errors import ArgumentError, PlanError, WindrowError
from windrow.grain_api import grain_nodes, grain_states
from windrow.grain_api.data_loader import DataLoader, DataLoaderIterator
from windrow.grain_api.elastic import ElasticIterator
from windrow.grain_api.samplers import IndexSampler, SequentialSampler
from windrow.grain_api.sharding import ShardOptions
from windrow.sources.foreign import ForeignDataSource
from windrow.transforms.options import as_multiprocessing_options


def from_grain(dataset: Any, strict: bool = True) -> Any:
    """A dataset of Grain as Windrow's: same elements, order and random values, with planned reads.

    Nothing is read. An iterator gives an iterator, which continues after the element given last; use one
    of the two only.

    With several workers, Grain's order can depend on their number, where a batch, filter or packer is in a
    stream. The result has that order, and does not change with other workers.

    Args:
        dataset: A `MapDataset`, `IterDataset`, `DataLoader` or `ElasticIterator` of Grain, or an iterator
            of one of them.
        strict: Whether a node without a counterpart is an error. Otherwise it runs as it is, and what it
            reads is read by Grain.

    Returns:
        A `windrow.MapDataset`, `windrow.IterDataset`, `windrow.DataLoader`,
        `windrow.experimental.ElasticIterator` or an iterator.

    Raises:
        ArgumentError: If it is not of Grain.
        PlanError: If a node has no counterpart; the message names it.
        StateError: If the place of an iterator has none.

    Example:
        >>> import grain, windrow
        >>> theirs = grain.MapDataset.source([3, 1, 4, 1, 5]).seed(2).shuffle().batch(2)
        >>> ours = windrow.from_grain(theirs)
        >>> ours
        MapDataset(source(SequenceDataSource(list, 5 records)) > seed(2) > shuffle(...) > batch(2))
        >>> [batch.tolist() for batch in ours] == [batch.tolist() for batch in theirs]
        True
    """
    import grain

    to = Conversion(strict, {})
    name = grain_nodes.name_of(dataset)
    if name == "DataLoader":
        return _loader(to, dataset)
    if name == "DataLoaderIterator":
        loader = _loader(to, dataset._data_loader)
        return DataLoaderIterator(loader, dataset.get_state(), validate_state=False)
    if name in ("ElasticIterator", "_ElasticMapDatasetIterator"):
        return _elastic(to, dataset)
    if isinstance(dataset, (grain.MapDataset, grain.IterDataset)):
        return to.of(dataset)
    if isinstance(dataset, grain.DatasetIterator):
        return grain_states.resumed(to, dataset)
    raise ArgumentError(
        "from_grain: needs a MapDataset, IterDataset, DataLoader or iterator of Grain, got a"
        f" {type(dataset).__module__}.{type(dataset).__qualname__}"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Conversion:
    """Makes Windrow's datasets of Grain's.

    Args:
        strict: See `from_grain`.
        made: What was made already, by the identity of what it was made of, and that itself.
        part: The part of the data that a worker of Grain has: elements `part[0]`, `part[0] + part[1]`, ...
            of each chain with random access. None for all of them.
        process: The number of the worker whose random values are drawn, and the number of workers.
    """

    strict: bool
    made: dict[Any, tuple[Any, Any]]
    part: tuple[int, int] | None = None
    process: tuple[int, int] = (0, 1)

    def of(self, node: Any) -> Any:
        """The dataset that has the elements of a node of Grain.

        Raises:
            PlanError: If it has no counterpart, and the conversion is strict.
        """
        kind = grain_nodes.kind_of(node)
        return self._once(
            node, lambda: self._other(node) if kind is None else self._known(node, kind)
        )

    def parent(self, node: Any) -> Any:
        """The dataset of the one parent of a node."""
        return self.of(grain_nodes.parent_of(node))

    def source(self, source: Any) -> Any:
        """What Windrow reads in place of a source: one of its own where it knows the source."""
        return self._once(source, lambda: _source(source))

    def whole(self) -> Conversion:
        """This conversion, where the data are not shared among workers."""
        return dataclasses.replace(self, part=None)

    def sliced(self, part: tuple[int, int]) -> Conversion:
        """This conversion for a part of the data."""
        return dataclasses.replace(self, part=part)

    def drawing(self, process: tuple[int, int]) -> Conversion:
        """This conversion for a worker that draws."""
        return dataclasses.replace(self, process=process)

    def every(self) -> slice:
        """The slice of the part."""
        return slice(None) if self.part is None else slice(self.part[0], None, self.part[1])

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        name = (id(key), self.part, self.process)
        if name not in self.made:
            self.made[name] = key, make()  # with the key, so that no other object gets its id
        return self.made[name][1]

    def _known(self, node: Any, kind: str) -> Any:
        try:
            return grain_nodes.NODES[kind](self, node)
        except WindrowError as error:
            if not getattr(error, "__notes__", ()):
                error.add_note(f"windrow: from_grain makes {kind} of Grain here")
            raise

    def _other(self, node: Any) -> Any:
        import grain

        if self.strict:
            own = type(node)
            raise PlanError(
                f"from_grain: {own.__module__}.{own.__qualname__} has no counterpart in Windrow; pass"
                " strict=False to run it as it is, or write it as a subclass of windrow's class: see"
                " docs/extending.md"
            )
        from windrow.grain_api import own_grain_nodes  # its classes derive from Grain's

        if isinstance(node, grain.MapDataset):
            return own_grain_nodes.GrainMapNode(node)
        return own_grain_nodes.GrainStreamNode(self, node)


# --- sources -------------------------------------------------------------------------------------

# Windrow takes these as paths, or as columns: they would not be read by index.
_READ_BY_INDEX: Final = (str, bytes, bytearray, os.PathLike, Mapping)


def _source(source: Any) -> Any:
    kind = type(source)
    if kind.__name__ == "ArrayRecordDataSource" and kind.__module__.startswith(
        ("grain.", "array_record.")
    ):
        return _array_record(source)
    if grain_nodes.name_of(source) == "RangeDataSource":
        return sources.RangeDataSource(source._start, source._stop, source._step)
    return ForeignDataSource(source) if isinstance(source, _READ_BY_INDEX) else source


def _array_record(source: Any) -> sources.ArrayRecordDataSource:
    """The files of a source of Grain, or the records that it takes of each."""
    files = [os.fspath(each.filename) for each in source._read_instructions]
    found = sources.ArrayRecordDataSource(files)
    taken = [(each.start, each.start + each.num_records) for each in source._read_instructions]
    if len(found) == len(source):
        return found
    return sources.ArrayRecordDataSource(
        [f"{file}[{start}:{stop}]" for file, (start, stop) in zip(files, taken, strict=True)]
    )


# --- loaders -------------------------------------------------------------------------------------


def _loader(to: Conversion, loader: Any) -> DataLoader:
    shard, workers = loader._shard_options, loader._multiprocessing_options
    given = {
        "data_source": to.source(loader._data_source),
        "sampler": _sampler(loader._sampler),
        "operations": loader._operations,
        "shard_options": ShardOptions(shard.shard_index, shard.shard_count, shard.drop_remainder),
        "read_options": loader._read_options,
    }
    return DataLoader(**given).in_workers_of_grain(as_multiprocessing_options(workers))


def _sampler(sampler: Any) -> Any:
    name = grain_nodes.name_of(sampler)
    if name not in ("IndexSampler", "SequentialSampler"):
        return sampler
    shard = sampler._shard_options
    own = ShardOptions(shard.shard_index, shard.shard_count, shard.drop_remainder)
    if name == "SequentialSampler":
        return SequentialSampler(sampler._num_records, own, sampler._seed)
    return IndexSampler(
        sampler._num_records, own, sampler._shuffle, sampler._num_epochs, sampler._seed
    )


def _elastic(to: Conversion, iterator: Any) -> ElasticIterator:
    shard = iterator._shard_options
    found = ElasticIterator(
        to.of(iterator._ds),
        iterator._global_batch_size,
        ShardOptions(shard.shard_index, shard.shard_count, shard.drop_remainder),
        read_options=iterator._read_options,
        multiprocessing_options=iterator._multiprocessing_options,
    )
    found.set_state(iterator.get_state())
    return found
