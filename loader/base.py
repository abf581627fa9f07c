"""What both kinds of dataset share: a node of a chain, what its elements are, and printing it.

Invariant: no record is read but for `read_spec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from windrow import execute, specs
from windrow.errors import ArgumentError
from windrow.explain import explained
from windrow.explanation import Explanation
from windrow.iterator import DatasetIterator
from windrow.transforms import nodes, tables
from windrow.transforms.nodes import STREAM, Node
from windrow.transforms.positions import positions
from windrow.transforms.streams import ProcessNode, StreamLimitNode

T = TypeVar("T")


class Dataset(Generic[T]):
    """A chain, of one kind or the other."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def pipe(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`function(self, *args, **kwargs)`: for steps that a chain has no method for."""
        return function(self, *args, **kwargs)

    @property
    def element_spec(self) -> Any:
        """The tree of an element with a `windrow.sources.ArraySpec` for each array or number.

        Other leaves are types: `bytes`, `str`, and `list` for what a batch does not stack. A length
        that differs, as that of the last batch may, is None. An absent element is told as if it were
        there, in a tuple of `zip` too. Nothing is read, and no function is called: a transform tells
        what it makes by a method `output_spec(spec)`.

        Raises:
            PlanError: If a source or a function does not tell; `read_spec()` reads an element.
            ArgumentError: If what one of them tells is no spec.

        Example:
            >>> import numpy as np, windrow
            >>> dataset = windrow.MapDataset.source({"x": np.zeros((10, 3)), "y": np.arange(10)})
            >>> dataset.batch(4, drop_remainder=True).element_spec["x"]
            ArraySpec(shape=(4, 3), dtype=dtype('float64'), dims=None)
        """
        return specs.element_spec(self._node)

    def read_spec(self) -> Any:
        """The spec of the first element there is, which is read for it: see `element_spec`.

        It is that element's own: others may have other shapes, and names of axes are not known.

        Raises:
            PlanError: If the dataset is empty, or none of the first 64 elements is there.

        Example:
            >>> import windrow
            >>> windrow.MapDataset.source([b"a", b"b"]).map(len).read_spec()
            ArraySpec(shape=(), dtype=dtype('int64'), dims=None)
        """
        for element in _first_elements(self._node):
            if element is not None:
                return specs.spec_of(element)
        raise specs.no_element()

    def explain(self) -> Explanation:
        """What the chain is and costs, before anything is read.

        Lengths, layouts and metadata of the sources are looked at, and orders worked out. No
        function of the user's is called but selection maps and methods `output_spec`.

        Returns:
            The chain as written and as run, and for each source the pieces, reads and bytes of an
            epoch and of a batch. `print` shows it as tables, and so do notebooks.

        Raises:
            ReadError: If metadata that tell a layout can not be read.

        Example:
            >>> import numpy as np, windrow
            >>> dataset = windrow.MapDataset.source(np.zeros((100, 8), np.float32)).batch(32)
            >>> explanation = dataset.explain()
            >>> print(explanation.batches, "batches of", explanation.batch_bytes, "bytes")
            4 batches of 1,024 bytes
        """
        return explained(self._node)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({nodes.described(self._node)})"


def _first_elements(node: Node) -> Iterator[Any]:
    """Elements from the first on, each read when it is asked for; None where absent."""
    while isinstance(node, ProcessNode):
        node = node.parent  # one element needs no workers
    if node.length == STREAM:
        with DatasetIterator[Any](StreamLimitNode((node,), 1)) as iterator:
            yield from iterator
        return
    for index in range(min(node.length, specs.FIRST)):
        at = positions(np.array([index], np.int64), node.length)
        yield tables.elements(execute.start(node, at, [0, 1], execute.Reader())())[0]


def nodes_of(datasets: Any, kind: type[Dataset[Any]], who: str) -> tuple[Node, ...]:
    """The nodes of several datasets of one kind.

    Raises:
        ArgumentError: If they are something else.
    """
    # A dataset is iterable too, but its elements are no datasets, and reading them is not asked for.
    if isinstance(datasets, Dataset) or not isinstance(datasets, Iterable):
        raise ArgumentError(f"{who}: needs a list of {kind.__name__}, got {datasets!r}")
    datasets = list(datasets)
    for i, dataset in enumerate(datasets):
        if not isinstance(dataset, kind):
            raise ArgumentError(
                f"{who}: dataset {i} is a {type(dataset).__name__}, not a {kind.__name__}"
            )
    return tuple(dataset._node for dataset in datasets)
