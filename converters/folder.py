"""The folder a conversion writes: one that can be killed at any byte and goes on.

    OUT/_WINDROW_UNFINISHED             there from the first moment until the manifest is complete
    OUT/_windrow_work/KEY/tmp/          files being written
    OUT/_windrow_work/KEY/journal/      one small file per part of the work that is finished
    OUT/...                             finished files, under the names they keep
    OUT/windrow_manifest.json           the last to come

KEY names the plan, so that the journal of one plan never vouches for the files of another.

Invariant: a file under a final name is complete, since it came there by a rename; a journal entry
is written after the files it lists; only files that a conversion wrote are ever removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Iterator

from windrow.converters.extras import optional
from windrow.converters.manifest import (
    MANIFEST_NAME,
    UNFINISHED,
    Manifest,
    OutputFile,
    Plan,
    output_from_json,
    read_json,
)
from windrow.errors import ConversionError, ReadError

_WORK = "_windrow_work"
_BLOCK_BYTES = 1 << 22
_NOTE = "This folder is not finished. Run the conversion again, with the same arguments, to go on."


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of the work that is finished: what was read for it and the files that it gave."""

    key: str
    records: int
    files: tuple[OutputFile, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OutputFolder:
    """The folder `root` while the plan of key `plan_key` is carried out in it. Picklable."""

    root: str
    plan_key: str

    @property
    def work(self) -> str:
        """Where everything unfinished lies; removed at the end."""
        return os.path.join(self.root, _WORK, self.plan_key)

    def final(self, name: str) -> str:
        """The path of the finished file `name`."""
        return os.path.join(self.root, *name.split("/"))

    @contextlib.contextmanager
    def temporary(self, name: str) -> Iterator[str]:
        """A path to write `name` to, unlike that of any other attempt; removed afterwards."""
        path = os.path.join(self.work, "tmp", f"{name}.{uuid.uuid4().hex}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)

    def kept(self, key: str, *, at: str | None = None) -> Part | None:
        """The part `key` if an earlier run finished it and its files are still there.

        Args:
            key: The part's name.
            at: The folder that its files lie in, if they are not under their final names yet.
        """
        part = self._entry(key)
        if part is None:
            return None
        complete = all(
            _has_size(self.final(file.name), file.size_bytes)
            or (at is not None and _has_size(os.path.join(at, file.name), file.size_bytes))
            for file in part.files
        )
        return part if complete else None

    def finished(self, part: Part) -> None:
        """Remember that `part` is finished."""
        files = [dataclasses.asdict(file) for file in part.files]
        self.write_json(self._journal(part.key), {"records": part.records, "files": files})

    def parts(self) -> list[Part]:
        """All parts that the journal has, whether or not their files are still there."""
        keys = [name.removesuffix(".json") for name in _listed(self._journal_folder)]
        entries = [self._entry(key) for key in keys]
        return [entry for entry in entries if entry is not None]

    def write_json(self, path: str, value: object) -> None:
        """Write a JSON file that is complete from the moment it is there.

        Raises:
            ConversionError: If it cannot be written.
        """
        try:
            with self.temporary(os.path.basename(path)) as temporary:
                with open(temporary, "w", encoding="utf-8") as file:
                    json.dump(value, file, indent=1)
                publish(temporary, path)
        except OSError as error:
            raise unwritable(path, error) from error

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, clear up, and take the marker away. It may run twice."""
        self.write_json(os.path.join(self.root, MANIFEST_NAME), manifest.to_json())
        self.clear_up()

    def clear_up(self) -> None:
        """Remove what only an unfinished folder has."""
        shutil.rmtree(os.path.join(self.root, _WORK), ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self.root, UNFINISHED))

    @property
    def _journal_folder(self) -> str:
        return os.path.join(self.work, "journal")

    def _journal(self, key: str) -> str:
        return os.path.join(self._journal_folder, f"{key}.json")

    def _entry(self, key: str) -> Part | None:
        where = self._journal(key)
        try:
            value = read_json(where)
            if not isinstance(value, dict):
                return None
            files = tuple(output_from_json(file, where=where) for file in value["files"])
            return Part(key, int(value["records"]), files)
        except (ReadError, KeyError, TypeError, ValueError):
            # A machine that went down may leave an entry without its bytes: do the part again.
            return None


def begin(
    output: str | os.PathLike[str], plan: Plan, *, overwrite: bool
) -> tuple[OutputFolder, Manifest | None]:
    """Make the folder `output` ready for `plan`.

    Returns:
        The folder, and the manifest if an earlier run has already finished this very plan.

    Raises:
        ConversionError: If the folder cannot be written, holds files that no conversion wrote, or
            was begun or finished with another plan and `overwrite` is false.
        ReadError: If its marker or its manifest is damaged.
    """
    root = os.fspath(output)
    if "://" in root:
        raise ConversionError(f"output {root}: an output is a local folder; upload it when done")
    root = os.path.abspath(root)
    folder = OutputFolder(root, plan.key)
    if os.path.exists(root) and not os.path.isdir(root):
        raise ConversionError(f"output {root}: is a file; name a folder")
    try:
        os.makedirs(root, exist_ok=True)
        _refuse_foreign(root)
        if not overwrite:
            manifest = _finished_before(root, plan)
            if manifest is not None:
                folder.clear_up()
                return folder, manifest
        folder.write_json(os.path.join(root, UNFINISHED), {"note": _NOTE, **plan.to_json()})
        _remove_old(folder, everything=overwrite)
    except ReadError:
        raise
    except OSError as error:
        raise unwritable(root, error) from error
    return folder, None


def unwritable(path: str, error: OSError) -> ConversionError:
    """The error for a `path` that cannot be written."""
    return ConversionError(
        f"{path}: cannot be written: {error.strerror or error}; make room or choose another folder,"
        " and run it again: what is finished is kept"
    )


def output_file(path: str, name: str, *, records: int) -> OutputFile:
    """The entry for the file at `path`, to be called `name`, read back from the disk."""
    extend = optional("google_crc32c", "checking what was written").extend
    checksum, size_bytes = 0, 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            checksum = extend(checksum, block)
            size_bytes += len(block)
    return OutputFile(name, size_bytes, records, f"{checksum:08x}")


def publish(temporary: str, final: str) -> None:
    """Give a complete file or folder its final name."""
    os.makedirs(os.path.dirname(final), exist_ok=True)
    if os.path.isfile(temporary):
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
    os.replace(temporary, final)


def _refuse_foreign(root: str) -> None:
    names = set(_listed(root))
    if names and not names & {UNFINISHED, MANIFEST_NAME, _WORK}:
        raise ConversionError(
            f"output {root}: holds files that no conversion wrote, such as {min(names)!r}; choose"
            " a new or an empty folder"
        )


def _finished_before(root: str, plan: Plan) -> Manifest | None:
    """The manifest if `plan` was finished in `root`; None if there is work to do."""
    marker = os.path.join(root, UNFINISHED)
    begun = read_json(marker)
    manifest = _manifest(root)
    if begun is not None:
        _refuse_other(root, "begun", Plan.from_json(begun, where=marker), plan)
    elif manifest is not None:
        _refuse_other(root, "written", manifest.plan, plan)
    if manifest is None or manifest.plan.differences(plan):
        return None
    for file in manifest.files:
        if not _has_size(os.path.join(root, file.name), file.size_bytes):
            if begun is not None:
                return None
            raise ConversionError(
                f"output {root}: {file.name} is missing or is not of {file.size_bytes} bytes, as"
                " the manifest says; convert into another folder, or pass overwrite=True"
            )
    return manifest


def _refuse_other(root: str, verb: str, there: Plan, asked: Plan) -> None:
    lines = there.differences(asked)
    if lines:
        raise ConversionError(
            f"output {root}: was {verb} with other settings or from other files\n"
            + "".join(f"  {line}\n" for line in lines)
            + "Convert into another folder, or pass overwrite=True to write this one anew."
        )


def _remove_old(folder: OutputFolder, *, everything: bool) -> None:
    """Remove what earlier runs left and this one does not go on with."""
    manifest = _manifest(folder.root)
    if manifest is not None:
        _remove_files(folder.root, [file.name for file in manifest.files])
        os.remove(os.path.join(folder.root, MANIFEST_NAME))
    for key in _listed(os.path.join(folder.root, _WORK)):
        old = OutputFolder(folder.root, key)
        if everything or key != folder.plan_key:
            _remove_files(folder.root, [file.name for part in old.parts() for file in part.files])
            shutil.rmtree(old.work, ignore_errors=True)
    shutil.rmtree(os.path.join(folder.work, "tmp"), ignore_errors=True)


def _remove_files(root: str, names: list[str]) -> None:
    """Remove files and the folders that this leaves empty; `names` are known to lie in `root`."""
    for name in names:
        path = os.path.join(root, name)
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        parent = os.path.dirname(path)
        while parent != root and os.path.isdir(parent) and not os.listdir(parent):
            os.rmdir(parent)
            parent = os.path.dirname(parent)


def _manifest(root: str) -> Manifest | None:
    where = os.path.join(root, MANIFEST_NAME)
    value = read_json(where)
    return None if value is None else Manifest.from_json(value, where=where)


def _has_size(path: str, size_bytes: int) -> bool:
    try:
        return os.path.getsize(path) == size_bytes
    except OSError:
        return False


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
