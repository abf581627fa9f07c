"""What the package writes and says about data: explanations, reports, shuffle quality, what a server
gives, and conversions.

Numbers that a prediction, a clock or a library's version decides are not in it: where they stand,
only the keys are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden_chains import Recipe, build, recipes
from tests.golden_records import attempted, digest, iterated, masked
from tests.range_server import RangeServer
from windrow import (
    MapDataset,
    converters,
    inspect,
    report,
    shuffle_quality,
    sources,
)

# Chains that are read from a server or drawn on a page, and not in other files.
_SERVED_ALONE = (
    "zarr chunks: by blocks",
    "zarr inner: mapped in batches",
    "zarr group: shuffled, batched, in two epochs",
    "array_record groups: by blocks",
    "array_record single: shuffled, batched, in two epochs",
    "tfds train: by blocks",
)
_REMOTE = (*_SERVED_ALONE, "windows fields: by blocks")


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
    return {
        name: recipe
        for name, recipe in recipes().items()
        if name not in _SERVED_ALONE and not name.startswith(("drawn ", "later: "))
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


def reports(folder: Path) -> dict[str, Any]:
    """Of pages of `report` the headings, tables and charts."""
    found: dict[str, Any] = {}
    every = recipes()
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
        # Without the folder of a source, where they are cut.
        "captions": [c.partition(" in ")[0] for c in re.findall("<caption>(.*?)</caption>", body)],
        "charts": sorted(charts),
        "chart keys": {name: sorted(json.loads(held)) for name, held in charts.items()},
    }


# --- chains over a server ------------------------------------------------------------------------


def remote(folder: Path) -> dict[str, Any]:
    """Chains whose stores a server gives: elements, states and fingerprints."""
    found: dict[str, Any] = {}
    with RangeServer(folder) as server:
        for name in _REMOTE:
            first, *others = recipes()[name]
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


@contextlib.contextmanager
def _apart() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="windrow-made-") as made:
        yield Path(made)
