"""Finds a folder that tfds built, and reads its small files.

A dataset is a folder with `dataset_info.json`, `features.json` and the files of its splits:
`DATA_DIR/name/version` or `DATA_DIR/name/config/version`. A folder above it stands for its newest
version, as it does in tfds.

Invariant: only names and small files are read. An incomplete folder raises an error. A missing file
raises one as soon as it is needed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from windrow.core.redaction import shown_url
from windrow.core.text import listing
from windrow.errors import (
    ArgumentError,
    ConversionError,
    NotFoundError,
    ReadError,
    SourceError,
)
from windrow.sources.dataset_info import INFO, TfdsSplit, json_object, splits_of
from windrow.sources.remote.options import RemoteOptions, as_remote_options, useless_options
from windrow.sources.remote.paths import (
    LOCAL,
    Names,
    is_remote,
    joined,
    local_path,
    refuse_unfinished,
    split_path,
    what_is_there,
)
from windrow.sources.tfds.splits import Split, checked_names, split_ranges

if TYPE_CHECKING:
    from windrow.sources.tfds.features import TfdsFeatures

WHAT: Final = "tfds folder"
ARRAY_RECORD: Final = "array_record"
FEATURES: Final = "features.json"
INCOMPLETE: Final = "incomplete."
DATA_DIR_VARIABLE: Final = "TFDS_DATA_DIR"
_DATA_DIR: Final = "~/tensorflow_datasets"
_LABELS: Final = ".labels.txt"
CONFIGS: Final = ".config"
_DEFAULT_CONFIG: Final = f"{CONFIGS}/metadata.json"
# The format that tfds assumes where the file does not name one.
_OLD_FORMAT: Final = "tfrecord"
_NAME: Final = r"(?P<name>[a-zA-Z]\w*)(/(?P<config>[\w+.-]+))?(:(?P<version>[\d*]+(\.[\d*]+){2}))?"
_VERSION: Final = r"(\d+)\.(\d+)\.(\d+)"
_NAMED: Final = "a name is such as 'mnist', 'mnist/config', 'mnist:3.*.*' or 'mnist/config:1.0.0'"


@dataclasses.dataclass(frozen=True, slots=True)
class FileInstruction:
    """Records `[skip, skip + take)` of a file, in the form that `ArrayRecordDataSource` takes."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TfdsFolder:
    """The facts in the small files of a dataset.

    Args:
        path: The folder: an absolute path, or a URL.
        name: Name of the dataset.
        config: Config of the builder; None without one.
        version: The version, such as '1.0.0'.
        formats: Formats of the records: 'array_record', 'tfrecord'. The first is the one that the
            dataset was built in.
        splits: The splits by name, in the order of tfds.
        features_json: Content of `features.json`.
        labels: Names of classes, by the name of the file that holds them, without its ending.
        description: The description by the builder.
        absent: Names of missing files, relative to the folder; empty where the folder cannot be
            listed.
    """

    path: str
    name: str
    config: str | None
    version: str
    formats: tuple[str, ...]
    splits: Mapping[str, TfdsSplit]
    features_json: Any = dataclasses.field(repr=False)
    labels: Mapping[str, tuple[str, ...]] = dataclasses.field(repr=False)
    description: str = dataclasses.field(default="", repr=False)
    absent: frozenset[str] = dataclasses.field(default=frozenset(), repr=False)

    @classmethod
    def found(
        cls,
        path_or_name: str | os.PathLike[str],
        *,
        data_dir: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        remote: RemoteOptions | None = None,
        what: str = WHAT,
    ) -> TfdsFolder:
        """Finds the dataset of a path, a URL or a name.

        Args:
            path_or_name: The folder of a version, or one above it, which stands for its newest
                version and for the default config; or the name of a dataset in `data_dir`, such as
                'mnist', 'mnist/config' or 'mnist:3.*.*'.
            data_dir: Where names are looked up: a path or URL. By default an existing folder with
                the name is used first, then TFDS_DATA_DIR, then ~/tensorflow_datasets.
            storage_options: Settings of fsspec's file systems, for URLs.
            remote: Limits of reading from URLs.
            what: Name of the caller, for messages.

        Raises:
            ArgumentError: If `path_or_name` is not a path.
            NotFoundError: If the dataset does not exist.
            SourceError: If its files cannot be read, or were built by a tfds before 4.0.
            ConversionError: If tfds, or a conversion, has not finished it.
            ReadError: If a store cannot be read.
        """
        text, root = _checked(path_or_name, data_dir, storage_options, what)

        def names_at(where: str) -> Names:
            if not is_remote(where):
                return LOCAL
            from windrow.sources.remote.fetcher import Fetcher

            return Fetcher(what, storage_options, as_remote_options(remote, what))

        is_path = isinstance(path_or_name, os.PathLike) or is_remote(text)
        folder, names = _looked_up(text, root, names_at, is_path=is_path, what=what)
        if _is_left_incomplete(folder):
            raise ConversionError(
                f"{what}: {shown_url(folder)} is being built by tfds, or was left incomplete; build"
                " the dataset again"
            )
        refuse_unfinished(folder, what=what, names=names)
        if storage_options and names is LOCAL:
            raise useless_options(what, storage_options)
        return _read(folder, names, what)

    @classmethod
    def being_built(cls, folder: str, *, what: str = WHAT) -> TfdsFolder:
        """Reads a local folder that tfds has not finished, once it has its files.

        Raises:
            SourceError: If the files cannot be read.
        """
        return _read(folder, LOCAL, what)

    @property
    def shown(self) -> str:
        """The folder as messages show it."""
        return shown_url(self.path)

    @property
    def full_name(self) -> str:
        """Name, config and version, as tfds writes them."""
        return "/".join([self.name, *([self.config] if self.config else []), self.version])

    @property
    def shards(self) -> dict[str, tuple[int, ...]]:
        """Lengths of the shards of each split."""
        return {name: split.shard_lengths for name, split in self.splits.items()}

    @property
    def features(self) -> TfdsFeatures:
        """All features, read anew at each call."""
        return self.features_of(None)

    def features_of(self, names: Sequence[str] | None) -> TfdsFeatures:
        """The features at the top with these names, in that order; None for all.

        Raises:
            ArgumentError: If `names` is not a list of names.
            NotFoundError: If no feature has one of the names.
            SourceError: If a feature is of an unknown type.
        """
        from windrow.sources.tfds.features import TfdsFeatures

        declared, where = self.features_json, joined(self.shown, FEATURES)
        if names is not None:
            declared = _of_names(declared, checked_names(names, "names", what=WHAT), where)
        return TfdsFeatures.from_json(declared, where=where, labels=self.labels)

    def names(self, split: str, file_format: str) -> list[str]:
        """Names of the files of a split in the folder, in the order of its records."""
        one = self.splits[split]
        return _names(self.name, one.name, one.template, len(one.shard_lengths), file_format)

    def files(self, split: str, file_format: str) -> list[str]:
        """Paths of the files of a split, in the order of its records.

        Raises:
            NotFoundError: If a file is missing.
        """
        return [self._file(name) for name in self.names(split, file_format)]

    def chosen(self, split: Split | None) -> Split:
        """Returns `split`, or the only split of the dataset for None.

        Raises:
            SourceError: If `split` is None and the dataset has several splits, or no split.
        """
        if split is not None:
            return split
        if len(self.splits) != 1:
            shown = ", ".join(f"{s.name} ({s.records:,} records)" for s in self.splits.values())
            raise SourceError(
                f"{WHAT}: {self.shown} has {shown or 'no splits'}; choose one, or several, with"
                f" split={next(iter(self.splits), 'train')!r}"
            )
        return next(iter(self.splits))

    def instructions(self, split: Split) -> list[FileInstruction]:
        """The records of each file that `split` names, in order: at least one run, maybe empty.

        Raises:
            ArgumentError, PlanError, NotFoundError: As `split_ranges` raises them.
            NotFoundError: If a file with some of the records is missing.
            SourceError: If all splits that it names have no files.
        """
        found = []
        ranges = split_ranges(split, self.shards)
        for part in ranges:
            lengths = self.splits[part.split].shard_lengths
            begin = 0
            for name, length in zip(self.names(part.split, ARRAY_RECORD), lengths, strict=True):
                skip, stop = max(0, part.start - begin), min(length, part.stop - begin)
                if skip < stop:
                    found.append(FileInstruction(self._file(name), skip, stop - skip, length))
                begin += length
        return found or [self._nothing(split)]

    def _nothing(self, split: Split) -> FileInstruction:
        """A run of no records, in a file that exists."""
        for one in self.splits.values():
            names = self.names(one.name, ARRAY_RECORD)
            for name, length in zip(names, one.shard_lengths, strict=True):
                if name not in self.absent:
                    return FileInstruction(self._file(name), 0, 0, length)
        raise SourceError(f"{WHAT}: {self.shown} has no records of split {str(split)!r}")

    def _file(self, name: str) -> str:
        if name in self.absent:
            raise NotFoundError(
                f"{WHAT}: {name} is missing in {self.shown} (in all, {len(self.absent):,} files of"
                f" {INFO} are missing); copy or build the dataset again"
            )
        return joined(self.path, name)


def dataset_in(folder: str, names: Names, version: str | None = None) -> str | None:
    """The folder of the dataset that a folder is or stands for; None if it holds no dataset.

    It is the folder itself, its newest version, or the newest version of its default config.
    """
    if version is None and names.read_small(joined(folder, INFO)) is not None:
        return folder
    raw = names.read_small(joined(folder, _DEFAULT_CONFIG))
    config = json_object(raw).get("default_config_name")
    places = [folder]
    if isinstance(config, str) and re.fullmatch(r"[\w+.-]+", config):
        inner = joined(folder, config)
        # tfds does the same: only a version without stars is first sought in the folder itself.
        places = [folder, inner] if version and "*" not in version else [inner]
    for place in places:
        found = _folders(place, names)
        fitting = [name for name in found if is_version(name) and _fits(name, version)]
        if fitting:
            return joined(place, max(fitting, key=lambda name: tuple(map(int, name.split(".")))))
    # A folder that tfds is building, or has left: the caller that reads it raises the error.
    return folder if version is None and _is_left_incomplete(folder) else None


def is_version(name: str) -> bool:
    """Whether `name` is the name of a version's folder, such as 1.0.0."""
    return re.fullmatch(_VERSION, name) is not None


# ---- from what a user names to a folder


def _checked(
    path_or_name: Any, data_dir: Any, storage_options: Any, what: str
) -> tuple[str, str | None]:
    """Checks the arguments; returns the path or name, and `data_dir` as a string if given."""
    for value in (path_or_name, *([] if data_dir is None else [data_dir])):
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
        if not isinstance(text, str) or not text:
            raise ArgumentError(
                f"{what}: a path or name must be a string that is not empty, got {text!r}; {_NAMED}"
            )
    if storage_options is not None and not isinstance(storage_options, Mapping):
        # Not shown: it may be a credential.
        raise ArgumentError(
            f"{what}: storage_options must be a dict such as {{'anon': True}}, got a"
            f" {type(storage_options).__name__}"
        )
    return os.fspath(path_or_name), None if data_dir is None else os.fspath(data_dir)


def _looked_up(
    text: str, root: str | None, names_at: Callable[[str], Names], *, is_path: bool, what: str
) -> tuple[str, Names]:
    """The folder with the dataset, and the object that lists and reads its files."""
    named = None if is_path else re.fullmatch(_NAME, text)
    if root is None:
        folder, names = text if is_remote(text) else local_path(text, what=what), names_at(text)
        found = dataset_in(folder, names)
        if found is not None:
            return found, names
        if named is None:
            raise _no_dataset(folder, names, what)
        root = os.environ.get(DATA_DIR_VARIABLE) or _DATA_DIR
    elif named is None:
        raise ArgumentError(f"{what}: {text!r} is not a name of a dataset in data_dir; {_NAMED}")
    names = names_at(root)
    return _by_name(named, root, names, what), names


def _by_name(named: re.Match[str], root: str, names: Names, what: str) -> str:
    root = root if is_remote(root) else local_path(root, what=what)
    folder = joined(root, _snake(named["name"]))
    if named["config"]:
        folder = joined(folder, named["config"])
    found = dataset_in(folder, names, named["version"])
    if found is None:
        there = _folders(folder, names)
        shown = shown_url(folder)
        _refuse_left(there, shown, what)
        wanted = f" of version {named['version']}" if named["version"] else ""
        hint = "; a folder in it may be a config: 'name/config'" if there else ""
        held = f"it holds {listing(there)}{hint}" if there else "there is no such folder"
        raise NotFoundError(
            f"{what}: there is no dataset{wanted} in {shown}: {held}. Names are looked up in"
            f" data_dir=, else ${DATA_DIR_VARIABLE}, else {_DATA_DIR}; {_NAMED}"
        )
    return found


def _fits(version: str, wanted: str | None) -> bool:
    if wanted is None:
        return True
    pairs = zip(version.split("."), wanted.split("."), strict=True)
    return all(star == "*" or star == number for number, star in pairs)


def _folders(folder: str, names: Names) -> list[str]:
    """Names of the folders in a folder; empty where it cannot be listed."""
    try:
        found = names.names_in(folder)
    except (NotFoundError, ReadError):
        return []
    if names is LOCAL:
        return [name for name in found if os.path.isdir(os.path.join(folder, name))]
    return [name.rstrip("/") for name in found if name.endswith("/")]


def _snake(name: str) -> str:
    """The folder name that tfds gives a dataset: my_data for MyData."""
    split = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", split).lower()


def _is_left_incomplete(folder: str) -> bool:
    return split_path(folder.rstrip("/"))[1].startswith(INCOMPLETE)


def _no_dataset(folder: str, names: Names, what: str) -> Exception:
    shown = shown_url(folder)
    if names is LOCAL and not os.path.isdir(folder):
        return NotFoundError(f"{what}: {folder} does not exist; {what_is_there(folder)}")
    try:
        held = names.names_in(folder)
    except (NotFoundError, ReadError):
        held = []
    _refuse_left(held, shown, what)
    return NotFoundError(
        f"{what}: {shown} has no {INFO}, and no folder of a version (1.0.0); it holds"
        f" {listing(held)}. Name the folder of a version, or of a config"
    )


def _refuse_left(held: Sequence[str], shown: str, what: str) -> None:
    """Raises an error for a folder without a version in which tfds began to build one."""
    left = [name for name in held if name.startswith(INCOMPLETE)]
    if left and not any(map(is_version, held)):
        raise ConversionError(
            f"{what}: {shown} holds {left[0].rstrip('/')}, which tfds is building or has left"
            " incomplete, and no finished version; build the dataset again"
        )


# ---- from a folder to what it holds


def _read(folder: str, names: Names, what: str) -> TfdsFolder:
    shown = shown_url(folder)
    raw, features = (names.read_small(joined(folder, name)) for name in (INFO, FEATURES))
    if raw is None:
        raise SourceError(f"{what}: {shown} has no {INFO}; tfds writes it last: build it again")
    if features is None:
        raise SourceError(
            f"{what}: {shown} has no {FEATURES}: it was built by a tfds before 4.0, or copied in"
            " part; build or copy it again"
        )
    info, where = _parsed(raw, folder, INFO), shown_url(joined(folder, INFO))
    try:
        listed = list(splits_of(info))
        splits = {split.name: split for split in listed}
        if len(splits) < len(listed):
            raise ValueError("two splits have the same name")
        named = {key: info[key] for key in ("name", "version")}
        formats = [info.get("fileFormat") or _OLD_FORMAT, *info.get("alternativeFileFormats", ())]
        texts = [*named.values(), *formats, info.get("configName", ""), info.get("description", "")]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a name is not a string")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{where}: not in the form that tfds writes: {type(error).__name__}: {error}; build or"
            " copy it again"
        ) from error
    held = _held(folder, names)
    parsed = _parsed(features, folder, FEATURES)
    found = TfdsFolder(
        path=folder,
        name=named["name"],
        config=info.get("configName") or None,
        version=named["version"],
        formats=tuple(dict.fromkeys(formats)),
        splits=splits,
        features_json=parsed,
        labels=_labels(folder, names, _label_files(parsed) if held is None else held),
        description=info.get("description", ""),
    )
    return dataclasses.replace(found, absent=_absent(found, names, held))


def _held(folder: str, names: Names) -> list[str] | None:
    """Names in a folder; None where it cannot be listed."""
    try:
        return names.names_in(folder) or None
    except (NotFoundError, ReadError):
        return None


def _label_files(features: Any) -> list[str]:
    """Files that may hold names of classes, for a folder that cannot be listed."""
    from windrow.sources.tfds.features import TfdsFeatures

    try:
        leaves = TfdsFeatures.from_json(features, where=FEATURES).leaves
    except SourceError:  # raised again where the features are read
        return []
    paths = [leaf.path for leaf in leaves if "num_classes" in dict(leaf.facts)]
    return ["-".join(name.replace("/", ".") for name in path) + _LABELS for path in paths]


def _labels(folder: str, names: Names, held: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found = {}
    for name in held:
        if name.endswith(_LABELS):
            raw = names.read_small(joined(folder, name))
            try:
                kept = [line.strip() for line in (raw or b"").decode().split("\n")]
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"{shown_url(joined(folder, name))}: not UTF-8 text: {error}; build or copy it again"
                ) from error
            if raw is not None:
                found[name.removesuffix(_LABELS)] = tuple(line for line in kept if line)
    return found


def _absent(folder: TfdsFolder, names: Names, held: Sequence[str] | None) -> frozenset[str]:
    """Names of the files of splits that are missing in the folder."""
    listed: dict[str, frozenset[str] | None] = {"": None if held is None else frozenset(held)}
    absent = []
    for split in folder.splits:
        for file_format in folder.formats:
            for name in folder.names(split, file_format):
                inner, _, last = name.rpartition("/")
                if inner not in listed:
                    there = _held(joined(folder.path, inner), names)
                    missing = None if held is None else frozenset[str]()
                    listed[inner] = missing if there is None else frozenset(there)
                there_are = listed[inner]
                if there_are is not None and last not in there_are:
                    absent.append(name)
    return frozenset(absent)


def _names(dataset: str, split: str, template: str, shards: int, file_format: str) -> list[str]:
    """The names of the shards of a split."""
    digits = max(5, len(str(shards)))
    total = f"{shards:0{digits}}"

    def name(index: int) -> str:
        shard = f"{index:0{digits}}"
        fields = {
            "DATASET": dataset,
            "SPLIT": split,
            "FILEFORMAT": file_format,
            "SHARD_INDEX": shard,
            "NUM_SHARDS": total,
            "SHARD_X_OF_Y": f"{shard}-of-{total}",
        }
        return re.sub(r"\{(\w+)\}", lambda match: fields.get(match[1], match[0]), template)

    found = [name(index) for index in range(shards)]
    for one in found:
        if "{" in one or one.startswith("/") or ".." in one.split("/"):
            raise SourceError(
                f"{WHAT}: split {split!r} has files named {template!r}, an unknown pattern; build the"
                " dataset with the names that tfds gives"
            )
    return found


def _of_names(features: Any, names: Sequence[str], where: str) -> Any:
    """The content of a features.json, reduced to the features with these names."""
    try:
        inner = dict(features["featuresDict"]["features"])
    except (KeyError, TypeError, ValueError):
        raise SourceError(
            f"{where}: has no featuresDict: an old tfds wrote it; leave names out, and take all"
            " features"
        ) from None
    unknown = [name for name in names if name not in inner]
    if unknown or not names:
        raise NotFoundError(
            f"{where}: there is no feature {', '.join(map(repr, unknown)) or 'named'} at the top;"
            f" there is {listing(list(inner))}"
        )
    return {**features, "featuresDict": {"features": {name: inner[name] for name in names}}}


def _parsed(raw: bytes, folder: str, name: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{shown_url(joined(folder, name))}: not JSON: {error}; build or copy it again"
        ) from error
