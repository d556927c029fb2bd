"""`simulate`: a user's own pipeline through thousands of crash schedules, in virtual time, in one thread.

The job manager, the workers and the protocol are the real ones. Processes die, messages are lost, storage fails,
commits end without an answer, jobs are stopped and started again, all at moments that a seed decides. What comes out
must be what comes out of an undisturbed run. The first schedule where it is not is made as small as possible and shown.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from penstock.api.config import CheckpointConfig, whole_number
from penstock.errors import SimulationFailed
from penstock.shells.sim.faults import Faults
from penstock.testing.arguments import checks_arguments
from penstock.testing.progress import Progress, progress_of
from penstock.testing.report import Report, minimal
from penstock.testing.schedule import Expected, Run, Schedule, expect, run
from penstock.testing.shrink import Shrinker
from penstock.testing.stage import GROUPS, Given, PerSink, Stage
from penstock.testing.swarm import chooser

__tracebackhide__ = True
"""pytest shows the report, and not how it came about."""
LARGE_ROWS = 1_000
LARGE_BATCHES = 1_000
LONG_S = 1.0
BATCHES = 12
"""The largest batch is this part of the input; an average one is half of that."""


@checks_arguments
def simulate(
    pipeline: Given,
    *,
    seeds: Iterable[int] = range(1000),
    faults: Faults | Iterable[str] | None = None,
    parallelism: int | None = None,
    checkpoint: CheckpointConfig | None = None,
    read: PerSink = None,
    staged: PerSink = None,
    compare: PerSink = None,
) -> Report:
    """Runs a pipeline through one crash schedule per seed; raises `SimulationFailed` at the first broken rule.

    `pipeline` is a pipeline, a stream, or a function that builds one; the function may take a `Path`, an empty folder
    that each schedule has for itself. `read(sink)` returns the rows that a reader of the user's own sink sees;
    `staged(sink)` counts what it still holds back, so that leftovers are noticed. `compare` is `"rows"`,
    `last_per(...)` or a function of the rows. Each of the three may be a dict by the names of the sinks.
    `faults` names the kinds of faults (all by default), `parallelism` fixes what is otherwise drawn, and of
    `checkpoint` the mode and the limits count: the times are drawn.
    """
    stage = Stage(
        given=pipeline,
        choose_faults=chooser(faults),
        parallelism=_checked_parallelism(parallelism),
        checkpoint=checkpoint,
        read=read,
        staged=staged,
        compare=compare,
    )
    wanted = list(seeds)
    with _quiet(), progress_of(len(wanted)) as progress:
        return _explore(stage, wanted, progress)


def _explore(stage: Stage, seeds: list[int], progress: Progress) -> Report:
    began = time.perf_counter()
    expected = expect(stage)
    _warn(expected, len(seeds))
    stage = replace(stage, batch_rows_max=max(2, expected.rows_read // BATCHES))
    tried = Report(0, 0, 0, 0, expected.rows_read, 0.0, silent=expected.silent)
    for seed in seeds:
        first = run(stage, Schedule(seed), expected)
        tried = _plus(tried, first, time.perf_counter() - began)
        if first.finding is not None:
            raise _failure(stage, first, tried, expected, progress)
        progress.tried(tried.schedules)
    return tried


def _failure(
    stage: Stage, first: Run, tried: Report, expected: Expected, progress: Progress
) -> SimulationFailed:
    tries = itertools.count(1)

    def play(schedule: Schedule) -> Run:
        progress.shrinks(schedule.seed, next(tries))
        return run(stage, schedule, expected)

    best = Shrinker(play, first).shrink()
    report = replace(tried, finding=best.finding, minimal=minimal(best, first))
    return SimulationFailed(str(report), report)


def _warn(expected: Expected, schedules: int) -> None:
    """What the user should know before the time is spent, or in spite of a good report."""
    if len(expected.silent) == len(expected.views):
        nothing = (
            f"simulate: no row came out when nothing failed (of {expected.rows_read} that were read), so nothing can be"
            " lost or come twice, and no rule can break; give it an input of which something comes out"
        )
        warnings.warn(nothing, stacklevel=_to_the_caller())
    if expected.shared:
        shared = (
            f"simulate: the pipeline changes {', '.join(expected.shared)}. Simulated processes share the globals of"
            " modules, and on Spark each has its own: what is kept there is not lost in a simulated crash, as in a"
            " real one. Keep it in state or in self, or in an Outside where it stands for something outside of the"
            " job. If it is a cache that may be lost, ignore this."
        )
        warnings.warn(shared, stacklevel=_to_the_caller())
    is_large = expected.rows_read > LARGE_ROWS or expected.batches_read > LARGE_BATCHES
    if is_large or expected.seconds > LONG_S:
        large = (
            f"simulate: this input is large: a run without faults takes {expected.seconds:.1f} s for"
            f" {expected.rows_read:,} rows in {expected.batches_read:,} batches, and each of {schedules:,} schedules"
            " takes as long or longer; some forty rows, in batches of up to max_rows, show as much"
        )
        warnings.warn(large, stacklevel=_to_the_caller())


def _to_the_caller() -> int:
    """A warning is for the line that calls `simulate`, whatever of this package is in between."""
    here = str(Path(__file__).parent)
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(here):
        level, frame = level + 1, frame.f_back
    return level


def _plus(report: Report, done: Run, seconds: float) -> Report:
    return replace(
        report,
        schedules=report.schedules + 1,
        checkpoints=report.checkpoints + done.world.checkers.completed,
        attempts=report.attempts + done.attempts,
        faults=report.faults + len(done.struck),
        seconds=seconds,
    )


def _checked_parallelism(parallelism: int | None) -> int | None:
    if parallelism is None:
        return None
    return whole_number(parallelism, "simulate: parallelism", 1, GROUPS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Simulated jobs fail all the time: nobody wants to read their warnings."""
    log = logging.getLogger("penstock")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
