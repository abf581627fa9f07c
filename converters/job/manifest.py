"""Manifest: the files of a finished conversion, and the inputs that they were made from.

The manifest is the last file that a conversion writes. From the first moment until then the folder
carries a marker, `_WINDROW_UNFINISHED`, and readers refuse it.

Invariant: every file that a manifest lists was complete when the manifest was written. Names read
from disk never lead outside the folder that they were found in.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from windrow.converters.job.targets import WORK, Target, target_of
from windrow.errors import NotFoundError, ReadError

UNFINISHED = "_WINDROW_UNFINISHED"
MANIFEST_NAME = "windrow_manifest.json"

_Flat = TypeVar("_Flat")
# Any value that JSON has.
Setting = Any

_VERSION = 2
# No manifest has JSON as deep as this. What is read is compared and printed recursively.
_DEEPEST = 64
# The packages whose versions a manifest has, and the names that they are installed by.
_VERSIONS_OF = {
    "windrow": "windrow-data",
    "array_record": "array_record",
    "numpy": "numpy",
    "tensorstore": "tensorstore",
}


@dataclasses.dataclass(frozen=True, slots=True)
class InputId:
    """The identity of an input. `name` has no folders, since they may be mounted elsewhere.

    `version` changes when the input is written anew: an ETag or a time, as its store has it.
    """

    name: str
    size_bytes: int
    version: str = ""

    @property
    def key(self) -> str:
        """A short name for it; it differs for other inputs and for the same one written anew."""
        text = f"{self.name}\0{self.size_bytes}\0{self.version}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        version = f", version {self.version}" if self.version else ""
        return f"{self.name} of {self.size_bytes} bytes{version}"


@dataclasses.dataclass(frozen=True, slots=True)
class ConversionPlan:
    """The work of a conversion; equal plans give equal files.

    `per_file` says that every part of the work is of one input alone. Then an input that was written
    anew (a damaged file, repaired) does not make another plan: only its own part is done again.
    """

    format: str
    inputs: tuple[InputId, ...]
    settings: Mapping[str, Setting]
    per_file: bool = False

    @property
    def key(self) -> str:
        """A short name for this plan; plans that share no parts have other names."""
        value = self.to_json()
        if self.per_file:
            value["inputs"] = [found.name for found in self.inputs]
        text = json.dumps(value, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "inputs": [dataclasses.asdict(found) for found in self.inputs],
            "settings": dict(self.settings),
            "per_file": self.per_file,
        }

    @classmethod
    def from_json(cls, value: object, *, where: str) -> ConversionPlan:
        """The plan in `value`, read from the file `where`."""
        inputs = _get(value, "inputs", list, where)
        return cls(
            format=_get(value, "format", str, where),
            inputs=tuple(_flat(InputId, one, where) for one in inputs),
            settings=_get(value, "settings", dict, where),
            per_file=isinstance(value, dict) and value.get("per_file") is True,
        )

    def differences(self, other: ConversionPlan) -> list[str]:
        """One line per difference: `self` is in the folder, `other` is the wanted plan."""
        lines = []
        if self.format != other.format:
            lines.append(f"format: {self.format!r} there, {other.format!r} asked for")
        for name in sorted({*self.settings, *other.settings}):
            there, asked = self.settings.get(name), other.settings.get(name)
            if there != asked:
                lines.append(f"{name}: {there!r:.200} there, {asked!r:.200} asked for")
        if len(self.inputs) != len(other.inputs):
            lines.append(f"inputs: {len(self.inputs)} there, {len(other.inputs)} asked for")
        for there_input, asked_input in zip(self.inputs, other.inputs, strict=False):
            if there_input != asked_input:
                lines.append(f"inputs: {there_input} there, {asked_input} asked for")
                break  # after one file more or less, every later line would differ
        return lines


@dataclasses.dataclass(frozen=True, slots=True)
class InputFile:
    """A file that was converted. `name` has no folders; the size is the stored one, also of gzip.

    `records` are those converted, `skipped` those left out as damaged; `version` is as in `InputId`.
    """

    name: str
    size_bytes: int
    records: int
    version: str = ""
    skipped: int = 0

    @property
    def id(self) -> InputId:
        """The identity of this input."""
        return InputId(self.name, self.size_bytes, self.version)


@dataclasses.dataclass(frozen=True, slots=True)
class Skipped:
    """A record that was left out since it is damaged: `record` counts in its file, from 0."""

    file: str
    record: int
    error: str


@dataclasses.dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that was written. `name` is relative to the manifest's folder, with `/`.

    `records` is 0 for files that hold metadata only; `crc32c` is of the whole file, in hexadecimal.
    """

    name: str
    size_bytes: int
    records: int
    crc32c: str


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a finished conversion, and the inputs that they were made from.

    `versions` are of the packages that wrote it; `inputs` and `files` are in the order of the
    records.
    """

    format: str
    inputs: tuple[InputFile, ...]
    settings: Mapping[str, Setting]
    files: tuple[OutputFile, ...]
    skipped: tuple[Skipped, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {
            name: importlib.metadata.version(installed) for name, installed in _VERSIONS_OF.items()
        }
    )

    @property
    def records(self) -> int:
        """The number of records converted."""
        return sum(file.records for file in self.inputs)

    @property
    def plan(self) -> ConversionPlan:
        """The plan that ended with this manifest."""
        return ConversionPlan(self.format, tuple(file.id for file in self.inputs), self.settings)

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the inputs alone."""
        ids = [dataclasses.asdict(file.id) for file in self.inputs]
        return hashlib.sha256(json.dumps(ids).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "versions": dict(self.versions),
            "format": self.format,
            "records": self.records,
            "fingerprint": self.fingerprint,
            "settings": dict(self.settings),
            "inputs": [dataclasses.asdict(file) for file in self.inputs],
            "files": [dataclasses.asdict(file) for file in self.files],
            "skipped": [dataclasses.asdict(record) for record in self.skipped],
        }

    @classmethod
    def from_json(cls, value: object, *, where: str) -> Manifest:
        """The manifest in `value`, read from the file `where`.

        Raises:
            ReadError: If it is not a manifest, or names a file outside its folder.
        """
        version = _get(value, "version", int, where)
        if version != _VERSION:
            raise ReadError(
                f"{where}: a manifest of version {version}; this Windrow reads version {_VERSION}:"
                " install the Windrow that wrote it, or convert anew"
            )
        return cls(
            format=_get(value, "format", str, where),
            inputs=tuple(
                _flat(InputFile, file, where) for file in _get(value, "inputs", list, where)
            ),
            settings=_get(value, "settings", dict, where),
            files=tuple(
                output_from_json(file, where=where) for file in _get(value, "files", list, where)
            ),
            skipped=tuple(
                _flat(Skipped, record, where) for record in _get(value, "skipped", list, where)
            ),
            versions=_get(value, "versions", dict, where),
        )

    @classmethod
    def read(
        cls,
        folder: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """The manifest in a folder, a path or a URL.

        Raises:
            NotFoundError: If the folder has none.
            ReadError: If it cannot be read or is damaged.
        """
        target = target_of(folder, storage_options)
        manifest = cls.read_in(target)
        if manifest is None:
            raise NotFoundError(
                f"{target.shown(MANIFEST_NAME)}: no such file; no conversion was finished in that"
                " folder"
            )
        return manifest

    @classmethod
    def read_in(cls, target: Target) -> Manifest | None:
        """The manifest in `target`, or None; raises as `read` does."""
        data = target.read(MANIFEST_NAME)
        return None if data is None else cls.from_bytes(data, where=target.shown(MANIFEST_NAME))

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Manifest:
        """The manifest in `data`, the content of the file `where`; raises as `from_json` does."""
        return cls.from_json(_json_value(data, where), where=where)


def output_from_json(value: object, *, where: str, also_in: str | None = None) -> OutputFile:
    """The output file in `value`, read from the file `where`; it may also lie in `also_in`."""
    file = _flat(OutputFile, value, where)
    name = file.name
    if not is_own_name(name) and not (also_in and is_own_name(name.removeprefix(also_in))):
        raise ReadError(
            f"{where}: names the file {name!r:.200}, outside its own folder: do not trust it"
        )
    return file


def as_json(value: Any) -> Setting:
    """Mappings and sequences of any type, within one another, as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_json(item) for item in value]
    return value


def is_own_name(name: str) -> bool:
    """Return whether an output may have a file `name`: in its folder, and without another use."""
    parts = name.split("/")
    if parts[0] in (WORK, UNFINISHED, MANIFEST_NAME) or "\0" in name or "\\" in name:
        return False
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    if os.name == "nt" and ":" in name:
        return False
    return not any(part in ("", ".", "..") for part in parts)


def read_json(target: Target, name: str) -> object | None:
    """Return the value of the JSON file `name` in `target`, or None if there is no such file.

    Raises:
        ReadError: If it cannot be read or is not JSON.
    """
    data = target.read(name)
    return None if data is None else _json_value(data, target.shown(name))


def _json_value(data: bytes, where: str) -> object:
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ReadError(f"{where}: cannot be read: {error}") from error
    if _is_deep(value):
        raise ReadError(
            f"{where}: cannot be read: more than {_DEEPEST} lists or objects in one another"
        )
    return value


def _is_deep(value: object) -> bool:
    """Return whether `value` is nested too deeply to compare or to print."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _flat(kind: type[_Flat], value: object, where: str) -> _Flat:
    """Return `value`, read from the file `where`, as a dataclass of strings and numbers."""
    types: dict[str, type[Any]] = {"str": str, "int": int}
    fields: Any = dataclasses.fields(kind)  # type: ignore[arg-type]
    return kind(**{one.name: _get(value, one.name, types[one.type], where) for one in fields})


def _get(value: object, key: str, kind: type[Any], where: str) -> Any:
    found = value.get(key) if isinstance(value, dict) else None
    # bool is a kind of int to Python, and a list of bool no count.
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ReadError(
            f"{where}: damaged: {key!r} should be {kind.__name__}, got {reprlib.repr(found)}"
        )
    return found
