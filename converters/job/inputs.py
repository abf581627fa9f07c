"""The files a conversion reads, found and measured: a path, a glob, a folder or a list of them.

Invariant: every file named exists and none comes twice. Files have the order of the list given, and
within one glob or folder they are sorted by name. The records of the output have the same order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import fsspec

from windrow.converters.job.manifest import InputId, Manifest
from windrow.converters.job.targets import file_system, safe_cause
from windrow.core.redaction import Redaction, shown_url
from windrow.errors import ArgumentError, ConversionError, NotFoundError, ReadError, WindrowError
from windrow.sources.remote.paths import (
    UNFINISHED_MARKER,
    is_remote,
    joined,
    parted,
    refuse_unfinished,
    split_path,
)
from windrow.sources.signatures import ZARR

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_MAGIC: Final = frozenset("*?[")
# Names that file systems give to the value that changes when a file is written anew.
_VERSIONS: Final = ("ETag", "etag", "generation", "md5Hash", "mtime", "LastModified", "created")


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """A file to convert: its place, its name without folders, its size, and its version."""

    url: str = dataclasses.field(repr=False)
    name: str
    size_bytes: int
    version: str = ""
    options: dict[str, Any] | None = dataclasses.field(default=None, repr=False)

    @property
    def id(self) -> InputId:
        """The identity of this input in plans and manifests."""
        return InputId(self.name, self.size_bytes, self.version)

    @property
    def shown(self) -> str:
        """Its place, without secrets."""
        return shown_url(self.url)

    def check_unchanged(self) -> None:
        """Refuse to continue if the file has been written anew since it was found.

        Raises:
            ConversionError: If it has.
        """
        (now,) = _matches(self.url, self.options)
        refuse_changed(self.shown, self.id, now.id)


def refuse_changed(shown: str, before: InputId, now: InputId) -> None:
    """Refuse to continue with an input that has been written anew since it was found.

    Raises:
        ConversionError: If it has.
    """
    if now != before:
        raise ConversionError(
            f"{shown}: was written anew while it was converted: {before} before, {now} now; leave"
            " inputs alone meanwhile, and start anew with overwrite=True"
        )


def find_inputs(
    paths: Paths, *, storage_options: Mapping[str, Any] | None = None, marks: tuple[str, ...] = ()
) -> tuple[Input, ...]:
    """Return the files that `paths` names.

    Args:
        paths: Paths, globs, folders or URLs of fsspec.
        storage_options: As in fsspec.
        marks: A folder's files are those with one of these in their names; if it is empty, folders
            are refused.

    Raises:
        ArgumentError: If a path is not a path, its protocol or settings are not known, it is a folder
            where files are wanted, or a file comes twice.
        NotFoundError: If a path or a glob names nothing, or a folder has no such file.
        ReadError: If a file system cannot be reached, or does not list the files.
        ConversionError: If a folder is unfinished.
        MissingExtraError: If a protocol needs a package that is not installed.
    """
    patterns = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not patterns:
        raise NotFoundError("inputs is an empty list; name at least one file")
    options = dict(storage_options) if storage_options else None
    inputs: list[Input] = []
    for pattern in patterns:
        if not isinstance(pattern, str | os.PathLike):
            raise ArgumentError(
                f"inputs: {pattern!r} is {type(pattern).__name__}; give paths, globs or URLs as str"
            )
        inputs += _matches(os.fspath(pattern), options, *marks)
    _refuse_unfinished(inputs)
    seen: set[str] = set()
    for found in inputs:
        if found.url in seen:
            raise ArgumentError(f"inputs: {found.shown} comes twice; name each file once")
        seen.add(found.url)
    return tuple(inputs)


def manifest_beside(files: Sequence[Input]) -> Manifest | None:
    """Return the manifest in the files' folder, if they lie in one and it lists them all.

    Raises:
        ReadError: If it is damaged.
    """
    folders = {split_path(file.url)[0] for file in files}
    if len(folders) != 1:
        return None
    (folder,) = folders
    try:
        manifest = Manifest.read(folder, storage_options=files[0].options)
    except NotFoundError:
        return None
    except ReadError:
        if is_remote(folder):  # a store that shows its files alone
            return None
        raise
    listed = {file.name for file in manifest.files}
    return manifest if listed.issuperset(file.name for file in files) else None


def source_texts(paths: Paths) -> tuple[str, ...]:
    """Return `paths` as the command line takes them."""
    patterns = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    return tuple(os.fspath(pattern) for pattern in patterns)


def refuse_own_input(sources: Iterable[str], output: str | os.PathLike[str]) -> None:
    """Refuse an output that an input lies in, and one that lies in a Zarr store that is read.

    To overwrite the first would remove the input; the second would become a part of the store.

    Raises:
        ArgumentError: If one does.
    """
    here = _canonical(os.fspath(output))
    for source in sources:
        found = [source]
        if not is_remote(source) and _MAGIC & set(source):
            found += glob.glob(source)
        for url in found:
            if f"{_canonical(url)}/".startswith(f"{here}/"):
                raise ArgumentError(
                    f"output {shown_url(here)}: the input {shown_url(url)} lies in it; choose another"
                    " folder"
                )
            within = f"{here}/".startswith(f"{_canonical(url)}/")
            if within and any(
                os.path.exists(os.path.join(url, name)) for name in ZARR.folder_files
            ):
                raise ArgumentError(
                    f"output {shown_url(here)} lies in the input {shown_url(url)}; choose another"
                    " folder"
                )


def _canonical(url: str) -> str:
    return url.rstrip("/") if is_remote(url) else os.path.realpath(url).rstrip("/")


def _matches(pattern: str, options: dict[str, Any] | None, *marks: str) -> list[Input]:
    shown = shown_url(pattern)
    fs, path = _opened(pattern, options)
    with _listing(shown, options):
        fs.invalidate_cache()
        # A file may have a bracket in its name, so that a name that exists is never a glob.
        if not _MAGIC & set(path) or fs.exists(path):
            listed = {path: fs.info(path)}
            if marks and listed[path]["type"] == "directory":
                listed = _within(fs, path, shown, marks)
        else:
            listed = fs.glob(path, detail=True)
    files = sorted((name, info) for name, info in listed.items() if info["type"] != "directory")
    if not files and listed:
        raise ArgumentError(f"inputs: {shown} is a folder; name its files: {shown}/*")
    if not files:
        raise NotFoundError(f"inputs: {shown} matches no file; check the pattern")
    found = [_measured(fs, name, info, options) for name, info in files]
    if "::" in pattern and [name for name, _ in files] == [path]:
        # A chain of URLs, which its last file system alone does not know.
        found = [dataclasses.replace(found[0], url=pattern)]
    return found


def _opened(url: str, options: dict[str, Any] | None) -> tuple[Any, str]:
    """Return the file system of a URL, and the path there."""
    return file_system(url, options or {}, f"inputs: {shown_url(url)}", "reading", ReadError)


@contextlib.contextmanager
def _listing(shown: str, options: dict[str, Any] | None) -> Iterator[None]:
    try:
        yield
    except WindrowError:
        raise
    except FileNotFoundError as error:
        raise NotFoundError(f"inputs: {shown} does not exist; check the path") from safe_cause(
            error, options
        )
    except Exception as error:  # each file system has its own
        raise ReadError(
            f"inputs: {shown} cannot be listed: {type(error).__name__}:"
            f" {Redaction(options).hide(str(error))}"
        ) from safe_cause(error, options)


def _within(fs: Any, folder: str, shown: str, marks: tuple[str, ...]) -> dict[str, Any]:
    """Return the files directly in a folder whose names contain one of `marks`."""
    entries = {entry["name"].rstrip("/"): entry for entry in fs.ls(folder, detail=True)}
    names = {name: name.rpartition("/")[2] for name in entries}
    found = {
        path: entries[path]
        for path, name in names.items()
        if any(mark in name for mark in marks) and not name.startswith((".", "_"))
    }
    if not found:
        raise NotFoundError(
            f"inputs: the folder {shown} has no file with {' or '.join(marks)} in its name; name"
            f" the files by a pattern: {shown}/*"
        )
    return found


def _refuse_unfinished(inputs: list[Input]) -> None:
    """Refuse files of a folder that a conversion has not finished, however they are named."""
    folders = {split_path(found.url)[0]: found.options for found in inputs}
    for folder, options in folders.items():
        if not is_remote(folder):
            refuse_unfinished(folder, what="inputs")
            continue
        shown = shown_url(folder)
        fs, marker = _opened(joined(folder, UNFINISHED_MARKER), options)
        try:
            unfinished = fs.exists(marker)
        except Exception:  # a store that cannot list folders: the files have been found
            unfinished = False
        if unfinished:
            raise ConversionError(
                f"inputs: the conversion that writes {shown} has not finished (it holds"
                f" {UNFINISHED_MARKER}); run the same conversion again first: it keeps what is done"
            )


def _measured(fs: Any, path: str, info: dict[str, Any], options: dict[str, Any] | None) -> Input:
    local = isinstance(fs, fsspec.get_filesystem_class("file"))
    url = path if local else fs.unstrip_protocol(path)
    size = info.get("size")
    if size is None:
        raise ReadError(
            f"inputs: the server of {shown_url(url)} does not report its size; copy it to a disk first"
        )
    # The query of a signed address is a secret, and not part of the name.
    name = parted(path)[0].rsplit("/", 1)[-1] if is_remote(path) else path.rsplit("/", 1)[-1]
    return Input(url, name, size, version_of(info).strip('"'), options)


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of a file, from its file system's facts; '' without a version."""
    return next((str(info[key]) for key in _VERSIONS if info.get(key) is not None), "")


def files_below(root: str, folder: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all files in a local folder and the folders in it, by their names relative to `root`."""
    with os.scandir(os.path.join(root, folder)) as entries:
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                yield from files_below(root, name)
            else:
                yield name, entry
