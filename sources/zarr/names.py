"""Arrays that were found, by name, and the choice of those that give records.

xarray writes coordinates next to the data: arrays of one axis with the name of that axis, and
arrays that the attribute `coordinates` of another array lists. Coordinates label records and are
not records, so a group gives its other arrays.

Invariant: only metadata decides; nothing is opened here.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, Union

import tensorstore as ts

from windrow.core.text import listing
from windrow.errors import ArgumentError, SourceError
from windrow.sources.zarr.error_text import reason
from windrow.sources.zarr.opened import OpenedStore
from windrow.sources.zarr.stores import Access, Folder

_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}
_N5_KEYS: Final = ("dimensions", "blockSize", "dataType", "compression")
# An attribute of a group: the keys of its object name the inner groups whose arrays are the values
# and offsets of rows that differ in length. Such arrays do not hold one record per row.
RAGGED: Final = "windrow_ragged"
# An attribute of the values of tokens: what made them, as `sha256` of the tokenizer and `end_token`.
TOKENIZER: Final = "windrow_tokenizer"
# The two arrays of such an inner group.
VALUES: Final = "values"
OFFSETS: Final = "offsets"
# A third array, which may be missing: the first record of each block of values. Its attribute says how
# many values make a block.
BLOCKS: Final = "blocks"
BLOCK_VALUES: Final = "windrow_block_values"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Consolidated:
    """The consolidated metadata of a group.

    Args:
        folder: The group.
        nodes: Metadata of each node in it, by path, with the attributes of v2 (None for v3).
        attributes: The attributes of the group.
    """

    folder: Folder
    nodes: Mapping[str, tuple[Mapping[str, Any], Any]]
    attributes: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        # Metadata of a large group are many megabytes, and copies of a source need none of them.
        return type(None), ()

    @property
    def shown(self) -> str:
        """The metadata, for messages."""
        return f"the consolidated metadata of {self.folder.where}"


@dataclasses.dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group as an open object shows it.

    Args:
        place: Its path or URL, or its node in an open store.
        shown: The object, for messages.
        shapes: The shapes of arrays that it shows, by path; None if the arrays' own metadata count.
    """

    place: str | OpenedStore
    shown: str
    shapes: Mapping[str, tuple[int, ...]] | None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An array that was found: its name in the source, its place for people, and how to open it.

    Args:
        what: Name of the source, for messages.
        name: Nested names are joined by `/`; a single array's name is ''.
        where: Its place, for people.
        spec: An open `ts.TensorStore`, a `ts.Spec`, or a spec as JSON or URL; None if TensorStore
            does not open it.
        folder: Its folder, if it was found on a local disk.
        dims: Names of the axes, None for an axis without a name; () if they are unknown. Two axes
            may have one name.
        attributes: As they are stored.
        shape: From the metadata; None if none were read. The array may have grown since.
        metadata: The Zarr metadata of the array as they were read, without attributes; else None.
        listing: What describes the array, for people, such as the consolidated metadata of a group; ''
            if its own metadata do.
        consolidated: These metadata, in this process; else None.
        path: Path of the array in their group.
        access: How a remote array is reached; None for an array on a local disk.
        url: The URL for fsspec; None if it is unknown.
        scales: The metadata of all scales, if it is the first scale of a precomputed volume.
        opened: Its node in an open store of zarr-python that has neither path nor URL; else None.
        refuse_missing: Whether reading a chunk that is not stored is an error.
    """

    what: str
    name: str
    where: str
    spec: Any = dataclasses.field(repr=False)  # it may hold credentials
    folder: str | None = None
    dims: tuple[str | None, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NO_ATTRIBUTES)
    shape: tuple[int, ...] | None = None
    metadata: Mapping[str, Any] | None = None
    listing: str = ""
    consolidated: Consolidated | None = dataclasses.field(default=None, repr=False)
    path: str = ""
    access: Access | None = None
    url: str | None = dataclasses.field(default=None, repr=False)
    scales: tuple[Mapping[str, Any], ...] = ()
    opened: OpenedStore | None = None
    refuse_missing: bool = False

    @property
    def is_n5(self) -> bool:
        """Whether it was found as an array of N5, whose attributes lie among its metadata."""
        return "blockSize" in self.attributes and self.driver == "n5"

    def without_attributes(self) -> Found | None:
        """An array of N5, to be opened by its own metadata alone; None for any other array.

        TensorStore refuses an array for attributes of users that it cannot parse: NaN, or units for some axes.
        """
        known = set(_N5_KEYS) <= set(self.attributes)  # TensorStore guesses what is absent
        if not self.is_n5 or not known or not isinstance(self.spec, dict):
            return None
        metadata = {key: self.attributes[key] for key in _N5_KEYS}
        return dataclasses.replace(self, spec={**self.spec, "metadata": metadata})

    @property
    def is_precomputed(self) -> bool:
        """Whether it was found as a scale of a precomputed volume."""
        return "chunk_sizes" in self.attributes and self.driver == "neuroglancer_precomputed"

    @property
    def driver(self) -> str:
        """TensorStore's driver of it; '' if it was not found as a spec."""
        spec = self.spec.to_json() if isinstance(self.spec, ts.Spec) else self.spec
        return str(spec.get("driver", "")) if isinstance(spec, dict) else ""

    @property
    def named(self) -> str:
        """The array, for messages."""
        return f"array {self.name!r}" if self.name else "the array"

    def reason(self, error: BaseException) -> tuple[str, BaseException | None]:
        """The reason of an error, and the cause for `raise ... from`.

        The cause is None for a remote array: errors of libraries may hold secrets.
        """
        if self.access is None:
            return reason(error), error
        return self.access.reason(error), None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FoundGroup:
    """The arrays and groups of a group, by name."""

    items: Mapping[str, FoundTree]
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NO_ATTRIBUTES)


FoundTree: TypeAlias = Union[Found, FoundGroup, "dict[str, FoundTree]"]  # a dict is the user's own
ChosenTree: TypeAlias = Union[Found, "dict[str, ChosenTree]"]


def arrays_of(tree: FoundTree | ChosenTree) -> Iterator[Found]:
    """Every array of a tree, in its order."""
    if isinstance(tree, Found):
        yield tree
        return
    items: Mapping[str, Any] = tree.items if isinstance(tree, FoundGroup) else tree
    for item in items.values():
        yield from arrays_of(item)


def refusing(tree: FoundTree) -> FoundTree:
    """The tree, whose arrays refuse chunks that are not stored."""
    if isinstance(tree, Found):
        return dataclasses.replace(tree, refuse_missing=True)
    if isinstance(tree, FoundGroup):
        items = {name: refusing(item) for name, item in tree.items.items()}
        return dataclasses.replace(tree, items=items)
    return {name: refusing(item) for name, item in tree.items()}


def as_shown(tree: FoundTree, group: ShownGroup, path: str = "") -> FoundTree:
    """A tree whose arrays have the shapes that an open object shows."""
    if not isinstance(tree, Found):
        items = {
            name: as_shown(item, group, _joined(path, name)) for name, item in _items(tree).items()
        }
        return FoundGroup(items, tree.attributes) if isinstance(tree, FoundGroup) else items
    shape = (group.shapes or {}).get(path, tree.shape)
    if shape == tree.shape:
        return tree
    metadata = None if tree.metadata is None else {**tree.metadata, "shape": list(shape or ())}
    return dataclasses.replace(
        tree, shape=shape, metadata=metadata, listing=group.shown, consolidated=None
    )


def choose(
    what: str, tree: FoundTree, names: Sequence[str] | None = None
) -> tuple[ChosenTree, tuple[Found, ...]]:
    """The arrays that give records, and the arrays that do not.

    Args:
        what: Name of the source, for messages.
        tree: Everything that was found.
        names: Names of arrays or groups to take, in that order; None for all arrays that are data.
            If there is no data, all arrays with an axis are taken. Values and offsets of rows that
            differ in length are taken only if they are named.

    Raises:
        ArgumentError: If `names` is not a list of names, or there is only one array.
        SourceError: If a name is not there, or nothing is left.
    """
    if names is None:
        chosen = _data_of(tree)
        ragged = sorted({item.name.rpartition("/")[0] for item in _ragged(tree)})
        if chosen == {} and ragged:
            raise SourceError(
                f"{what}: rows of all features differ in length ({listing(ragged)}): open each"
                f" array by itself: names=['{ragged[0]}/values'], and names=['{ragged[0]}/offsets']"
            )
        if chosen == {}:
            raise SourceError(
                f"{what}: every array that was found has shape (), and the first axis counts"
                " records"
            )
    else:
        chosen = _chosen(what, tree, _checked_names(what, tree, names))
    taken = set(arrays_of(chosen))
    return chosen, tuple(item for item in arrays_of(tree) if item not in taken)


def choose_rows(
    what: str, tree: FoundTree, names: Sequence[str] | None = None
) -> tuple[tuple[ChosenTree, tuple[Found, ...]], dict[str, str | None]]:
    """As `choose`, with the values and offsets of rows that differ in length.

    Returns:
        What `choose` returns, where such rows are a dict of the two arrays; and the names of these
        dicts with the dtype that a conversion noted for the rows, None where none is noted.

    Raises:
        ArgumentError, SourceError: As `choose` raises them; or if there are no such rows.
    """
    groups = dict(_row_groups(tree))
    if "" in groups and names is None:
        index = [BLOCKS] if _steps(tree, BLOCKS) else []
        return choose(what, tree, [VALUES, OFFSETS, *index]), groups
    if names is None:
        data, found = set(arrays_of(_data_of(tree))), dict[str, None]()
        for path, item in zip(_paths(tree), arrays_of(tree), strict=True):
            group = path.rpartition("/")[0]
            if group in groups or item in data:
                found[group if group in groups else path] = None
        names = list(found)
    chosen = choose(what, tree, names) if groups else None
    if chosen is None or not any(f"{name}/".startswith(f"{g}/") for name in names for g in groups):
        raise SourceError(
            f"{what}: found no rows that differ in length, which are a group with the two arrays"
            f" {VALUES!r} and {OFFSETS!r}, but {listing(list(_paths(tree)))}; read these with"
            " ZarrDataSource"
        )
    return chosen, groups


def records_in(tree: FoundTree) -> tuple[dict[str, int], dict[str, int]]:
    """Records of what holds some: of data arrays by name, and of groups of rows that differ in length."""
    offsets = {item.name for item in arrays_of(tree) if _may_be_offsets(item)}
    paths = {path for path, _ in _row_groups(tree) if _joined(path, OFFSETS) in offsets}
    data, arrays, groups = set(arrays_of(_data_of(tree))), dict[str, int](), dict[str, int]()
    for item in arrays_of(tree):
        group, _, last = item.name.rpartition("/")
        if group in paths and last == OFFSETS:
            groups[group] = max(0, item.shape[0] - 1) if item.shape else 0
        elif group not in paths and item in data and item.shape:
            arrays[item.name] = item.shape[0]
    return arrays, groups


def _may_be_offsets(found: Found) -> bool:
    """Whether an array has one axis and integers, as far as its metadata were read."""
    meta = found.metadata or {}
    dtype = str(meta.get("data_type", meta.get("dtype", "int64")))
    return len(found.shape or ()) == 1 and bool(re.fullmatch(r"[<>|]?[iu]\d|u?int\d+", dtype))


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _row_groups(tree: FoundTree, path: str = "") -> Iterator[tuple[str, str | None]]:
    """Paths of the groups of rows that differ in length, and the dtypes that are noted for them."""
    if isinstance(tree, Found):
        return
    items = _items(tree)
    arrays = {name for name, item in items.items() if isinstance(item, Found)}
    index = items.get(BLOCKS)
    has_index = isinstance(index, Found) and BLOCK_VALUES in index.attributes
    if arrays == items.keys() and arrays == {VALUES, OFFSETS, *([BLOCKS] if has_index else [])}:
        yield path, None
        return
    noted = noted_rows(tree.attributes) if isinstance(tree, FoundGroup) else {}
    noted = {_joined(path, name): dtype for name, dtype in noted.items()}
    for name, item in items.items():
        for inner, dtype in _row_groups(item, _joined(path, name)):
            yield inner, noted.get(inner, dtype)


def noted_rows(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The dtypes of rows that differ in length, by name, as attributes of a group have them."""
    listed = attributes.get(RAGGED)
    notes = listed.items() if isinstance(listed, dict) else ()
    dtypes = {name: note.get("dtype") for name, note in notes if isinstance(note, dict)}
    return {name: dtype for name, dtype in dtypes.items() if isinstance(dtype, str)}


def _items(tree: FoundGroup | dict[str, FoundTree]) -> Mapping[str, FoundTree]:
    return tree.items if isinstance(tree, FoundGroup) else tree


def _data_of(tree: FoundTree) -> ChosenTree:
    """The arrays that are data; without data, the arrays that have an axis."""
    labels, ragged = set(_coordinates(tree)), set(_ragged(tree))
    if all(item in labels or item in ragged for item in arrays_of(tree)):
        labels = {item for item in labels if item.shape == ()}
    return _without(tree, labels | ragged)


def _ragged(tree: FoundTree) -> Iterator[Found]:
    """The arrays of groups whose rows differ in length."""
    if isinstance(tree, Found):
        return
    for item in _items(tree).values():
        yield from _ragged(item)
    listed = tree.attributes.get(RAGGED) if isinstance(tree, FoundGroup) else None
    for name in listed if isinstance(listed, dict) else ():
        steps = _steps(tree, name)
        at: FoundTree = tree
        for step in steps or ():
            at = _items(at)[step]  # type: ignore[arg-type]  # `_steps` made sure
        if at is not tree and not isinstance(at, Found):
            yield from arrays_of(at)


def _coordinates(tree: FoundTree) -> Iterator[Found]:
    """The arrays of groups that are not data."""
    if isinstance(tree, Found):
        return
    arrays = {name: item for name, item in _items(tree).items() if isinstance(item, Found)}
    for item in _items(tree).values():
        yield from _coordinates(item)
    if not isinstance(tree, FoundGroup):
        return
    for item in arrays.values():
        if item.shape == ():
            yield item
    if not any(item.dims for item in arrays.values()):
        return
    declared = [tree.attributes, *(item.attributes for item in arrays.values())]
    listed = {
        name
        for attributes in declared
        if isinstance(text := attributes.get("coordinates"), str)
        for name in text.split()
    }
    for name, item in arrays.items():
        if item.shape != () and (name in listed or item.dims == (name,)):
            yield item


def _without(tree: FoundTree, left_out: set[Found]) -> ChosenTree:
    if isinstance(tree, Found):
        return tree
    chosen: dict[str, ChosenTree] = {}
    for name, item in _items(tree).items():
        if isinstance(item, Found) and item in left_out:
            continue
        kept = _without(item, left_out)
        if kept != {}:
            chosen[name] = kept
    return chosen


def _checked_names(what: str, tree: FoundTree, names: Any) -> list[str]:
    if isinstance(tree, Found):
        raise ArgumentError(
            f"{what}: names chooses arrays of a group, and {tree.where} is one array; leave it out"
        )
    if isinstance(names, str | bytes) or not isinstance(names, Sequence):
        raise ArgumentError(
            f'{what}: names must be a list of names such as ["image", "meta/id"], got {names!r}'
        )
    for name in names:
        if not isinstance(name, str):
            raise ArgumentError(f"{what}: names must be strings, got {name!r}")
    plain = ["/".join(part for part in name.split("/") if part) for name in names]
    if not plain:
        raise ArgumentError(f"{what}: names is empty; give at least one, or leave it out for all")
    return plain


def _chosen(what: str, tree: FoundTree, names: list[str]) -> ChosenTree:
    chosen: dict[str, ChosenTree] = {}
    taken: list[str] = []
    for name in names:
        for other in taken:
            if (other + "/").startswith(name + "/") or (name + "/").startswith(other + "/"):
                raise ArgumentError(f"{what}: names has {name!r} and {other!r}; give one of them")
        taken.append(name)
        steps = _steps(tree, name)
        if steps is None:
            raise _unknown(what, tree, name)
        at: FoundTree = tree
        into: dict[str, Any] = chosen
        for step in steps[:-1]:
            at = _items(at)[step]  # type: ignore[arg-type]  # `_steps` made sure
            into = into.setdefault(step, {})
        item = _items(at)[steps[-1]]  # type: ignore[arg-type]
        into[steps[-1]] = item if isinstance(item, Found) else _data_of(item)
    return chosen


def _steps(tree: FoundTree, name: str) -> list[str] | None:
    """The keys from `tree` to `name`; None if it is not there. Keys of a dict may have a `/`."""
    if isinstance(tree, Found):
        return None
    for key, item in _items(tree).items():
        if key == name:
            return [key]
        if name.startswith(key + "/"):
            rest = _steps(item, name[len(key) + 1 :])
            if rest is not None:
                return [key, *rest]
    return None


def _unknown(what: str, tree: FoundTree, name: str) -> SourceError:
    there = sorted(_paths(tree))
    close = difflib.get_close_matches(name, there, n=1)
    if not close:
        close = [path for path in there if path.rpartition("/")[2] == name.rpartition("/")[2]][:1]
    meant = f"did you mean {close[0]!r}? There are" if close else "there are"
    listed = next((item.listing for item in arrays_of(tree) if item.consolidated), "")
    way = (
        f", as {listed} list them; if it is newer, consolidate again (zarr.consolidate_metadata)"
        if listed
        else ""
    )
    return SourceError(
        f"{what}: names has {name!r}, which is not there; {meant} {listing(there)}{way}"
    )


def _paths(tree: FoundTree, parent: str = "") -> Iterator[str]:
    if isinstance(tree, Found):
        yield parent
        return
    for name, item in _items(tree).items():
        yield from _paths(item, f"{parent}/{name}" if parent else name)
