"""The command line: `windrow convert`, `inspect`, `verify`, `bench`, `explain` and others.

Each command is a module of this package that exports a `click.Command` named `command`. Only the
module of the called command is imported. This module holds what the commands share: reading options
and turning errors into exit codes.

Invariants: data goes to stdout and messages go to stderr; an error that Windrow raises on purpose, or
that the operating system reports, prints one message without a traceback; the exit codes are the
constants of this module.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
import click.shell_completion

from windrow.core.text import tables_within
from windrow.errors import (
    ArgumentError,
    MissingExtraError,
    NotFoundError,
    PlanError,
    WindrowError,
)

DONE: Final = 0
BAD_DATA: Final = 1
BAD_ARGUMENTS: Final = 2
INTERRUPTED: Final = 130
# What a shell reports for a program that SIGPIPE ended: the reader has left, and the data may be good.
PIPE_CLOSED: Final = 141

# The lines of `windrow --help`, which must not import the commands.
_COMMANDS: Final[Mapping[str, str]] = {
    "convert": "Convert TFRecord, ArrayRecord, Zarr or NetCDF to a format that training reads fast.",
    "inspect": "Show what is at a path or URL, with pictures if asked.",
    "verify": "Read everything once and report every bad chunk.",
    "cache": "Show, verify and clear the cache on disk of remote data.",
    "bench": "Measure reading in order, block-shuffled and globally shuffled.",
    "explain": "Predict what a dataset of your program will read, decode and hold.",
    "report": "Write a page about a dataset of your program.",
    "tfds-build": "Build a dataset of TensorFlow Datasets, and Zarr copies of it if wanted.",
}
_REFUSED_ARGUMENTS: Final = (
    ArgumentError,
    NotFoundError,
    MissingExtraError,
    PlanError,
    FileNotFoundError,
)
_LOGGER: Final = "windrow"
# A shell that completes a command line sets it: see docs/commands.md.
_COMPLETE: Final = "_WINDROW_COMPLETE"

Function = TypeVar("Function", bound=Callable[..., Any])


class _Commands(click.Group):
    """The commands by name; each is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = importlib.import_module(
            f"windrow.cli.{cmd_name.replace('-', '_')}"
        ).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            if not near:
                raise
            text = f"{error.message} Did you mean {near[0]!r}?"
            raise click.UsageError(text, ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def examples(*lines: str) -> str:
    """Format examples for the end of a command's help: `click.command(..., epilog=examples(...))`."""
    # A lone backspace makes click leave the lines that follow as they are.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from windrow import __version__
        from windrow.core.native import native

        click.echo(f"windrow {__version__}\nnative core: {'no' if native() is None else 'yes'}")
        ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "windrow inspect gs://bucket/era5.zarr",
        "windrow convert 'digits.tfrecord-*' digits --to array_record",
        "windrow verify digits",
        "windrow bench digits",
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version, and whether the native core is there.",
)
def windrow() -> None:
    """Data loading for training: convert, inspect, verify and measure data sets.

    `windrow COMMAND --help` explains a command and its options. Data goes to stdout, messages go to
    stderr. Exit codes: 0 done, 1 bad data, 2 bad arguments, 130 stopped by Ctrl-C.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: The arguments, without the program's name; None for the arguments of this process.
    """
    if argv is None and _COMPLETE in os.environ:
        return click.shell_completion.shell_complete(
            windrow, {}, "windrow", _COMPLETE, os.environ[_COMPLETE]
        )
    context: click.Context | None = None
    handler = logging.StreamHandler()
    logger = logging.getLogger(_LOGGER)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        args = list(sys.argv[1:] if argv is None else argv)
        with windrow.make_context("windrow", args) as context, tables_within(_columns()):
            windrow.invoke(context)
        # Flush here, where a broken pipe can still be distinguished from other errors.
        if sys.stdout is not None:  # None if the program was started with stdout closed
            sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        say(f"{_program_name(context)}: stopped")
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return PIPE_CLOSED
    except (WindrowError, OSError) as error:
        say(f"{_program_name(context)}: {_message(error, context)}")
        return exit_code(error)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return DONE


def _columns() -> int | None:
    """The characters of a line of stdout; None if it is not a terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def exit_code(error: Exception) -> int:
    """Return the exit code of an error: bad arguments or bad data."""
    return BAD_ARGUMENTS if isinstance(error, _REFUSED_ARGUMENTS) else BAD_DATA


def say(message: str) -> None:
    """Write a message for people to stderr."""
    click.echo(message, err=True)


def echo_json(value: Any) -> None:
    """Write `value` to stdout as JSON. Non-finite numbers (NaN, infinities) become null."""
    click.echo(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def show(report: Any, *, as_json: bool) -> None:
    """Write a report to stdout, as text or, from its `to_json()`, as JSON."""
    if as_json:
        echo_json(report.to_json())
    else:
        click.echo(str(report))


def json_option(function: Function) -> Function:
    """Add the option `--json`, which the function gets as `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")(function)


def quiet_option(function: Function) -> Function:
    """Add the option `--quiet`, which the function gets as `quiet: bool`; it also hides info logs."""

    def hush(_: click.Context, __: click.Parameter, quiet: bool) -> bool:
        if quiet:
            logging.getLogger(_LOGGER).setLevel(logging.WARNING)
        return quiet

    return click.option(
        "-q",
        "--quiet",
        is_flag=True,
        callback=hush,
        help="Print no progress and no messages, except errors.",
    )(function)


def key_value_option(flag: str, name: str, help: str) -> Callable[[Function], Function]:
    """Make a repeatable option `FLAG KEY=VALUE`, which the function gets as `name: dict[str, Any]`.

    Values that are JSON are parsed, others are strings: `anon=true` is a bool, `key=abc` a string.
    """

    def parse(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for text in values:
            key, equals, value = text.partition("=")
            if not equals or not key:
                # The value may be a secret: it is not repeated.
                raise click.BadParameter("write KEY=VALUE, such as anon=true")
            found[key] = json_or_text(value)
        return found

    return click.option(flag, name, metavar="KEY=VALUE", multiple=True, callback=parse, help=help)


def storage_option(function: Function) -> Function:
    """Add the option `--storage-option`, which the function gets as `storage_options: dict[str, Any]`."""
    return key_value_option(
        "--storage-option",
        "storage_options",
        "An option of fsspec for URLs, such as anon=true; may be repeated. Values that are JSON are"
        " parsed.",
    )(function)


def shared_options(function: Function) -> Function:
    """Add the options `--storage-option`, `--json` and `--quiet`."""
    return storage_option(json_option(quiet_option(function)))


def json_or_text(text: str) -> Any:
    """Parse a JSON value; anything else stays a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _program_name(context: click.Context | None) -> str:
    name = context.invoked_subcommand if context else None
    return f"windrow {name}" if name else "windrow"


def _message(error: Exception, context: click.Context | None) -> str:
    text = str(error) or type(error).__name__
    # Errors of the function that a command calls begin with its name.
    name = context.invoked_subcommand if context else None
    return text.removeprefix(f"{name}: ")


def _discard_stdout() -> None:
    """Discard what is still buffered, so that the interpreter exits silently."""
    # A stdout that is not a file, such as a notebook's, has nothing buffered.
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
