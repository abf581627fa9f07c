"""The one shape of pipeline that a conversion has on a Beam runner.

    Create | (FlatMap(items) | Reshuffle | Map(work) | ToList) for each stage | Map(finish)

It is linear, since some runners run only the last leaf of a tree, and it reads and writes through
our own functions, since some do not know Beam's. Work is idempotent: runners repeat it.

Invariant: a stage begins only after the work of the one before has succeeded for every item.
"""

from __future__ import annotations

import functools
import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from windrow.converters.extras import optional
from windrow.converters.folder import OutputFolder
from windrow.converters.stages import Conversion, Report, Stage
from windrow.errors import ArgumentError, ConversionError, WindrowError
from windrow.progress import Meter, ShowProgress

_PURPOSE = "converting with Apache Beam"


class _Run:
    """What this process knows of a pipeline that it has started."""

    def __init__(self, show: ShowProgress) -> None:
        self._show = show
        self._meter: Meter | None = None
        self._stage = ""
        self._lock = threading.Lock()
        self.error: WindrowError | None = None

    def report(self, stage: str, records: int, done_bytes: int) -> None:
        with self._lock:
            if self._stage != stage:
                self.close()
                self._stage, self._meter = stage, Meter(stage, None, self._show).__enter__()
            meter = self._meter
        if meter is not None:
            meter.add(records, done_bytes)

    def close(self) -> None:
        if self._meter is not None:
            self._meter.__exit__(None, None, None)
            self._meter = None


# Pipelines are pickled, and come back as copies even in this process: a token leads to the run.
# Other processes do not find it; they report no progress, and their errors come as Beam's text.
_RUNS: dict[str, _Run] = {}


def run_pipeline(
    conversion: Conversion,
    folder: OutputFolder,
    *,
    runner: object | None,
    options: object | None,
    show: ShowProgress,
) -> None:
    """Carry out `conversion` by a Beam pipeline, and wait until it is done.

    Args:
        conversion: What is to be done.
        folder: Ready to be written; all workers have to see it.
        runner: A Beam runner or its name; by default what `options` say, else one in this process.
        options: Flags, or Beam's `PipelineOptions`.
        show: As for `Meter`; only what runs in this process can report.

    Raises:
        WindrowError: What the work raised, if it ran in this process.
        ConversionError: If the pipeline failed in another way.
        MissingExtraError: If Apache Beam is not installed.
    """
    beam = optional("apache_beam", _PURPOSE)
    token = uuid.uuid4().hex
    run = _RUNS[token] = _Run(show)
    try:
        with _quiet():
            parsed = _parsed(options)
            pipeline = beam.Pipeline(runner=_runner(runner, parsed), options=parsed)
            _ = pipeline | "Begin" >> beam.Create([None]) | transform(conversion, folder, token)
            state = pipeline.run().wait_until_finish()
    except Exception as error:
        if run.error is not None:
            raise run.error from error
        if isinstance(error, WindrowError):
            raise
        raise ConversionError(f"the Beam pipeline failed: {error}") from error
    finally:
        run.close()
        del _RUNS[token]
    if state != "DONE":
        raise ConversionError(
            f"the Beam pipeline ended in the state {state}, not DONE; see its log"
        )


def transform(conversion: Conversion, folder: OutputFolder, token: str = "") -> Any:
    """The stages of `conversion` as one PTransform, on a collection of one element."""
    beam = optional("apache_beam", _PURPOSE)

    def expand(begin: Any) -> Any:
        results = begin | "No results" >> beam.Map(lambda _: [])
        for stage in conversion.stages:
            name = stage.name
            results = (
                results
                | f"{name}: items" >> beam.FlatMap(functools.partial(_items, token, stage, folder))
                | f"{name}: spread" >> beam.Reshuffle()
                | f"{name}: work" >> beam.Map(functools.partial(_work, token, stage, folder))
                | f"{name}: collect" >> beam.combiners.ToList()
            )
        return results | "Finish" >> beam.Map(functools.partial(_finish, token, conversion, folder))

    return beam.ptransform_fn(expand)()


def _items(token: str, stage: Stage, folder: OutputFolder, results: list[Any]) -> Sequence[Any]:
    with _noting_errors(token):
        return stage.items(folder, results)


def _work(token: str, stage: Stage, folder: OutputFolder, item: Any) -> Any:
    run = _RUNS.get(token)
    report: Report = _unheard if run is None else functools.partial(run.report, stage.name)
    with _noting_errors(token):
        return stage.work(folder, item, report)


def _unheard(records: int, done_bytes: int) -> None:
    """A report in a process that nobody looks at."""


def _finish(token: str, conversion: Conversion, folder: OutputFolder, results: list[Any]) -> None:
    with _noting_errors(token):
        conversion.finish(folder, results)


@contextmanager
def _noting_errors(token: str) -> Iterator[None]:
    try:
        yield
    except WindrowError as error:
        run = _RUNS.get(token)
        if run is not None and run.error is None:
            # A copy: Beam writes the name of the step into the one that it sees.
            run.error = type(error)(str(error))
            run.error.__cause__ = error.__cause__
        raise


def _parsed(options: object | None) -> Any:
    module = optional("apache_beam.options.pipeline_options", _PURPOSE)
    if isinstance(options, module.PipelineOptions):
        return options
    if options is None:
        options = []
    if not isinstance(options, list | tuple) or not all(isinstance(o, str) for o in options):
        raise ArgumentError(
            f"pipeline_options must be a list of flags such as ['--region=us-west1'] or a"
            f" PipelineOptions, got {options!r:.60}"
        )
    # A list, even an empty one: the default is to parse this program's own arguments.
    return module.PipelineOptions(list(options))


def _runner(runner: object | None, options: Any) -> object | None:
    if runner is not None or options.get_all_options(drop_default=True).get("runner"):
        return runner
    # By its full name: DirectRunner first tries to download another runner.
    runners = optional("apache_beam.runners.portability.fn_api_runner.fn_runner", _PURPOSE)
    made: object = runners.FnApiRunner()
    return made


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Beam's own tracebacks, which come before the error that is raised and say the same."""
    logger = logging.getLogger("apache_beam.runners.worker.sdk_worker")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
