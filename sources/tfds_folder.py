"""Folders that tfds built: which one is meant, and what its small files say.

A dataset is a folder with `dataset_info.json` and `features.json` beside the files of its splits:
`DATA_DIR/name/version` or `DATA_DIR/name/config/version`. A folder above it stands for its newest
version, as it does in tfds.

Invariant: only names and small files are read; a folder that was left incomplete is an error, and a
file that is missing is one as soon as it is needed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from windrow.errors import (
    ArgumentError,
    ConversionError,
    NotFoundError,
    ReadError,
    SourceError,
)
from windrow.sources.paths import (
    LOCAL,
    Names,
    is_remote,
    joined,
    listing,
    local_path,
    refuse_unfinished,
    split_path,
    what_is_there,
)
from windrow.sources.remote import RemoteOptions, as_remote_options
from windrow.sources.secrets import shown_url
from windrow.sources.tfds_splits import Split, checked_names, split_ranges

if TYPE_CHECKING:
    from windrow.sources.tfds_features import TfdsFeatures

WHAT: Final = "tfds folder"
ARRAY_RECORD: Final = "array_record"
INFO: Final = "dataset_info.json"
FEATURES: Final = "features.json"
INCOMPLETE: Final = "incomplete."
DATA_DIR_VARIABLE: Final = "TFDS_DATA_DIR"
_DATA_DIR: Final = "~/tensorflow_datasets"
_LABELS: Final = ".labels.txt"
CONFIGS: Final = ".config"
_DEFAULT_CONFIG: Final = f"{CONFIGS}/metadata.json"
_TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
# What tfds takes for a format where none is told.
_OLD_FORMAT: Final = "tfrecord"
_NAME: Final = r"(?P<name>[a-zA-Z]\w*)(/(?P<config>[\w+.-]+))?(:(?P<version>[\d*]+(\.[\d*]+){2}))?"
_VERSION: Final = r"(\d+)\.(\d+)\.(\d+)"
_NAMED: Final = "a name is such as 'mnist', 'mnist/config', 'mnist:3.*.*' or 'mnist/config:1.0.0'"


@dataclasses.dataclass(frozen=True, slots=True)
class FileInstruction:
    """Records `[skip, skip + take)` of a file; `ArrayRecordDataSource` takes it, as it does tfds'."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


@dataclasses.dataclass(frozen=True, slots=True)
class TfdsSplit:
    """A split: the lengths of its shards, and the pattern of their names."""

    name: str
    shard_lengths: tuple[int, ...]
    template: str = _TEMPLATE

    @property
    def records(self) -> int:
        """Number of its records."""
        return sum(self.shard_lengths)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TfdsFolder:
    """What the small files of a dataset say.

    Args:
        path: The folder: an absolute path, or a URL.
        name: Of the dataset.
        config: Of the builder; None without one.
        version: Such as '1.0.0'.
        formats: In which the records are there: 'array_record', 'tfrecord'. The first is the one
            that the dataset was built in.
        splits: By name, in the order of tfds.
        features_json: What `features.json` holds.
        labels: Names of classes, by the name of the file that holds them, without its ending.
        description: As the builder gave it.
        absent: Files, by their names in the folder, that are told of and are not there; none where
            the folder can not be listed.
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
        """The dataset that a path, a URL or a name stands for.

        Args:
            path_or_name: The folder of a version, or one above it, which stands for its newest
                version and for the default config; or the name of a dataset in `data_dir`, such as
                'mnist', 'mnist/config' or 'mnist:3.*.*'.
            data_dir: Where names are looked up: a path or URL. By default what TFDS_DATA_DIR says,
                else ~/tensorflow_datasets; a folder that the name names goes first then.
            storage_options: Settings of fsspec's file systems, for URLs.
            remote: Limits of reading from URLs.
            what: Who asks, for messages.

        Raises:
            ArgumentError: If it is no path.
            NotFoundError: If there is no such dataset.
            SourceError: If what is there can not be read, or was built by a tfds before 4.0.
            ConversionError: If tfds, or a conversion, has not finished it.
            ReadError: If a store can not be read.
        """
        text, root = _checked(path_or_name, data_dir, storage_options, what)

        def names_at(where: str) -> Names:
            if not is_remote(where):
                return LOCAL
            from windrow.sources.fetching import Fetcher

            return Fetcher(what, storage_options, as_remote_options(remote, what))

        is_path = isinstance(path_or_name, os.PathLike) or is_remote(text)
        folder, names = _looked_up(text, root, names_at, is_path=is_path, what=what)
        if _is_left_incomplete(folder):
            raise ConversionError(
                f"{what}: {shown_url(folder)} is being built by tfds, or was left incomplete; build"
                " the dataset again"
            )
        refuse_unfinished(folder, what=what, names=names)
        return _read(folder, names, what)

    @classmethod
    def being_built(cls, folder: str, *, what: str = WHAT) -> TfdsFolder:
        """The dataset in a local folder that tfds has not finished, once its files are there.

        Raises:
            SourceError: If what is there can not be read.
        """
        return _read(folder, LOCAL, what)

    @property
    def shown(self) -> str:
        """The folder, for people."""
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
        """All features; read anew at each call, as `features_of` does."""
        return self.features_of(None)

    def features_of(self, names: Sequence[str] | None) -> TfdsFeatures:
        """The features at the top that are named, in that order; None for all.

        Raises:
            ArgumentError: If `names` is no list of names.
            NotFoundError: If there is none of a name.
            SourceError: If one of them is of a type that is not known.
        """
        from windrow.sources.tfds_features import TfdsFeatures

        told, where = self.features_json, joined(self.shown, FEATURES)
        if names is not None:
            told = _of_names(told, checked_names(names, "names", what=WHAT), where)
        return TfdsFeatures.from_json(told, where=where, labels=self.labels)

    def names(self, split: str, file_format: str) -> list[str]:
        """The names in the folder of the files of a split, in the order of its records."""
        one = self.splits[split]
        return _names(self.name, one.name, one.template, len(one.shard_lengths), file_format)

    def files(self, split: str, file_format: str) -> list[str]:
        """The files of a split, in the order of its records.

        Raises:
            NotFoundError: If one is missing.
        """
        return [self._file(name) for name in self.names(split, file_format)]

    def chosen(self, split: Split | None) -> Split:
        """`split`; of None, the only one that there is.

        Raises:
            SourceError: If there are several, or none.
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

    def instructions(
        self, split: Split, *, file_format: str = ARRAY_RECORD
    ) -> list[FileInstruction]:
        """Which records of which files `split` names, in order; at least one, which may be empty.

        Raises:
            ArgumentError, PlanError, NotFoundError: As `split_ranges` raises them.
            NotFoundError: If a file is missing that holds some of them.
            SourceError: If a split without files is all that is named.
        """
        found = []
        ranges = split_ranges(split, self.shards)
        for part in ranges:
            lengths = self.splits[part.split].shard_lengths
            begin = 0
            for name, length in zip(self.names(part.split, file_format), lengths, strict=True):
                skip, stop = max(0, part.start - begin), min(length, part.stop - begin)
                if skip < stop:
                    found.append(FileInstruction(self._file(name), skip, stop - skip, length))
                begin += length
        return found or [self._nothing(split, file_format)]

    def _nothing(self, split: Split, file_format: str) -> FileInstruction:
        """No record, of a file that there is."""
        for one in self.splits.values():
            for name, length in zip(
                self.names(one.name, file_format), one.shard_lengths, strict=True
            ):
                if name not in self.absent:
                    return FileInstruction(self._file(name), 0, 0, length)
        raise SourceError(f"{WHAT}: {self.shown} has no records of split {str(split)!r}")

    def _file(self, name: str) -> str:
        if name in self.absent:
            raise NotFoundError(
                f"{WHAT}: {name} is missing in {self.shown} ({len(self.absent):,} files of"
                f" {INFO} are); copy or build the dataset again"
            )
        return joined(self.path, name)


def splits_of(info: object) -> Iterator[TfdsSplit]:
    """The splits that a dataset_info.json tells of, of which some may be without lengths.

    Raises:
        ValueError, KeyError, TypeError: If it is not as tfds writes it.
    """
    if not isinstance(info, dict):
        raise TypeError("it is no JSON object")
    for split in info.get("splits", ()):
        lengths = tuple(map(int, split.get("shardLengths", ())))
        if not isinstance(split["name"], str) or min(lengths, default=0) < 0:
            raise ValueError(f"split {split['name']!r:.80} is none")
        template = split.get("filepathTemplate") or _TEMPLATE
        if not isinstance(template, str):
            raise TypeError(f"filepathTemplate {template!r:.80} is no text")
        yield TfdsSplit(split["name"], lengths, template)


def dataset_in(folder: str, names: Names, version: str | None = None) -> str | None:
    """The folder of the dataset that a folder is or stands for; None if there is none.

    It is the folder itself, its newest version, or that of its default config.
    """
    if version is None and names.read_small(joined(folder, INFO)) is not None:
        return folder
    raw = names.read_small(joined(folder, _DEFAULT_CONFIG))
    config = _json_object(raw).get("default_config_name")
    places = [folder]
    if isinstance(config, str) and re.fullmatch(r"[\w+.-]+", config):
        inner = joined(folder, config)
        # As tfds has it: only of a version without stars is the folder itself asked first.
        places = [folder, inner] if version and "*" not in version else [inner]
    for place in places:
        found = _folders(place, names)
        fitting = [name for name in found if is_version(name) and _fits(name, version)]
        if fitting:
            return joined(place, max(fitting, key=lambda name: tuple(map(int, name.split(".")))))
    # What tfds builds, or has left: told by what reads it.
    return folder if version is None and _is_left_incomplete(folder) else None


def is_version(name: str) -> bool:
    """Whether it is the name of the folder of a version: 1.0.0."""
    return re.fullmatch(_VERSION, name) is not None


# ---- from what a user names to a folder


def _checked(
    path_or_name: Any, data_dir: Any, storage_options: Any, what: str
) -> tuple[str, str | None]:
    """The path or name, and where it is looked up, if that was given."""
    for value in (path_or_name, *([] if data_dir is None else [data_dir])):
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
        if not isinstance(text, str) or not text:
            raise ArgumentError(
                f"{what}: a path or name must be a text that is not empty, got {text!r}; {_NAMED}"
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
    """The folder with the dataset, and what reads it."""
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
        raise ArgumentError(f"{what}: {text!r} is no name of a dataset in data_dir; {_NAMED}")
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
    """Names of the folders in a folder; none where it can not be listed."""
    try:
        found = names.names_in(folder)
    except (NotFoundError, ReadError):
        return []
    if names is LOCAL:
        return [name for name in found if os.path.isdir(os.path.join(folder, name))]
    return [name.rstrip("/") for name in found if name.endswith("/")]


def _snake(name: str) -> str:
    """A name as tfds names its folder: MyData is my_data."""
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
        f"{what}: {shown} has no {INFO}, and no version of a dataset in it (1.0.0); it holds"
        f" {listing(held)}. Name the folder of a version, or of a config"
    )


def _refuse_left(held: Sequence[str], shown: str, what: str) -> None:
    """Tell of a folder without a version, that there was to be one."""
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
        told_of = list(splits_of(info))
        splits = {split.name: split for split in told_of}
        if len(splits) < len(told_of):
            raise ValueError("a split is told of twice")
        told = {key: info[key] for key in ("name", "version")}
        formats = [info.get("fileFormat") or _OLD_FORMAT, *info.get("alternativeFileFormats", ())]
        texts = [*told.values(), *formats, info.get("configName", ""), info.get("description", "")]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a name is no text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{where}: is not as tfds writes it: {type(error).__name__}: {error}; build or copy it"
            " again"
        ) from error
    held = _held(folder, names)
    parsed = _parsed(features, folder, FEATURES)
    found = TfdsFolder(
        path=folder,
        name=told["name"],
        config=info.get("configName") or None,
        version=told["version"],
        formats=tuple(dict.fromkeys(formats)),
        splits=splits,
        features_json=parsed,
        labels=_labels(folder, names, _label_files(parsed) if held is None else held),
        description=info.get("description", ""),
    )
    return dataclasses.replace(found, absent=_absent(found, names, held))


def _held(folder: str, names: Names) -> list[str] | None:
    """What lies in a folder; None where it can not be listed."""
    try:
        return names.names_in(folder) or None
    except (NotFoundError, ReadError):
        return None


def _label_files(features: Any) -> list[str]:
    """Files with names of classes that there may be, where a folder can not be listed."""
    from windrow.sources.tfds_features import TfdsFeatures

    try:
        leaves = TfdsFeatures.from_json(features, where=FEATURES).leaves
    except SourceError:  # told where the features are asked for
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
                    f"{shown_url(joined(folder, name))}: is no text: {error}; build or copy it again"
                ) from error
            if raw is not None:
                found[name.removesuffix(_LABELS)] = tuple(line for line in kept if line)
    return found


def _absent(folder: TfdsFolder, names: Names, held: Sequence[str] | None) -> frozenset[str]:
    """Files that are told of and are not there."""
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
        told = {
            "DATASET": dataset,
            "SPLIT": split,
            "FILEFORMAT": file_format,
            "SHARD_INDEX": shard,
            "NUM_SHARDS": total,
            "SHARD_X_OF_Y": f"{shard}-of-{total}",
        }
        return re.sub(r"\{(\w+)\}", lambda match: told.get(match[1], match[0]), template)

    found = [name(index) for index in range(shards)]
    for one in found:
        if "{" in one or one.startswith("/") or ".." in one.split("/"):
            raise SourceError(
                f"{WHAT}: split {split!r} has files named {template!r}, which is no pattern that is"
                " known; build the dataset with the names that tfds gives"
            )
    return found


def _of_names(told: Any, names: Sequence[str], where: str) -> Any:
    """What a features.json holds, of the features that are named."""
    try:
        inner = dict(told["featuresDict"]["features"])
    except (KeyError, TypeError, ValueError):
        raise SourceError(
            f"{where}: has no featuresDict, as of an old tfds; leave names out, and take all features"
        ) from None
    unknown = [name for name in names if name not in inner]
    if unknown or not names:
        raise NotFoundError(
            f"{where}: there is no feature {', '.join(map(repr, unknown)) or 'named'} at the top;"
            f" there is {listing(list(inner))}"
        )
    return {**told, "featuresDict": {"features": {name: inner[name] for name in names}}}


def _parsed(raw: bytes, folder: str, name: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{shown_url(joined(folder, name))}: is no JSON: {error}; build or copy it again"
        ) from error


def _json_object(raw: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
