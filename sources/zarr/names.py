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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, Union

import tensorstore as ts

from windrow.core.text import listing
from windrow.errors import ArgumentError, SourceError
from windrow.sources.zarr.error_text import reason
from windrow.sources.zarr.folders import Folder, LocalFolder, StoreFolder
from windrow.sources.zarr.opened import OpenedFolder, OpenedStore
from windrow.sources.zarr.stored_objects import RangeObjects, StoredObjects
from windrow.sources.zarr.stores import Access
from windrow.sources.zarr.urls import has_file_system

Keys: TypeAlias = tuple[str, ...]
"""The keys that lead to an array or a group in a tree; () for the tree itself."""

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

    def objects(self) -> StoredObjects:
        """The objects in which it is stored, by key.

        Raises:
            SourceError: If its store cannot be opened.
        """
        access = self.access
        if self.folder is not None:
            return LocalFolder(self.what, self.folder)
        if access is None and isinstance(self.spec, dict):  # N5 and precomputed volumes
            return LocalFolder(self.what, self.spec["kvstore"]["path"])
        if access is None:
            raise TypeError("an array outside of a local folder needs an access")
        if self.opened is not None:
            return OpenedFolder(self.what, self.opened, access)
        if self.url is not None and (self.spec is None or has_file_system(self.url)):
            return RangeObjects(access, self.url)
        kvstore = self.spec["kvstore"] if isinstance(self.spec, dict) else self.spec.kvstore
        try:
            return StoreFolder(self.what, self.where, access.opened(kvstore), access)
        except (ValueError, RuntimeError, OSError) as error:
            raise SourceError(
                f"{self.what}: {self.where} cannot be read: {access.reason(error)}"
            ) from None

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
    """The arrays below a group of a store, or below a dict of the user.

    Args:
        arrays: The arrays by the keys that lead to them, in order. A key of a dict may have a `/`.
        groups: The attributes of each group of a store by the keys that lead to it, outer ones first.
    """

    arrays: Mapping[Keys, Found]
    groups: Mapping[Keys, Mapping[str, Any]]

    def below(self, at: Keys) -> FoundGroup:
        """The arrays and groups below a group."""
        count = len(at)
        return FoundGroup(
            {keys[count:]: item for keys, item in self.arrays.items() if keys[:count] == at},
            {keys[count:]: item for keys, item in self.groups.items() if keys[:count] == at},
        )

    def by_group(self) -> dict[Keys, dict[str, Found]]:
        """The arrays of each group and dict that has some, by their names there."""
        found: dict[Keys, dict[str, Found]] = {}
        for keys, item in self.arrays.items():
            found.setdefault(keys[:-1], {})[keys[-1]] = item
        return found


FoundTree: TypeAlias = Found | FoundGroup
ChosenTree: TypeAlias = Union[Found, "dict[str, ChosenTree]"]


def gathered(
    items: Iterable[tuple[Keys, FoundTree]], groups: Mapping[Keys, Mapping[str, Any]]
) -> FoundGroup:
    """Arrays and groups in one group; those around them have `groups`, or no attributes."""
    arrays, groups = dict[Keys, Found](), dict(groups)
    for keys, found in items:
        for count in range(1, len(keys)):
            groups.setdefault(keys[:count], _NO_ATTRIBUTES)
        if isinstance(found, Found):
            arrays[keys] = found
        elif found.arrays:
            arrays |= {(*keys, *inner): item for inner, item in found.arrays.items()}
            groups |= {(*keys, *inner): item for inner, item in found.groups.items()}
    around = {keys[:count] for keys in arrays for count in range(1, len(keys))}
    return FoundGroup({keys: item for keys, item in arrays.items() if keys not in around}, groups)


def arrays_of(tree: FoundTree | ChosenTree) -> Iterator[Found]:
    """Every array of a tree, in its order."""
    if isinstance(tree, Found):
        yield tree
    elif isinstance(tree, FoundGroup):
        yield from tree.arrays.values()
    else:
        for item in tree.values():
            yield from arrays_of(item)


def refusing(tree: FoundTree) -> FoundTree:
    """The tree, whose arrays refuse chunks that are not stored."""
    return _with_each(tree, lambda _, item: dataclasses.replace(item, refuse_missing=True))


def as_shown(tree: FoundTree, group: ShownGroup) -> FoundTree:
    """A tree whose arrays have the shapes that an open object shows."""

    def shown(path: str, item: Found) -> Found:
        shape = (group.shapes or {}).get(path, item.shape)
        if shape == item.shape:
            return item
        metadata = None if item.metadata is None else {**item.metadata, "shape": list(shape or ())}
        return dataclasses.replace(
            item, shape=shape, metadata=metadata, listing=group.shown, consolidated=None
        )

    return _with_each(tree, shown)


def _with_each(tree: FoundTree, change: Callable[[str, Found], Found]) -> FoundTree:
    """The tree with other arrays in place of its own; `change` gets the path of each."""
    if isinstance(tree, Found):
        return change("", tree)
    arrays = {keys: change("/".join(keys), item) for keys, item in tree.arrays.items()}
    return dataclasses.replace(tree, arrays=arrays)


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
    if names is not None:
        names = _checked_names(what, tree, names)
    if isinstance(tree, Found):
        return tree, ()
    found = _data_of(tree) if names is None else _named(what, tree, names)
    if not found:
        ragged = sorted({item.name.rpartition("/")[0] for item in _ragged(tree)})
        if ragged and names is None:
            raise SourceError(
                f"{what}: rows of all features differ in length ({listing(ragged)}): open each"
                f" array by itself: names=['{ragged[0]}/values'], and names=['{ragged[0]}/offsets']"
            )
        raise SourceError(
            f"{what}: every array that was found has shape (), and the first axis counts records"
        )
    chosen: dict[str, ChosenTree] = {}
    for keys, item in found.items():
        into: dict[str, Any] = chosen
        for key in keys[:-1]:
            into = into.setdefault(key, {})
        into[keys[-1]] = item
    taken = set(found.values())
    return chosen, tuple(item for item in tree.arrays.values() if item not in taken)


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
    groups = _row_groups(tree)
    if "" in groups and names is None:
        index = [BLOCKS] if any(item.name == BLOCKS for item in arrays_of(tree)) else []
        return choose(what, tree, [VALUES, OFFSETS, *index]), groups
    every = [item.name for item in arrays_of(tree)]
    if names is None:
        data, found = _data_names(tree), dict[str, None]()
        for name in every:
            group = name.rpartition("/")[0]
            if group in groups or name in data:
                found[group if group in groups else name] = None
        names = list(found)
    chosen = choose(what, tree, names) if groups else None
    if chosen is None or not any(f"{name}/".startswith(f"{g}/") for name in names for g in groups):
        raise SourceError(
            f"{what}: found no rows that differ in length, which are a group with the two arrays"
            f" {VALUES!r} and {OFFSETS!r}, but {listing(every)}; read these with ZarrDataSource"
        )
    return chosen, groups


def records_in(tree: FoundTree) -> tuple[dict[str, int], dict[str, int]]:
    """Records of what holds some: of data arrays by name, and of groups of rows that differ in length."""
    offsets = {item.name for item in arrays_of(tree) if _may_be_offsets(item)}
    paths = {path for path in _row_groups(tree) if _joined(path, OFFSETS) in offsets}
    data, arrays, groups = _data_names(tree), dict[str, int](), dict[str, int]()
    for item in arrays_of(tree):
        group, _, last = item.name.rpartition("/")
        if group in paths and last == OFFSETS:
            groups[group] = max(0, item.shape[0] - 1) if item.shape else 0
        elif group not in paths and item.name in data and item.shape:
            arrays[item.name] = item.shape[0]
    return arrays, groups


def _may_be_offsets(found: Found) -> bool:
    """Whether an array has one axis and integers, as far as its metadata were read."""
    meta = found.metadata or {}
    dtype = str(meta.get("data_type", meta.get("dtype", "int64")))
    return len(found.shape or ()) == 1 and bool(re.fullmatch(r"[<>|]?[iu]\d|u?int\d+", dtype))


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _row_groups(tree: FoundTree) -> dict[str, str | None]:
    """The dtypes noted for groups of rows that differ in length, by path; None where none is noted."""
    if isinstance(tree, Found):
        return {}
    noted: dict[str, str] = {}
    for at, attributes in tree.groups.items():
        for name, dtype in noted_rows(attributes).items():
            noted.setdefault("/".join((*at, name)), dtype)
    around = {keys[:count] for keys in tree.arrays for count in range(len(keys) - 1)}
    found: dict[str, str | None] = {}
    for at, arrays in tree.by_group().items():
        has_index = BLOCKS in arrays and BLOCK_VALUES in arrays[BLOCKS].attributes
        pair = {VALUES, OFFSETS, BLOCKS} if has_index else {VALUES, OFFSETS}
        if arrays.keys() == pair and at not in around:
            path = "/".join(at)
            found[path] = noted.get(path) if at else None
    return found


def noted_rows(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The dtypes of rows that differ in length, by name, as attributes of a group have them."""
    listed = attributes.get(RAGGED)
    notes = listed.items() if isinstance(listed, dict) else ()
    dtypes = {name: note.get("dtype") for name, note in notes if isinstance(note, dict)}
    return {name: dtype for name, dtype in dtypes.items() if isinstance(dtype, str)}


def _data_of(group: FoundGroup) -> dict[Keys, Found]:
    """The arrays that are data; without data, the arrays that have an axis."""
    labels, ragged = set(_coordinates(group)), set(_ragged(group))
    left = {keys: item for keys, item in group.arrays.items() if item not in ragged}
    data = {keys: item for keys, item in left.items() if item not in labels}
    return data or {keys: item for keys, item in left.items() if item.shape != ()}


def _data_names(tree: FoundTree) -> set[str]:
    """The names of the arrays that are data."""
    if isinstance(tree, Found):
        return {tree.name}
    return {item.name for item in _data_of(tree).values()}


def _ragged(group: FoundGroup) -> Iterator[Found]:
    """The arrays of groups whose rows differ in length."""
    for at, attributes in group.groups.items():
        listed = attributes.get(RAGGED)
        for name in listed if isinstance(listed, dict) else ():
            inside = group.below((*at, *name.split("/")))
            yield from (item for keys, item in inside.arrays.items() if keys)


def _coordinates(group: FoundGroup) -> Iterator[Found]:
    """The arrays of groups that are not data."""
    for at, arrays in group.by_group().items():
        if at not in group.groups:
            continue
        yield from (item for item in arrays.values() if item.shape == ())
        if not any(item.dims for item in arrays.values()):
            continue
        declared = [group.groups[at], *(item.attributes for item in arrays.values())]
        listed = {
            name
            for attributes in declared
            if isinstance(text := attributes.get("coordinates"), str)
            for name in text.split()
        }
        for name, item in arrays.items():
            if item.shape != () and (name in listed or item.dims == (name,)):
                yield item


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


def _named(what: str, tree: FoundGroup, names: list[str]) -> dict[Keys, Found]:
    """The arrays with some names, and the data in groups with some names."""
    places: dict[str, Keys] = {}
    for keys in tree.arrays:
        for count in range(1, len(keys) + 1):
            places.setdefault("/".join(keys[:count]), keys[:count])
    chosen: dict[Keys, Found] = {}
    for number, name in enumerate(names):
        for other in names[:number]:
            if (other + "/").startswith(name + "/") or (name + "/").startswith(other + "/"):
                raise ArgumentError(f"{what}: names has {name!r} and {other!r}; give one of them")
        at = places.get(name)
        if at is None:
            raise _unknown(what, tree, name)
        if at in tree.arrays:
            chosen[at] = tree.arrays[at]
        else:
            data = _data_of(tree.below(at))
            chosen |= {(*at, *keys): item for keys, item in data.items()}
    return chosen


def _unknown(what: str, tree: FoundGroup, name: str) -> SourceError:
    there = sorted(item.name for item in tree.arrays.values())
    close = difflib.get_close_matches(name, there, n=1)
    if not close:
        close = [path for path in there if path.rpartition("/")[2] == name.rpartition("/")[2]][:1]
    meant = f"did you mean {close[0]!r}? There are" if close else "there are"
    listed = next((item.listing for item in tree.arrays.values() if item.consolidated), "")
    way = (
        f", as {listed} list them; if it is newer, consolidate again (zarr.consolidate_metadata)"
        if listed
        else ""
    )
    return SourceError(
        f"{what}: names has {name!r}, which is not there; {meant} {listing(there)}{way}"
    )
