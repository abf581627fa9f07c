"""Placement: the sharding of each leaf, the rows that a process needs, and whether shapes divide.

Everything follows from `addressable_devices` and `shard_shape` of the shardings: what this process reads depends on
no number of a process or device. Reports alone ask for another process, by the `process_index` of its devices.

Invariant: nothing is read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from windrow.core.text import with_article
from windrow.devices import trees
from windrow.devices.extra import jax
from windrow.devices.trees import Path, shown
from windrow.errors import ArgumentError, PlanError
from windrow.sources.base import ArraySpec
from windrow.transforms.specs import Spec

Sharding = jax.sharding.Sharding
Index: TypeAlias = tuple[slice, ...]
_MOST_AXES = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """Where the leaves of batches go.

    Args:
        sharding: One sharding, a tree of them, or a function of the path of a leaf.
        host: Names of leaves, or of trees of them, that stay in NumPy: paths with slashes.
        process: The process that is asked about; None for this one.
    """

    sharding: Sharding | Callable[[Path], Sharding] | Any
    host: tuple[str, ...] = ()
    process: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sharding, jax.sharding.Mesh):
            axis = self.sharding.axis_names[0]
            raise ArgumentError(
                "to_jax: a Mesh is not a sharding; write jax.sharding.NamedSharding(mesh,"
                f" jax.sharding.PartitionSpec({axis!r})), which splits the rows of a batch along"
                " that axis of the mesh"
            )
        if self.needs_leaves:
            return
        for path, leaf in trees.leaves(self.sharding, is_spec=True):
            if not isinstance(leaf, Sharding):
                raise ArgumentError(
                    f"to_jax: sharding must be a jax.sharding.Sharding, a tree of them, or a function"
                    f" of the path of a leaf, got {leaf!r}{f' at {trees.name(path)!r}' if path else ''};"
                    " for one device pass jax.sharding.SingleDeviceSharding(device)"
                )

    def is_kept(self, path: Path) -> bool:
        """Whether a leaf stays in NumPy."""
        return any(trees.name(path[:n]) in self.host for n in range(1, len(path) + 1))

    def sharding_of(self, path: Path) -> Sharding:
        """The sharding of a leaf.

        Raises:
            ArgumentError: If it has no sharding.
        """
        found = self.sharding
        if callable(found) and not isinstance(found, Sharding):
            made = found(path)
            if not isinstance(made, Sharding):
                raise ArgumentError(
                    f"to_jax: the sharding function returned {made!r} for the path {path}; return a"
                    " jax.sharding.Sharding, or name the leaf in host=(...)"
                )
            return made
        for depth, key in enumerate(path):
            if isinstance(found, Sharding):
                return found
            children = dict(trees.items(found, is_spec=True) or [])
            if key not in children:
                raise ArgumentError(
                    f"to_jax: the tree of shardings has no {trees.name(path[: depth + 1])!r}; it has"
                    f" {list(children)}. Add it, or name the leaf in host=(...)"
                )
            found = children[key]
        if not isinstance(found, Sharding):
            raise ArgumentError(
                f"to_jax: the tree of shardings has a tree where {shown(path)} is an array"
            )
        return found

    # --- before anything is read -----------------------------------------------------------------

    @property
    def needs_leaves(self) -> bool:
        """Whether the leaves must be known to find their shardings."""
        return callable(self.sharding) and not isinstance(self.sharding, Sharding)

    def shardings(self, spec: Spec | None) -> list[tuple[Path, ArraySpec | None, Sharding]]:
        """The shardings of all leaves, with their specs where these are known.

        Raises:
            PlanError: If a leaf is not an array.
            ArgumentError: If a leaf has no sharding, or a name in `host` has no leaf.
        """
        if spec is not None:
            return list(self._of_spec(spec))
        return [(path, None, leaf) for path, leaf in trees.leaves(self.sharding, is_spec=True)]

    def _of_spec(self, spec: Spec) -> Iterator[tuple[Path, ArraySpec, Sharding]]:
        found = list(trees.leaves(spec, is_spec=True))
        self.check_names([path for path, _ in found])
        if not self.needs_leaves:
            self._check_all_used([path for path, _ in found])
        for path, leaf in found:
            if self.is_kept(path):
                continue
            if not isinstance(leaf, ArraySpec):
                kind = getattr(leaf, "__name__", str(leaf))
                raise PlanError(not_an_array(path, f"is {with_article(kind)}"))
            if not is_supported(leaf.dtype):
                raise PlanError(not_an_array(path, f"has dtype {leaf.dtype}"))
            yield path, leaf, self.sharding_of(path)

    def _check_all_used(self, paths: Sequence[Path]) -> None:
        for own, _ in trees.leaves(self.sharding, is_spec=True):
            if not any(path[: len(own)] == own for path in paths):
                raise ArgumentError(
                    f"to_jax: the tree of shardings has {trees.name(own)!r}, but batches have the leaves"
                    f" {[trees.name(path) for path in paths]}; leave it out"
                )

    def check_names(self, paths: Sequence[Path]) -> None:
        """Check that each name of `host` is a leaf, or a tree of leaves.

        Raises:
            ArgumentError: If one is not.
        """
        names = [trees.name(path) for path in paths]
        for name in self.host:
            if not any(found == name or found.startswith(f"{name}/") for found in names):
                raise ArgumentError(
                    f"to_jax: host names {name!r}, but batches have the leaves {names}"
                )


def not_an_array(path: Path, why: str) -> str:
    """The message for a leaf that JAX has no array for."""
    keep = f"host=({trees.name(path)!r},)" if path else "a map that makes a dict, and host="
    return (
        f"to_jax: {shown(path)} {why}, which JAX has no array for; make numbers of it in a map, or keep"
        f" it in NumPy with {keep}"
    )


def is_supported(dtype: np.dtype[Any]) -> bool:
    """Whether JAX has arrays of a dtype, perhaps of fewer bits."""
    if dtype.kind in "biufc":
        return True
    return bool(jax.numpy.issubdtype(dtype, np.number))


def participants(
    shardings: Collection[Sharding], process: int | None = None
) -> tuple[int, tuple[int, ...]]:
    """Names of the processes that have devices of the shardings: of one of them, and of all.

    Args:
        shardings: The shardings.
        process: The process that is asked about; None for this one.

    Raises:
        PlanError: If this process has none of the devices.
    """
    devices: set[Any] = {device for sharding in shardings for device in sharding.device_set}
    own: set[Any] = {device for each in shardings for device in each.addressable_devices}
    if not own:
        raise PlanError(
            f"to_jax: none of the {len(devices)} devices of the sharding belongs to this process, so it"
            " has no part of a batch; iterate in processes whose devices are in the mesh"
        )
    if own == devices:  # one controller
        return 0, (0,)
    if process is None:
        process = min(d.process_index for d in own)
    return process, tuple(sorted({d.process_index for d in devices}))


def held(shape: Sequence[int], sharding: Sharding, process: int | None) -> list[Index]:
    """The parts of an array of a global shape that the devices of a process hold.

    Args:
        shape: The global shape.
        sharding: The sharding of the array.
        process: The process; None for this one.
    """
    if process is None:
        own = sharding.addressable_devices_indices_map(tuple(shape))
        return [index for index in own.values() if index is not None]
    whole: Mapping[Any, Index] = sharding.devices_indices_map(tuple(shape))
    return [index for device, index in whole.items() if device.process_index == process]


# --- rows ----------------------------------------------------------------------------------------


def check_shape(path: Path, shape: Sequence[int], sharding: Sharding) -> None:
    """Check that a sharding divides a global shape.

    Raises:
        PlanError: If it does not; it names the leaf, the axis and both sizes.
    """
    parts = _axis_parts(sharding)
    if len(parts) > len(shape):
        raise PlanError(
            f"to_jax: {shown(path)} has the global shape {tuple(shape)}, of {len(shape)} axes, and"
            f" {sharding} names {len(parts)}; give a sharding of at most {len(shape)} axes"
        )
    try:
        sharding.shard_shape(tuple(shape))
    except (ValueError, IndexError) as error:
        for axis, (size, count) in enumerate(zip(shape, parts, strict=False)):
            if size % count:
                raise PlanError(
                    f"to_jax: {shown(path)} has the global shape {tuple(shape)}; axis {axis} of size"
                    f" {size} is not a multiple of the {count} parts that {sharding} makes of it."
                    f" {_remedy(axis, size, count)}"
                ) from error
        raise PlanError(
            f"to_jax: {shown(path)} has the global shape {tuple(shape)}: {error}"
        ) from error


def _remedy(axis: int, size: int, count: int) -> str:
    if axis:
        return "Pad or cut the axis in a map, or shard another axis"
    more = -(-size // count) * count
    return (
        f"Choose a batch of {more} rows, and for a shorter last batch remainder='drop' or 'pad', or"
        " repeat before it"
    )


def _axis_parts(sharding: Sharding) -> tuple[int, ...]:
    """The number of parts of each axis, as far as a sharding says; axes after those have one part."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return ()
    sizes: Mapping[str, int] = dict(sharding.mesh.shape)
    found = []
    for names in sharding.spec:
        each = () if names is None else (names if isinstance(names, tuple) else (names,))
        found.append(math.prod(sizes[name] for name in each if isinstance(name, str)))
    return tuple(found)


def whole_shape(leaf: ArraySpec | None, rows: int, sharding: Sharding) -> tuple[int, ...] | None:
    """A global shape with this many rows; unknown sizes are chosen so that they divide.

    None for a sharding that has no shape of that kind.
    """
    parts = _axis_parts(sharding)
    if leaf is not None:
        padded = (*parts, *(1 for _ in leaf.shape))
        known = (
            (rows if leaf.shape[0] is None else leaf.shape[0], *leaf.shape[1:])
            if leaf.shape
            else ()
        )
        return tuple(padded[n] if size is None else size for n, size in enumerate(known))
    if parts or isinstance(sharding, jax.sharding.NamedSharding):
        return (rows, *parts[1:])
    count = len(sharding.device_set)
    for axes in range(_MOST_AXES):
        try:
            sharding.shard_shape((rows, *[count] * axes))
        except (ValueError, TypeError):
            continue
        return (rows, *[count] * axes)
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class RowParts:
    """Some of the equal parts of the rows of a batch.

    Args:
        numbers: The parts, ascending.
        count: The number of parts of a batch.
    """

    numbers: tuple[int, ...] = (0,)
    count: int = 1

    def joined(self, other: RowParts) -> RowParts:
        """The rows that either has, in parts small enough for both."""
        count = math.lcm(self.count, other.count)
        return RowParts.of(self._split(count) | other._split(count), count)

    @classmethod
    def of(cls, numbers: Collection[int], count: int) -> RowParts:
        """Some of `count` parts; one part, if they are all of them."""
        return cls() if len(numbers) == count else cls(tuple(sorted(numbers)), count)

    def _split(self, count: int) -> set[int]:
        each = count // self.count
        return {part * each + n for part in self.numbers for n in range(each)}


def rows_of(shape: Sequence[int], sharding: Sharding, process: int | None = None) -> RowParts:
    """The rows of an array of a global shape that the devices of a process hold: see `held`."""
    if not shape or not shape[0]:
        return RowParts()
    each = sharding.shard_shape(tuple(shape))[0]
    starts = {(index[0].start or 0) // each for index in held(shape, sharding, process)}
    return RowParts.of(starts, shape[0] // each)
