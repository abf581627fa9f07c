"""`windrow convert`: finds out what there is, picks the conversion, and carries it out.

Options are the arguments of the conversion functions by their names: one that the conversion picked
does not take is refused. So there is one place that says what a conversion takes: its function.

Invariant: with `--dry-run` nothing is written.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import click
from tabulate import tabulate

from windrow.commands import (
    Function,
    echo_json,
    examples,
    json_option,
    key_value_option,
    quiet_option,
    say,
    storage_option,
)
from windrow.converters.array_record import tfrecord_to_array_record_conversion
from windrow.converters.job import carry_out, describe
from windrow.converters.manifest import Manifest
from windrow.converters.rechunk import zarr_to_zarr_conversion
from windrow.converters.records_to_zarr import (
    array_record_to_zarr_conversion,
    tfrecord_to_zarr_conversion,
)
from windrow.converters.reshard import (
    array_record_to_array_record_conversion,
)
from windrow.converters.rows_to_records import zarr_to_array_record_conversion
from windrow.converters.stages import Conversion
from windrow.converters.tfds_to_records import tfds_to_array_record_conversion
from windrow.converters.tfds_to_zarr import tfds_to_zarr_conversion
from windrow.inspection import inspect as inspect_dataset
from windrow.inspection_place import place_of
from windrow.opening import contents_of, kind_of_head, kind_of_name
from windrow.sources.secrets import shown_url

CONVERSIONS: Final[Mapping[tuple[str, str], Callable[..., Conversion]]] = {
    ("tfrecord", "array_record"): tfrecord_to_array_record_conversion,
    ("tfrecord", "zarr"): tfrecord_to_zarr_conversion,
    ("array_record", "array_record"): array_record_to_array_record_conversion,
    ("array_record", "zarr"): array_record_to_zarr_conversion,
    ("tfds", "zarr"): tfds_to_zarr_conversion,
    ("tfds", "array_record"): tfds_to_array_record_conversion,
    ("zarr", "array_record"): zarr_to_array_record_conversion,
    ("zarr", "zarr"): zarr_to_zarr_conversion,
    ("netcdf", "zarr"): zarr_to_zarr_conversion,
    ("netcdf", "array_record"): zarr_to_array_record_conversion,
}
_SOURCES: Final = tuple(dict.fromkeys(source for source, _ in CONVERSIONS))
_TARGETS: Final = tuple(dict.fromkeys(target for _, target in CONVERSIONS))
# What a command that goes on does not repeat; and what may have secrets.
_ONCE: Final = frozenset({"--overwrite", "--take-over"})
_SECRET: Final = frozenset({"--storage-option", "--output-option"})
_STATES: Final = {
    "new": "new: nothing is there",
    "unfinished": "begun: goes on with what is left",
    "finished": "finished: nothing is left to do",
    "other": "another conversion is there: refused without --overwrite",
    "foreign": "files that no conversion wrote are there: refused",
}
_SHOWN_CHARACTERS: Final = 100
_SHOWN_ARRAYS: Final = 20
_RAW: Final = "windrow.raw_arguments"
_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS_2: Final = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)", re.IGNORECASE)


def _size(text: str) -> int:
    """A number of bytes: 512MB, 2GiB, 1000000."""
    match = _SIZE.fullmatch(text.strip())
    unit = {**_UNITS, **_UNITS_2}.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise click.BadParameter(f"{text!r} is no size; write 512MB, 2GiB or a number of bytes")
    return int(float(match[1]) * unit)


def _json(text: str) -> Any:
    """A JSON value, or what a file of that name holds."""
    if os.path.isfile(text):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"neither a file nor JSON: {error}") from error


def _json_or_text(text: str) -> Any:
    """A JSON value; what is none is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _function(text: str) -> Any:
    """A function, `module:name`, of a module that can be imported from here."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise click.BadParameter(f"{text!r}: write module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.BadParameter(f"{text!r}: {error}") from error
    if not callable(found):
        raise click.BadParameter(f"{text!r} is no function")
    return found


def _renamed(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """`NAME` and `NEW=NAME` as a list of names, or a dict where any is renamed."""
    if not values:
        return None
    if not any("=" in value for value in values):
        return list(values)
    pairs = [value.partition("=") for value in values]
    return {new: old if equals else new for new, equals, old in pairs}


def _listed(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """Values as a list; None without any."""
    return list(values) or None


# How the work is cut and stored; each is an argument of some conversions.
_WHAT: Final = (
    click.option(
        "--writer-options", metavar="TEXT", help="ArrayRecord: such as group_size:1,zstd:3."
    ),
    click.option("--files", type=int, help="ArrayRecord: number of files to write."),
    click.option("--records-per-file", type=int, help="ArrayRecord: records in each file."),
    click.option("--shuffle-seed", type=int, help="ArrayRecord: shuffle all records by this seed."),
    click.option(
        "--encode",
        type=_function,
        metavar="MODULE:NAME",
        help="ArrayRecord: from a dict of a row to bytes.",
    ),
    click.option(
        "--decode",
        type=_function,
        metavar="MODULE:NAME",
        help="Zarr: from a record's bytes to a dict.",
    ),
    click.option(
        "--features",
        type=_json,
        metavar="JSON",
        help="Zarr: what the features of tf.train.Examples are.",
    ),
    click.option(
        "--split",
        "splits",
        multiple=True,
        callback=_listed,
        metavar="NAME",
        help="tfds: a split to convert, by default all; may be repeated. To ArrayRecord, one.",
    ),
    click.option(
        "--name",
        "names",
        multiple=True,
        callback=_listed,
        metavar="NAME",
        help="tfds: a feature to take, by default all; may be repeated.",
    ),
    click.option(
        "--images",
        is_flag=True,
        default=None,
        help="tfds: decode images, which stay encoded else; needs windrow[images].",
    ),
    click.option("--chunk-rows", type=int, help="Zarr: records per chunk."),
    click.option("--shard-rows", type=int, help="Zarr: records per shard; 0 for no shards."),
    click.option(
        "--array",
        "arrays",
        multiple=True,
        callback=_renamed,
        metavar="[NEW=]NAME",
        help="Zarr: an array to take, under another name if wanted; may be repeated.",
    ),
    click.option(
        "--record-axis",
        type=_json_or_text,
        metavar="VALUE",
        help="Zarr: the axis, or dimension, of records.",
    ),
    click.option(
        "--chunks",
        type=_json,
        metavar="JSON",
        help="Zarr: rows per chunk, or a shape, or one by array.",
    ),
    click.option(
        "--shards",
        type=_json,
        metavar="JSON",
        help="Zarr: rows per shard, or a shape, or one by array.",
    ),
    click.option(
        "--codecs", metavar="TEXT", help="Zarr: zstd:1, gzip:5, blosc:lz4:5, none, or JSON."
    ),
    click.option(
        "--dtype",
        type=_json_or_text,
        metavar="VALUE",
        help="Zarr: the dtype to write, or one by array.",
    ),
    click.option(
        "--cast",
        type=click.Choice(["checked", "unsafe"]),
        help="Zarr: values that do not fit the dtype are an error, or not.",
    ),
    click.option("--engine", help="Zarr: the engine of xarray to open SRC with."),
    click.option(
        "--max-bad-records", type=int, help="Damaged records to skip before it is an error."
    ),
    click.option(
        "--memory", "memory_bytes", type=_size, metavar="SIZE", help="Budget, such as 512MB."
    ),
)
# How it runs: as RunOptions.
_HOW: Final = (
    click.option("--overwrite", is_flag=True, help="Remove what another conversion left in DST."),
    click.option(
        "--take-over", is_flag=True, help="End the lease of a killed run (object stores)."
    ),
    click.option(
        "--processes",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Worker processes.",
    ),
    click.option("--runner", help="A Beam runner, such as DataflowRunner; needs windrow[beam]."),
    click.option(
        "--pipeline-option",
        "pipeline_options",
        multiple=True,
        metavar="FLAG",
        help="An option of Beam, such as --region=us-west1; may be repeated.",
    ),
    key_value_option(
        "--output-option",
        "output_options",
        "An option of fsspec for DST; by default those of --storage-option.",
    ),
)


def _options(*groups: tuple[Any, ...]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed([option for group in groups for option in group]):
            function = option(function)
        return function

    return decorate


class _Command(click.Command):
    """A command that remembers its arguments as they were given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_RAW] = list(args)
        return super().parse_args(ctx, args)


@click.command(
    cls=_Command,
    epilog=examples(
        "windrow convert 'digits.tfrecord-*' digits --to array_record",
        "windrow convert digits digits_zarr --to zarr --features features.json",
        "windrow convert tensorflow_datasets/mnist mnist_zarr --to zarr",
        "windrow convert era5.nc era5_train --to zarr --record-axis time --dry-run",
        "windrow convert s3://bucket/old.zarr s3://bucket/new --to zarr --chunks 1 --processes 8",
        "windrow convert digits shuffled --to array_record --shuffle-seed 1 --files 16",
    ),
)
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.argument("output", metavar="DST")
@click.option("--to", "target", required=True, type=click.Choice(_TARGETS), help="What to write.")
@click.option(
    "--from", "source", type=click.Choice(_SOURCES), help="What SRC is, if it is not seen."
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and write nothing.")
@_options(_WHAT, _HOW)
@storage_option
@json_option
@quiet_option
def command(
    sources: tuple[str, ...],
    output: str,
    *,
    target: str,
    source: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    storage_options: Mapping[str, Any],
    overwrite: bool,
    take_over: bool,
    processes: int,
    runner: str | None,
    pipeline_options: tuple[str, ...],
    output_options: Mapping[str, Any],
    **settings: Any,
) -> None:
    """Convert SRC (paths, globs, folders or URLs) to a dataset in the folder or URL DST.

    A run that was stopped goes on when the same command is given again. What DST holds is complete
    when windrow_manifest.json is there; until then Windrow refuses to open it.
    """
    raw = click.get_current_context().meta[_RAW]
    conversion = dataclasses.replace(
        _planned(sources, source, target, storage_options, settings),
        command=shlex.join(["windrow", "convert", *_repeated(raw)]),
    )
    far_options = dict(output_options or storage_options) or None
    if dry_run:
        _show_plan(describe(conversion, output, output_options=far_options), as_json=as_json)
        return
    manifest = carry_out(
        conversion,
        output,
        overwrite=overwrite,
        take_over=take_over,
        processes=processes,
        runner=runner,
        pipeline_options=list(pipeline_options) or None,
        progress=not quiet,
        output_options=far_options,
    )
    _show_manifest(manifest, output, as_json=as_json, quiet=quiet)
    if target == "zarr" and not (as_json or quiet):
        _show_arrays(output, far_options)


def _repeated(raw: Sequence[str]) -> Iterator[str]:
    """The arguments for the command that goes on: without what is for once, and without secrets."""
    secret = False
    for text in raw:
        flag, equals, _ = text.partition("=")
        if secret or (equals and flag in _SECRET):
            name = text.removeprefix(f"{flag}=") if equals and flag in _SECRET else text
            shown = name.partition("=")[0] + "=..."
            yield shown if secret else f"{flag}={shown}"
            secret = False
        elif text not in _ONCE:
            secret = text in _SECRET
            yield shown_url(text)


def _planned(
    sources: tuple[str, ...],
    source: str | None,
    target: str,
    storage_options: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Conversion:
    """The conversion that is asked for."""
    kind = source or _kind_of(sources[0], storage_options)
    builder = CONVERSIONS.get((kind, target))
    if builder is None:
        there = ", ".join(to for source, to in CONVERSIONS if source == kind)
        raise click.UsageError(
            f"there is no conversion from {kind} to {target}; to {there} there is"
        )
    given = {name: value for name, value in settings.items() if value is not None}
    taken = inspect.signature(builder).parameters
    for name in given:
        if name not in taken:
            flag = _flag(name)
            near = difflib.get_close_matches(name, taken.keys() & settings.keys(), cutoff=0.5)
            hint = f"; it takes {_flag(near[0])}" if near else ""
            raise click.UsageError(
                f"{flag}: a conversion from {kind} to {target} does not take it{hint}"
            )
    inputs: Any = sources if len(sources) > 1 else sources[0]
    return builder(inputs, storage_options=dict(storage_options) or None, **given)


def _kind_of(source: str, storage_options: Mapping[str, Any]) -> str:
    """What SRC is, by its name, what lies in it, or its first bytes."""
    place = place_of(source, storage_options or None, what="convert")
    kind = None
    if not (place.is_local and os.path.isdir(place.path)):  # whatever the name of a folder ends in
        kind = kind_of_name(place.name)
    if kind is None and place.is_local and os.path.isfile(place.path):
        kind = kind_of_head(place)
    if kind is not None:
        return kind
    contents = contents_of(place, what="convert")
    return contents.kind if contents.dataset is None else "tfds"


def _flag(name: str) -> str:
    known = {
        "arrays": "--array",
        "memory_bytes": "--memory",
        "splits": "--split",
        "names": "--name",
    }
    return known.get(name, "--" + name.replace("_", "-"))


def _show_plan(described: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(described)
        return
    settings = {name: value for name, value in described["settings"].items() if value}
    done = described["done"]
    rows = [
        ("conversion", described["conversion"]),
        ("inputs", f"{described['inputs']:,}, {_megabytes(described['input_bytes'])}"),
        ("records", _count(described["records"])),
        ("output", described["output"]),
        ("files", _count(described["files"])),
        ("before compression", _megabytes(described["output_bytes"])),
        *((name, _short(value)) for name, value in settings.items() if name != "conversion"),
        ("state", _STATES[described["state"]]),
    ]
    if done["parts"]:
        size = _megabytes(done["bytes"])
        rows.append(("done", f"{done['parts']:,} parts, {done['records']:,} records, {size}"))
    rows += [("differs", line) for line in described["differences"]]
    click.echo(tabulate(rows, tablefmt="plain", disable_numparse=True))
    for line in described["lines"]:
        click.echo(line)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _count(value: int | None) -> str:
    return "not known before it is read" if value is None else f"{value:,}"


def _megabytes(size_bytes: int | None) -> str:
    return "not known before it is read" if size_bytes is None else f"{size_bytes / 1e6:,.1f} MB"


def _show_manifest(manifest: Manifest, output: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        echo_json(manifest.to_json())
        return
    size_bytes = sum(file.size_bytes for file in manifest.files)
    if not quiet:
        skipped = f", {len(manifest.skipped):,} damaged ones skipped" if manifest.skipped else ""
        files = len(manifest.files)
        say(
            f"{output}: {manifest.records:,} records in {files:,} file{'s' * (files != 1)},"
            f" {size_bytes / 1e6:,.1f} MB{skipped}"
        )


def _show_arrays(output: str, options: Mapping[str, Any] | None) -> None:
    """What each array became: features may have been inferred, and chunks chosen."""
    arrays = inspect_dataset(output, storage_options=options, sizes=False).arrays
    for array in arrays[:_SHOWN_ARRAYS]:
        chunks = "" if array.chunks is None else f", chunks {list(array.chunks)}"
        shards = "" if array.shards is None else f" in shards {list(array.shards)}"
        say(f"  {array.name or 'array'}: {array.dtype} {list(array.shape)}{chunks}{shards}")
    if len(arrays) > _SHOWN_ARRAYS:
        say(f"  and {len(arrays) - _SHOWN_ARRAYS:,} more; windrow inspect {shown_url(output)}")
