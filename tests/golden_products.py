"""What the package writes and says about data: explanations, statistics, reports, shuffle quality,
inspections, verifications, conversions and the command line.

Numbers that a prediction, a clock or a library's version decides are not in it: where they stand,
only the keys are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden_chains import Recipe, build
from tests.golden_recipes import SOURCES, TAILS, hand_written, s
from tests.golden_records import attempted, digest, iterated, masked
from tests.range_server import RangeServer
from windrow import (
    MapDataset,
    ReadOptions,
    converters,
    inspect,
    report,
    shuffle_quality,
    sources,
    verify,
)

_SYNCHRONOUS = ReadOptions(num_threads=0, prefetch_buffer_size=0)


def keys_of(value: Any) -> Any:
    """The keys of JSON, with the names of types in place of values."""
    if isinstance(value, dict):
        return {key: keys_of(one) for key, one in value.items()}
    if isinstance(value, list):
        return [keys_of(value[0])] if value else []
    return "number" if isinstance(value, int | float) else type(value).__name__


def _rounded(value: Any) -> Any:
    """JSON whose floats have ten digits: sums may differ in the last bits between processors."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


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


def _chosen() -> dict[str, Recipe]:
    """Each source and each combination once, and the nodes over chunks."""
    found: dict[str, Recipe] = {}
    every = hand_written()
    tails = list(TAILS)
    for number, name in enumerate(SOURCES):
        tail = tails[number % len(tails)]
        found[f"{name}: {tail}"] = every[f"{name}: {tail}"]
    several = ("mix", "zip", "concatenate", "select")
    return found | {
        name: recipe
        for name, recipe in every.items()
        if name.endswith(" of chunks") or recipe[0][0] in several
    }


# --- explain, stats, report ----------------------------------------------------------------------

_NODE = ("number", "label", "runs", "spec", "length", "parents", "source", "is_endless")


# Predictions for these take seconds.
_ENDLESS = frozenset({"mix, shuffled", "zip, shuffle", "repeat for ever of chunks"})


def explanations(folder: Path) -> dict[str, Any]:
    """Of `explain()` what is no prediction, and its keys."""

    def one(recipe: Recipe) -> Any:
        told = build(recipe, folder).explain().to_json()
        return {
            "nodes": [{key: node[key] for key in _NODE} for node in told["nodes"]],
            "keys": sorted(told),
            "sources": [costs["source"] for costs in told["epoch"]],
            "costs": sorted({key for costs in told["epoch"] for key in costs}),
            **{key: told[key] for key in ("spec", "length", "is_endless", "unknown")},
        }

    return {
        name: _masked(attempted(lambda recipe=recipe: one(recipe), folder), folder)  # type: ignore[misc]
        for name, recipe in _chosen().items()
        if name not in _ENDLESS
    }


_COUNTED = ("records", "chunks", "stored_bytes", "decoded_bytes", "delivered_bytes")


def statistics(folder: Path) -> dict[str, Any]:
    """Of `stats()` the keys, and the counters of a run without threads.

    A stream with workers is read to its end: how far they read ahead of a `limit` depends on how quick they
    are.
    """

    def one(recipe: Recipe) -> Any:
        dataset = build(recipe, folder)
        if isinstance(dataset, MapDataset):
            dataset = dataset[: min(len(dataset), 40)].to_iter_dataset(_SYNCHRONOUS)
        elif "mp_prefetch" not in json.dumps(recipe):
            dataset = dataset.limit(40)
        with iter(dataset) as iterator:
            list(iterator)
            found = iterator.stats().to_json()
        return {
            "keys": sorted(found),
            "elements": found["elements"],
            "delivered_bytes": found["delivered_bytes"],
            "functions": sorted(found["mapping_s"]),
            "sources": [
                {"source": costs["source"], **{key: costs[key]["low"] for key in _COUNTED}}
                for costs in found["sources"]
            ],
            "costs": sorted({key for costs in found["sources"] for key in costs}),
        }

    wanted = {
        name: recipe
        for name, recipe in _chosen().items()
        if "read_options" not in json.dumps(recipe) and "to_iter_dataset" not in json.dumps(recipe)
    }
    return {
        name: _masked(attempted(lambda recipe=recipe: one(recipe), folder), folder)  # type: ignore[misc]
        for name, recipe in wanted.items()
    }


def reports(folder: Path) -> dict[str, Any]:
    """Of pages of `report` the headings, tables and charts."""
    found: dict[str, Any] = {}
    every = hand_written()
    for name in ("zarr chunks: by blocks", "zarr group: shuffled, batched, in two epochs"):
        page = _page(build(every[name], folder), folder)
        found[name] = page
    with iter(build(every["zarr chunks: by blocks"], folder)) as iterator:
        list(iterator)
        found["of an iterator"] = _page(iterator, folder)
    return {name: _masked(page, folder) for name, page in found.items()}


def _page(given: Any, folder: Path) -> Any:
    with tempfile.TemporaryDirectory() as made:
        text = report(given, Path(made) / "page.html", title="golden").read_text(encoding="utf-8")
    body = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    charts = dict(
        re.findall(r'<script type="application/json" id="([^"]*)">(.*?)</script>', text, re.DOTALL)
    )
    return {
        "headings": re.findall(r"<h[1-4][^>]*>(.*?)</h[1-4]>", body),
        "captions": [re.sub("<.*?>", "", c) for c in re.findall("<caption>(.*?)</caption>", body)],
        "charts": sorted(charts),
        "chart keys": {name: sorted(json.loads(held)) for name, held in charts.items()},
    }


# --- chains over a server ------------------------------------------------------------------------

_REMOTE = (
    "zarr chunks: by blocks",
    "zarr inner: mapped in batches",
    "zarr group: shuffled, batched, in two epochs",
    "windows fields: by blocks",
    "array_record groups: by blocks",
    "array_record single: shuffled, batched, in two epochs",
    "tfds train: by blocks",
)


def remote(folder: Path) -> dict[str, Any]:
    """Chains whose stores a server gives: elements, states and fingerprints."""
    found: dict[str, Any] = {}
    with RangeServer(folder) as server:
        for name in _REMOTE:
            first, *others = hand_written()[name]
            url = server.url(first[1]["store"])
            recipe = [[first[0], {**first[1], "store": url}], *others]
            made = attempted(lambda recipe=recipe: iterated(build(recipe, folder), folder), folder)  # type: ignore[misc]
            found[name] = json.loads(json.dumps(made).replace(server.url(""), "SERVER/"))
    return found


# --- shuffle quality -----------------------------------------------------------------------------


def quality(folder: Path) -> dict[str, Any]:
    """`shuffle_quality` of chains and of orders."""
    calls: dict[str, Callable[[], Any]] = {}
    for name, recipe in _chosen().items():
        dataset = attempted(lambda recipe=recipe: build(recipe, folder))  # type: ignore[misc]
        if not isinstance(dataset, dict):
            calls[name] = lambda dataset=dataset: shuffle_quality(dataset, 8)  # type: ignore[misc]
    large = MapDataset.range(20_000)
    calls |= {
        "a large shuffle": lambda: shuffle_quality(large.shuffle(1), 64, block=100),
        "large windows": lambda: shuffle_quality(large.window_shuffle(500, 1), 64, block=100),
        "large blocks": lambda: shuffle_quality(large.block_shuffle(1, block=100), 64, block=100),
        "indices": lambda: shuffle_quality(np.arange(1_000)[::-1], 16, block=50),
        "bounds": lambda: shuffle_quality(np.arange(100), 8, block=[0, 10, 70, 100]),
        "its own batch": lambda: shuffle_quality(MapDataset.range(1_000).shuffle(3).batch(32)),
    }
    return {
        name: _rounded(_masked(attempted(lambda call=call: call().to_json(), folder), folder))  # type: ignore[misc]
        for name, call in calls.items()
    }


# --- inspect, verify -----------------------------------------------------------------------------

_STORES = (
    "chunks", "sharded", "inner", "raw", "second", "delta", "big-endian", "sparse", "one", "tokens",
    "field", "group", "group-v2", "climate", "single.array_record", "groups.array_record",
    "raw.array_record", "part-*.array_record", "examples.array_record", "examples.tfrecord-*",
    "plain.tfrecord-*", "counts/1.0.0", "counts", "damaged", "damaged-zstd",
    "damaged.array_record", "cut.array_record", "nothing.txt",
)  # fmt: skip


def inspections(folder: Path) -> dict[str, Any]:
    """`inspect` of each store."""
    return {
        name: _masked(
            attempted(lambda name=name: inspect(folder / name).to_json(), folder),  # type: ignore[misc]
            folder,
        )
        for name in _STORES
    }


def verifications(folder: Path) -> dict[str, Any]:
    """`verify` of each source, of damaged ones, and of missing pieces."""

    def one(source: Any, **more: Any) -> Any:
        found = verify(source, progress=False, **more)
        told = dataclasses.asdict(found)
        del told["elapsed_s"]
        return {**told, "ok": found.ok, "text": str(found)}

    def of(step: list[Any]) -> Any:
        # A chain shows how a source is made of a step; `verify` takes the source alone.
        kinds: dict[str, Any] = {
            "zarr": sources.ZarrDataSource,
            "windows": sources.WindowDataSource,
            "array_record": sources.ArrayRecordDataSource,
            "tfds": sources.TFDSDataSource,
        }
        more = {key: value for key, value in step[1].items() if key != "store"}
        return kinds[step[0]](str(folder / step[1]["store"]), **more)

    steps = {
        name: step
        for name, step in SOURCES.items()
        if step[0] in ("zarr", "windows", "array_record", "tfds")
        and isinstance(step[1]["store"], str)
        and not step[1].get("fields")
        and "0" not in step[1].get("sizes", {})
    }
    for name in ("damaged", "damaged-zstd"):
        steps[name] = s("zarr", store=name)
    steps["damaged records"] = s("array_record", store="damaged.array_record", direct=True)
    found = {
        name: attempted(lambda step=step: one(of(step)), folder)  # type: ignore[misc]
        for name, step in steps.items()
    }
    sparse = sources.ZarrDataSource(str(folder / "sparse"))
    found["missing is an error"] = attempted(lambda: one(sparse, missing="error"), folder)
    found = {name: _masked(one, folder) for name, one in found.items()}
    # What a library says of damaged bytes changes with its version.
    for bad in found["damaged-zstd"]["bad"]:
        bad["error"] = "ERROR"
    found["damaged-zstd"]["text"] = "TEXT"
    return found


# --- conversions ---------------------------------------------------------------------------------

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
        "field to zarr": ("zarr_to_zarr", "field", {**_PLAIN, "record_axis": "y", "chunks": 3, "shards": 0}),
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


# --- the command line ----------------------------------------------------------------------------


@contextlib.contextmanager
def _apart() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="windrow-made-") as made:
        yield Path(made)


def _run(argv: list[str]) -> tuple[int, str, str]:
    """`python -m windrow ...` in this process."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["windrow", *argv]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_module("windrow", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    return int(code), out.getvalue(), err.getvalue()


def _commands(folder: Path, made: Path) -> dict[str, list[str]]:
    at = {name: str(folder / name) for name in (*_STORES, "missing")}
    tfrecord, chunks, records = at["examples.tfrecord-*"], at["chunks"], at["groups.array_record"]
    quick = ["--seconds", "0.05", "--batches", "2"]
    return {
        "nothing": [],
        "no such command": ["inspekt"],
        "version": ["--version"],
        "inspect: no argument": ["inspect"],
        "inspect: no such option": ["inspect", chunks, "--jason"],
        "inspect: storage option": ["inspect", chunks, "--storage-option", "q"],
        "inspect": ["inspect", chunks],
        "inspect: JSON": ["inspect", at["climate"], "--json", "--no-sizes"],
        "inspect: records": ["inspect", at["part-*.array_record"], "--json"],
        "inspect: tfds": ["inspect", at["counts/1.0.0"], "--json"],
        "inspect: missing": ["inspect", at["missing"]],
        "inspect: no data set": ["inspect", at["nothing.txt"]],
        "inspect: picture": ["inspect", chunks, "--picture", str(made / "picture.txt")],
        "verify": ["verify", chunks],
        "verify: JSON": ["verify", records, "--json", "--quiet"],
        "verify: damaged": ["verify", at["damaged"], "-q"],
        "verify: damaged, JSON": ["verify", at["damaged"], "-q", "--json"],
        "verify: missing chunks": ["verify", at["sparse"], "-q", "--missing", "error"],
        "verify: choice": ["verify", chunks, "--missing", "q"],
        "verify: missing": ["verify", at["missing"]],
        "verify: cut": ["verify", at["cut.array_record"]],
        "verify: files": ["verify", chunks, "--files-only"],
        "bench": ["bench", chunks, *quick],
        "bench: JSON": ["bench", records, *quick, "--json", "-q"],
        "bench: order": ["bench", chunks, "--order", "q"],
        "bench: missing": ["bench", at["missing"]],
        "bench: seconds": ["bench", chunks, "--seconds", "0"],
        "bench: array": ["bench", at["group"], *quick, "--array", "q"],
        "convert: no target": ["convert", tfrecord, str(made / "a")],
        "convert: one argument": ["convert", tfrecord, "--to", "zarr"],
        "convert: dry run": ["convert", tfrecord, str(made / "a"), "--to", "zarr", "--dry-run"],
        "convert: dry run, JSON": ["convert", chunks, str(made / "a"), "--to", "zarr", "--dry-run", "--json"],
        "convert: tfrecord": ["convert", tfrecord, str(made / "b"), "--to", "zarr", "-q"],
        "convert: again": ["convert", tfrecord, str(made / "b"), "--to", "zarr", "--json"],
        "convert: another": ["convert", tfrecord, str(made / "b"), "--to", "zarr", "--chunk-rows", "3"],
        "convert: overwrite": ["convert", tfrecord, str(made / "b"), "--to", "zarr", "--chunk-rows", "3", "--overwrite", "-q"],
        "convert: check": ["verify", str(made / "b"), "-q"],
        "convert: to records": ["convert", tfrecord, str(made / "c"), "--to", "array_record", "-q", "--json"],
        "convert: an option of others": ["convert", tfrecord, str(made / "d"), "--to", "zarr", "--files", "2"],
        "convert: codecs": ["convert", chunks, str(made / "d"), "--to", "zarr", "--codecs", "q"],
        "convert: memory": ["convert", chunks, str(made / "d"), "--to", "zarr", "--memory", "q"],
        "convert: damaged": ["convert", at["damaged"], str(made / "e"), "--to", "zarr", "-q"],
        "convert: unfinished": ["inspect", str(made / "e"), "--json"],
        "convert: missing": ["convert", at["missing"], str(made / "f"), "--to", "zarr"],
        "convert: tfds": ["convert", at["counts/1.0.0"], str(made / "g"), "--to", "zarr", "-q"],
        "convert: a split": ["convert", at["counts/1.0.0"], str(made / "h"), "--to", "array_record", "--split", "test", "-q"],
        "tfds-build: no argument": ["tfds-build", "--also", "q"],
        "tfds-build: images": ["tfds-build", "q", "--images"],
    }  # fmt: skip


def commands(folder: Path) -> dict[str, Any]:
    """Exit codes and the shape of what is printed; the flags of each command; three processes."""
    found: dict[str, Any] = {}
    with _apart() as made:
        for name, argv in _commands(folder, made).items():
            found[name] = _masked(_shape(*_run(argv)), made, folder)
        for name, argv in {
            "process: inspect": ["inspect", str(folder / "tokens"), "--json"],
            "process: damaged": ["verify", str(folder / "damaged"), "-q"],
            "process: bad arguments": ["convert", "a", "b", "--to", "q"],
        }.items():
            ran = subprocess.run(
                [sys.executable, "-m", "windrow", *argv],
                capture_output=True,
                text=True,
                check=False,
            )
            found[name] = _masked(_shape(ran.returncode, ran.stdout, ran.stderr), made, folder)
    for command in ("convert", "inspect", "verify", "bench", "tfds-build"):
        code, text, _ = _run([command, "--help"])
        flags = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)(?: ?/ ?(--[a-z-]+))?", text, re.MULTILINE)
        found[f"flags of {command}"] = [
            code,
            sorted({flag for both in flags for flag in both if flag}),
        ]
    return found


_OF_THE_PARSER = (
    "Error: No such",
    "Error: Missing",
    "Error: Invalid value for '--order'",
    "Error: Invalid value for '--missing'",
    "Error: Invalid value for '--seconds'",
    "Error: Invalid value for '--also'",
    "Error: Invalid value for '--to'",
)


def _shape(code: int, out: str, err: str) -> dict[str, Any]:
    """Exit code; the keys of JSON on stdout, or whether there is any text; our own words of an error."""
    shown: Any = "text" if out else ""
    if out.startswith(("{", "[")):
        shown = keys_of(json.loads(out))
    words = [line for line in err.splitlines() if line.startswith(("windrow ", "Error: "))]
    # These words are of the library that reads arguments.
    words = [line for line in words if not line.startswith(_OF_THE_PARSER)]
    return {"code": code, "stdout": shown, "error": words if code else []}
