"""What a `MapDataset` gives: elements by index, streams, what is planned from lengths, and orders.

Invariant: nothing is read until elements are requested. An order is a function of seed, epoch and index,
and of lengths where these plan it, so any element of any epoch can be asked for directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from windrow.base import Dataset, stream_of
from windrow.base_iterator import Epochs
from windrow.engine import execute
from windrow.errors import ArgumentError, RecordIndexError
from windrow.iter_dataset import IterDataset
from windrow.iterator import DatasetIterator
from windrow.transforms import nodes, tables
from windrow.transforms.arguments import checked_seed, indices_of, integer
from windrow.transforms.nodes.dealing import dealt
from windrow.transforms.options import ReadOptions

if TYPE_CHECKING:
    from windrow.engine.record_names import RecordOf
    from windrow.transforms.callables import WorkerOptions

T_co = TypeVar("T_co", covariant=True)
_SEEDS: Final = 2**32


class RandomAccess(Dataset[T_co]):
    """What gives the elements of a `MapDataset`, but for `[]`."""

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            from windrow.core.absent_names import of_map  # only for errors

            raise of_map(type(self).__name__, name)

    def read(self, indices: Sequence[int] | npt.NDArray[Any]) -> Any:
        """Return the elements at `indices` as columns, in one planned read.

        Args:
            indices: Integers of any epoch, in any order, repeated or not.

        Returns:
            The tree of one element, with an array `(len(indices), ...)` at each leaf whose values
            agree in shape and dtype, else a list. If the chain has a filter or an element is
            absent, a list of elements, None where absent.

        Example:
            >>> import numpy as np, windrow
            >>> dataset = windrow.MapDataset.source({"x": np.arange(6), "y": np.eye(6)})
            >>> dataset.shuffle(seed=1).read([0, 5])["x"]
            array([5, 1])
        """
        table = self._table(indices)
        return (
            tables.elements(table) if nodes.may_be_absent(self._node) else tables.as_columns(table)
        )

    def __getitems__(self, indices: Sequence[int] | npt.NDArray[Any]) -> list[T_co | None]:
        """The elements at `indices` as a list, None where absent; torch calls this."""
        return list(tables.elements(self._table(indices)))

    def records_of(self, index: int) -> list[RecordOf]:
        """The records that element `index` is made of, without reading.

        A function does not change them: they are what went into it, also if a filter drops the
        element.

        Args:
            index: An index in any epoch, as in `ds[index]`.

        Returns:
            A `windrow.RecordOf(source, record)` for each record, in row order: one for an element,
            as many as rows for a batch; a row of a zip has one of each dataset.

        Raises:
            RecordIndexError: If the dataset is empty, or the index does not fit into 64 bits.

        Example:
            >>> import windrow
            >>> parts = [windrow.MapDataset.range(10), windrow.MapDataset.source(["a", "b", "c"])]
            >>> mixed = windrow.MapDataset.mix(parts, [2, 1]).shuffle(seed=1).batch(3)
            >>> mixed.records_of(0)
            [RecordOf(source=1, record=1), RecordOf(source=0, record=5), RecordOf(source=0, record=4)]
        """
        # Few processes ask: a worker and a training loop do not load it.
        from windrow.engine.record_names import records_of_element

        return records_of_element(self._node, integer(index, "records_of: index"))

    def _table(self, indices: Any) -> tables.Table:
        wanted = indices_of(indices, "read")
        if len(wanted) and self._node.length == 0:
            raise RecordIndexError(
                f"the dataset is empty, so it has no element {wanted[0]}:"
                f" {type(self).__name__}({nodes.described(self._node)})"
            )
        try:
            return execute.read_now(self._node, wanted)
        except Exception as error:
            from windrow.core.tracebacks import begin_at_function  # for errors alone

            begin_at_function(error)
            raise

    def __len__(self) -> int:
        """Elements in one epoch; `sys.maxsize` for an endless dataset."""
        return self._node.length

    @overload
    def to_iter_dataset(
        self,
        read_options: ReadOptions | None = ...,
        *,
        allow_nones: Literal[False] = ...,
        lanes: int = ...,
    ) -> IterDataset[T_co]: ...

    @overload
    def to_iter_dataset(
        self, read_options: ReadOptions | None = ..., *, allow_nones: bool, lanes: int = ...
    ) -> IterDataset[Any]: ...

    def to_iter_dataset(
        self,
        read_options: ReadOptions | None = None,
        *,
        allow_nones: bool = False,
        lanes: int = 1,
    ) -> IterDataset[Any]:
        """The elements as a stream, read ahead; absent ones are left out unless `allow_nones`.

        With several lanes, lane `l` of `L` takes the elements `l, l + L, ...`; after a
        `block_shuffle` (maps, filters and `repeat` may lie between) it takes shuffled blocks
        `l, l + L, ...` of each epoch, and shuffles inside windows of `max(1, window_blocks // L)`
        of them. What follows, such as `filter` or `window_shuffle`, runs in each lane alone. Element
        `n` of the stream is element `n // L` of lane `n % L`; a batch of `B` rows has the next
        `B // L` elements of each lane, lane after lane. So hosts can share the stream: see
        `IterDataset.shard`.

        Args:
            read_options: Threads and buffers; by default what suits the sources.
            allow_nones: Whether absent elements come as None.
            lanes: Number of lanes. It is part of the order: choose it once, as a multiple of every
                number of hosts that may run the chain.

        Raises:
            PlanError: If `lanes` is less than 1, or more than the blocks of the block shuffle.
        """
        chain, options = stream_of(self._node, read_options)
        count = integer(lanes, "to_iter_dataset: lanes")
        chain = dealt(chain, count) if count > 1 else chain
        node = nodes.ToStreamNode((chain,), options, allow_nones, count)
        return IterDataset(node)

    def mp_prefetch(
        self,
        options: int | Literal["auto"] | WorkerOptions | None = None,
        worker_init_fn: Callable[[int, int], None] | None = None,
        sequential_slice: bool = False,
    ) -> IterDataset[T_co]:
        """The elements as a stream whose functions run in worker processes.

        `to_iter_dataset().mp_prefetch(...)`: see `IterDataset.mp_prefetch`.
        """
        return self.to_iter_dataset().mp_prefetch(options, worker_init_fn, sequential_slice)

    def __iter__(self) -> DatasetIterator[T_co]:
        return Epochs.of(self, iter(self.to_iter_dataset()))


class PlannedByLengths(RandomAccess[T_co]):
    """Cuts sequences, packs them into rows, and makes batches of sequences of like lengths."""

    def chunks_of(
        self, size: int, *, lengths: Any = None, sequences: Sequence[str] | None = None
    ) -> Self:
        """Sequences cut to pieces of `size` items; the last piece of a sequence may have fewer.

        The pieces of a sequence come one after the other, each with an index. They are found from
        lengths alone, so the length is exact and nothing is read for it. A sequence without items
        has no piece. Elements may be arrays, strings or bytes, or dicts of arrays. Leaves of dicts
        that are not cut come with each piece.

        Args:
            size: The most items of a piece.
            lengths: Lengths of records, one array of integers for each source; by default those that
                the sources know.
            sequences: Which keys of a dict are cut. By default those whose first axis has no fixed
                length in `element_spec`, else those that have an axis.

        Raises:
            ArgumentError: If an argument has the wrong type.
            PlanError: If `size` is less than 1, the dataset is endless, or lengths are not known;
                on reading, if an epoch has more or fewer pieces than the first.
            ElementError: On reading, if a sequence is not as long as its length says.

        Example:
            >>> import numpy as np, windrow
            >>> words = windrow.MapDataset.source(["first", "", "second"])
            >>> pieces = words.chunks_of(3, lengths=[np.array([5, 0, 6])])
            >>> len(pieces), list(pieces)
            (4, ['fir', 'st', 'sec', 'ond'])
        """
        number = integer(size, "chunks_of: size")
        names = nodes.checked_sequences(sequences, "chunks_of")
        return self._with(nodes.ChunksNode((self._node,), number, self._node, lengths, names))

    def pack(
        self,
        row_length: int,
        *,
        lengths: Any = None,
        window: int = 16_384,
        method: str = "best_fit_decreasing",
        too_long: str = "split",
        max_segments: int | None = None,
        sequences: Sequence[str] | None = None,
        names: Any = None,
        seed: int | None = None,
        read_options: ReadOptions | None = None,
    ) -> IterDataset[dict[str, Any]]:
        """Rows of `row_length` tokens, each packed with several documents, planned before reading.

        Each window of `window` documents, in the order of the chain so far, is packed from their
        lengths alone: by best fit, from the longest on. The rows of a window come in a random
        order. Windows end with each epoch, so `shuffle` and `repeat` come before. The rows depend
        on the chain, the seed and the lengths, and not on workers, batches or restarts.

        Args:
            row_length: Tokens of a row, at most 2**24.
            lengths: Tokens of each record of the source, integers `(records,)`; for several
                sources one array for each, in the order of the chain. By default the source is
                asked. After a `map` that changes lengths they are the lengths of its results.
            window: Documents that share rows. The emptiest row of each window smaller than 16,384
                documents goes to the last of the windows that make up that number.
            method: "best_fit_decreasing".
            too_long: What becomes of a document longer than a row: "split" cuts it into pieces,
                "truncate" keeps its first tokens, "drop" leaves it out, "error" raises before it
                is read. `explain()` has the counts.
            max_segments: The most documents of a row; needed where documents have features.
            sequences: Which keys of a document are sequences of its length. By default those whose
                spec has a first axis of no fixed length, or else those with an axis.
            names: Other names for the arrays of a row, as a dict; a value may be a sequence of
                names. "maxtext" stands for the names of MaxText, with shifted targets. The arrays
                `k_shifted`, the token after each one in its piece, and `k_shifted_segment_ids` are
                made only if they are named here.
            seed: Decides the order of rows, in `[0, 2**32)`; by default derived from an earlier
                `seed(...)`, else 0.
            read_options: Threads and buffers; by default what suits the sources.

        Returns:
            A stream of dicts. For each sequence `k` (`tokens`, where a document is an array): `k`
            `(row_length, ...)`; `k_segment_ids` and `k_positions`, int32 `(row_length,)`. Ids count
            from 1, and 0 is padding; positions begin at 0 in each piece. A feature of documents,
            a number or an array of a fixed shape, is `(max_segments, ...)`, followed by zeros.
            Documents without tokens are in no row.

        Raises:
            ArgumentError: If an argument is of another kind.
            PlanError: If a number is out of range, lengths are unknown, a filter comes before, or,
                on reading, a document is too long.
            ElementError: On reading, if a document has another length than was planned.

        Example:
            >>> import numpy as np, windrow
            >>> documents = windrow.MapDataset.source([np.arange(n) + 1 for n in (3, 6, 2, 5)])
            >>> for row in documents.pack(8):
            ...     print(row["tokens"], row["tokens_segment_ids"])
            [1 2 3 4 5 6 1 2] [1 1 1 1 1 1 2 2]
            [1 2 3 1 2 3 4 5] [1 1 1 2 2 2 2 2]
        """
        if method != nodes.BEST_FIT:
            raise ArgumentError(f"pack: method must be {nodes.BEST_FIT!r}, got {method!r}")
        node = nodes.PackNode(
            (self._node,),
            _lengths_given(lengths),
            integer(window, "pack: window"),
            nodes.checked_too_long(too_long),
            self._seed_given(seed, "pack"),
            nodes.checked_sequences(sequences, "pack"),
            integer(row_length, "pack: row_length"),
            None if max_segments is None else integer(max_segments, "pack: max_segments"),
            nodes.checked_names(names),
        )
        return self._streamed(node, read_options)

    def bucket(
        self,
        boundaries: Sequence[int],
        batch_sizes: Sequence[int],
        *,
        lengths: Any = None,
        window: int = 16_384,
        too_long: str = "error",
        pad_value: int = 0,
        sequences: Sequence[str] | None = None,
        seed: int | None = None,
        read_options: ReadOptions | None = None,
    ) -> IterDataset[dict[str, Any]]:
        """Batches of elements of like lengths, padded, and planned before anything is read.

        Bucket `k` has the elements of at most `boundaries[k]` items that no earlier bucket has. Each
        window of `window` elements, in the order of the chain so far, is dealt to batches by its
        lengths alone; the batches of a window come in a random order. The last batch of each bucket
        of a window may have fewer elements.

        Args:
            boundaries: The largest length of each bucket, ascending.
            batch_sizes: The elements of a batch, for each bucket.
            lengths: As for `pack`.
            window: Elements that are planned together.
            too_long: What becomes of an element longer than the last boundary: "truncate", "drop" or
                "error".
            pad_value: Follows the items of a sequence up to its boundary.
            sequences: As for `pack`.
            seed: Decides the order of batches; as for `pack`.
            read_options: As for `pack`.

        Returns:
            A stream of dicts. For each sequence `k` (`tokens`, where an element is an array): `k`
            `(batch, boundary, ...)`, and `k_lengths`, int32 `(batch,)`. Other leaves are stacked.

        Raises:
            ArgumentError: If an argument is of another kind.
            PlanError: If a number is out of range, lengths are unknown, a filter comes before, or,
                on reading, an element is too long.
            ElementError: On reading, if an element has another length than was planned.

        Example:
            >>> import numpy as np, windrow
            >>> sentences = windrow.MapDataset.source([np.arange(n) for n in (3, 6, 2, 5)])
            >>> for batch in sentences.bucket([4, 8], [4, 2]):
            ...     print(batch["tokens"].shape, batch["tokens_lengths"])
            (2, 4) [3 2]
            (2, 8) [6 5]
        """
        node = nodes.BucketNode(
            (self._node,),
            _lengths_given(lengths),
            integer(window, "bucket: window"),
            nodes.checked_too_long(too_long),
            self._seed_given(seed, "bucket"),
            nodes.checked_sequences(sequences, "bucket"),
            tuple(integer(n, "bucket: a boundary") for n in boundaries),
            tuple(integer(n, "bucket: a batch size") for n in batch_sizes),
            pad_value,
        )
        return self._streamed(node, read_options)

    def _seed_given(self, seed: int | None, who: str) -> int:
        """The seed that is given, or one from an earlier `seed(...)`, else 0."""
        if seed is None:
            return nodes.default_seed(self._node) or 0
        return checked_seed(seed, who, _SEEDS)

    def _streamed(self, node: nodes.Node, read_options: ReadOptions | None) -> IterDataset[Any]:
        chain, options = stream_of(node, read_options)
        return IterDataset(nodes.ToStreamNode((chain,), options))


class Ordered(PlannedByLengths[T_co]):
    """Shuffles elements, or draws them at random."""

    def shuffle(self, seed: int | None = None) -> Self:
        """Shuffle globally, in another order in each epoch.

        Epoch `e` of seed `s` has the order of epoch 0 of seed `s + e`, as in Grain: choose seeds
        far apart for runs whose orders must differ.

        Args:
            seed: An integer in `[0, 2**32)`; by default derived from an earlier `seed(...)`.

        Raises:
            PlanError: If there is no seed at all, or it is out of range.
        """
        found = nodes.seed_for(self._node, seed, "shuffle", _SEEDS)
        return self._with(nodes.ShuffleNode((self._node,), found))

    def window_shuffle(self, window_size: int, seed: int | None = None) -> Self:
        """Shuffle inside windows of consecutive elements, each element once per epoch.

        The last window of an epoch is shorter where `window_size` does not divide the length. The
        order is Grain's, whose definition makes a window cost about 1 ms however small it is:
        prefer windows of hundreds of elements and more.

        Raises:
            PlanError: If the window is smaller than 1, or there is no seed.
        """
        size = integer(window_size, "window_shuffle: window_size")
        found = nodes.seed_for(self._node, seed, "window_shuffle", 2**64)
        return self._with(nodes.WindowShuffleNode((self._node,), size, found))

    def block_shuffle(
        self, seed: int | None = None, *, block: int | None = None, window_blocks: int = 16
    ) -> Self:
        """Shuffle blocks, then elements in windows, so that each block of the data is read once.

        Blocks of consecutive elements come in a random order over the whole epoch. All elements of
        `window_blocks` blocks in a row come in a random order too. Each epoch has another order.

        Args:
            seed: An integer in `[0, 2**32)`; by default derived from an earlier `seed(...)`.
            block: Elements per block. By default the source's own chunks: chunks of a Zarr array,
                groups of records of ArrayRecord files.
            window_blocks: Blocks per window; this many are in memory at a time.

        Raises:
            PlanError: If there is no seed, a number is out of range, the dataset is endless, or
                `block` is not given and the chain so far has no layout: the message names the node.
        """
        found = nodes.seed_for(self._node, seed, "block_shuffle", _SEEDS)
        size = None if block is None else integer(block, "block_shuffle: block")
        window = integer(window_blocks, "block_shuffle: window_blocks")
        return self._with(nodes.BlockShuffleNode((self._node,), found, size, window))

    def sample(self, num_elements: int, seed: int | None = None, *, weights: Any = None) -> Self:
        """Elements drawn at random, anew in each epoch: an element may come twice, or not at all.

        With windows at every place of an array (a stride of 1) it gives random crops. The element at
        any index of any epoch follows from the seed, so crops are read ahead like any others.

        Args:
            num_elements: Elements in an epoch.
            seed: An integer in `[0, 2**32)`; by default derived from an earlier `seed(...)`.
            weights: How often each element comes, in proportion: one number of at least 0 for each,
                or a mask, whose true ones come equally often. Windows of a grid are counted in
                C order, so that an array of weights by place is taken as it is. Takes 8 bytes of
                memory for each element.

        Raises:
            ArgumentError: If `weights` are not numbers, one for each element.
            PlanError: If there is no seed, no element to draw, or a number is out of range.

        Example:
            >>> import windrow
            >>> dataset = windrow.MapDataset.range(10).sample(4, seed=3)
            >>> list(dataset.repeat(2))
            [7, 9, 7, 5, 0, 7, 8, 5]
            >>> list(windrow.MapDataset.range(3).sample(5, seed=3, weights=[0, 3, 1]))
            [1, 1, 2, 1, 1]
        """
        count = integer(num_elements, "sample: num_elements")
        found = nodes.seed_for(self._node, seed, "sample", _SEEDS)
        return self._with(nodes.sample_node(self._node, count, found, weights))


def _lengths_given(lengths: Any) -> tuple[Any, ...] | None:
    """Lengths that a user gives, one array for each source; a list of numbers belongs to one source."""
    if lengths is None:
        return None
    if isinstance(lengths, (list, tuple)) and any(np.ndim(each) for each in lengths):
        return tuple(lengths)
    return (np.asarray(lengths),)
