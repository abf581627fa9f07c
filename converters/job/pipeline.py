"""The one shape of pipeline that a conversion has on a Beam runner.

    numbers | GroupByKey | Map(begin) | stage | stage | ... | Map(finish)
    stage = FlatMap(items) | GroupByKey | Map(work) | GroupByKey | Map(results)

It is linear, since some runners run only the last leaf of a tree. It reads and writes through our own
functions, since some runners do not know Beam's. Items are spread by GroupByKey and not by Reshuffle,
which some runners leave out. The many numbers in the beginning make many partitions on runners that
never add partitions later. Work is idempotent, since runners repeat it.

Invariant: a stage begins only after the work of the stage before has succeeded for every item.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import logging
import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import cloudpickle

from windrow import errors
from windrow.converters.job.folder import OutputFolder, finished_before
from windrow.converters.job.manifest import Manifest
from windrow.converters.job.stages import Conversion, ConversionStage, Report, dropped
from windrow.core.optional_imports import optional
from windrow.core.progress import ProgressMeter, ShowProgress
from windrow.errors import ArgumentError, ConversionError, MissingExtraError, WindrowError

PURPOSE: Final = "converting with Apache Beam"

# Elements that a pipeline begins with. Dask's runner puts 128 into a partition, and has as many
# partitions to the end, each worked on by one process at a time.
NUMBERS: Final = 4096

# The key of an extra item that each stage has, since Beam drops a group without elements.
_NO_ITEM: Final = -1

# Beam knows its runner for Dask by the second name alone.
_DASK: Final = ("DaskRunner", "apache_beam.runners.dask.dask_runner.DaskRunner")

# The steps before the first stage and after the last, in the pipeline.
Step = Callable[[OutputFolder], None]


class _PipelineRun:
    """State in this process of a pipeline that it has started."""

    def __init__(self, show: ShowProgress) -> None:
        self._show = show
        self._meter: ProgressMeter | None = None
        self._shown = contextlib.ExitStack()
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def begin(self, stage: str, total_bytes: int) -> None:
        """Show the progress of a stage from now on."""
        with self._lock:
            self._shown.close()
            meter = ProgressMeter(stage, total_bytes or None, self._show)
            self._meter = self._shown.enter_context(meter)

    def report(self, records: int, done_bytes: int) -> None:
        if self._meter is not None:
            self._meter.add(records, done_bytes)

    def close(self) -> None:
        with self._lock:
            self._shown.close()
            self._meter = None


# Pipelines are pickled, and come back as copies even in this process: a token leads to the run.
# Other processes do not find it: they report no progress, and leave their errors as notes.
_RUNS: Final[dict[str, _PipelineRun]] = {}


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
        conversion: The conversion.
        folder: Ready to be written; all workers have to see it.
        runner: A Beam runner or its name; by default what `options` say, else one in this process.
        options: Flags, or Beam's `PipelineOptions`.
        show: As for `ProgressMeter`; only what runs in this process can report.

    Raises:
        WindrowError: What the work raised.
        ConversionError: If the pipeline failed in another way.
        ArgumentError: If there is no such runner, or the options are not Beam's.
        MissingExtraError: If Apache Beam, or what the runner needs, is not installed.
    """
    beam = optional("apache_beam", PURPOSE)
    pipeline = new_pipeline(runner, options)
    token = uuid.uuid4().hex
    run = _RUNS[token] = _PipelineRun(show)
    try:
        with _quiet():
            _ = pipeline | beam.Create(range(NUMBERS)) | transform(conversion, folder, token=token)
            state = _finished(pipeline)
    except Exception as error:
        found = run.error or _noted_error(folder, token)
        if found is not None:
            raise found from found.__cause__  # not from Beam's, which says the same and much more
        if isinstance(error, WindrowError):
            raise
        last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise ConversionError(f"the Beam pipeline failed: {last_line}") from error
    finally:
        run.close()
        run.error = None
        del _RUNS[token]
    if state != "DONE":
        raise ConversionError(
            f"the Beam pipeline ended in the state {state}, not DONE; see its log"
        )


def new_pipeline(runner: object | None, options: object | None) -> Any:
    """Return an empty Beam pipeline; arguments and errors as for `run_pipeline`."""
    beam = optional("apache_beam", PURPOSE)
    if runner in _DASK:
        runner = _dask_runner()  # first: it brings options
    parsed = _parsed(options)
    if runner is None and not parsed.get_all_options(drop_default=True).get("runner"):
        # By its full name: DirectRunner first tries to download another runner.
        runners = optional("apache_beam.runners.portability.fn_api_runner.fn_runner", PURPOSE)
        runner = runners.FnApiRunner()
    try:
        return beam.Pipeline(runner=runner, options=parsed)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"runner {runner!r}: {error}") from error


def _dask_runner() -> object:
    try:
        importlib.import_module("distributed")
    except ImportError as error:
        raise MissingExtraError(
            "runner 'DaskRunner' needs the packages dask and distributed, which are not installed:"
            " pip install dask distributed"
        ) from error
    runner: object = optional("apache_beam.runners.dask.dask_runner", PURPOSE).DaskRunner()
    return runner


def _parsed(options: object | None) -> Any:
    module = optional("apache_beam.options.pipeline_options", PURPOSE)
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
    parsed = module.PipelineOptions(list(options))
    try:
        parsed.get_all_options()
    except SystemExit as error:  # the parser has written why to stderr
        raise ArgumentError(
            f"pipeline_options {list(options)}: Beam cannot read them; it says why on stderr"
        ) from error
    return parsed


def _finished(pipeline: Any) -> str:
    """The state in which the pipeline ended."""
    result = pipeline.run()
    try:
        state: str = result.wait_until_finish()
        return state
    except BaseException:
        # Workers elsewhere must not continue to write once this process says that it ended.
        with contextlib.suppress(Exception):
            result.cancel()
        raise
    finally:
        client = getattr(result, "client", None)  # Dask's, which its runner leaves open
        if client is not None:
            client.close()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide Beam's own tracebacks, which only repeat the error that is raised."""

    def leave_out(record: logging.LogRecord) -> bool:
        return False

    loggers = [logging.getLogger(name) for name in _LOUD]
    for logger in loggers:
        logger.addFilter(leave_out)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(leave_out)


_LOUD: Final = (
    "apache_beam.runners.common",
    "apache_beam.runners.portability.local_job_service",
    "apache_beam.runners.worker.sdk_worker",
)


# The pipeline.


def transform(
    conversion: Conversion,
    folder: OutputFolder,
    *,
    token: str = "",
    begin: Step | None = None,
    end: Step | None = None,
) -> Any:
    """Return the stages of `conversion` as one PTransform, from many elements to the manifest.

    Args:
        conversion: What is to be done.
        folder: Where; ready to be written once `begin` has run.
        token: The token of the run in this process, if one waits for it.
        begin: Makes the folder ready, if it is not; it may run twice.
        end: Called after the manifest is written; it may run twice.
    """
    beam = optional("apache_beam", PURPOSE)

    def expand(numbers: Any) -> Any:
        def mapped(name: str, function: Callable[..., Any], *bound: Any) -> Any:
            return name >> beam.Map(functools.partial(function, *bound))

        keyed = tuple[int, Any]
        results = (
            numbers
            | mapped("one key", _keyed_alike).with_output_types(keyed)
            | "one group" >> beam.GroupByKey()
            | mapped("begin", _begin, begin, folder, token)
        )
        for number, stage in enumerate(conversion.stages, 1):
            name = f"{number} {stage.name}"
            items = functools.partial(_items, conversion, stage, folder, token)
            work = mapped(f"{name}: work", _work, stage, folder, token)
            results = (
                results
                | f"{name}: items" >> beam.FlatMap(items).with_output_types(keyed)
                | f"{name}: spread" >> beam.GroupByKey()
                | work.with_output_types(keyed)
                | f"{name}: one group" >> beam.GroupByKey()
                | mapped(f"{name}: results", _results)
            )
        return results | mapped("finish", _finish, conversion, end, folder, token)

    return conversion.name >> beam.ptransform_fn(expand)()


def _keyed_alike(number: int) -> tuple[int, int]:
    return 0, number


def _begin(begin: Step | None, folder: OutputFolder, token: str, group: Any) -> list[Any]:
    if begin is not None:
        with _noting_errors(folder, token):
            begin(folder)
    return []


def _items(
    conversion: Conversion,
    stage: ConversionStage,
    folder: OutputFolder,
    token: str,
    results: list[bytes],
) -> Iterator[tuple[int, bytes | None]]:
    """The numbered items, pickled by us: some runners know only how to send what is importable."""
    yield _NO_ITEM, None
    with _noting_errors(folder, token):
        if finished_before(folder.target, conversion.plan) is not None:
            return  # a runner does again what was done, or an earlier run has finished
        items = stage.items(folder, [pickle.loads(result) for result in results])
        run = _RUNS.get(token)
        if run is not None:
            run.begin(stage.name, sum(map(stage.weigh, items)))
    for number, item in enumerate(items):
        yield number, cloudpickle.dumps(item)


def _work(
    stage: ConversionStage,
    folder: OutputFolder,
    token: str,
    group: tuple[int, Iterable[bytes | None]],
) -> tuple[int, tuple[int, bytes | None]]:
    number, (item, *_) = group
    if item is None:
        return 0, (number, None)
    run = _RUNS.get(token)
    report: Report = dropped if run is None else run.report
    with _noting_errors(folder, token):
        result = stage.work(folder, pickle.loads(item), report)
    return 0, (number, cloudpickle.dumps(result))


def _results(group: tuple[int, Iterable[tuple[int, bytes | None]]]) -> list[bytes]:
    """The results of a stage, in the order of its items."""
    return [result for _, result in sorted(group[1]) if result is not None]


def _finish(
    conversion: Conversion,
    end: Step | None,
    folder: OutputFolder,
    token: str,
    results: list[bytes],
) -> Manifest:
    with _noting_errors(folder, token):
        if finished_before(folder.target, conversion.plan) is None:
            conversion.finish(folder, [pickle.loads(result) for result in results])
        else:
            folder.clear_up()
        manifest = folder.written()
        if end is not None:
            end(folder)
        return manifest


# Errors, which Beam turns into text, and adds its own to.


@contextlib.contextmanager
def _noting_errors(folder: OutputFolder, token: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:  # Ctrl-C too, which Beam turns into an error like others
        _note_error(folder, token, error)
        raise


def _note_error(folder: OutputFolder, token: str, error: BaseException) -> None:
    run = _RUNS.get(token)
    if run is None:
        if token and isinstance(error, Exception):
            with contextlib.suppress(Exception):  # perhaps it is the place that cannot be written
                folder.note(_error_note(token), _error_to_json(error))
    elif run.error is None:
        # A copy: Beam writes the name of the step into the one that it sees.
        kept = copy.copy(error)
        kept.__cause__ = error.__cause__
        run.error = kept.with_traceback(error.__traceback__)


def _error_note(token: str) -> str:
    return f"error-{token}"


def _error_to_json(error: Exception) -> dict[str, Any]:
    if not isinstance(error, WindrowError):
        error = ConversionError(f"{type(error).__qualname__}: {error}")
    return {"class": type(error).__name__, "message": str(error), "attributes": vars(error)}


def _noted_error(folder: OutputFolder, token: str) -> Exception | None:
    """Return the error that another process has noted and that ended the pipeline."""
    try:
        match folder.noted(_error_note(token)):
            case {"class": str(name), "message": str(message), "attributes": dict(attributes)}:
                found = getattr(errors, name, None)
                if isinstance(found, type) and issubclass(found, WindrowError):
                    error = found(message)
                    for key, value in attributes.items():
                        vars(error)[key] = tuple(value) if isinstance(value, list) else value
                    return error
    except WindrowError:
        return None
    return None
