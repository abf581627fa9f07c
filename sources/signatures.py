"""Recognises each stored format by names and first bytes.

This is the only table of name patterns. Sources, conversions and commands use it. The operations of a
format are in `windrow.formats`.

Invariant: nothing is read here. A signature compares given names and bytes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

# `-00003-of-00010`, as sets of files are numbered.
_SHARD: Final = r"-\d+-of-\d+"
_RECORD_FILE: Final = rf"(?P<stem>.*?)(?P<mark>\.array_?record)?(?P<shard>{_SHARD})?"
NUMBERED: Final = r"(?P<head>.*)-(?P<index>\d{5,})-of-(?P<count>\d{5,})(?P<tail>.*)"
"""Pattern of the name of one file of a numbered set."""
SPLIT_SHARD: Final = (
    r"(?P<name>.+)-(?P<split>[^-/]+)\.(?P<format>[a-z_]+)-(?P<index>\d{5,})-of-(?P<count>\d{5,})"
)
"""Pattern of the name that tfds gives to a file of a split."""
RANGE: Final = r"(?P<path>.+)\[(?P<start>\d+):(?P<stop>\d+)\]"
"""Pattern of a path that names some records of a file, such as `x.array_record[10:20]`."""

# The hash of the header of the first chunk in every file, after 24 bytes of a block header.
_ARRAY_RECORD_MAGIC: Final = bytes.fromhex("91bac23c9287e1a9")
_ARRAY_RECORD_MAGIC_AT: Final = 24
_NETCDF_MAGIC: Final = (b"\x89HDF\r\n\x1a\n", b"CDF\x01", b"CDF\x02", b"CDF\x05")
_TFRECORD_HEADER_BYTES: Final = 12


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """How a format is recognised.

    Args:
        name: Name of the format, such as 'array_record'.
        title: The same for people, where messages list what Windrow reads.
        read_as: Name of the format as which it is read; its own by default.
        file_names: Pattern of the names of its files, compared with whole names.
        begins: Whether a file with these first bytes is one; None where bytes do not show it.
        array_files: Names of the files that make a folder an array.
        folder_files: Names of files. Each of them alone makes a folder one of this format. They
            include `array_files`.
        other_files: Names of further files of metadata.
        marks: Parts of file names. Each file name contains one of them where a folder of such files
            is an input of a conversion.
        reader: Name of the source that reads it, for messages about a wrong one.
    """

    name: str
    title: str
    read_as: str = ""
    file_names: str | None = None
    begins: Callable[[bytes], bool] | None = None
    array_files: frozenset[str] = frozenset()
    folder_files: frozenset[str] = frozenset()
    other_files: frozenset[str] = frozenset()
    marks: tuple[str, ...] = ()
    reader: str | None = None

    def __post_init__(self) -> None:
        if not self.read_as:
            object.__setattr__(self, "read_as", self.name)

    @property
    def metadata_files(self) -> frozenset[str]:
        """Names of all files of metadata in a folder of this format."""
        return self.folder_files | self.other_files

    def is_file_name(self, name: str) -> bool:
        """Whether a file of this name, without folders, is one of this format."""
        return self.file_names is not None and re.fullmatch(self.file_names, name) is not None


def _begins_array_record(head: bytes) -> bool:
    return head[_ARRAY_RECORD_MAGIC_AT:].startswith(_ARRAY_RECORD_MAGIC)


def _begins_netcdf(head: bytes) -> bool:
    return head.startswith(_NETCDF_MAGIC)


def _begins_parquet(head: bytes) -> bool:
    return head.startswith(b"PAR1")


def _begins_tfrecord(head: bytes) -> bool:
    """Whether the first length has the checksum that follows it."""
    if len(head) < _TFRECORD_HEADER_BYTES:
        return False
    import google_crc32c

    checksum: int = google_crc32c.value(head[:8])
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return head[8:_TFRECORD_HEADER_BYTES] == masked.to_bytes(4, "little")


ARRAY_RECORD: Final = Signature(
    "array_record",
    "ArrayRecord",
    file_names=rf"(?i:.*\.array_?records?({_SHARD})?)",
    begins=_begins_array_record,
    marks=(".array_record", ".arrayrecord"),
    reader="ArrayRecordDataSource",
)
TFRECORD: Final = Signature(
    "tfrecord",
    "TFRecord",
    file_names=rf"(?i:.*\.tf_?rec(ord)?s?({_SHARD})?(\.gz(ip)?)?)",
    begins=_begins_tfrecord,
    marks=(".tfrecord",),
)
ZARR: Final = Signature(
    "zarr",
    "Zarr",
    array_files=frozenset({"zarr.json", ".zarray"}),
    folder_files=frozenset({"zarr.json", ".zarray", ".zgroup", ".zmetadata"}),
    other_files=frozenset({".zattrs"}),
    reader="ZarrDataSource",
)
N5: Final = Signature("n5", "N5", read_as=ZARR.name, folder_files=frozenset({"attributes.json"}))
PRECOMPUTED: Final = Signature(
    "precomputed",
    "Neuroglancer's precomputed volumes",
    read_as=ZARR.name,
    folder_files=frozenset({"info"}),
)
NETCDF: Final = Signature(
    "netcdf",
    "NetCDF",
    file_names=r"(?i:.*\.(nc|nc3|nc4|cdf|netcdf))",
    begins=_begins_netcdf,
)
JSON_LINES: Final = Signature(
    "json_lines",
    "JSON Lines",
    file_names=rf"(?i:.*\.(jsonl|ndjson)({_SHARD})?(\.(gz(ip)?|zstd?))?)",
    marks=(".jsonl", ".ndjson"),
)
PARQUET: Final = Signature(
    "parquet",
    "Parquet",
    file_names=rf"(?i:.*\.parquet({_SHARD})?)",
    begins=_begins_parquet,
    marks=(".parquet",),
)

# In the order in which a folder's files are taken for one of them, and heads are compared.
_SIGNATURES: Final[dict[str, Signature]] = {
    each.name: each
    for each in (ARRAY_RECORD, TFRECORD, ZARR, N5, PRECOMPUTED, NETCDF, JSON_LINES, PARQUET)
}


def signatures() -> Iterator[Signature]:
    """Yields all known formats."""
    yield from _SIGNATURES.values()


def titles() -> str:
    """The titles of all formats, for messages."""
    *most, last = (each.title for each in signatures())
    return f"{', '.join(most)} and {last}"


def of_name(name: str) -> Signature | None:
    """The format of a file, by its name without folders; None where the name does not show it."""
    ranged = re.fullmatch(RANGE, name)
    if ranged is not None and ARRAY_RECORD.is_file_name(ranged["path"]):
        return ARRAY_RECORD
    return next((each for each in signatures() if each.is_file_name(name)), None)


def of_head(head: bytes) -> Signature | None:
    """The format of a file, by its first bytes; None if they fit no format."""
    return next((each for each in signatures() if each.begins and each.begins(head)), None)


def of_folder(names: Iterable[str]) -> Signature | None:
    """The format of a folder that is one array, group or dataset, by the names in it."""
    held = frozenset(names)
    return next((each for each in signatures() if each.folder_files & held), None)


def named(name: str) -> Signature:
    """The signature of the format `name`."""
    return _SIGNATURES[name]


def parts_of_name(name: str) -> tuple[str, str, str]:
    """The name of an ArrayRecord file as stem, mark and place in a numbered set; '' for none."""
    match = re.fullmatch(_RECORD_FILE, name, re.DOTALL)
    return (match["stem"], match["mark"] or "", match["shard"] or "") if match else (name, "", "")


def by_format(names: Iterable[str]) -> dict[Signature, list[str]]:
    """The names of files by format, in the order of `signatures`; unknown ones are left out."""
    found: dict[Signature, list[str]] = {each: [] for each in signatures()}
    for name in names:
        # Hidden files belong to no data set, such as what a copy that was stopped has left.
        signature = None if name.startswith((".", "_")) else of_name(name)
        if signature is not None:
            found[signature].append(name)
    return {signature: held for signature, held in found.items() if held}


def read_by(reader: str) -> Callable[[str], bool]:
    """Whether the source `reader` may read what has a name: its own files, or a name of no format."""

    def reads(name: str) -> bool:
        found = of_name(name)
        return found is None or found.reader == reader

    return reads


def other_reader(names: Sequence[str], reader: str) -> str:
    """The end of an error of `reader`: which source reads files of these names; '' for none."""
    for each in signatures():
        if each.reader not in (None, reader) and (
            any(map(each.is_file_name, names)) or each.folder_files & {*names}
        ):
            return f"; {each.reader} reads that"
    return ""
