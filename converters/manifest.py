"""Manifest: what a finished conversion holds, and from what it was made.

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
import pathlib
from collections.abc import Mapping
from typing import Any

from windrow.errors import NotFoundError, ReadError

UNFINISHED = "_WINDROW_UNFINISHED"
MANIFEST_NAME = "windrow_manifest.json"

Setting = str | int | None

_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a conversion is to do; equal plans give equal files.

    `inputs` are names (without folders, which may be mounted elsewhere) and sizes in bytes.
    """

    format: str
    inputs: tuple[tuple[str, int], ...]
    settings: Mapping[str, Setting]

    @property
    def key(self) -> str:
        """A short name for this plan, other for other plans."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "inputs": [{"name": name, "size_bytes": size} for name, size in self.inputs],
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, value: object, *, where: str) -> Plan:
        """The plan in `value`, read from the file `where`."""
        inputs = _get(value, "inputs", list, where)
        return cls(
            format=_get(value, "format", str, where),
            inputs=tuple(
                (_get(i, "name", str, where), _get(i, "size_bytes", int, where)) for i in inputs
            ),
            settings=_get(value, "settings", dict, where),
        )

    def differences(self, other: Plan) -> list[str]:
        """One line per thing in which `other` differs: `self` is there, `other` is asked for."""
        lines = []
        if self.format != other.format:
            lines.append(f"format: {self.format!r} there, {other.format!r} asked for")
        for name in sorted({*self.settings, *other.settings}):
            there, asked = self.settings.get(name), other.settings.get(name)
            if there != asked:
                lines.append(f"{name}: {there!r} there, {asked!r} asked for")
        if len(self.inputs) != len(other.inputs):
            lines.append(f"inputs: {len(self.inputs)} there, {len(other.inputs)} asked for")
        for there_input, asked_input in zip(self.inputs, other.inputs, strict=False):
            if there_input != asked_input:
                lines.append(
                    f"inputs: {there_input[0]} of {there_input[1]} bytes there,"
                    f" {asked_input[0]} of {asked_input[1]} bytes asked for"
                )
                break  # after one file more or less, every later line would differ
        return lines


@dataclasses.dataclass(frozen=True, slots=True)
class InputFile:
    """A file that was converted. `name` has no folders; sizes are as stored, gzip and all."""

    name: str
    size_bytes: int
    records: int


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
    """What a finished conversion holds, and from what it was made.

    `windrow` is the version that wrote it; `inputs` and `files` are in the order of the records.
    """

    format: str
    inputs: tuple[InputFile, ...]
    settings: Mapping[str, Setting]
    files: tuple[OutputFile, ...]
    windrow: str = dataclasses.field(default_factory=lambda: importlib.metadata.version("windrow"))

    @property
    def records(self) -> int:
        """The number of records converted."""
        return sum(file.records for file in self.inputs)

    @property
    def plan(self) -> Plan:
        """The plan that this manifest is the end of."""
        return Plan(self.format, tuple((i.name, i.size_bytes) for i in self.inputs), self.settings)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "windrow": self.windrow,
            "format": self.format,
            "records": self.records,
            "settings": dict(self.settings),
            "inputs": [dataclasses.asdict(file) for file in self.inputs],
            "files": [dataclasses.asdict(file) for file in self.files],
        }

    @classmethod
    def from_json(cls, value: object, *, where: str) -> Manifest:
        """The manifest in `value`, read from the file `where`.

        Raises:
            ReadError: If it is no manifest, or names a file outside its folder.
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
                InputFile(
                    _get(file, "name", str, where),
                    _get(file, "size_bytes", int, where),
                    _get(file, "records", int, where),
                )
                for file in _get(value, "inputs", list, where)
            ),
            settings=_get(value, "settings", dict, where),
            files=tuple(
                output_from_json(file, where=where) for file in _get(value, "files", list, where)
            ),
            windrow=_get(value, "windrow", str, where),
        )

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Manifest:
        """The manifest in a local folder.

        Raises:
            NotFoundError: If the folder has none.
            ReadError: If it cannot be read or is damaged.
        """
        where = os.path.join(os.fspath(folder), MANIFEST_NAME)
        value = read_json(where)
        if value is None:
            raise NotFoundError(f"{where}: no such file; no conversion was finished in that folder")
        return cls.from_json(value, where=where)


def output_from_json(value: object, *, where: str) -> OutputFile:
    """The output file in `value`, read from the file `where`."""
    name = _get(value, "name", str, where)
    path = pathlib.PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\\" in name:
        raise ReadError(
            f"{where}: names the file {name!r}, outside its own folder: do not trust it"
        )
    return OutputFile(
        name=name,
        size_bytes=_get(value, "size_bytes", int, where),
        records=_get(value, "records", int, where),
        crc32c=_get(value, "crc32c", str, where),
    )


def read_json(path: str) -> object | None:
    """What the JSON file `path` holds, or None if there is no such file.

    Raises:
        ReadError: If it cannot be read or is not JSON.
    """
    try:
        with open(path, encoding="utf-8") as file:
            value: object = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ReadError(f"{path}: cannot be read: {error}") from error
    return value


def _get(value: object, key: str, kind: type[Any], where: str) -> Any:
    found = value.get(key) if isinstance(value, dict) else None
    # bool is a kind of int to Python, and a list of bool no count.
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ReadError(f"{where}: damaged: {key!r} should be {kind.__name__}, got {found!r:.60}")
    return found
