"""ArrayRecord files: from what a user names to a list of files, on a local disk or at URLs.

Invariant: records come in the order in which files were named, those of a folder by their names;
a numbered set of files with a gap is refused, and so is a folder that a conversion has not finished.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
from windrow.sources.paths import (
    LOCAL,
    Names,
    is_remote,
    joined,
    listing,
    local_path,
    other_reader,
    parted,
    refuse_unfinished,
    split_path,
    what_is_there,
)
from windrow.sources.secrets import shown_url
from windrow.sources.tfds_folder import INFO, splits_of

WHAT: Final = "ArrayRecordDataSource"
# Patterns are compiled at their first use: a process that reads none of this pays nothing.
_SHARD: Final = (
    r"(?P<name>.+)-(?P<split>[^-/]+)\.(?:array_?record)-(?P<index>\d{5,})-of-(?P<count>\d{5,})"
)
_NUMBERED: Final = r"(?P<head>.*)-(?P<index>\d{5,})-of-(?P<count>\d{5,})(?P<tail>.*)"
_SUFFIX: Final = r"(?i:.*\.array_?record(-\d+-of-\d+)?)"
_RANGE: Final = r"(.+)\[(\d+):(\d+)\]"
# What pathlib makes of a URL.
_PATH_OF_URL: Final = r"(s3a?|gc?s|https?|abfss?|az|adl|hdfs|memory|ftp|sftp|hf):/[^/]"
_ASKING_THREADS: Final = 32
# Reasons of errors where a file may not be looked for.
_NOT_TOLD: Final = ("status 401", "status 403", "not allowed")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FileRange:
    """A file, or the records `[skip, skip + take)` of it; `take` is None for all the rest."""

    path: str
    skip: int = 0
    take: int | None = None
    in_file: int | None = None


def find_ranges(
    paths: Any, *, split: str | None, far: Callable[[], Names] | None
) -> list[FileRange]:
    """The files that `paths` names, in order.

    Args:
        paths: As for `ArrayRecordDataSource`.
        split: As for `ArrayRecordDataSource`.
        far: Gives what finds files at URLs; None where these are not to be read.

    Raises:
        ArgumentError: If something in `paths` names no file, or `split` fits nothing.
        NotFoundError: If a path, a glob or a list names nothing.
        SourceError: If a folder has several splits, or lacks a shard.
        ConversionError: If a folder's conversion has not finished.
    """
    if isinstance(paths, str | os.PathLike) or _is_instruction(paths):
        items = [paths]
    elif isinstance(paths, Iterable) and not isinstance(paths, bytes | dict):
        items = list(paths)
    else:
        raise ArgumentError(
            f"{WHAT}: paths must be a path, a glob, a folder or a list of these, got"
            f" {type(paths).__name__}"
        )
    if not items:
        raise NotFoundError(f"{WHAT}: the list of paths is empty; give at least one file")
    if far and sum(isinstance(item, str) and is_remote(item) for item in items) > 1:
        far()  # made once, before threads ask for it
        # Of a URL that is not named as these files are it is asked whether it is a folder.
        with concurrent.futures.ThreadPoolExecutor(min(_ASKING_THREADS, len(items))) as pool:
            found = list(pool.map(lambda item: _ranges_of(item, split, far), items))
    else:
        found = [_ranges_of(item, split, far) for item in items]
    ranges = [one for some in found for one in some]
    for folder in sorted({split_path(one.path)[0] for one in ranges}):
        if not is_remote(folder):
            refuse_unfinished(folder, what=WHAT)
    return ranges


def refuse_unfinished_far(paths: Iterable[str], names: Names) -> None:
    """Refuse files at URLs in folders that a conversion has not finished.

    A store that lets nobody see whether there is such a mark has given the files themselves.

    Raises:
        ConversionError: If there is one.
        ReadError: If a store can not be asked.
    """
    folders: dict[str, str] = {}
    for path in paths:
        # Each signed URL has a query of its own: one of them asks for all that lie beside it.
        head, rest = parted(split_path(path)[0])
        folders.setdefault(head + rest[rest.find("::") :] if "::" in rest else head, head + rest)
    if folders:
        with concurrent.futures.ThreadPoolExecutor(min(_ASKING_THREADS, len(folders))) as pool:
            list(pool.map(lambda folder: _refuse_unfinished_far(folder, names), folders.values()))


def _refuse_unfinished_far(folder: str, names: Names) -> None:
    try:
        refuse_unfinished(folder, what=WHAT, names=names)
    except ReadError as error:
        if not (error.why or "").startswith(_NOT_TOLD):
            raise


def _is_instruction(item: Any) -> bool:
    return all(
        getattr(item, name, None) is not None
        for name in ("filename", "skip", "take", "examples_in_shard")
    )


def _ranges_of(item: Any, split: str | None, far: Callable[[], Names] | None) -> list[FileRange]:
    if _is_instruction(item):
        name = os.fspath(item.filename)
        if is_remote(name):
            _readable(name, far)
        path = name if is_remote(name) else local_path(name, what=WHAT)
        # -1 means all the rest, as tfds writes it.
        take = int(item.take) if int(item.take) >= 0 else None
        return [FileRange(path, int(item.skip), take, int(item.examples_in_shard))]
    if not isinstance(item, str | os.PathLike):
        raise ArgumentError(
            f"{WHAT}: a path must be a text, a pathlib.Path or a FileInstruction, got {item!r}"
        )
    text = os.fspath(item)
    if isinstance(text, str) and is_remote(text):
        return _ranges_at(text, split, _readable(text, far))
    if isinstance(item, os.PathLike) and isinstance(text, str) and re.match(_PATH_OF_URL, text):
        raise ArgumentError(
            f"{WHAT}: a path of pathlib begins with {text.partition(':')[0]}:/ and was a URL, of"
            " which pathlib keeps one slash; give URLs as texts"
        )
    path = local_path(text, what=WHAT)
    if os.path.isdir(path):
        return _folder_ranges(path, split, LOCAL)
    if split is not None:
        raise ArgumentError(f"{WHAT}: split={split!r} needs a folder with splits, got {text!r}")
    if os.path.exists(path):
        return [FileRange(path)]
    ranged = re.fullmatch(_RANGE, path)
    if ranged and os.path.isfile(ranged[1]):
        return [_part_of_file(ranged, text)]
    if glob.has_magic(path):
        found = LOCAL.glob(path)
        if not found:
            raise NotFoundError(f"{WHAT}: no file matches {text!r}; {what_is_there(path)}")
        return [FileRange(name) for name in found]
    raise NotFoundError(f"{WHAT}: {path} does not exist; {what_is_there(path)}")


def _readable(url: str, far: Callable[[], Names] | None) -> Names:
    if far is None:
        raise ArgumentError(
            f"{WHAT}: {shown_url(url)} is a URL, and direct=False reads through the array_record"
            " package, which opens local files only; leave direct out"
        )
    return far()


def _ranges_at(url: str, split: str | None, far: Names) -> list[FileRange]:
    """What a URL names. A file that is named as one is not looked up: opening it does so."""
    shown, head = shown_url(url), parted(url)[0]
    ranged = re.fullmatch(_RANGE, url)
    pattern = "*" in head or "?" in head or (not ranged and "[" in head)
    named = bool(re.fullmatch(_SUFFIX, split_path(url)[1])) and not pattern
    if not ranged and not named and not pattern and far.is_folder(url):
        return _folder_ranges(url, split, far)
    if split is not None:
        raise ArgumentError(f"{WHAT}: split={split!r} needs a folder with splits, got {shown!r}")
    if ranged:
        return [_part_of_file(ranged, shown)]
    if pattern:
        found = far.glob(url)
        if not found:
            raise NotFoundError(
                f"{WHAT}: no file matches {shown!r}; check the pattern, and that the store can be"
                " listed"
            )
        return [FileRange(name) for name in found]
    return [FileRange(url)]


def _part_of_file(ranged: re.Match[str], shown: str) -> FileRange:
    start, stop = int(ranged[2]), int(ranged[3])
    if stop < start:
        raise SourceError(f"{WHAT}: {shown!r} names records {start} to {stop}; write [a:b]")
    return FileRange(ranged[1], start, stop - start)


def _folder_ranges(folder: str, split: str | None, names: Names) -> list[FileRange]:
    refuse_unfinished(folder, what=WHAT, names=names)
    files = _folder_files(folder, split, names)
    return [FileRange(joined(folder, name)) for name in files]


def _folder_files(folder: str, split: str | None, names: Names) -> list[str]:
    found, shown = names.names_in(folder), shown_url(folder)
    files = [name for name in found if re.fullmatch(_SUFFIX, name)]
    if not files:
        raise NotFoundError(
            f"{WHAT}: {shown} holds no files named *.array_record or *.arrayrecord; it holds"
            f" {listing(found)}{other_reader(found, 'ArrayRecordDataSource')}"
        )
    if split is not None or INFO in found:
        split, files = _split_files(shown, files, split)
        _check_shards(shown, files)
        _check_info(shown, split, len(files), names.read_small(joined(folder, INFO)))
    else:
        _check_shards(shown, files)
    return files


def _split_files(folder: str, names: Sequence[str], split: str | None) -> tuple[str, list[str]]:
    """The split that is meant, and its files."""
    splits: dict[str, list[str]] = {}
    for name in names:
        if match := re.fullmatch(_SHARD, name):
            splits.setdefault(match["split"], []).append(name)
    if not splits:
        raise SourceError(
            f"{WHAT}: no file in {folder} is named as a shard of a split"
            " (name-split.array_record-00000-of-00010); give the files as a list, or a glob"
        )
    shown = ", ".join(f"{key} ({len(files)} files)" for key, files in sorted(splits.items()))
    if split is None:
        if len(splits) > 1:
            raise SourceError(
                f"{WHAT}: {folder} has several splits: {shown}; choose one with"
                f" split={sorted(splits)[0]!r}"
            )
        return next(iter(splits.items()))
    if split not in splits:
        raise NotFoundError(f"{WHAT}: {folder} has no split {split!r}; it has {shown}")
    return split, splits[split]


def _check_info(folder: str, split: str, found: int, info: bytes | None) -> None:
    counted = _counted_shards(info, split)
    if counted is not None and counted != found:
        raise NotFoundError(
            f"{WHAT}: {INFO} in {folder} counts {counted} shards of split {split!r},"
            f" and {found} are there; copy or download the folder again"
        )


def _counted_shards(info: bytes | None, split: str) -> int | None:
    """Number of shards that dataset_info.json gives for `split`, if it gives one."""
    try:
        splits = splits_of(json.loads(info or b""))
        found = [len(one.shard_lengths) for one in splits if one.name == split]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return found[0] if len(found) == 1 and found[0] else None


def _check_shards(folder: str, names: Sequence[str]) -> None:
    """Refuse a numbered set of files with a gap: it would train on a part in silence."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        if match := re.fullmatch(_NUMBERED, name):
            key = (match["head"], match["count"], match["tail"])
            sets.setdefault(key, set()).add(int(match["index"]))
    for (head, count, tail), found in sets.items():
        absent = sorted(set(range(int(count))) - found)
        if absent:
            first = f"{head}-{absent[0]:0{len(count)}}-of-{count}{tail}"
            raise NotFoundError(
                f"{WHAT}: {first} is missing in {folder} ({len(absent)} of {int(count)} shards"
                " are); copy or download the folder again, or give the files wanted as a glob"
            )
