"""Declared conversions: one function defines the arguments, and all forms follow from it.

A conversion is declared by the function that plans it. Its parameters are the inputs, the output, the
settings (with their types and defaults) and how it runs; its docstring is the help:

    @declared
    def a_to_b(
        inputs: Paths, output: str, *, files: int | None = None, **run: Unpack[RunOptions]
    ) -> Conversion:
        ...

The decorator makes three things of it:

1. the public function `a_to_b`, of the same parameters, which carries the conversion out and returns
   its manifest;
2. `a_to_b.conversion(inputs, files=4)`, the conversion that is planned and not begun, which the Beam
   transform and `windrow convert` take;
3. the flags of the command that resumes the conversion, spelled as `OPTIONS` has it.

Invariant: the signature alone has the name, type and default of a setting, and `OPTIONS` alone has
its spelling on the command line, and the least and most of an integer.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, ParamSpec, Protocol, cast

from windrow.converters.job.inputs import source_texts
from windrow.converters.job.job import MEMORY_BYTES, carry_out
from windrow.converters.job.manifest import Manifest, as_json
from windrow.converters.job.stages import Conversion, check_integer

P = ParamSpec("P")


class SettingKind(enum.Enum):
    """How the value of a setting is spelled on the command line."""

    TEXT = enum.auto()
    INTEGER = enum.auto()
    SIZE = enum.auto()  # bytes: 512MB
    FLAG = enum.auto()  # given or not
    JSON = enum.auto()
    JSON_OR_TEXT = enum.auto()
    FUNCTION = enum.auto()  # module:name
    LIST = enum.auto()  # once for each value
    RENAMED = enum.auto()  # once for each value, NAME or NEW=NAME


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """The option of `windrow convert` for one setting: its help, and its flag if that is not `--SETTING`.

    Integers from `least` to `most` are allowed, in calls too; any if there is no `least`.
    """

    kind: SettingKind
    help: str
    flag: str = ""
    least: int | None = None
    most: int | None = None


MOST_FILES: Final = 99_999

# `windrow convert --help` lists them in this order. A setting without an option is for calls alone.
OPTIONS: Final[Mapping[str, Option]] = {
    "writer_options": Option(SettingKind.TEXT, "ArrayRecord: such as group_size:1,zstd:3."),
    "files": Option(
        SettingKind.INTEGER, "ArrayRecord: number of files to write.", least=1, most=MOST_FILES
    ),
    "records_per_file": Option(
        SettingKind.INTEGER, "ArrayRecord: records in each file.", least=1, most=1 << 62
    ),
    "shuffle_seed": Option(
        SettingKind.INTEGER,
        "ArrayRecord: shuffle all records by this seed.",
        least=0,
        most=2**32 - 1,
    ),
    "encode": Option(SettingKind.FUNCTION, "ArrayRecord: from a dict of a row to bytes."),
    "decode": Option(SettingKind.FUNCTION, "Zarr: from a record's bytes to a dict."),
    "features": Option(
        SettingKind.JSON,
        "Zarr: what the features of tf.train.Examples, or fields of JSON Lines, are.",
    ),
    "splits": Option(
        SettingKind.LIST,
        "tfds: a split to convert, by default all; may be repeated. To ArrayRecord, one.",
        "--split",
    ),
    "names": Option(
        SettingKind.LIST,
        "tfds, Parquet, JSON Lines: a feature or field to take, by default all; may be repeated.",
        "--name",
    ),
    "field": Option(SettingKind.TEXT, "Parquet, JSON Lines: the field with the text."),
    "tokenizer": Option(
        SettingKind.TEXT, "A tokenizer.json, which makes tokens of the field with the text."
    ),
    "end_token": Option(
        SettingKind.JSON_OR_TEXT, "The name or id of a token to add to the end of each document."
    ),
    "images": Option(
        SettingKind.FLAG,
        "tfds: decode images, which stay encoded else; needs windrow-data[images].",
    ),
    "chunk_rows": Option(SettingKind.INTEGER, "Zarr: records per chunk."),
    "shard_rows": Option(SettingKind.INTEGER, "Zarr: records per shard; 0 for no shards."),
    "arrays": Option(
        SettingKind.RENAMED,
        "Zarr: an array to take, under another name if wanted; may be repeated.",
        "--array",
    ),
    "axes": Option(
        SettingKind.JSON_OR_TEXT, "Zarr: the axis, or dimension, of records.", "--record-axis"
    ),
    "chunks": Option(
        SettingKind.JSON,
        'Zarr: rows per chunk, such as 1, or a shape, [1,33,49], or one by array, {"t2m": 1}, or by'
        ' dimension, {"time": 24}.',
    ),
    "shards": Option(SettingKind.JSON, "Zarr: as --chunks, in whole chunks; 0 for no shards."),
    "codecs": Option(SettingKind.TEXT, "Zarr: zstd:1, gzip:5, blosc:lz4:5, none, or JSON."),
    "dtype": Option(
        SettingKind.JSON_OR_TEXT,
        "Zarr: the dtype to write, or one by array; int16:unsafe takes values that do not fit.",
    ),
    "max_bad_records": Option(
        SettingKind.INTEGER, "Damaged records to skip before it is an error.", least=0
    ),
    "memory_bytes": Option(SettingKind.SIZE, "Budget, such as 512MB.", "--memory"),
}
# The fields of `RunOptions` that planning takes too. No command repeats the first, which may be secret.
_PLANNED_BY: Final = frozenset({"storage_options", "memory_bytes"})


def flag_of(setting: str) -> str:
    """The flag of a setting: `--chunk-rows` of `chunk_rows`."""
    option = OPTIONS.get(setting)
    return (option and option.flag) or "--" + setting.replace("_", "-")


class ConversionFunction(Protocol[P]):
    """A public function that converts, made by `declared`."""

    __name__: str
    __doc__: str | None

    settings: Mapping[str, inspect.Parameter]
    """The settings by name: all parameters except the inputs, the output and `RunOptions`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Manifest:
        """Carry the conversion out."""
        ...

    def conversion(self, inputs: Any, /, **settings: Any) -> Conversion:
        """Plan the conversion of `inputs`, without beginning it."""
        ...


def declared(plan: Callable[P, Conversion]) -> ConversionFunction[P]:
    """Return the function that carries out what `plan` plans.

    Args:
        plan: Takes the inputs, the output, settings by keyword and `RunOptions`, and plans by the
            inputs, the settings, `storage_options` and `memory_bytes` alone. If it leaves out `sources` and `flags` of the conversion,
            they are made from its arguments.
    """
    signature = inspect.signature(plan)
    named = signature.parameters.values()
    settings = {one.name: one for one in named if one.kind is inspect.Parameter.KEYWORD_ONLY}

    def completed(planned: Conversion, inputs: Any, given: Mapping[str, Any]) -> Conversion:
        if planned.sources:
            return planned
        flags = flags_of(planned.plan.format, settings, given)
        return dataclasses.replace(planned, sources=source_texts(inputs), flags=flags)

    def conversion(inputs: Any, /, **given: Any) -> Conversion:
        for name in given:
            if name not in settings and name not in _PLANNED_BY:
                raise TypeError(f"{plan.__name__}() got an unexpected keyword argument {name!r}")
        check_integers(settings, given)
        anywhere: Any = plan
        return completed(anywhere(inputs, "", **given), inputs, given)

    @functools.wraps(plan)
    def carried_out(*args: P.args, **kwargs: P.kwargs) -> Manifest:
        check_integers(settings, kwargs)
        planned = plan(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        inputs, output, *_ = bound.args
        run = {name: value for name, value in bound.kwargs.items() if name not in settings}
        return carry_out(completed(planned, inputs, bound.kwargs), output, **cast(Any, run))

    made: Any = carried_out
    made.__annotations__ = {**plan.__annotations__, "return": Manifest}
    made.__signature__ = signature.replace(return_annotation="Manifest")
    made.settings, made.conversion = settings, conversion
    function: ConversionFunction[P] = made
    return function


def check_integers(settings: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> None:
    """Refuse integers that their options do not allow.

    Raises:
        ArgumentError: If one is out of range, or of another kind.
    """
    for name, parameter in settings.items():
        option, value = OPTIONS.get(name), given.get(name, parameter.default)
        if option is not None and option.least is not None and value is not parameter.default:
            check_integer(name, value, option.least, option.most)


def flags_of(
    target: str, settings: Mapping[str, inspect.Parameter], given: Mapping[str, Any]
) -> tuple[str, ...] | None:
    """Return the settings as the command line takes them, without defaults; None if it cannot."""
    flags = ["--to", target]
    for name, parameter in settings.items():
        value = given.get(name, parameter.default)
        if value is parameter.default or value == parameter.default:
            continue
        texts = _texts(OPTIONS[name].kind, value) if name in OPTIONS else None
        if texts is None:
            return None
        for text in texts:
            flags += [flag_of(name), *text]
    memory_bytes = given.get("memory_bytes", MEMORY_BYTES)
    if memory_bytes != MEMORY_BYTES:
        flags += [flag_of("memory_bytes"), str(memory_bytes)]
    return tuple(flags)


def _texts(kind: SettingKind, value: Any) -> Iterator[list[str]] | None:
    """Yield a value as an option takes it, once or repeated; None if it cannot be spelled."""
    match kind, value:
        case SettingKind.FLAG, _:
            return iter([[]] if value else [])
        case SettingKind.LIST, _:
            return iter([[name] for name in value])
        case SettingKind.RENAMED, _:
            # A name with '=' would be read as two names.
            if any("=" in name for name in value):
                return None
            renamed = value.items() if isinstance(value, Mapping) else ()
            pairs = [[f"{new}={name}"] for new, name in renamed]
            return iter(pairs or [[name] for name in value])
        case (SettingKind.FUNCTION, _) | (SettingKind.TEXT, Mapping()):
            return None
        case _, str():
            return iter([[value]])
    try:
        return iter([[json.dumps(as_json(value))]])
    except (TypeError, ValueError):
        return None
