"""ArrayRecord files: every record where it belongs, and every broken file named."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.array_record_bytes import write
from windrow.core.native import native
from windrow.errors import (
    ConversionError,
    MissingExtraError,
    NotFoundError,
    ReadError,
    SourceError,
)
from windrow.sources import ArrayRecordDataSource, ZarrDataSource

BLOCK = 65536


def records_of(count: int, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [rng.bytes(int(n)) for n in rng.integers(1, 300, count)]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A folder of files of unlike lengths, empty ones among them, and all its records."""
    folder = tmp_path_factory.mktemp("many")
    everything: list[bytes] = []
    for number, count in enumerate([5, 0, 1, 37, 12, 0, 3]):
        records = records_of(count, seed=number)
        write(folder / f"f{number}.array_record", records)
        everything += records
    return folder, everything


def test_padded_and_footer_options(tmp_path: Path) -> None:
    records = records_of(9)
    options = "group_size:2,pad_to_block_boundary:true"
    options_to_read = {"index_storage_option": "offloaded"}
    if importlib.metadata.version("array-record") not in ("0.8.4", "0.8.5"):
        options_to_read["footer_prefetch_bytes"] = "0"
    path = write(tmp_path / "a.array_record", records, options)
    source = ArrayRecordDataSource(path, reader_options=options_to_read)
    assert source.__getitems__(range(9)) == records


def test_paths_of_every_kind(many: tuple[Path, list[bytes]]) -> None:
    folder, everything = many
    files = sorted(str(path) for path in folder.iterdir())
    for paths in (
        folder,
        str(folder),
        f"{folder}/*.array_record",
        f"file://{folder}/f?.array_record",
        folder.as_uri(),
        files,
        tuple(Path(name) for name in files),
    ):
        source = ArrayRecordDataSource(paths)
        assert source.paths == files
        assert source.read(np.arange(len(source))) == everything


def test_a_file_twice_and_a_part_of_one(tmp_path: Path) -> None:
    records = records_of(20)
    path = write(tmp_path / "a[1].array_record", records)
    twice = ArrayRecordDataSource([path, f"{path}[3:5]", path])
    assert twice.__getitems__(range(42)) == records + records[3:5] + records
    with pytest.raises(SourceError, match=r"records 15 to 25 of .* holds 20"):
        ArrayRecordDataSource(f"{path}[15:25]")


@dataclasses.dataclass
class Instruction:
    filename: str
    skip: int
    take: int
    examples_in_shard: int


def test_file_instructions(tmp_path: Path) -> None:
    records = records_of(20)
    name = str(write(tmp_path / "a", records))
    source = ArrayRecordDataSource([Instruction(name, 2, 5, 20), Instruction(name, 15, -1, 20)])
    assert source.__getitems__(range(len(source))) == records[2:7] + records[15:]
    with pytest.raises(SourceError, match="counts 21 records, and the file holds 20"):
        ArrayRecordDataSource(Instruction(name, 0, 20, 21))


def test_shards_that_the_folder_counts_are_missing(tmp_path: Path) -> None:
    for shard in range(2):
        write(tmp_path / f"digits-train.array_record-{shard:05d}-of-00002", records_of(3))
    splits = [{"name": "train", "shardLengths": ["3", "3", "5"]}]
    (tmp_path / "dataset_info.json").write_text(json.dumps({"name": "digits", "splits": splits}))
    with pytest.raises(
        NotFoundError, match="counts 3 shards of split 'train', and the folder holds 2"
    ):
        ArrayRecordDataSource(tmp_path)


def test_an_unfinished_conversion_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.array_record", records_of(2))
    (tmp_path / "_WINDROW_UNFINISHED").write_text("{}")
    for paths in (tmp_path, path, f"{tmp_path}/*.array_record"):
        with pytest.raises(ConversionError, match="run the same conversion again"):
            ArrayRecordDataSource(paths)


def test_sources_name_the_one_that_reads_what_is_there(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "zarr"), shape=(3,), dtype="int8")
    with pytest.raises(NotFoundError, match=r"holds zarr\.json; ZarrDataSource reads that$"):
        ArrayRecordDataSource(tmp_path / "zarr")
    (tmp_path / "records").mkdir()
    path = write(tmp_path / "records" / "a.array_record", [b"a"])
    for place in (path, path.parent):
        with pytest.raises(NotFoundError, match=r"; ArrayRecordDataSource reads that$"):
            ZarrDataSource(place)


def test_broken_files_are_named_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.array_record", records_of(500), "group_size:1,uncompressed")
    whole = path.read_bytes()
    cases = {
        b"": "is empty",
        b"junk" * 70_000: r"not an ArrayRecord file: it begins with b'junkjunk'",
        whole[:100]: "cut off or damaged: its 100 bytes",
        whole[: -BLOCK // 2]: "cut off or damaged: its",
        whole[:-BLOCK]: "cut off or damaged: the index at its end is missing",
    }
    for content, message in cases.items():
        path.write_bytes(content)
        with pytest.raises(SourceError, match=rf"a\.array_record (is )?.*{message}"):
            ArrayRecordDataSource(path)


def test_a_tfrecord_file_gets_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"\x05" + bytes(200))
    with pytest.raises(SourceError, match="convert it first"):
        ArrayRecordDataSource(path)


@pytest.mark.parametrize("group", [1, 10])
def test_a_damaged_record_is_named_and_the_others_read(tmp_path: Path, group: int) -> None:
    records = [bytes([i]) * 1000 for i in range(100)]
    first = write(tmp_path / "0.array_record", records[:20])
    path = write(tmp_path / "1.array_record", records, f"group_size:{group},uncompressed")
    content = bytearray(path.read_bytes())
    content[content.index(records[63]) + 500] ^= 1
    path.write_bytes(content)
    source = ArrayRecordDataSource([first, path])
    asked = np.array([3, 20 + 99, 20 + 63, 20 + 5])
    with pytest.raises(ReadError, match=r"record 63 of .*1\.array_record.*record 83 of") as caught:
        source.read(asked)
    assert "hash" in str(caught.value)
    assert ("stored with records 60 to 69" in str(caught.value)) == (group == 10)
    assert source.__getitems__([119, 25]) == [records[99], records[5]]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    # Libraries such as Dask pickle what an error came of, too.
    cause = caught.value.__context__
    while cause is not None:
        pickle.dumps(type(cause))
        cause = cause.__context__


def test_a_file_gone_or_replaced_before_it_is_opened_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a", records_of(3))
    source = pickle.loads(pickle.dumps(ArrayRecordDataSource(path)))
    write(path, [bytes(1000)] * 300, "group_size:1,uncompressed")
    with pytest.raises(ReadError, match="changed since"):
        source[0]
    path.unlink()
    with pytest.raises(NotFoundError, match="was removed after the source was made"):
        source[0]


def test_fingerprint_is_of_the_data_and_not_of_its_place(tmp_path: Path) -> None:
    path = write(tmp_path / "a", records_of(30))
    other = tmp_path / "b"
    shutil.copy(path, other)
    one, two = ArrayRecordDataSource(path), ArrayRecordDataSource(other)
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint.startswith("array_record(30 records, 1 files, sha256:")
    longer = ArrayRecordDataSource(write(tmp_path / "c", records_of(31)))
    assert longer.fingerprint != one.fingerprint
    assert ArrayRecordDataSource([path, f"{path}[0:1]"]).fingerprint != longer.fingerprint
    way = "" if native() else ", read without the native core"
    assert repr(one) == f"ArrayRecordDataSource(30 records of a in {tmp_path}{way})"


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    for number in range(60):
        write(tmp_path / f"f{number:03d}.array_record", [b"%d" % number])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    script = (
        "import resource, sys, os, numpy as np\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (48, {hard}))\n"
        "from windrow.sources import ArrayRecordDataSource\n"
        f"source = ArrayRecordDataSource({str(tmp_path)!r})\n"
        "order = np.random.default_rng(0).permutation(60)\n"
        "for _ in range(3):\n"
        "    assert source.read(order) == [b'%d' % i for i in order]\n"
    )
    assert soft > 48
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_only_the_core_reads_says_so(tmp_path: Path, without_core: None) -> None:
    path = write(tmp_path / "a.array_record", records_of(3))
    message = r"ArrayRecordDataSource: {} needs Windrow's native core.*https://rustup\.rs"
    with pytest.raises(MissingExtraError, match=message.format("direct=True")):
        ArrayRecordDataSource(path, direct=True)
    with pytest.raises(MissingExtraError, match=message.format("a URL")):
        ArrayRecordDataSource("https://127.0.0.1:9/a.array_record")
    assert ArrayRecordDataSource(path)[2] == records_of(3)[2]
