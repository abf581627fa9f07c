"""A conversion walks Grain's nodes from the last one to the sources.

A table says what each becomes (`grain_nodes.NODES`). A node that is not there is named in an error, or runs as it
is.

Invariant: a node and a source that are in several places of a chain are made once.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from windrow import sources
from windrow.errors import PlanError
from windrow.grain_api import grain_attributes
from windrow.sources.foreign import ForeignDataSource

Build: TypeAlias = "Callable[[GraphConversion, Any], Any]"


@dataclasses.dataclass(frozen=True, slots=True)
class GraphConversion:
    """Makes Windrow's datasets of Grain's.

    Args:
        table: What a node of each kind becomes.
        strict: See `from_grain`.
        made: What was made already, by the identity of what it was made of, and that itself.
        part: The part of the data that a worker of Grain has: elements `part[0]`, `part[0] + part[1]`, ...
            of each chain with random access. None for all of them.
        process: The number of the worker whose random values are drawn, and the number of workers.
    """

    table: Mapping[str, Build]
    strict: bool
    made: dict[Any, tuple[Any, Any]]
    part: tuple[int, int] | None = None
    process: tuple[int, int] = (0, 1)

    def of(self, node: Any) -> Any:
        """The dataset that has the elements of a node of Grain.

        Raises:
            PlanError: If it has no counterpart, and the conversion is strict.
        """
        kind = grain_attributes.kind_of(node)
        make = self.table.get(kind or "", type(self).other)
        return self._once(node, lambda: make(self, node))

    def parent(self, node: Any) -> Any:
        """The dataset of the one parent of a node."""
        return self.of(grain_attributes.parent_of(node))

    def source(self, source: Any) -> Any:
        """What Windrow reads in place of a source: one of its own where it knows the source."""
        return self._once(source, lambda: _source(source))

    def whole(self) -> GraphConversion:
        """This conversion, where the data are not shared among workers."""
        return dataclasses.replace(self, part=None)

    def inside(self, node: Any) -> GraphConversion:
        """This conversion for the parent of a node: what a worker of Grain takes is in its nodes."""
        match grain_attributes.name_of(node):
            case "_LazyWorkerSliceIterDataset":
                part = node._slice.start, node._slice.step
                return dataclasses.replace(self, part=part)
            case "_MpContextIterDataset":
                context = node._mp_context
                process = context.process_index, context.process_count
                return dataclasses.replace(self, process=process)
        return self

    def every(self) -> slice:
        """The slice of the part."""
        return slice(None) if self.part is None else slice(self.part[0], None, self.part[1])

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        name = (id(key), self.part, self.process)
        if name not in self.made:
            self.made[name] = key, make()  # with the key, so that no other object gets its id
        return self.made[name][1]

    def other(self, node: Any, what: str | None = None) -> Any:
        """A node of Grain as it is, under the name `what` in the error that a strict conversion raises."""
        import grain

        if self.strict:
            own = type(node)
            raise PlanError(
                f"from_grain: {what or f'{own.__module__}.{own.__qualname__}'} has no counterpart in"
                " Windrow; pass strict=False to run it as it is, or write it as a subclass of windrow's"
                " class: see docs/extending.md"
            )
        from windrow.grain_api import own_grain_nodes  # its classes derive from Grain's

        if isinstance(node, grain.MapDataset):
            return own_grain_nodes.GrainMapNode(node)
        return own_grain_nodes.GrainStreamNode(
            node,
            [self.of(parent) for parent in getattr(node, "_parents", ())],
            self.part,
            self.process,
        )


# --- sources -------------------------------------------------------------------------------------

# Windrow takes these as paths, or as columns: they would not be read by index.
_READ_BY_INDEX: Final = (str, bytes, bytearray, os.PathLike, Mapping)


def _source(source: Any) -> Any:
    kind = type(source)
    if kind.__name__ == "ArrayRecordDataSource" and kind.__module__.startswith(
        ("grain.", "array_record.")
    ):
        return _array_record(source)
    if grain_attributes.name_of(source) == "RangeDataSource":
        return sources.RangeDataSource(source._start, source._stop, source._step)
    return ForeignDataSource(source) if isinstance(source, _READ_BY_INDEX) else source


def _array_record(source: Any) -> sources.ArrayRecordDataSource:
    """The files of a source of Grain, or the records that it takes of each."""
    files = [os.fspath(each.filename) for each in source._read_instructions]
    found = sources.ArrayRecordDataSource(files)
    taken = [(each.start, each.start + each.num_records) for each in source._read_instructions]
    if len(found) == len(source):
        return found
    return sources.ArrayRecordDataSource(
        [f"{file}[{start}:{stop}]" for file, (start, stop) in zip(files, taken, strict=True)]
    )
