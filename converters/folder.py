"""The folder a conversion writes: one that can be killed at any byte and goes on.

    OUT/_WINDROW_UNFINISHED             there from the first moment until the manifest is complete
    OUT/_windrow_work/lock              held by the run that writes (a lease in object stores)
    OUT/_windrow_work/incoming/         local files being written
    OUT/_windrow_work/KEY/journal/      one small file per part of the work that is finished
    OUT/_windrow_work/KEY/notes/        what one stage of the work tells the next
    OUT/_windrow_work/KEY/data/         what a stage leaves for the next
    OUT/_windrow_work/KEY/store/        files of a Zarr store that is not complete (local folders)
    OUT/...                             finished files, under the names they keep
    OUT/windrow_manifest.json           the last to come

KEY names the plan, so that the journal of one plan never vouches for the files of another.

Invariant: a file under a final name is complete; a journal entry is written after the files it
lists; only files that a conversion wrote are ever removed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import google_crc32c

from windrow.converters.locks import check_lease
from windrow.converters.manifest import (
    MANIFEST_NAME,
    UNFINISHED,
    Manifest,
    OutputFile,
    Plan,
    output_from_json,
    read_json,
)
from windrow.converters.targets import WORK, Bytes, LocalTarget, Target
from windrow.errors import ConversionError, ReadError, WindrowError

_BLOCK_BYTES: Final = 1 << 22
_NOTE: Final = "This folder is not finished."


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of the work that is finished: what was read for it and the files that it gave.

    `told` is anything else that the rest of the work must know of it, as JSON has it.
    """

    key: str
    records: int
    files: tuple[OutputFile, ...]
    told: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class OutputFolder:
    """The folder `target` while the plan of key `plan_key` is carried out in it. Picklable.

    `lease` is the token of the lease that this run holds on it, if there is one.
    """

    target: Target
    plan_key: str
    lease: str | None = None

    @property
    def work(self) -> str:
        """Where everything unfinished of this plan lies; removed at the end."""
        return f"{WORK}/{self.plan_key}"

    # Finished files.

    @contextmanager
    def incoming(self, name: str) -> Iterator[str]:
        """A local path to write `name` to, for `publish`; removed afterwards."""
        with self.target.incoming(name) as path:
            yield path

    def publish(self, path: str, name: str, *, records: int) -> OutputFile:
        """Give the complete local file at `path` (of `incoming`) its final name."""
        file = output_file(path, name, records=records)
        self.target.put(path, name)
        return file

    def write(self, name: str, data: Bytes, *, records: int) -> OutputFile:
        """Write a finished file from memory."""
        self.target.write(name, data)
        return OutputFile(name, len(data), records, checksum(data))

    # Zarr stores: their files get their final names together, at the end.

    def write_staged(self, name: str, data: Bytes, *, records: int) -> OutputFile:
        """Write a file of a store that `publish_store` publishes.

        On a local disk it lies in the work folder until then; an object store knows no renaming,
        and the marker alone keeps readers away.
        """
        self.target.write(self._staged(name), data)
        return OutputFile(name, len(data), records, checksum(data))

    def publish_store(self, names: Iterable[str]) -> None:
        """Give the staged `names` (files, or folders and all in them) their final names."""
        target = self.target
        if not isinstance(target, LocalTarget):
            return
        for name in names:
            # A run that was killed meanwhile leaves some here, some there.
            if target.listed(self._staged(name)) or target.size(self._staged(name)) is not None:
                target.rename(target.path(self._staged(name)), target.path(name))

    def _staged(self, name: str) -> str:
        return name if self.target.local is None else f"{self.work}/store/{name}"

    # Parts.

    def part(self, key: str, make: Callable[[], Part]) -> Part:
        """The part `key`, which `make` makes if no earlier run has.

        What an earlier run has made is checked: sizes, and on local disks checksums.
        """
        kept = self._kept(key)
        if kept is not None:
            return kept
        try:
            part = make()
        except WindrowError:  # some are OSErrors too
            raise
        except OSError as error:
            raise ConversionError(
                f"{self.target.shown()}: part {key} failed: {error}; make room, or mend the place,"
                " and run it again: what is finished is kept"
            ) from error
        self.finished(part)
        return part

    def finished(self, part: Part) -> None:
        """Remember that `part` is finished."""
        self._check_lease()
        files = [dataclasses.asdict(file) for file in part.files]
        entry = {"records": part.records, "files": files, "told": dict(part.told)}
        self._write_json(self._journal(part.key), entry)

    def parts(self) -> list[Part]:
        """All parts that the journal has, whether or not their files are still there."""
        keys = [name.removesuffix(".json") for name in self.target.listed(f"{self.work}/journal")]
        entries = [self._entry(key) for key in keys]
        return [entry for entry in entries if entry is not None]

    def _kept(self, key: str) -> Part | None:
        part = self._entry(key)
        complete = part is not None and all(map(self._is_whole, part.files))
        return part if complete else None

    def _is_whole(self, file: OutputFile) -> bool:
        target = self.target
        for name in {file.name: None, self._staged(file.name): None}:
            if target.size(name) == file.size_bytes:
                if not isinstance(target, LocalTarget):
                    return True  # fetching all of it again would cost more than making it
                found = output_file(target.path(name), file.name, records=file.records)
                return found.crc32c == file.crc32c
        return False

    def _journal(self, key: str) -> str:
        return f"{self.work}/journal/{key}.json"

    def _entry(self, key: str) -> Part | None:
        name = self._journal(key)
        try:
            value = read_json(self.target, name)
            if not isinstance(value, dict):
                return None
            where = self.target.shown(name)
            files = tuple(output_from_json(file, where=where) for file in value["files"])
            return Part(key, int(value["records"]), files, dict(value["told"]))
        except (ReadError, KeyError, TypeError, ValueError):
            # A machine that went down may leave an entry without its bytes: do the part again.
            return None

    # What one stage leaves for the next.

    def note(self, name: str, value: object) -> None:
        """Remember a JSON value under `name`."""
        self._write_json(f"{self.work}/notes/{name}.json", value)

    def noted(self, name: str) -> object | None:
        """The value that was noted under `name`, or None."""
        return read_json(self.target, f"{self.work}/notes/{name}.json")

    def data_name(self, name: str) -> str:
        """The name, in `target`, of the file `name` of data that a stage leaves for the next."""
        return f"{self.work}/data/{name}"

    def _write_json(self, name: str, value: object) -> None:
        self.target.write(name, json.dumps(value, indent=1).encode())

    # The end.

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, clear up, and take the marker away. It may run twice."""
        self._check_lease()
        self._write_json(MANIFEST_NAME, manifest.to_json())
        self.clear_up()

    def _check_lease(self) -> None:
        if self.lease is not None:
            check_lease(self.target, self.lease)

    def clear_up(self) -> None:
        """Remove what only an unfinished folder has."""
        self.target.remove_folder(WORK)
        self.target.remove([UNFINISHED])


def finished_before(target: Target, plan: Plan) -> Manifest | None:
    """The manifest if `plan` was finished in `target`; None if there is work to do.

    Raises:
        ConversionError: If another plan was begun or finished there, or a finished file is gone.
        ReadError: If the marker or the manifest is damaged.
    """
    begun = read_json(target, UNFINISHED)
    manifest = Manifest.read_in(target)
    if begun is not None:
        there = Plan.from_json(begun, where=target.shown(UNFINISHED))
        if there.key != plan.key:
            _refuse_other(target, "begun", there, plan)
    elif manifest is not None:
        _refuse_other(target, "written", manifest.plan, plan)
    if manifest is None or manifest.plan.differences(plan):
        return None
    for file in manifest.files:
        if target.size(file.name) != file.size_bytes:
            if begun is not None:
                return None
            raise ConversionError(
                f"output {target.shown()}: {file.name} is missing or is not of {file.size_bytes}"
                " bytes, as the manifest says; convert into another folder, or pass overwrite=True"
            )
    return manifest


def refuse_foreign(target: Target) -> None:
    """Refuse a folder with files in it that no conversion wrote.

    Raises:
        ConversionError: If there are any.
    """
    names = set(target.listed())
    if names and not names & {UNFINISHED, MANIFEST_NAME, WORK}:
        raise ConversionError(
            f"output {target.shown()}: holds files that no conversion wrote, such as"
            f" {min(names)!r}; choose a new or an empty folder"
        )


def begin(
    target: Target, plan: Plan, *, resume: str, overwrite: bool, lease: str | None
) -> OutputFolder:
    """Make `target` ready for `plan`: the marker, and nothing old beside what is kept.

    Args:
        target: A folder that `refuse_foreign` and `finished_before` let pass, and that is locked.
        plan: What is to be done.
        resume: The command that goes on, for those who find the folder unfinished.
        overwrite: Whether to remove all that earlier runs have left, of this plan too.
        lease: The token of the lease that is held, if there is one.
    """
    folder = OutputFolder(target, plan.key, lease)
    marker = {"note": _NOTE, "resume": resume, **plan.to_json()}
    target.write(UNFINISHED, json.dumps(marker, indent=1).encode())
    try:
        _remove_old(folder, everything=overwrite)
    except WindrowError:
        raise
    except OSError as error:
        raise ConversionError(
            f"output {target.shown()}: old files cannot be removed: {error}; remove the folder"
        ) from error
    return folder


def output_file(path: str, name: str, *, records: int) -> OutputFile:
    """The entry for the local file at `path`, to be called `name`, read back from the disk."""
    found, size_bytes = 0, 0
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                found = google_crc32c.extend(found, block)
                size_bytes += len(block)
    except OSError as error:
        raise ReadError(f"{path}: cannot be read back: {error.strerror}") from error
    return OutputFile(name, size_bytes, records, f"{found:08x}")


def checksum(data: Bytes) -> str:
    """The CRC-32C of `data` in hexadecimal, as manifests have it."""
    # The library takes nothing but bytes: some at a time, so that a large file is not held twice.
    view, found = memoryview(data), 0
    for start in range(0, len(view), _BLOCK_BYTES):
        found = google_crc32c.extend(found, bytes(view[start : start + _BLOCK_BYTES]))
    return f"{found:08x}"


def _refuse_other(target: Target, verb: str, there: Plan, asked: Plan) -> None:
    lines = there.differences(asked)
    if lines:
        raise ConversionError(
            f"output {target.shown()}: was {verb} with other settings or from other files\n"
            + "".join(f"  {line}\n" for line in lines)
            + "Convert into another folder, or pass overwrite=True (--overwrite) to write this one"
            " anew."
        )


def _remove_old(folder: OutputFolder, *, everything: bool) -> None:
    """Remove what earlier runs left and this one does not go on with."""
    target = folder.target
    manifest = Manifest.read_in(target)
    if manifest is not None:
        target.remove(_names(manifest.files))
        target.remove([MANIFEST_NAME])
    for key in target.listed(WORK):
        old = OutputFolder(target, key)
        if key in _SHARED:
            continue
        if everything or key != folder.plan_key:
            target.remove(name for part in old.parts() for name in _names(part.files))
            target.remove_folder(old.work)
    target.remove_folder(f"{WORK}/incoming")


# What lies beside the plans in the work folder.
_SHARED: Final = frozenset({"lock", "lease.json", "incoming"})


def _names(files: Sequence[OutputFile]) -> list[str]:
    return [file.name for file in files]
