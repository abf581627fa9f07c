"""Rows of different lengths from Zarr: all values end to end, and offsets that say where rows begin.

Record `i` is `values[offsets[i] : offsets[i + 1]]`. Offsets are read in chunks when a record or a length
is asked for (`offsets.py`). The values are a part of the source, read by chunks as any array is.

Invariant: all fields have one number of records.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from windrow.core.text import listing
from windrow.errors import ArgumentError, PlanError, ReadError, SourceError
from windrow.sources.base import ArraySpec, Columns, IntArray, checked_indices
from windrow.sources.chunks import ArrayPart
from windrow.sources.ragged_column import RaggedColumn
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.paths import local_path
from windrow.sources.zarr.error_text import held_records
from windrow.sources.zarr.find import choose, data_names, is_url
from windrow.sources.zarr.folders import Folder, LocalFolder, MetadataLookup
from windrow.sources.zarr.metadata import attributes_of
from windrow.sources.zarr.missing import Missing
from windrow.sources.zarr.names import (
    BLOCK_VALUES,
    BLOCKS,
    OFFSETS,
    TOKENIZER,
    VALUES,
    ChosenTree,
    Found,
    FoundTree,
    ShownGroup,
    arrays_of,
    noted_rows,
)
from windrow.sources.zarr.offsets import Offsets, block_edges
from windrow.sources.zarr.open_array import OpenArray
from windrow.sources.zarr.remote_folders import store_folder
from windrow.sources.zarr.source import ArrayTree, Numbers, OverTree, shaped, taken
from windrow.sources.zarr.stores import Access

_WHAT: Final = "RaggedDataSource"
_SHOWN_FIELDS: Final = 4
_BYTES, _STR = "bytes", "str"


@dataclasses.dataclass(frozen=True, slots=True)
class _RaggedField:
    """One array per record: rows that differ in length, or, without offsets, rows that do not."""

    name: str
    array: OpenArray
    offsets: Offsets | None = None
    kind: str | None = None  # bytes or str; None for arrays

    @property
    def records(self) -> int:
        """The number of records."""
        return self.array.part.rows if self.offsets is None else self.offsets.rows

    @property
    def tokenizer(self) -> str | None:
        """What made its tokens, if a conversion noted that."""
        noted = self.array.attributes.get(TOKENIZER)
        if not isinstance(noted, dict):
            return None
        end = noted.get("end_token")
        return f"tokenizer {noted.get('sha256', ''):.16}" + ("" if end is None else f", end {end}")

    def part(self) -> ArrayPart:
        """How records lie in chunks."""
        if self.offsets is None:
            return self.array.part
        return dataclasses.replace(
            self.array.part,
            name=self.name,
            starts=self.offsets.starts,
            lengths=self.offsets.lengths,
            of_records=self._of_records,
        )

    def _of_records(self, error: ReadError) -> ReadError:
        """An error of values as an error of the records that have some of them."""
        if self.offsets is None or error.records is None:
            return error
        first, stop = error.records
        records = self.offsets.records_of(first, stop)
        items = held_records(first, stop)
        text = str(error).replace(
            f"the chunk that holds {items} cannot",
            f"the chunk that holds {items.replace('record', 'value')}, of {held_records(*records)},"
            " cannot",
        )
        return ReadError(
            text,
            file=error.file,
            offset=error.offset,
            records=records,
            why=error.why,
            is_unanswered=error.is_unanswered,
        )

    @property
    def spec(self) -> Any:
        """The spec of a row."""
        if self.kind is not None:
            return str if self.kind == _STR else bytes
        part, ragged = self.array.part, self.offsets is not None
        return ArraySpec((None, *part.row_shape) if ragged else part.row_shape, part.dtype)

    def column(self, found: Any, indices: IntArray) -> Any:
        """The column of rows at `indices`, from the column of the part."""
        if self.kind is None or not isinstance(found, RaggedColumn):
            return found
        data, bounds = found.values.tobytes(), found.bounds.tolist()
        rows = [data[a:b] for a, b in itertools.pairwise(bounds)]
        if self.kind == _BYTES:
            return rows
        texts: list[str] = []
        try:
            texts.extend(row.decode() for row in rows)
        except UnicodeDecodeError as error:
            named = f" of field {self.name!r}" if self.name else ""
            raise ReadError(
                f"{_WHAT}: record {indices[len(texts)]}{named} in {self.array.found.where} is not"
                f" UTF-8: {error}; read it as bytes: text='bytes'"
            ) from error
        return texts

    def __str__(self) -> str:
        spec = self.spec
        if isinstance(spec, ArraySpec):
            sizes = ", ".join("any" if size is None else str(size) for size in spec.shape)
            shown = f"{spec.dtype} [{sizes}]"
        else:
            shown = spec.__name__
        return f"{self.name}: {shown}" if self.name else shown


class RaggedDataSource(OverTree):
    """Sequences of different lengths in Zarr, such as tokens of documents, as arrays or strings."""

    def __init__(
        self,
        arrays: Any,
        *,
        text: Literal["bytes", "str"] | None = None,
        names: Sequence[str] | None = None,
        direct: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        remote: RemoteOptions | None = None,
        missing: Missing = "fill",
    ) -> None:
        """Open the arrays; only metadata is read.

        Args:
            arrays: A group with the two arrays `values` `(items, ...)` and `offsets`
                `(records + 1,)`, which gives rows `(length, ...)`; or a group or dict with such
                groups in it, as conversions write them, which gives a dict per record. Arrays with
                one row per record may stand next to them, and `blocks` next to `values`: the index
                of blocks that conversions write. A path, a URL, or open arrays: all that
                `ZarrDataSource` takes.
            text: Whether rows of uint8 are `bytes`, or `str` in UTF-8. None for what a conversion
                has noted, else arrays. It does not change rows that a conversion noted as arrays.
            names: As for `ZarrDataSource`; a group of values and offsets has one name.
            direct: As for `ZarrDataSource`.
            storage_options: As for `ZarrDataSource`.
            remote: As for `ZarrDataSource`.
            missing: As for `ZarrDataSource`.

        Raises:
            ArgumentError: If an argument is of the wrong type, or `text` is neither of the two.
            NotFoundError: If there is nothing at the path or URL.
            SourceError: If no rows differ in length, offsets are not integers in one dimension, the
                fields differ in length, `text` is for other values than uint8, or as
                `ZarrDataSource` raises it.
            ConversionError: If the conversion that writes the folder has not finished.
            ReadError: If this process was forked from a process that had used TensorStore.

        Example:
            >>> import tempfile, zarr
            >>> group = zarr.create_group(folder := tempfile.mkdtemp())
            >>> _ = group.create_array("values", data=np.arange(10, 15, dtype="u2"))
            >>> _ = group.create_array("offsets", data=np.array([0, 2, 2, 5]))
            >>> source = RaggedDataSource(folder)
            >>> len(source), source[0], source.lengths()
            (3, array([10, 11], dtype=uint16), array([2, 0, 3]))
        """
        if text not in (None, _BYTES, _STR):
            raise ArgumentError(f"{_WHAT}: text must be 'bytes', 'str' or None, got {text!r}")
        arrays, names, access = taken(_WHAT, arrays, names, storage_options, remote)
        noted: dict[str, str | None] = {}

        def choose(what: str, tree: Any, chosen: Sequence[str] | None) -> Any:
            found, groups = choose_rows(what, tree, chosen)
            noted.update(groups)
            return found

        self._tree = ArrayTree(
            _WHAT,
            arrays,
            direct=direct,
            names=names,
            access=access,
            choose=choose,
            known=_with_pairs(names),
            missing=missing,
        )
        if "" in noted:
            noted[""] = noted_in_parent(access, arrays)
        self._noted, self._text = noted, text
        self._lock = threading.Lock()
        self._opened: tuple[tuple[_RaggedField, ...], Numbers] | None = None
        fields = self._fields
        for field in fields:
            _check(field)
        if len({field.records for field in fields}) > 1:
            shown = "\n".join(f"  {field.name}: {field.records:,}" for field in fields)
            raise SourceError(
                f"{_WHAT}: the fields differ in their number of records\n{shown}\n"
                "Choose fields of one length by names=[...]."
            )
        self._length = fields[0].records
        self._tree.expect_answers()

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        fields = self._fields
        more = len(fields) - _SHOWN_FIELDS
        shown = ", ".join(map(str, fields[:_SHOWN_FIELDS]))
        shown += f" and {more} more fields" if more > 0 else ""
        return f"{_WHAT}({self._length:,} records of {shown} in {self._tree.place})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_lock": threading.Lock()}

    @property
    def _fields(self) -> tuple[_RaggedField, ...]:
        return self._open()[0]

    def _open(self) -> tuple[tuple[_RaggedField, ...], Numbers]:
        """The fields, and the tree of a record with their numbers."""
        opened = self._tree.open()
        with self._lock:
            if self._opened is None:
                fields: list[_RaggedField] = []
                numbers = self._tree.assembled(range(len(opened)))
                layout = self._laid_out(numbers, "", opened, fields)
                self._opened = tuple(fields), layout
            return self._opened

    def _laid_out(
        self, tree: Any, path: str, opened: Sequence[OpenArray], fields: list[_RaggedField]
    ) -> Numbers:
        if isinstance(tree, dict) and path not in self._noted:
            return {
                name: self._laid_out(item, f"{path}/{name}" if path else name, opened, fields)
                for name, item in tree.items()
            }
        if isinstance(tree, dict):
            values, offsets = opened[tree[VALUES]], opened[tree[OFFSETS]]
            index = opened[tree[BLOCKS]] if BLOCKS in tree else None
            noted = self._noted[path]
            # A conversion that noted numbers wrote numbers.
            kind = self._text or noted if noted in (None, _BYTES, _STR) else None
            fields.append(_RaggedField(path, values, Offsets(offsets, values, index), kind))
        else:
            fields.append(_RaggedField(path, opened[tree]))
        return len(fields) - 1

    @property
    def fingerprint(self) -> str:
        """Names, dtypes, shapes and chunks of the arrays, which rows are strings, and tokenizers."""
        return self._named_with({})

    def fingerprint_of_first(self, records: int) -> str:
        """As `sources.base.KnowsEarlier`. Reads the offsets, which say how many values there were."""
        rows: dict[int, int | None] = {}
        for field in self._fields:
            rows[id(field.array)] = records
            if field.offsets is not None:
                rows[id(field.array)] = field.offsets.offset(records)
                rows[id(field.offsets.array)] = records + 1
        return self._named_with(rows)

    def _named_with(self, rows: dict[int, int | None]) -> str:
        """The fingerprint, where some arrays have only their first rows. Indexes are not in it."""
        indexes = (field.offsets.index for field in self._fields if field.offsets is not None)
        rows |= {id(index): None for index in indexes}
        every = [rows.get(id(array), array.part.rows) for array in self._tree.open()]
        return self._named(self._tree.facts_of_first(every))

    def _named(self, facts: str) -> str:
        kinds = [f"{field.name}={field.kind}" for field in self._fields if field.kind]
        kinds += [f"{field.name}={field.tokenizer}" for field in self._fields if field.tokenizer]
        more = f"; {', '.join(kinds)}" if kinds else ""
        return f"ragged({facts}{more})"

    @property
    def spec(self) -> Any:
        """Shape and dtype of a row of each field, with None for the axis that differs."""
        return self._shaped([field.spec for field in self._fields])

    def lengths(self) -> IntArray | None:
        """The number of values of each record, int64 `(records,)`, from the offsets alone.

        None for `str`, whose values are bytes and not characters.

        Raises:
            PlanError: If several fields of a record differ in length.
            ReadError: If the offsets cannot be read, or are damaged.
        """
        return self._agreed(lambda offsets: np.diff(offsets.all()))

    def lengths_of(self, records: IntArray) -> IntArray | None:
        """As `lengths`, for some records. Reads the chunks of offsets in which they are."""
        wanted = checked_indices(records, self._length, _WHAT)
        return self._agreed(lambda offsets: offsets.lengths(wanted))

    def _agreed(self, lengths: Callable[[Offsets], IntArray]) -> IntArray | None:
        """The lengths that the fields have in common."""
        ragged = [field for field in self._fields if field.offsets is not None]
        if any(field.kind == _STR for field in ragged):
            return None
        every = [lengths(field.offsets) for field in ragged if field.offsets is not None]
        for field, other in zip(ragged, every, strict=True):
            is_same = field.array.part.rows == ragged[0].array.part.rows
            if not (is_same and np.array_equal(other, every[0])):
                raise PlanError(
                    f"{_WHAT}: {ragged[0].name!r} and {field.name!r} of a record differ in length;"
                    " choose one by names=[...], or give lengths="
                )
        return every[0]

    @property
    def parts(self) -> Sequence[ArrayPart]:
        """One part per field: its values, in the chunks of their first axis.

        Raises:
            ReadError: If this process was forked from a process that had used TensorStore.
        """
        self._open_tree()
        return [field.part() for field in self._fields]

    def still_parts(self) -> Sequence[ArrayPart]:
        """The offsets, which all records need, and their indexes; see `scan.Repeating`."""
        every = [field.offsets for field in self._fields if field.offsets is not None]
        indexes = [offsets.index.part for offsets in every if offsets.index is not None]
        return [*(offsets.part for offsets in every), *indexes]

    def blocks(self) -> IntArray:
        """Bounds of the records that begin in some consecutive chunks of the largest field.

        A row that begins in one chunk may end in the next, so a block is several chunks: then few
        chunks belong to two blocks.

        Raises:
            ReadError: If the offsets or their index cannot be read, or are damaged.
        """
        field = max(
            self._fields, key=lambda field: field.array.part.rows * field.array.part.row_bytes
        )
        offsets = field.offsets
        edges = block_edges(field.array.part) if offsets is None else offsets.block_starts()
        bounds: IntArray = np.unique(np.clip([0, *edges, self._length], 0, self._length))
        return bounds

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        """The tree of `read`, from one column per part."""
        pairs = zip(self._fields, columns, strict=True)
        return self._shaped([field.column(column, indices) for field, column in pairs])

    def _shaped(self, leaves: Sequence[Any]) -> Any:
        return shaped(self._open()[1], leaves)


def _with_pairs(names: Any) -> list[str]:
    """What to look for in a group that cannot be listed."""
    pair = [VALUES, OFFSETS]
    if names is None or isinstance(names, str | bytes) or not isinstance(names, Sequence):
        return pair
    plain = [name for name in names if isinstance(name, str)]
    return plain + [f"{name.strip('/')}/{array}" for name in plain for array in pair]


def _check(field: _RaggedField) -> None:
    if field.offsets is None:
        return
    offsets, values = field.offsets.part, field.array.part
    where = field.array.found.where
    if offsets.row_shape or offsets.dtype.kind not in "iu" or not offsets.rows:
        raise SourceError(
            f"{_WHAT}: offsets must be integers in one dimension, one more than records, got"
            f" {offsets.dtype} {[offsets.rows, *offsets.row_shape]} for the values in {where}"
        )
    if field.kind is not None and (values.dtype != np.uint8 or values.row_shape):
        raise SourceError(
            f"{_WHAT}: rows of {field.kind} are made of uint8 values in one dimension, got"
            f" {values.dtype} {[values.rows, *values.row_shape]} in {where}; leave text= out"
        )


# --- the choice of arrays -------------------------------------------------------------------------


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
        data, found = data_names(tree), dict[str, None]()
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
    data, arrays, groups = data_names(tree), dict[str, int](), dict[str, int]()
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


def noted_in_parent(access: Access, value: Any) -> str | None:
    """The dtype that a conversion noted for the rows that a path or URL names; None without one.

    The rows are a group of values and offsets, and the note is an attribute of the group around it.
    """
    value = value.place if isinstance(value, ShownGroup) else value
    if not isinstance(value, str | os.PathLike):
        return None
    text, what = os.fspath(value), access.what
    folder: Folder = (
        store_folder(what, text, access, ())
        if is_url(text)
        else LocalFolder(what, local_path(text, what=what))
    )
    key = ""
    while (parent := folder.parent()) is not None:
        folder, last = parent
        key = _joined(last, key) if key else last
        files = MetadataLookup(folder)
        meta = files.metadata("zarr.json")
        if meta is None and files.read(".zgroup") is None:
            break
        attributes = attributes_of(meta or {}, files.attributes() if meta is None else None)
        if key in (noted := noted_rows(attributes)):
            return noted[key]
    return None
