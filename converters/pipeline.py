"""The one shape of pipeline that every conversion runs, on any Beam runner.

    Create(items) | Reshuffle | Map(work) | ToList | Map(finish)

It is linear, since some runners run only the last leaf of a tree, and it reads and writes through
our own functions, since some do not know Beam's. `work` must be idempotent: runners repeat it.

Invariant: `finish` runs only after `work` has succeeded for every item.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from windrow.converters.extras import optional
from windrow.errors import ConversionError, WindrowError

Progress = Callable[[int, int], None]

_PURPOSE = "converting with Apache Beam"


@dataclasses.dataclass
class _Run:
    """What this process knows of a pipeline that it has started."""

    total: int
    progress: Progress | None
    done: int = 0
    error: WindrowError | None = None
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def step(self) -> None:
        with self.lock:
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, self.total)


# Pipelines are pickled, and come back as copies even in this process: a token leads to the run.
# Other processes do not find it; they report no progress, and their errors come as Beam's text.
_RUNS: dict[str, _Run] = {}


def run_pipeline(
    items: Sequence[Any],
    work: Callable[[Any], Any],
    *,
    finish: Callable[[list[Any]], None],
    runner: object | None,
    progress: Progress | None,
) -> None:
    """Call `work` on every item, then `finish` on the list of results, which is in any order.

    Args:
        items: What to work on; picklable.
        work: Picklable and idempotent.
        finish: Picklable and idempotent.
        runner: A Beam runner or its name; by default the one that works in this process.
        progress: Called in this process with the number of items done and of all, one call at a
            time, from any thread. Only runners that work in this process can report.

    Raises:
        WindrowError: What `work` or `finish` raised, if they ran in this process.
        ConversionError: If the pipeline failed in another way.
        MissingExtraError: If Apache Beam is not installed.
    """
    beam = optional("apache_beam", _PURPOSE)
    options = optional("apache_beam.options.pipeline_options", _PURPOSE)
    if runner is None:
        # By its full name: DirectRunner first tries to download another runner.
        runners = optional("apache_beam.runners.portability.fn_api_runner.fn_runner", _PURPOSE)
        runner = runners.FnApiRunner()
    token = uuid.uuid4().hex
    run = _RUNS[token] = _Run(total=len(items), progress=progress)
    try:
        # An empty list of flags: the default is to parse this program's own.
        pipeline = beam.Pipeline(runner=runner, options=options.PipelineOptions([]))
        _ = (
            pipeline
            | "Items" >> beam.Create(items)
            | "Spread" >> beam.Reshuffle()
            | "Work" >> beam.Map(functools.partial(_work, token, work))
            | "Collect" >> beam.combiners.ToList()
            | "Finish" >> beam.Map(functools.partial(_finish, token, finish))
        )
        state = pipeline.run().wait_until_finish()
    except Exception as error:
        if run.error is not None:
            raise run.error from error
        raise ConversionError(f"the Beam pipeline failed: {error}") from error
    finally:
        del _RUNS[token]
    if state != "DONE":
        raise ConversionError(
            f"the Beam pipeline ended in the state {state}, not DONE; see its log"
        )


def _work(token: str, work: Callable[[Any], Any], item: Any) -> Any:
    result = _noting_errors(token, work, item)
    run = _RUNS.get(token)
    if run is not None:
        run.step()
    return result


def _finish(token: str, finish: Callable[[list[Any]], None], results: list[Any]) -> None:
    _noting_errors(token, finish, results)


def _noting_errors(token: str, function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except WindrowError as error:
        run = _RUNS.get(token)
        if run is not None and run.error is None:
            # A copy: Beam writes the name of the step into the one that it sees.
            run.error = type(error)(str(error))
            run.error.__cause__ = error.__cause__
        raise
