"""`JaxDataset`: batches of a chain as global arrays of JAX."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from windrow.base_iterator import Epochs
from windrow.devices.delivery import Delivery
from windrow.devices.placement import Placement
from windrow.devices.plan import device_spec, narrowed_leaves, planned
from windrow.errors import ArgumentError
from windrow.iterator import DatasetIterator
from windrow.transforms import nodes
from windrow.transforms.arguments import at_least
from windrow.transforms.nodes import Node
from windrow.transforms.nodes.metadata import element_spec, known_spec

if TYPE_CHECKING:
    from windrow.explain.explanation import Explanation


class JaxDataset(Iterable[Any]):
    """Batches as trees of global `jax.Array`s. Each process makes the parts that its devices hold.

    `MapDataset.to_jax` and `IterDataset.to_jax` make it. Each `iter` begins anew.
    """

    def __init__(
        self,
        node: Node,
        sharding: Any,
        prefetch: int,
        prefetch_bytes: int,
        host: Iterable[str],
        first_spec: Callable[[Node], Any],
    ) -> None:
        names = (host,) if isinstance(host, str) else tuple(host)
        if not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"to_jax: host must be names of leaves, got {host!r}")
        self._prefetch = at_least(0, prefetch, "to_jax: prefetch")
        self._prefetch_bytes = at_least(1, prefetch_bytes, "to_jax: prefetch_bytes")
        self._given = (node, sharding, prefetch, prefetch_bytes, names, first_spec)
        self._written = node
        self._placement = Placement(sharding, names)
        self._plan = planned(node, self._placement, first_spec)
        spec = known_spec(node)
        narrow = [] if spec is None else narrowed_leaves(spec, self._placement)
        if narrow:
            self._plan.arrays.narrowing.warn(narrow, stacklevel=4)

    @property
    def element_spec(self) -> Any:
        """The tree of a batch with a `jax.ShapeDtypeStruct`, with its sharding, for each array.

        `jax.jit(step).lower(params, dataset.element_spec)` compiles a step before the first batch.

        Raises:
            PlanError: If a source or a function declares no spec, or batches differ in shape.
        """
        return device_spec(element_spec(self._written), self._placement)

    def explain(self) -> Explanation:
        """Describe the chain that this process runs, and what all processes read: see `MapDataset.explain`."""
        # Few processes ask: a training loop does not load it.
        from windrow.explain.across import SharedStream
        from windrow.explain.explained import explained

        own, processes = self._plan.processes
        if len(processes) == 1:
            return explained(self._plan.node)
        return explained(
            self._plan.node, SharedStream(self._written, own, processes, self._chain_of)
        )

    def _chain_of(self, node: Node, process: int) -> Node:
        """The chain that a process runs of a stream with the leaves of this one."""
        placement = dataclasses.replace(self._placement, process=process)
        return planned(node, placement, lambda _: self._plan.spec).node

    def __iter__(self) -> DatasetIterator[Any]:
        plan = self._plan
        delivery = Delivery(plan.arrays, self._prefetch, self._prefetch_bytes, plan.new_agreement)
        return Epochs.of(self, DatasetIterator(plan.node, delivery))

    def __reduce__(self) -> tuple[Any, ...]:
        # Its rows follow from the devices of the process that it comes to.
        return _again, self._given

    def __repr__(self) -> str:
        return f"JaxDataset({nodes.described(self._plan.node)})"


def _again(*given: Any) -> JaxDataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its maker has warned
        return JaxDataset(*given)
