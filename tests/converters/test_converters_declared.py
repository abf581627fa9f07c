"""Each conversion is declared once: its function, its Beam transform and its options agree."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import click
import pytest

from windrow import converters
from windrow.cli.convert import CONVERSIONS, command
from windrow.converters import Feature
from windrow.converters.job.declared import OPTIONS, SettingKind, flag_of, flags_of
from windrow.converters.job.job import RunOptions
from windrow.converters.job.manifest import Manifest

DECLARED: dict[str, Any] = {
    name: value
    for module in pkgutil.walk_packages(converters.__path__, "windrow.converters.")
    if module.name != "windrow.converters.beam"
    for name, value in vars(importlib.import_module(module.name)).items()
    if hasattr(value, "conversion") and inspect.isfunction(value)
}
PUBLIC_NAMES: list[str] = vars(converters)["__all__"]
PUBLIC = {name: function for name, function in DECLARED.items() if name in PUBLIC_NAMES}
# Values of each setting that the command line can say, and what it cannot.
SAID: dict[str, list[Any]] = {
    "writer_options": ["zstd:1"],
    "files": [3],
    "records_per_file": [7],
    "shuffle_seed": [0, 1],
    "features": [{"label": {"dtype": "int64"}}],
    "splits": [["train"], ["train", "test"]],
    "names": [["image", "a=b"]],
    "images": [True],
    "field": ["text"],
    "tokenizer": ["tokenizer.json"],
    "end_token": ["<|endoftext|>", 50256],
    "chunk_rows": [2],
    "shard_rows": [0],
    "arrays": [["a", "b/c"], {"new": "a", "b": "b"}],
    "axes": [1, -1, "time", {"time": "records"}],
    "chunks": [2, [2, 3], {"a": 1, "b": [2, 3]}],
    "shards": [0, 4, {"a": 0}],
    "codecs": ["none", "blosc:lz4:5", '[{"name": "crc32c"}]'],
    "dtype": ["float32", {"a": "int8"}, "int16:unsafe"],
    "max_bad_records": [2],
}
UNSAID: dict[str, list[Any]] = {
    "encode": [len],
    "decode": [len],
    "features": [{"label": Feature("int64")}],
    "codecs": [{"a": "none"}],
    "arrays": [["a=b"], {"a=b": "c"}],
    "axes": [{"time": slice(2)}, {"time": ("records", slice(2))}],
}


def test_all_conversions_are_known_to_the_command_line() -> None:
    assert set(CONVERSIONS.values()) == set(DECLARED.values())
    assert DECLARED.keys() - PUBLIC.keys() == {"tfds_to_array_record"}
    assert len(PUBLIC) == 11


def test_every_public_conversion_has_a_transform_that_plans_the_same() -> None:
    beam = pytest.importorskip("windrow.converters.beam")
    transforms = [getattr(beam, name) for name in beam.__all__]
    named = {
        one.__name__.lower(): one.conversion_of
        for one in transforms
        if hasattr(one, "conversion_of")
    }
    assert named == {name.replace("_", ""): one.conversion for name, one in PUBLIC.items()}


@pytest.mark.parametrize("name", DECLARED)
def test_function_and_options_agree(name: str) -> None:
    function = DECLARED[name]
    signature = inspect.signature(function)
    inputs, output, *settings, run = signature.parameters.values()
    assert [one.name for one in settings] == list(function.settings)
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in settings)
    assert (output.name, run.annotation) == ("output", "Unpack[RunOptions]")
    assert signature.return_annotation == "Manifest"
    assert function.__annotations__["return"] is Manifest
    assert inputs.default is inspect.Parameter.empty
    assert not function.settings.keys() & RunOptions.__annotations__.keys()
    options = {one.name: one for one in command.params if isinstance(one, click.Option)}
    left_out = command.make_context("convert", ["in", "out", "--to", "zarr"]).params
    for setting in function.settings:
        option = options[setting]
        assert option.opts == [flag_of(setting)]
        assert option.help == OPTIONS[setting].help
        # Only the function has the default.
        assert left_out[setting] is None
        text = inspect.getdoc(function) or ""
        assert f"\n    {setting}: " in text or "All is as for" in text


def test_no_option_is_for_no_conversion() -> None:
    taken = {setting for function in DECLARED.values() for setting in function.settings}
    assert taken == OPTIONS.keys() - {"memory_bytes"}  # of RunOptions
    assert len({flag_of(setting) for setting in OPTIONS}) == len(OPTIONS)
    assert {option.kind for option in OPTIONS.values()} == set(SettingKind)


@pytest.mark.parametrize("name", DECLARED)
def test_the_command_line_reads_the_settings_that_it_spells(name: str) -> None:
    settings = DECLARED[name].settings
    for setting in settings.keys() & SAID.keys():
        for value in SAID[setting]:
            flags = flags_of("zarr", settings, {setting: value})
            assert flags is not None
            context = command.make_context("convert", ["in", "out", *flags])
            assert context.params[setting] == value
            assert context.params["target"] == "zarr"
    for setting in settings.keys() & UNSAID.keys():
        for value in UNSAID[setting]:
            assert flags_of("zarr", settings, {setting: value}) is None
    defaults = {name: parameter.default for name, parameter in settings.items()}
    assert flags_of("zarr", settings, defaults) == ("--to", "zarr")
    run = {"storage_options": {"key": "secret"}, "memory_bytes": 123_456_789}
    assert flags_of("zarr", settings, run) == ("--to", "zarr", "--memory", "123456789")
