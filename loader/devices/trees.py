"""Trees of leaves with paths: specs, batches and shardings walked side by side.

A path is a tuple of keys of dicts, names of fields, or positions in lists and tuples. Objects that JAX knows as
trees are containers too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from windrow.transforms import pytrees
from windrow.transforms.columns import ListColumns, is_named_tuple, rebuilt
from windrow.transforms.pytrees import Pytree

Path: TypeAlias = "tuple[str | int, ...]"


def items(tree: Any, *, is_spec: bool) -> list[tuple[str | int, Any]] | None:
    """Keys and children of a container; None for a leaf.

    Args:
        tree: A spec or a tree of shardings, where each list is a container, or columns, where a
            plain list is a leaf.
        is_spec: Which of these it is.
    """
    if isinstance(tree, Mapping):
        return list(tree.items())
    if is_named_tuple(tree):
        return list(zip(type(tree)._fields, tree, strict=True))  # type: ignore[attr-defined]
    if isinstance(tree, (tuple, list if is_spec else ListColumns)) and not isinstance(tree, Pytree):
        return list(enumerate(tree))
    opened = tree if isinstance(tree, Pytree) else pytrees.opened(tree)
    return None if opened is None else list(zip(opened.keys, opened, strict=True))


def leaves(tree: Any, *, is_spec: bool, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of a tree with their paths, in order."""
    found = items(tree, is_spec=is_spec)
    if found is None:
        yield path, tree
        return
    for key, child in found:
        yield from leaves(child, is_spec=is_spec, path=(*path, key))


def mapped(
    function: Callable[[Path, Any], Any], tree: Any, *, is_spec: bool, path: Path = ()
) -> Any:
    """The tree, in plain containers, with `function(path, leaf)` in place of each leaf."""
    found = items(tree, is_spec=is_spec)
    if found is None:
        return function(path, tree)
    children = [mapped(function, child, is_spec=is_spec, path=(*path, key)) for key, child in found]
    opened = tree if isinstance(tree, Pytree) else pytrees.opened(tree)
    if opened is not None:
        return opened.like(children).made()
    made = rebuilt(tree, children)
    return list(made) if isinstance(made, list) else made


def name(path: Path) -> str:
    """A path for people: its keys with slashes between them."""
    return "/".join(map(str, path))


def shown(path: Path) -> str:
    """A leaf for messages."""
    return f"leaf {name(path)!r}" if path else "the batch"
