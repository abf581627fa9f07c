"""`windrow convert`: detects the input format, picks the conversion and runs it.

The options are the settings of the conversion functions, as `windrow.converters.job.declared` spells
them. An option that the picked conversion does not take is refused, so only the function of a
conversion defines what it takes.

Invariant: `--dry-run` writes nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from windrow.cli.main import (
    Function,
    echo_json,
    examples,
    json_option,
    json_or_text,
    key_value_option,
    quiet_option,
    say,
    storage_option,
)
from windrow.cli.named import function_named
from windrow.converters.job.declared import OPTIONS, ConversionFunction, SettingKind, flag_of
from windrow.converters.job.job import RunOptions, carry_out, describe
from windrow.converters.job.manifest import Manifest
from windrow.converters.job.stages import Conversion
from windrow.converters.records.array_record import tfrecord_to_array_record
from windrow.converters.records.reshard import array_record_to_array_record
from windrow.converters.texts.conversions import (
    json_lines_to_array_record,
    json_lines_to_zarr,
    parquet_to_array_record,
    parquet_to_zarr,
)
from windrow.converters.tfds.conversions import tfds_to_array_record, tfds_to_zarr
from windrow.converters.zarr.from_records import array_record_to_zarr, tfrecord_to_zarr
from windrow.converters.zarr.rechunk import zarr_to_zarr
from windrow.converters.zarr.to_records import zarr_to_array_record
from windrow.core.redaction import shown_url
from windrow.core.text import TextTable, counted, listing, shortened
from windrow.formats.inspect import inspect as inspect_dataset
from windrow.formats.table import conversion_source
from windrow.sources.location import location_of

CONVERSIONS: Final[Mapping[tuple[str, str], ConversionFunction[...]]] = {
    ("tfrecord", "array_record"): tfrecord_to_array_record,
    ("tfrecord", "zarr"): tfrecord_to_zarr,
    ("array_record", "array_record"): array_record_to_array_record,
    ("array_record", "zarr"): array_record_to_zarr,
    ("tfds", "zarr"): tfds_to_zarr,
    ("tfds", "array_record"): tfds_to_array_record,
    ("zarr", "array_record"): zarr_to_array_record,
    ("zarr", "zarr"): zarr_to_zarr,
    ("netcdf", "zarr"): zarr_to_zarr,
    ("netcdf", "array_record"): zarr_to_array_record,
    ("json_lines", "array_record"): json_lines_to_array_record,
    ("json_lines", "zarr"): json_lines_to_zarr,
    ("parquet", "array_record"): parquet_to_array_record,
    ("parquet", "zarr"): parquet_to_zarr,
}
_SOURCES: Final = tuple(dict.fromkeys(source for source, _ in CONVERSIONS))
_TARGETS: Final = tuple(dict.fromkeys(target for _, target in CONVERSIONS))
# Options that a command which resumes a conversion does not repeat, and options that may hold secrets.
_ONCE: Final = frozenset({"--overwrite", "--take-over"})
_SECRET: Final = frozenset({"--storage-option", "--output-option"})
_STATES: Final = {
    "new": "new: DST holds nothing yet",
    "unfinished": "begun: resumes with the remaining parts",
    "finished": "finished: nothing left to do",
    "other": "DST holds another conversion: refused without --overwrite",
    "foreign": "DST holds files that no conversion wrote: refused",
}
_SHOWN_CHARACTERS: Final = 100
_SHOWN_ARRAYS: Final = 20
_RAW: Final = "windrow.raw_arguments"
_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS_2: Final = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)", re.IGNORECASE)


def _size(text: str) -> int:
    """Parse a number of bytes, such as 512MB, 2GiB or 1000000."""
    match = _SIZE.fullmatch(text.strip())
    unit = {**_UNITS, **_UNITS_2}.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise click.BadParameter(f"{text!r} is not a size; write 512MB, 2GiB or a number of bytes")
    return int(float(match[1]) * unit)


def _json(text: str) -> Any:
    """Parse a JSON value, or the JSON file of that name."""
    content = text
    if os.path.isfile(text):
        with open(text, encoding="utf-8") as file:
            content = file.read()
    try:
        return json.loads(content)
    except ValueError as error:
        what = "neither a file nor JSON" if content is text else "a file that is not JSON"
        raise click.BadParameter(f"{text!r} is {what}: {error}") from error


def _parse_renames(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """Turn `NAME` and `NEW=NAME` into a list of names, or into a dict if any is renamed."""
    if not values:
        return None
    if not any("=" in value for value in values):
        return list(values)
    pairs = [value.partition("=") for value in values]
    return {new: old if equals else new for new, equals, old in pairs}


def _list_or_none(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """Return the values as a list, or None if there are no values."""
    return list(values) or None


# How the command line reads each kind of setting. An option that is not given is None, and the function
# applies its own default.
_KINDS: Final[Mapping[SettingKind, Mapping[str, Any]]] = {
    SettingKind.TEXT: {},
    SettingKind.INTEGER: {"type": int},
    SettingKind.SIZE: {"type": _size, "metavar": "SIZE"},
    SettingKind.FLAG: {"is_flag": True, "default": None},
    SettingKind.JSON: {"type": _json, "metavar": "JSON"},
    SettingKind.JSON_OR_TEXT: {"type": json_or_text, "metavar": "VALUE"},
    SettingKind.FUNCTION: {"type": function_named, "metavar": "MODULE:NAME"},
    SettingKind.LIST: {"multiple": True, "callback": _list_or_none, "metavar": "NAME"},
    SettingKind.RENAMED: {"multiple": True, "callback": _parse_renames, "metavar": "[NEW=]NAME"},
}
# Options for what is written; each is a setting of some conversions.
_WHAT: Final = tuple(
    click.option(flag_of(name), name, help=option.help, **_KINDS[option.kind])
    for name, option in OPTIONS.items()
)
# Options for how the conversion runs: the fields of RunOptions.
_HOW: Final = (
    click.option("--overwrite", is_flag=True, help="Remove what another conversion wrote to DST."),
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
    click.option(
        "--runner", help="A Beam runner, such as DataflowRunner; needs windrow-data[beam]."
    ),
    click.option(
        "--pipeline-option",
        "pipeline_options",
        multiple=True,
        callback=_list_or_none,
        metavar="FLAG",
        help="An option of Beam, such as --region=us-west1; may be repeated.",
    ),
    key_value_option(
        "--output-option",
        "output_options",
        "An option of fsspec for DST. [the options of --storage-option]",
    ),
)


def _options(*groups: tuple[Any, ...]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed([option for group in groups for option in group]):
            function = option(function)
        return function

    return decorate


class _Command(click.Command):
    """A command that keeps its arguments as the user wrote them."""

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
        "windrow convert 'docs-*.jsonl.gz' tokens --to zarr --field text --tokenizer tokenizer.json",
    ),
)
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.argument("output", metavar="DST")
@click.option("--to", "target", required=True, type=click.Choice(_TARGETS), help="What to write.")
@click.option("--from", "source", type=click.Choice(_SOURCES), help="Format of SRC. [detected]")
@click.option("--dry-run", is_flag=True, help="Print what would be done, but write nothing.")
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
    **settings: Any,
) -> None:
    """Convert SRC (paths, globs, folders or URLs) to a dataset in the folder or URL DST.

    Run the same command again to resume a conversion that was stopped. DST is complete once it has a
    windrow_manifest.json; until then Windrow refuses to open it.
    """
    raw = click.get_current_context().meta[_RAW]
    run: Any = {name: settings.pop(name) for name in RunOptions.__annotations__ if name in settings}
    options = run["output_options"] = dict(run["output_options"] or storage_options) or None
    run["storage_options"] = dict(storage_options) or None
    with warnings.catch_warnings(record=True) as notes:
        planned = _plan_conversion(sources, source, target, run, settings)
    for note in notes:
        click.echo(f"windrow convert: {note.message}", err=True)
    resume = shlex.join(["windrow", "convert", *_resume_arguments(raw)])
    conversion = dataclasses.replace(planned, command=resume)
    if dry_run:
        _show_plan(describe(conversion, output, output_options=options), as_json=as_json)
        return
    manifest = carry_out(conversion, output, progress=not quiet, **run)
    _show_manifest(manifest, output, as_json=as_json, quiet=quiet)
    if target == "zarr" and not (as_json or quiet):
        _show_arrays(output, options)


def _resume_arguments(raw: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of the command that resumes: without one-time options and without secrets."""
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


def _plan_conversion(
    sources: tuple[str, ...],
    source: str | None,
    target: str,
    run: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Conversion:
    """Return the conversion that the arguments ask for; `run` has the fields of `RunOptions`."""
    if (kind := source) is None:
        kind = conversion_source(location_of(sources[0], run["storage_options"], caller="convert"))
    function = CONVERSIONS.get((kind, target))
    if function is None:
        there = ", ".join(to for source, to in CONVERSIONS if source == kind)
        raise click.UsageError(f"there is no conversion from {kind} to {target}, only to {there}")
    given = {name: value for name, value in settings.items() if value is not None}
    taken = function.settings.keys()
    for name in given:
        if name not in taken:
            flag = flag_of(name)
            near = difflib.get_close_matches(name, taken & settings.keys(), cutoff=0.5)
            hint = f"; it takes {flag_of(near[0])}" if near else ""
            raise click.UsageError(
                f"{flag}: a conversion from {kind} to {target} does not take it{hint}"
            )
    inputs: Any = sources if len(sources) > 1 else sources[0]
    planning = {name: run[name] for name in ("storage_options", "memory_bytes") if run[name]}
    return function.conversion(inputs, **planning, **given)


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
        rows.append(
            ("done", f"{counted(done['parts'], 'part')}, {counted(done['files'], 'file')}, {size}")
        )
    rows += [("differs", line) for line in described["differences"]]
    click.echo(TextTable("", (), rows).to_text())
    for line in described["lines"]:
        click.echo(line)


def _short(value: object) -> str:
    if isinstance(value, Mapping) and any(isinstance(item, Mapping) for item in value.values()):
        return listing(list(value))  # features and arrays, whose settings are in --json
    text = value if isinstance(value, str) else json.dumps(value)
    return shortened(text, _SHOWN_CHARACTERS)


def _count(value: int | None) -> str:
    return "not known before it is read" if value is None else f"{value:,}"


def _megabytes(size_bytes: int | None) -> str:
    return "not known before it is read" if size_bytes is None else f"{size_bytes / 1e6:,.1f} MB"


def _show_manifest(manifest: Manifest, output: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        echo_json(manifest.to_json())
        return
    if not quiet:
        size = _megabytes(sum(file.size_bytes for file in manifest.files))
        skipped = f", {len(manifest.skipped):,} damaged ones skipped" if manifest.skipped else ""
        files = counted(len(manifest.files), "file")
        say(f"{output}: {manifest.records:,} records in {files}, {size}{skipped}")


def _show_arrays(output: str, options: Mapping[str, Any] | None) -> None:
    """Print each array as written, since features may be inferred and chunks chosen."""
    arrays = inspect_dataset(output, storage_options=options, sizes=False).arrays
    for array in arrays[:_SHOWN_ARRAYS]:
        chunks = "" if array.chunks is None else f", chunks {list(array.chunks)}"
        shards = "" if array.shards is None else f" in shards {list(array.shards)}"
        say(f"  {array.name or 'array'}: {array.dtype} {list(array.shape)}{chunks}{shards}")
    if len(arrays) > _SHOWN_ARRAYS:
        say(f"  and {len(arrays) - _SHOWN_ARRAYS:,} more; windrow inspect {shown_url(output)}")
