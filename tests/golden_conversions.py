"""What conversions of small stores write: manifests, what `check` and `inspect` say, and elements.

Sizes and checksums that a library's version decides are masked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.golden_records import attempted, digest, masked
from windrow import MapDataset, converters, inspect, sources


def _masked(value: Any, *folders: Path) -> Any:
    """JSON in whose texts the folders are `STORES`."""
    if isinstance(value, dict):
        return {masked_all(key, *folders): _masked(one, *folders) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(one, *folders) for one in value]
    return masked_all(value, *folders) if isinstance(value, str) else value


def masked_all(text: str, *folders: Path) -> str:
    """A text in which each of the folders is `STORES`."""
    for folder in folders:
        text = masked(text, folder)
    return text


_PLAIN = {"codecs": "none"}
_UNCOMPRESSED = {"writer_options": "group_size:4,uncompressed"}


def _conversions() -> dict[str, tuple[str, str, dict[str, Any]]]:
    tfrecord, records = "examples.tfrecord-*", "examples.array_record"
    return {
        "tfrecord to array_record": ("tfrecord_to_array_record", tfrecord, _UNCOMPRESSED),
        "tfrecord to array_record, by default": ("tfrecord_to_array_record", tfrecord, {}),
        "tfrecord to zarr": ("tfrecord_to_zarr", tfrecord, {**_PLAIN, "chunk_rows": 8, "shard_rows": 16}),
        "tfrecord to zarr, by default": ("tfrecord_to_zarr", tfrecord, {}),
        "bad records": ("tfrecord_to_array_record", "damaged.tfrecord", {"max_bad_records": 20}),
        "bad records, refused": ("tfrecord_to_array_record", "damaged.tfrecord", {}),
        "array_record to array_record": ("array_record_to_array_record", "part-*.array_record", {**_UNCOMPRESSED, "files": 2}),
        "shuffled": ("array_record_to_array_record", "part-*.array_record", {**_UNCOMPRESSED, "shuffle_seed": 5, "files": 3}),
        "array_record to zarr": ("array_record_to_zarr", records, {**_PLAIN, "chunk_rows": 10, "shard_rows": 0}),
        "tfds to zarr": ("tfds_to_zarr", "counts/1.0.0", {**_PLAIN, "chunk_rows": 8, "shard_rows": 0}),
        "zarr to zarr": ("zarr_to_zarr", "chunks", {**_PLAIN, "chunks": 20, "shards": 40}),
        "group to zarr": ("zarr_to_zarr", "group", {**_PLAIN, "arrays": {"a": "x", "y": "y"}, "chunks": 6, "shards": 0, "dtype": {"a": "float64"}}),
        "field to zarr": ("zarr_to_zarr", "field", {**_PLAIN, "axes": "y", "chunks": 3, "shards": 0}),
        "zarr to array_record": ("zarr_to_array_record", "group", {**_UNCOMPRESSED, "files": 2}),
        "no such option": ("zarr_to_zarr", "chunks", {"chunks": 0}),
        "no input": ("tfrecord_to_zarr", "missing-*", {}),
    }  # fmt: skip


def conversions(folder: Path) -> dict[str, Any]:
    """Manifests, checks and contents of small conversions; and a manifest that is read."""
    found: dict[str, Any] = {}
    with _apart() as made:
        for number, (name, (function, given, settings)) in enumerate(_conversions().items()):
            output = made / f"out-{number}"
            convert = getattr(converters, function)

            def one(convert: Any = convert, given: str = given, output: Path = output,
                    settings: Any = settings) -> Any:  # fmt: skip
                manifest = convert(str(folder / given), str(output), progress=False, **settings)
                return {**_described(manifest, settings), **_contents(output)}

            found[name] = _masked(attempted(one, folder), made, folder)
    found["a manifest"] = _manifest_read()
    return found


def _described(manifest: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(manifest.to_json()))
    told["versions"] = sorted(told["versions"])
    told["fingerprint"] = len(told["fingerprint"])  # it has checksums of what libraries write
    for given in told["inputs"]:
        given["version"] = "VERSION"
    exact = _PLAIN.items() <= settings.items() or _UNCOMPRESSED.items() <= settings.items()
    for file in told["files"]:
        if not exact or file["name"].endswith(".json"):
            file["size_bytes"], file["crc32c"] = "SIZE", "CHECKSUM"
    return {"manifest": told}


def _contents(output: Path) -> dict[str, Any]:
    checked = dataclasses.asdict(converters.check(output, progress=False))
    is_zarr = checked["format"] == "zarr"
    for key in ("elapsed_s", "read_bytes", "folder"):
        del checked[key]
    source: Any = None
    if is_zarr:
        source = attempted(lambda: sources.ZarrDataSource(str(output)))
    else:
        source = sources.ArrayRecordDataSource(str(output))
    if isinstance(source, dict):
        return {"check": checked, "content": source}
    elements = [digest(element) for element in MapDataset.source(source)]
    inspected = inspect(output, sizes=False).to_json()
    # Files of libraries' making have sizes that change with their versions.
    kept = {key: inspected[key] for key in ("format", "variant", "records", "finished")}
    return {
        "check": checked,
        "elements": "".join(elements),
        "inspect": kept,
        "keys": sorted(inspected),
    }


def _manifest_read() -> Any:
    """A manifest as a run of this code wrote it, read and written again."""
    value = {
        "version": 2,
        "versions": {"windrow": "0.1.0"},
        "format": "array_record",
        "records": 3,
        "settings": {"conversion": "tfrecord_to_array_record", "writer_options": "group_size:1"},
        "inputs": [{"name": "a", "size_bytes": 9, "records": 3, "version": "1.2", "skipped": 1}],
        "files": [{"name": "b", "size_bytes": 7, "records": 3, "crc32c": "a216783f"}],
        "skipped": [{"file": "a", "record": 2, "error": "damaged"}],
        "fingerprint": "",
    }

    def one() -> Any:
        manifest = converters.Manifest.from_json(value, where="here")
        return {**manifest.to_json(), "versions": dict(manifest.versions)}

    return attempted(one)


@contextlib.contextmanager
def _apart() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="windrow-made-") as made:
        yield Path(made)
