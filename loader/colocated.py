"""Batches that the hosts of the devices read, where one controller programs all devices.

The controller reads nothing. Through `jax.experimental.colocated_python` it makes an iterator on every
host: an iterator of a `JaxDataset` over the CPU devices of the hosts. Each reads the rows that its
devices hold, and makes them ahead. The controller asks all hosts for the next batch, and moves it to
the devices.

Contract:
1. Hosts are asked for the same things in the same order, so all are at the same batch.
2. Only arrays go in and out, of shapes that the first call of a kind fixes. A state is JSON in bytes,
   filled up with spaces.
3. A chain that never ends is not asked for its end, so the controller waits for no host.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.devices import trees
from windrow.devices.extra import jax
from windrow.devices.placement import Placement, Sharding
from windrow.devices.plan import check_colocated
from windrow.errors import ArgumentError, ClosedError
from windrow.jax_dataset import JaxDataset
from windrow.state import merge_states
from windrow.transforms.nodes import Node
from windrow.transforms.nodes.metadata import known_spec

JAX: Final[Any] = jax  # some of its functions have no types
P: Final[Any] = jax.sharding.PartitionSpec
_STEP_BYTES: Final = 1 << 10  # states of like sizes travel in arrays of one shape
_END: Final = object()


class ColocatedDataset(Iterable[Any]):
    """Batches as trees of global `jax.Array`s, read by the hosts of the devices.

    `to_jax(..., colocated=True)` makes it, for a controller that has all devices. Each `iter` begins
    anew.
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
        if tuple(host):
            raise ArgumentError(
                "to_jax: colocated=True returns arrays of devices alone, got host="
                f"{host!r}; select the other leaves in a map before the batch"
            )
        check_colocated(node)
        self._placement, self._never_ends = Placement(sharding), node.never_ends()
        given = sharding
        if self._placement.needs_leaves:
            given = known_spec(node) or first_spec(node)
        found: list[Sharding] = []

        def on_hosts(path: trees.Path, leaf: Any) -> Sharding:
            found.append(_on_hosts(self._placement.sharding_of(path)))
            return found[-1]

        placed = trees.mapped(on_hosts, given, is_spec=True)
        self._hosts = JaxDataset(node, placed, prefetch, prefetch_bytes, (), first_spec)
        devices: set[Any] = set().union(*(each.device_set for each in found))
        self._devices = sorted(devices, key=lambda device: device.id)

    def __iter__(self) -> ColocatedIterator:
        return ColocatedIterator(self._hosts, self._devices, self._placement, self._never_ends)

    def __repr__(self) -> str:
        return f"ColocatedDataset({self._hosts!r})"


class ColocatedIterator(Iterator[Any]):
    """The iterator of a `ColocatedDataset`: batches, and one state for all hosts.

    `windrow.checkpoint` saves and restores it.
    """

    def __init__(
        self, dataset: JaxDataset, devices: list[Any], placement: Placement, never_ends: bool
    ) -> None:
        self._placement, self._never_ends = placement, never_ends
        self._mesh = jax.sharding.Mesh(np.array(devices), ("device",))
        self._token = self._each_device(np.zeros((len(devices), 1), np.uint8))
        self._hosts: Any = _colocated().colocated_python_class(_OnHost)(dataset)

    def __next__(self) -> Any:
        hosts = self._open()
        if not self._never_ends and not min(_values(hosts.has_next(self._token))):
            raise StopIteration
        batch = hosts.take(self._token)
        return trees.mapped(self._placed, batch, is_spec=True)

    def _placed(self, path: trees.Path, leaf: Any) -> Any:
        return jax.device_put(leaf, self._placement.sharding_of(path))

    def get_state(self) -> dict[str, Any]:
        """The state of all hosts after the batch given last: see `DatasetIterator.get_state`.

        Raises:
            ClosedError: If the iterator was closed.
        """
        hosts = self._open()
        size_bytes = int(max(_values(hosts.state_bytes(self._token))))
        room = self._each_device(np.zeros((len(self._mesh.devices), size_bytes), np.uint8))
        found = {each.tobytes() for each in _rows(hosts.state(room))}
        states = [json.loads(each) for each in sorted(found)]
        state: dict[str, Any] = states[0] if len(states) == 1 else merge_states(states)
        return state

    def set_state(self, state: Any) -> ColocatedIterator:
        """Resume from a state, on all hosts; the iterator itself: see `DatasetIterator.set_state`.

        Raises:
            StateError: If the state is invalid, or belongs to another chain or other data.
            ClosedError: If the iterator was closed.
        """
        text = _padded(json.dumps(state).encode())
        every = np.broadcast_to(text, (len(self._mesh.devices), len(text)))
        JAX.block_until_ready(self._open().set_state(self._each_device(every)))
        return self

    def start_prefetch(self) -> None:
        """Let the hosts start making batches ahead."""
        self._open().start_prefetch(self._token)

    def close(self) -> None:
        """End the iterators of the hosts."""
        hosts, self._hosts = self._hosts, None
        if hosts is not None:
            JAX.block_until_ready(hosts.close(self._token))

    def __enter__(self) -> ColocatedIterator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self) -> Any:
        if self._hosts is None:
            raise ClosedError("the iterator was closed; make another one with iter(dataset)")
        return self._hosts

    def _each_device(self, values: npt.NDArray[np.uint8]) -> Any:
        """An array with one row on each device."""
        sharding = jax.sharding.NamedSharding(self._mesh, P("device"))
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


class _OnHost:
    """The iterator of one host. Each method takes and returns a row for each device.

    The first argument says where a method runs. A batch that was read to learn whether there is one
    is kept, with the state before it.
    """

    def __init__(self, dataset: JaxDataset) -> None:
        self._iterator = iter(dataset)
        self._ahead: Any = None  # the next batch, if it was asked for, and the state before it

    def has_next(self, token: Any) -> Any:
        if self._ahead is None:
            state = self._iterator.get_state()
            self._ahead = next(self._iterator, _END), state
        return _filled(token, np.uint8(self._ahead[0] is not _END))

    def take(self, token: Any) -> Any:
        if self._ahead is None:
            return next(self._iterator)
        batch, self._ahead = self._ahead[0], None
        return batch

    def state_bytes(self, token: Any) -> Any:
        return _filled(token, np.int32(len(self._state())))

    def state(self, room: Any) -> Any:
        text = np.full(room.shape[1], ord(" "), np.uint8)
        found = self._state()
        text[: len(found)] = found
        return _filled(room, text)

    def _state(self) -> npt.NDArray[np.uint8]:
        state = self._iterator.get_state() if self._ahead is None else self._ahead[1]
        return _padded(json.dumps(state).encode())

    def set_state(self, text: Any) -> Any:
        self._iterator.set_state(json.loads(_rows(text)[0].tobytes()))
        self._ahead = None
        return _filled(text, np.uint8(0))

    def start_prefetch(self, token: Any) -> Any:
        self._iterator.start_prefetch()
        return _filled(token, np.uint8(0))

    def close(self, token: Any) -> Any:
        self._iterator.close()
        return _filled(token, np.uint8(0))


def _on_hosts(sharding: Sharding) -> Sharding:
    """The same sharding over the CPU devices of the hosts."""
    cpu_devices = _colocated().colocated_cpu_devices
    match sharding:
        case jax.sharding.NamedSharding():
            mesh = cpu_devices(sharding.mesh)
            return jax.sharding.NamedSharding(mesh, sharding.spec)
        case jax.sharding.SingleDeviceSharding():
            (device,) = cpu_devices(tuple(sharding.device_set))
            return jax.sharding.SingleDeviceSharding(device)
    raise ArgumentError(
        f"to_jax: colocated=True takes a NamedSharding or a SingleDeviceSharding, got {sharding!r}"
    )


def _colocated() -> Any:
    return importlib.import_module("jax.experimental.colocated_python")


def _padded(text: bytes) -> npt.NDArray[np.uint8]:
    size = -(-len(text) // _STEP_BYTES) * _STEP_BYTES
    return np.frombuffer(text.ljust(size), np.uint8)


def _filled(like: Any, row: Any) -> Any:
    """An array over the devices of another one, with this row on each."""
    row = np.atleast_1d(row)
    shape = (like.shape[0], *row.shape)
    return jax.make_array_from_callback(
        shape, like.sharding, lambda index: np.broadcast_to(row, shape)[index], dtype=row.dtype
    )


def _rows(array: Any) -> list[npt.NDArray[Any]]:
    """The rows of the devices that this process can reach."""
    return [np.asarray(shard.data)[0] for shard in array.addressable_shards]


def _values(array: Any) -> list[Any]:
    return [row[0] for row in _rows(array)]
