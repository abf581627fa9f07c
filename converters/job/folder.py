"""The folder a conversion writes. The conversion can be killed at any byte and resumes.

    OUT/_WINDROW_UNFINISHED             there from the first moment until the manifest is complete
    OUT/_windrow_work/lock              held by the run that writes (a lease in object stores)
    OUT/_windrow_work/incoming/         local files being written
    OUT/_windrow_work/KEY/claims/       the names in OUT that are of this plan, each before it is used
    OUT/_windrow_work/KEY/journal/      one small file per part of the work that is finished
    OUT/_windrow_work/KEY/notes/        values that one stage of the work leaves for the next
    OUT/_windrow_work/KEY/data/         files that one stage leaves for the next
    OUT/_windrow_work/KEY/store/        files of a Zarr store that is not complete (local folders)
    OUT/...                             finished files, under the names they keep
    OUT/windrow_manifest.json           the last to come

KEY names the plan, so that the journal of one plan never vouches for the files of another.

Invariant: a file under a final name is complete; a claim is written before the first file under its
name, a journal entry after the files it lists; only what a conversion wrote is ever removed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final

import google_crc32c

from windrow.converters.job.locks import LEASE_NAME, LOCK_NAME, check_lease
from windrow.converters.job.manifest import (
    MANIFEST_NAME,
    UNFINISHED,
    ConversionPlan,
    Manifest,
    OutputFile,
    is_own_name,
    output_from_json,
    read_json,
)
from windrow.converters.job.targets import (
    WORK,
    LocalTarget,
    Target,
    begin_writeback,
    unwritable,
)
from windrow.errors import ConversionError, ReadError, WindrowError

# Read, or left for the next stage, at a time: larger blocks are new pages each time, which cost more than
# reading them.
_BLOCK_BYTES: Final = 1 << 18
# The bytes of a growing file that are written at a time. Files are not kept open meanwhile: there may be more
# of them than a process may have open.
BUFFER_BYTES: Final = 4 << 20
_NOTE: Final = "This folder is not finished."
# The files of the work folder that exist only during a run.
_HELD: Final = frozenset({LOCK_NAME, LEASE_NAME})
# In the marker while files of earlier runs are being removed: no run may resume from them.
_CLEARING: Final = "clearing"
# Longer keys of parts are hashed: names of files end at 255 bytes.
_LONGEST_NAME: Final = 180
# Top names of stores that this process has claimed, by run.
_claimed: set[tuple[str, str]] = set()


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedPart:
    """A finished part of the work: the number of its records, and its files.

    `details` has all other facts that later work needs, as JSON values.
    """

    key: str
    records: int
    files: tuple[OutputFile, ...]
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class OutputFolder:
    """The folder `target` while the plan of key `plan_key` is carried out in it. Picklable.

    `lease` is the token of the lease that this run holds on it, if there is one; `run` names the run,
    which found the folder empty if it is `fresh`. Files, parts and notes go into the folder `within`
    it, '' or `NAME/`, so that each of several groups has its own.
    """

    target: Target
    plan_key: str
    lease: str | None = None
    run: str = ""
    fresh: bool = False
    within: str = ""

    def inside(self, group: str) -> OutputFolder:
        """Return the same folder, for files of its group `group`."""
        return dataclasses.replace(self, within=f"{self.within}{group}/")

    @property
    def work(self) -> str:
        """The folder of all unfinished files of this plan, which is removed at the end."""
        return f"{WORK}/{self.plan_key}"

    # Finished files.

    def publish(self, path: str, name: str, *, records: int) -> OutputFile:
        """Give the complete local file at `path` (of `Target.incoming`) its final name."""
        name = f"{self.within}{name}"
        file = output_file(path, name, records=records)
        self._claim(name)
        self.target.put(path, name)
        return file

    # Zarr stores: their files get their final names together, at the end.

    def write_staged(self, name: str, data: bytes, *, records: int) -> OutputFile:
        """Write a file of a store that `publish_store` publishes."""
        with self.staged(name) as file:
            file.write(data)
            return file.finished(records=records)

    @contextmanager
    def staged(self, name: str) -> Iterator[StagedFile]:
        """A file of a store, written part by part, so that memory holds one part.

        On a local disk it lies in the work folder until `publish_store`. An object store cannot
        rename, and only the marker keeps readers away.
        """
        name = f"{self.within}{name}"
        if self.target.local is None:
            self._claim(name)
        with self.target.incoming(self._staged(name)) as path:
            yield StagedFile(self.target, name, self._staged(name), path)

    @contextmanager
    def left(self, name: str) -> Iterator[StagedFile]:
        """A file that one stage leaves for the next, by its name of `data_name`."""
        with self.target.incoming(name) as path:
            yield StagedFile(self.target, name, name, path, buffer_bytes=_BLOCK_BYTES)

    def publish_store(self, names: Iterable[str]) -> None:
        """Give the staged `names` (files, or folders and all in them) their final names."""
        target = self.target
        if not isinstance(target, LocalTarget):
            return
        for name in names:
            self._claim(name)
            # A run that was killed here leaves some files in each place.
            if target.listed(self._staged(name)) or target.size(self._staged(name)) is not None:
                target.move(self._staged(name), name)

    def _staged(self, name: str) -> str:
        return name if self.target.local is None else f"{self.work}/store/{name}"

    def _claim(self, name: str) -> None:
        """Note that files under the top name of `name` belong to this plan.

        Raises:
            ConversionError: If a file there is not of this plan, or the name has another use.
        """
        if not is_own_name(name):
            raise ConversionError(
                f"output {self.target.shown()}: {name!r:.200} cannot be the name of a file of it;"
                " choose another name"
            )
        top, slash, _ = name.partition("/")
        if slash and (self.run, top) in _claimed:
            return
        claim = f"{self.work}/claims/{_file_name(top)}"
        # Look for the file before its claim: another thread of this run writes the claim first.
        there = not self.fresh and self.target.is_there(top)
        if self.fresh or self.target.size(claim) is None:
            if there:
                raise ConversionError(
                    f"{self.target.shown(top)}: is in the way, and no conversion that is known here"
                    " wrote it; move it away, or choose another folder, and run it again"
                )
            self._write_json(claim, top)
        if slash:
            _claimed.add((self.run, top))

    def claims(self) -> list[str]:
        """The top names of files that this plan has written, or was about to write."""
        folder = f"{self.work}/claims"
        found = [read_json(self.target, f"{folder}/{name}") for name in self.target.listed(folder)]
        return [name for name in found if isinstance(name, str) and is_own_name(name)]

    # Parts.

    def part(self, key: str, make: Callable[[], FinishedPart]) -> FinishedPart:
        """Return the part `key`, which `make` makes if no earlier run has.

        Files of an earlier run are checked: their sizes, and on local disks their checksums.
        """
        kept = self._entry(self._journal(key))
        if kept is not None and all(map(self._is_whole, kept.files)):
            return dataclasses.replace(kept, key=key)
        self._check_lease()
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

    def finished(self, part: FinishedPart) -> None:
        """Remember that `part` is finished."""
        self._check_lease()
        files = [dataclasses.asdict(file) for file in part.files]
        key = f"{self.within}{part.key}"
        entry = {"key": key, "records": part.records, "files": files, "told": dict(part.details)}
        self._write_json(self._journal(part.key), entry)

    def parts(self) -> list[FinishedPart]:
        """Return all parts in the journal, whether or not their files are still there."""
        folder = f"{self.work}/journal"
        entries = [self._entry(f"{folder}/{name}") for name in self.target.listed(folder)]
        return [entry for entry in entries if entry is not None]

    def whole_parts(self) -> list[FinishedPart]:
        """Return the parts in the journal whose files are there in full, by their sizes."""
        parts = self.parts()
        names = {
            place for part in parts for file in part.files for place in self._places(file.name)
        }
        sizes = self.target.sizes(names)
        return [
            part
            for part in parts
            if all(
                file.size_bytes in [sizes[place] for place in self._places(file.name)]
                for file in part.files
            )
        ]

    def forget(self, part: FinishedPart) -> None:
        """Remove the files of a part, then its entry in the journal."""
        self.target.remove(name for file in part.files for name in self._places(file.name))
        self.target.remove([self._journal(part.key)])

    def _places(self, name: str) -> list[str]:
        """The places where a finished file may lie."""
        return list(dict.fromkeys([name, self._staged(name)]))

    def _is_whole(self, file: OutputFile) -> bool:
        target = self.target
        for name in self._places(file.name):
            if target.size(name) == file.size_bytes:
                if not isinstance(target, LocalTarget):
                    return True  # fetching the whole file would cost more than making it
                found = output_file(target.path(name), file.name, records=file.records)
                return found.crc32c == file.crc32c
        return False

    def _journal(self, key: str) -> str:
        return f"{self.work}/journal/{_file_name(self.within + key)}"

    def _entry(self, name: str) -> FinishedPart | None:
        try:
            return self._part(read_json(self.target, name), where=self.target.shown(name))
        except ReadError:
            # A machine that crashed may leave an entry without its bytes: do the part again.
            return None

    def _part(self, value: object, *, where: str) -> FinishedPart:
        match value:
            case {"key": str(key), "records": int(records), "files": list(files), "told": dict(to)}:
                data = self.data_name("")
                found = tuple(output_from_json(file, where=where, also_in=data) for file in files)
                return FinishedPart(key, records, found, to)
            case _:
                raise ReadError(f"{where}: is not an entry of a journal")

    # Values that one stage leaves for the next.

    def note(self, name: str, value: object) -> None:
        """Remember a JSON value under `name`."""
        self._write_json(f"{self.work}/notes/{self.within}{name}.json", value)

    def noted(self, name: str) -> object | None:
        """Return the value that was noted under `name`, or None."""
        return read_json(self.target, f"{self.work}/notes/{self.within}{name}.json")

    def needed(self, name: str) -> Any:
        """Return the value that an earlier stage noted under `name`; ConversionError if it is gone."""
        value = self.noted(name)
        if value is None:
            raise ConversionError(
                f"output {self.target.shown()}: the note {name!r} is gone; run the conversion again,"
                " and do not change the folder meanwhile"
            )
        return value

    def data_name(self, name: str) -> str:
        """Return the name in `target` of the data file `name` that a stage leaves for the next."""
        return f"{self.work}/data/{self.within}{name}"

    def read_data(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes `[start, stop)` of a data file, by its name of `data_name`.

        Raises:
            ConversionError: If they are not there; the next run makes them again.
        """
        data = self.target.read(name, start, stop)
        if data is None or len(data) != stop - start:
            raise ConversionError(
                f"{self.target.shown(name)}: is gone, or cut short, while it was read; run the"
                " conversion again, and do not change the folder meanwhile"
            )
        return data

    def _write_json(self, name: str, value: object) -> None:
        self.target.write(name, json.dumps(value, indent=1).encode())

    # The end.

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, clear up, and take the marker away. It may run twice."""
        self._check_lease()
        self._write_json(MANIFEST_NAME, manifest.to_json())
        self.clear_up()

    def written(self) -> Manifest:
        """Return the manifest that `finish` wrote.

        Raises:
            ConversionError: If it is not there.
        """
        manifest = Manifest.read_in(self.target)
        if manifest is None:
            raise ConversionError(
                f"output {self.target.shown()}: the work is done, but there is no manifest; all workers"
                " have to see that folder under the same path"
            )
        return manifest

    def _check_lease(self) -> None:
        if self.lease is not None:
            check_lease(self.target, self.lease)

    def clear_up(self) -> None:
        """Remove the files of an unfinished folder, except the lock, which its holder removes."""
        for name in self.target.listed(WORK):
            if name not in _HELD:
                self.target.remove_all(f"{WORK}/{name}")
        self.target.remove([UNFINISHED])


def _file_name(key: str) -> str:
    """The name of the JSON file of a key, which may have any characters and any length."""
    name = urllib.parse.quote(key, safe="@", errors="surrogateescape")
    if len(name) > _LONGEST_NAME:
        name = hashlib.sha256(name.encode()).hexdigest()
    return f"{name}.json"


def is_finished(target: Target) -> bool:
    """Whether `target` holds a finished conversion, and no other files of a run."""
    names = target.listed()
    return MANIFEST_NAME in names and not {UNFINISHED, WORK} & set(names)


@dataclasses.dataclass(frozen=True, slots=True)
class UnfinishedPlan:
    """What the marker of an unfinished folder says: its plan, and whether old files are being removed."""

    plan: ConversionPlan
    clearing: bool

    @classmethod
    def read_in(cls, target: Target) -> UnfinishedPlan | None:
        """Return what the marker in `target` says; None without a marker, ReadError if it is damaged."""
        value = read_json(target, UNFINISHED)
        if value is None:
            return None
        plan = ConversionPlan.from_json(value, where=target.shown(UNFINISHED))
        return cls(plan, isinstance(value, dict) and value.get(_CLEARING) is True)


def finished_before(target: Target, plan: ConversionPlan) -> Manifest | None:
    """Return the manifest if `plan` was finished in `target`; None if there is work to do.

    Raises:
        ConversionError: If another plan was begun or finished there, or a finished file is gone.
        ReadError: If the marker or the manifest is damaged.
    """
    begun, manifest = UnfinishedPlan.read_in(target), Manifest.read_in(target)
    if begun is not None:
        if begun.plan.key != plan.key:
            _refuse_other(target, "begun", begun.plan, plan)
    elif manifest is not None:
        _refuse_other(target, "written", manifest.plan, plan)
    clearing = begun is not None and begun.clearing
    if manifest is None or manifest.plan.differences(plan) or clearing:
        return None
    sizes = target.sizes(file.name for file in manifest.files)
    for file in manifest.files:
        if sizes[file.name] != file.size_bytes:
            if begun is not None:
                return None
            raise ConversionError(
                f"output {target.shown()}: {file.name} is missing or is not of {file.size_bytes}"
                " bytes, as the manifest says; convert into another folder, or pass overwrite=True"
            )
    return manifest


def is_foreign(target: Target) -> bool:
    """Whether there are files in `target` and no conversion wrote any of them."""
    names = set(target.listed())
    return bool(names) and not names & {UNFINISHED, MANIFEST_NAME, WORK}


def refuse_foreign(target: Target) -> None:
    """Refuse a folder with files in it that no conversion wrote.

    Raises:
        ConversionError: If there are any.
    """
    if target.size("") is not None:
        raise ConversionError(f"output {target.shown()}: is a file; name a folder")
    if is_foreign(target):
        names = target.listed()
        raise ConversionError(
            f"output {target.shown()}: holds files that no conversion wrote, such as"
            f" {min(names)!r}; choose a new or an empty folder"
        )


def begin(
    target: Target, plan: ConversionPlan, *, resume: str, overwrite: bool, lease: str | None
) -> OutputFolder:
    """Make `target` ready for `plan`: write the marker, and remove old files that are not kept.

    Args:
        target: A folder that `refuse_foreign` and `finished_before` let pass, and that is locked.
        plan: The plan of the conversion.
        resume: The command that resumes, for a user who finds the folder unfinished.
        overwrite: Whether to remove all files of earlier runs, also of this plan.
        lease: The token of the lease that is held, if there is one.
    """
    fresh = not set(target.listed()) - {WORK} and not set(target.listed(WORK)) - _HELD
    folder = OutputFolder(target, plan.key, lease, run=uuid.uuid4().hex, fresh=fresh)
    marker = {"note": _NOTE, "resume": resume, **plan.to_json()}
    begun = _readable(target)
    clearing = overwrite or (begun is not None and begun.clearing)
    if begun is not None and not clearing:
        _forget_mended(folder, begun.plan, plan)
    folder._write_json(UNFINISHED, {**marker, _CLEARING: True} if clearing else marker)
    _remove_old(folder, everything=clearing)
    if clearing:
        folder._write_json(UNFINISHED, marker)
    return folder


def is_begun(target: Target) -> bool:
    """Return whether a run has begun in `target`, has removed the old files, and has not ended."""
    begun = _readable(target)
    return begun is not None and not begun.clearing


def _readable(target: Target) -> UnfinishedPlan | None:
    """Return what the marker says; a run that overwrites ignores a damaged one."""
    with suppress(ReadError):
        return UnfinishedPlan.read_in(target)
    return None


def _forget_mended(folder: OutputFolder, there: ConversionPlan, plan: ConversionPlan) -> None:
    """Forget the parts of inputs that have been written anew.

    Otherwise an old entry would vouch for a new file of the same name, if the input later became
    what it was before. Parts of one input alone have keys that end in `@` and the key of the input.
    """
    gone = {found.key for found in there.inputs} - {found.key for found in plan.inputs}
    if gone:
        for part in folder.parts():
            if part.key.rpartition("@")[2] in gone:
                folder.forget(part)


def output_file(path: str, name: str, *, records: int) -> OutputFile:
    """Return the entry for the local file at `path`, read back from disk, to be called `name`."""
    try:
        with open(path, "rb") as file:
            return OutputFile(name, os.fstat(file.fileno()).st_size, records, checksum_of(file))
    except OSError as error:
        raise ReadError(f"{path}: cannot be read back: {error.strerror}") from error


def checksum_of(file: BinaryIO) -> str:
    """Read a file from here on; return its CRC-32C in hexadecimal, as manifests have it."""
    found = 0
    while block := file.read(_BLOCK_BYTES):
        found = google_crc32c.extend(found, block)
    return f"{found:08x}"


class StagedFile:
    """A file that is written part by part, see `OutputFolder.staged` and `left`."""

    def __init__(
        self, target: Target, name: str, staged: str, path: str, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        """Begin with no bytes.

        Args:
            target: Where the file goes.
            name: What the manifest calls it.
            staged: Its name in the target until the store is published.
            path: A local path, of `Target.incoming`.
            buffer_bytes: The bytes that are written at a time.
        """
        self._buffer_bytes = buffer_bytes
        self._target, self._name, self._staged, self._path = target, name, staged, path
        self._waiting: list[bytes] = []
        self._crc = self._size_bytes = self._waiting_bytes = 0

    def write(self, data: bytes) -> None:
        """Add the next bytes.

        Raises:
            ConversionError: If they cannot be written.
        """
        self._crc = google_crc32c.extend(self._crc, data)
        self._size_bytes += len(data)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= self._buffer_bytes:
            self._flush()

    def finished(self, *, records: int, lasting: bool = True) -> OutputFile:
        """Give the complete file its name; it has this number of records.

        One that is not `lasting` may be lost in a crash of the machine, which its checksum shows.
        """
        self._flush()
        if isinstance(self._target, LocalTarget) and not lasting:
            self._target.move(os.path.relpath(self._path, self._target.url), self._staged)
        else:
            self._target.put(self._path, self._staged)
        return OutputFile(self._name, self._size_bytes, records, f"{self._crc:08x}")

    def _flush(self) -> None:
        """Write the waiting bytes, and empty the buffer."""
        data = b"".join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        try:
            with open(self._path, "ab") as file:
                first = file.tell()
                file.write(data)
                file.flush()
                begin_writeback(file.fileno(), first, len(data))
        except OSError as error:
            raise unwritable(self._target.shown(self._name), error) from error


def _refuse_other(target: Target, verb: str, there: ConversionPlan, asked: ConversionPlan) -> None:
    lines = there.differences(asked)
    if lines:
        raise ConversionError(
            f"output {target.shown()}: was {verb} with other settings or from other files\n"
            + "".join(f"  {line}\n" for line in lines)
            + "Convert into another folder, or pass overwrite=True (--overwrite) to write this one"
            " anew."
        )


def _remove_old(folder: OutputFolder, *, everything: bool) -> None:
    """Remove files of earlier runs that this run cannot use."""
    target = folder.target
    manifest = Manifest.read_in(target)
    if manifest is not None:
        target.remove(file.name for file in manifest.files)
        target.remove([MANIFEST_NAME])
    for key in target.listed(WORK):
        if key in _HELD or (key == folder.plan_key and not everything):
            continue
        for name in OutputFolder(target, key).claims():
            target.remove_all(name)
        target.remove_all(f"{WORK}/{key}")
