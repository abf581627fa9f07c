"""`windrow records`: lists what a step of a run was made of, from the history that the run kept.

Invariant: only the history is read, never the data.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from windrow.cli.main import echo_json, examples, json_option, quiet_option, say
from windrow.core.text import TextTable, counted, listing, shortened

if TYPE_CHECKING:
    from windrow.history import History, PartOfStep, StepRecords


@click.command(
    "records",
    epilog=examples(
        "windrow records run.history --step 81200",
        "windrow records 'histories/process-*' --row 1000000 --json",
        "windrow records run.history",
    ),
)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option(
    "--step",
    type=click.IntRange(min=0),
    help="The step, counted from 0 from the start of the run on, through all restarts.",
)
@click.option(
    "--row", type=click.IntRange(min=0), help="The step that has this row of the stream, from 0."
)
@json_option
@quiet_option
def command(
    logs: Sequence[str], step: int | None, row: int | None, as_json: bool, quiet: bool
) -> None:
    """List the records of a step of a run, from its history. The data is not needed.

    LOG is a file that `iterator.keep_history` wrote. Give the files of all processes of a run, or a glob
    of them, for the records of all processes. Without --step and --row it lists the starts of the run.
    A step that was run again after a restart is listed as it was the last time.
    """
    from windrow.history import read

    if step is not None and row is not None:
        raise click.UsageError("give --step or --row, not both")
    with read(logs) as history:
        if step is None and row is None:
            _show_starts(history, as_json=as_json)
        else:
            found = (
                history.row(row) if step is None and row is not None else history.step(step or 0)
            )
            if as_json:
                echo_json(found.to_json())
            else:
                click.echo("\n\n".join(_shown(found)))
        if not quiet:
            _say_what_is_missing(history)


def _shown(step: StepRecords) -> Iterator[str]:
    first, stop = step.rows
    head = f"step {step.step}: rows {first} to {stop - 1}"
    if step.times > 1:
        head += f"; it was run {step.times} times, and this is the last time"
    if step.missing:
        head += f"; not in {listing(step.missing)}"
    yield head
    for part in step.parts:
        where = " of ".join(filter(None, [part.shard, part.file]))
        names = [f"source {n}: {source.text}" for n, source in enumerate(part.sources)]
        yield "\n".join([where, *names])
        yield _table(part).to_text()


def _table(part: PartOfStep) -> TextTable:
    rows: list[tuple[str, ...]] = []
    lists = [each for each in part.records if isinstance(each, list)]
    for number, names in enumerate(lists):
        rows += [(str(number), str(name.source), str(name.record)) for name in names]
    if lists:
        return TextTable("", ("packed row", "source", "record"), rows)
    alone = [name for name in part.records if not isinstance(name, list)]
    rows = [(str(name.source), str(name.record)) for name in alone]
    return TextTable("", ("source", "record"), rows)


def _show_starts(history: History, *, as_json: bool) -> None:
    starts = history.starts
    if as_json:
        found: list[dict[str, Any]] = [
            {**dataclasses.asdict(start), "started": _time(start.time_s)} for start in starts
        ]
        echo_json({"steps": [history.steps.start, history.steps.stop], "starts": found})
        return
    rows = [
        (
            _time(start.time_s),
            _range(*start.rows),
            _range(*start.steps),
            f"{start.batch:,}",
            str(len(start.files)),
            shortened(start.chain),
        )
        for start in starts
    ]
    heads = ("start", "rows", "steps that count", "batch", "files", "chain")
    click.echo(counted(len(history.steps), "step"))
    click.echo(TextTable("", heads, rows).to_text())


def _time(time_s: float) -> str:
    found = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    return found.isoformat(" ", "seconds").replace("+00:00", " UTC")


def _range(first: int, stop: int) -> str:
    return f"{first} to {stop - 1}" if first < stop else "none"


def _say_what_is_missing(history: History) -> None:
    for file, first, stop in history.gaps:
        say(f"windrow records: {file} has a gap: rows {first} to {stop - 1} could not be written")
    for file, first, stop in history.torn:
        say(
            f"windrow records: {file}: bytes {first} to {stop - 1} are not whole, and were passed over"
        )
