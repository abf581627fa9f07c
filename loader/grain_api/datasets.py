"""Grain's experimental dataset classes, each over a method of the chain.

Invariant: a class adds nothing to its method: `LimitIterDataset(ds, 3)` is `ds.limit(3)`, with the same
elements, states and costs.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

from windrow.core.text import with_article
from windrow.errors import ArgumentError
from windrow.iter_dataset import IterDataset
from windrow.iterator import DatasetIterator
from windrow.map_dataset import MapDataset
from windrow.transforms import nodes
from windrow.transforms.arguments import at_least
from windrow.transforms.options import DatasetOptions

T = TypeVar("T")


# --- with random access --------------------------------------------------------------------------


class FlatMapMapDataset(MapDataset[Any]):
    """`parent.flat_map(transform)`, for a `transforms.FlatMap` with its `max_fan_out`."""

    def __init__(self, parent: MapDataset[Any], transform: Any) -> None:
        super().__init__(_map_dataset(parent, "FlatMapMapDataset").flat_map(transform)._node)


class WindowShuffleMapDataset(MapDataset[T]):
    """`parent.window_shuffle(window_size, seed)`.

    Grain's class repeats elements and loses others where the window does not divide the length.
    Here the last window is shorter, and each element comes once.
    """

    def __init__(self, parent: MapDataset[T], *, window_size: int, seed: int) -> None:
        found = _map_dataset(parent, "WindowShuffleMapDataset")
        super().__init__(found.window_shuffle(window_size, seed)._node)


class ZipMapDataset(MapDataset[tuple[Any, ...]]):
    """`MapDataset.zip(parents)`."""

    def __init__(self, parents: Sequence[MapDataset[Any]]) -> None:
        super().__init__(MapDataset.zip(parents)._node)


# --- streams -------------------------------------------------------------------------------------


class FlatMapIterDataset(IterDataset[Any]):
    """`parent.flat_map(transform)`. It may make more than `max_fan_out` elements."""

    def __init__(self, parent: IterDataset[Any], transform: Any) -> None:
        super().__init__(_stream(parent, "FlatMapIterDataset").flat_map(transform)._node)


class WindowShuffleIterDataset(IterDataset[T]):
    """`parent.window_shuffle(window_size, seed)`."""

    def __init__(self, parent: IterDataset[T], *, window_size: int, seed: int) -> None:
        found = _stream(parent, "WindowShuffleIterDataset")
        super().__init__(found.window_shuffle(window_size, seed)._node)


class ZipIterDataset(IterDataset[tuple[Any, ...]]):
    """`IterDataset.zip(parents, strict=strict)`."""

    def __init__(self, parents: Sequence[IterDataset[Any]], *, strict: bool = True) -> None:
        super().__init__(IterDataset.zip(parents, strict=strict)._node)


class LimitIterDataset(IterDataset[T]):
    """`parent.limit(count)`."""

    def __init__(self, parent: IterDataset[T], count: int) -> None:
        super().__init__(_stream(parent, "LimitIterDataset").limit(count)._node)


class RepeatIterDataset(IterDataset[T]):
    """`parent.repeat(num_epochs)`."""

    def __init__(self, parent: IterDataset[T], num_epochs: int | None = None) -> None:
        super().__init__(_stream(parent, "RepeatIterDataset").repeat(num_epochs)._node)


class CacheIterDataset(IterDataset[T]):
    """`parent.cache()`."""

    def __init__(self, parent: IterDataset[T]) -> None:
        super().__init__(_stream(parent, "CacheIterDataset").cache()._node)


class RebatchIterDataset(IterDataset[T]):
    """`parent.rebatch(batch_size, drop_remainder=drop_remainder)`."""

    def __init__(
        self, parent: IterDataset[T], batch_size: int, drop_remainder: bool = False
    ) -> None:
        found = _stream(parent, "RebatchIterDataset")
        super().__init__(found.rebatch(batch_size, drop_remainder=drop_remainder)._node)


class InterleaveIterDataset(IterDataset[T]):
    """`IterDataset.interleave(datasets, cycle_length)`; a `MapDataset` counts as its stream.

    Grain's state of an interleaving does not survive JSON: restored datasets begin again. Here it does.

    Args:
        datasets: The datasets.
        cycle_length: How many are read in turn.
        num_make_iter_threads: Accepted for compatibility, as the next two; no thread is needed to
            begin a dataset here, and `ReadOptions` bound what is read ahead.
        make_iter_buffer_size: See above.
        iter_buffer_size: See above.

    Raises:
        PlanError: If there is no dataset, or a number is out of range.
    """

    def __init__(
        self,
        datasets: Sequence[IterDataset[T] | MapDataset[T]],
        *,
        cycle_length: int,
        num_make_iter_threads: int = 1,
        make_iter_buffer_size: int = 1,
        iter_buffer_size: int = 1,
    ) -> None:
        for name, value in (
            ("num_make_iter_threads", num_make_iter_threads),
            ("make_iter_buffer_size", make_iter_buffer_size),
            ("iter_buffer_size", iter_buffer_size),
        ):
            at_least(1, value, f"InterleaveIterDataset: {name}")
        streams = [
            each.to_iter_dataset() if isinstance(each, MapDataset) else each for each in datasets
        ]
        super().__init__(IterDataset.interleave(streams, cycle_length)._node)


# --- packing -------------------------------------------------------------------------------------


class _FitPackIterDataset(IterDataset[dict[str, Any]]):
    """The packers that fit sequences into open rows: they differ in the name of the method alone."""

    _method: Literal["first_fit", "best_fit"]

    def __init__(
        self,
        parent: IterDataset[Any],
        *,
        length_struct: Mapping[str, Any],
        num_packing_bins: int,
        seed: int = 0,
        shuffle_bins: bool = True,
        shuffle_bins_group_by_feature: str | None = None,
        meta_features: Sequence[str] = (),
        pack_alignment_struct: Any = None,
        padding_struct: Any = None,
        max_sequences_per_bin: int | None = None,
    ) -> None:
        packed = _stream(parent, type(self).__name__).pack(
            length_struct,
            self._method,
            num_packing_bins=num_packing_bins,
            seed=seed,
            shuffle_bins=shuffle_bins,
            shuffle_bins_group_by_feature=shuffle_bins_group_by_feature,
            meta_features=meta_features,
            pack_alignment_struct=pack_alignment_struct,
            padding_struct=padding_struct,
            max_sequences_per_bin=max_sequences_per_bin,
        )
        super().__init__(packed._node)


class FirstFitPackIterDataset(_FitPackIterDataset):
    """`parent.pack(length_struct, "first_fit", ...)`: see `IterDataset.pack` for the arguments."""

    _method = "first_fit"


class BestFitPackIterDataset(_FitPackIterDataset):
    """`parent.pack(length_struct, "best_fit", ...)`: see `IterDataset.pack` for the arguments."""

    _method = "best_fit"


class BOSHandling(enum.Enum):
    """What `ConcatThenSplitIterDataset` does with the first token of a sequence."""

    DO_NOTHING = enum.auto()
    REPLACE_FIRST_TOKEN_WITH_BOS = enum.auto()


class ConcatThenSplitIterDataset(IterDataset[dict[str, Any]]):
    """`parent.pack(length_struct, "concat_then_split", ...)`: see `IterDataset.pack`.

    Grain's state of this packer does not survive JSON: a restored stream loses an element. Here none
    is lost.

    Args:
        parent: A stream of dicts of sequences.
        length_struct: The cells of a row for each feature.
        meta_features: Features that are never cut.
        split_full_length_features: Whether a sequence as long as a row may be cut too.
        bos_handling: Whether the first token of each sequence is replaced.
        bos_features: The features where it is.
        bos_token_id: The token that takes its place.

    Raises:
        ArgumentError: If `bos_handling` and `bos_token_id` do not go together.
        PlanError: If another argument is out of range.
    """

    def __init__(
        self,
        parent: IterDataset[Any],
        *,
        length_struct: Mapping[str, int],
        meta_features: Collection[str] = (),
        split_full_length_features: bool = True,
        bos_handling: BOSHandling = BOSHandling.DO_NOTHING,
        bos_features: Collection[str] = (),
        bos_token_id: int | None = None,
    ) -> None:
        options: dict[str, Any] = {}
        if getattr(bos_handling, "name", None) == "REPLACE_FIRST_TOKEN_WITH_BOS":  # Grain's too
            if bos_token_id is None:
                raise ArgumentError(
                    "ConcatThenSplitIterDataset: bos_handling replaces tokens, so give bos_token_id"
                )
            options = {"bos_token_id": bos_token_id, "bos_features": tuple(bos_features)}
        packed = _stream(parent, "ConcatThenSplitIterDataset").pack(
            length_struct,
            "concat_then_split",
            meta_features=tuple(meta_features),
            split_full_length_features=split_full_length_features,
            **options,
        )
        super().__init__(packed._node)


# --- what is ahead -------------------------------------------------------------------------------


class ThreadPrefetchIterDataset(IterDataset[T]):
    """The stream `parent`: every iterator of Windrow makes elements ahead in a thread.

    Args:
        parent: A stream.
        prefetch_buffer_size: Accepted for compatibility; `ReadOptions` of `to_iter_dataset` say how
            far ahead.

    Raises:
        PlanError: If the size is negative.
    """

    def __init__(self, parent: IterDataset[T], *, prefetch_buffer_size: int) -> None:
        at_least(0, prefetch_buffer_size, "ThreadPrefetchIterDataset: prefetch_buffer_size")
        super().__init__(_stream(parent, "ThreadPrefetchIterDataset")._node)


class ThreadPrefetchDatasetIterator(DatasetIterator[T]):
    """Continues from where `parent` is, in a thread that makes elements ahead.

    Use one of the two only. A chain's iterator counts by itself; any other is moved along.

    Args:
        parent: An iterator of Windrow, or one of your own with `__next__`, `get_state` and
            `set_state`, whose states are JSON.
        prefetch_buffer_size: Accepted for compatibility.

    Raises:
        ArgumentError: If `parent` has not these methods.
        PlanError: If the size is negative.
    """

    def __init__(self, parent: Iterator[T], prefetch_buffer_size: int) -> None:
        at_least(0, prefetch_buffer_size, "ThreadPrefetchDatasetIterator: prefetch_buffer_size")
        needed = ("__next__", "get_state", "set_state")
        missing = [name for name in needed if not callable(getattr(parent, name, None))]
        if missing:
            raise ArgumentError(
                "ThreadPrefetchDatasetIterator: needs an iterator with a state, and a"
                f" {type(parent).__name__} has no {' and no '.join(missing)}"
            )
        if isinstance(parent, DatasetIterator) and not parent._is_own:
            super().__init__(parent._node)
            self.set_state(parent.get_state())
        else:
            super().__init__(_StreamOfIterator(parent)._node)


class _StreamOfIterator(IterDataset[Any]):
    """The rest of an iterator that no chain made, from where it is now."""

    def __init__(self, iterator: Any) -> None:
        super().__init__()
        self._iterator, self._start = iterator, iterator.get_state()

    def __iter__(self) -> DatasetIterator[Any]:
        self._iterator.set_state(self._start)
        return ForwardingIterator(self._iterator)


class ForwardingIterator(DatasetIterator[Any]):
    """Asks an iterator that no chain made."""

    def __init__(self, iterator: Any) -> None:
        super().__init__()
        self._iterator = iterator

    def __next__(self) -> Any:
        return next(self._iterator)

    def get_state(self) -> Any:
        """The other's state."""
        return self._iterator.get_state()

    def set_state(self, state: Any) -> Self:
        """Move the other to a state."""
        self._iterator.set_state(state)
        return self

    def close(self) -> None:
        """Close the other, if it can be closed."""
        getattr(self._iterator, "close", lambda: None)()


def multithread_prefetch(
    ds: IterDataset[T], num_threads: int, buffer_size: int, sequential_slice: bool = False
) -> IterDataset[T]:
    """The stream `ds`: iterators of Windrow read and map on threads themselves.

    Elements and order do not depend on the number of threads.

    Args:
        ds: A stream.
        num_threads: Accepted for compatibility, as the next two; see `ReadOptions`.
        buffer_size: See above.
        sequential_slice: See above.

    Raises:
        ArgumentError: If `ds` is not a stream.
        PlanError: If a number is negative.
    """
    at_least(0, num_threads, "multithread_prefetch: num_threads")
    at_least(0, buffer_size, "multithread_prefetch: buffer_size")
    return _stream(ds, "multithread_prefetch")


# --- options of whole streams --------------------------------------------------------------------


class WithOptionsIterDataset(IterDataset[T]):
    """The stream `parent` with options, which hold for all of it.

    Where several of them give an option, the last one in the chain counts.

    Example:
        >>> import windrow
        >>> from windrow.experimental import DatasetOptions, WithOptionsIterDataset
        >>> stream = windrow.MapDataset.range(5000).to_iter_dataset().filter(lambda n: n < 10)
        >>> strict = DatasetOptions(filter_raise_threshold_ratio=0.99)
        >>> list(WithOptionsIterDataset(stream, strict))
        Traceback (most recent call last):
        ...
        windrow.errors.ElementError: filter(<lambda>) left out ...
    """

    def __init__(self, parent: IterDataset[T], options: DatasetOptions) -> None:
        stream = _stream(parent, "WithOptionsIterDataset")
        if not isinstance(options, DatasetOptions):
            raise ArgumentError(
                "WithOptionsIterDataset: needs a windrow.experimental.DatasetOptions, got"
                f" {options!r}"
            )
        super().__init__(nodes.OptionsNode((stream._node,), options))


# --- checks --------------------------------------------------------------------------------------


def _map_dataset(parent: Any, who: str) -> MapDataset[Any]:
    if not isinstance(parent, MapDataset):
        raise ArgumentError(
            f"{who}: needs a windrow.MapDataset, got {with_article(type(parent).__name__)}"
        )
    return parent


def _stream(parent: Any, who: str) -> IterDataset[Any]:
    if isinstance(parent, MapDataset):
        raise ArgumentError(f"{who}: needs an IterDataset; call .to_iter_dataset() before it")
    if not isinstance(parent, IterDataset):
        raise ArgumentError(
            f"{who}: needs a windrow.IterDataset, got {with_article(type(parent).__name__)}"
        )
    return parent
