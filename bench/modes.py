"""What a checkpoint every second costs W1: aligned, at least once and unaligned, each against seconds without one.

Two equal jobs differ by more than a checkpoint costs, so both sides are measured in one job: seconds with a checkpoint
and seconds without take turns, and neighbours are compared. Rows per second say what a user sees, rows per second of
processor time what the work costs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

import penstock as pen
from bench.figures import Figure
from bench.sizes import Sizes
from bench.throughput import PARALLELISM
from bench.waiting import wait_for
from bench.workload import OPERATOR, w1

NAME = "W1 by kind of checkpoint"
NONE = "seconds without"
KINDS: dict[str, dict[str, Any]] = {
    "aligned": {},
    "at least once": {"mode": "at_least_once"},
    "unaligned": {"unaligned": True},
}
ROWS_IN = f'penstock_records_in_total{{operator="{OPERATOR}"}}'


@dataclass(frozen=True)
class Moment:
    """How far a job was, just when its counter had moved."""

    time_s: float
    rows: float
    cpu_s: float


@dataclass(frozen=True)
class Window:
    rows_s: float
    rows_cpu_s: float


def run(sizes: Sizes) -> list[Figure]:
    figures = []
    for kind, options in KINDS.items():
        plain, taken = measured(sizes, options)
        rows_s = kept_of(
            NAME,
            f"{kind}, kept of the rows/s",
            [now.rows_s / then.rows_s for now, then in zip(taken, plain, strict=True)],
        )
        per_cpu = kept_of(
            NAME,
            f"{kind}, kept of the rows per CPU second",
            [now.rows_cpu_s / then.rows_cpu_s for now, then in zip(taken, plain, strict=True)],
        )
        figures += [rows_s, per_cpu]
        average = float(np.mean([window.rows_s for window in plain])) / 1e6
        told = (
            f"{rows_s.value:.3f} +- {error_of(rows_s.samples):.3f} kept of {average:.2f} M rows/s"
        )
        print(f"  {NAME}, {kind}: {told}", file=sys.stderr, flush=True)
    return figures


def measured(sizes: Sizes, options: dict[str, Any]) -> tuple[list[Window], list[Window]]:
    """Seconds without a checkpoint, and their neighbours with one."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        checkpoint = pen.CheckpointConfig(folder, every="1 day", **options)
        job = w1("int", sizes.keys).start(
            name="bench-modes", parallelism=PARALLELISM, checkpoint=checkpoint, restore="fresh"
        )
        try:
            wait_for("the first rows", lambda: job.metrics().get(ROWS_IN), job, within_s=180)
            time.sleep(sizes.warm_s)
            return _alternated(job, sizes.checkpoint_pairs)
        finally:
            job.cancel(timeout=30)


def _alternated(job: pen.Job, pairs: int) -> tuple[list[Window], list[Window]]:
    workers = [psutil.Process(worker.pid) for worker in job.workers]
    plain: list[Window] = []
    taken: list[Window] = []
    moment = moment_of(job, workers)
    for pair in range(pairs):
        for with_one in (True, False) if pair % 2 else (False, True):
            if with_one and job.trigger_checkpoint(30).status != "completed":
                raise RuntimeError("a checkpoint that was measured did not complete")
            time.sleep(max(0.0, moment.time_s + 1.0 - time.monotonic()))
            last, moment = moment, moment_of(job, workers)
            (taken if with_one else plain).append(between(last, moment))
    return plain, taken


def between(first: Moment, last: Moment) -> Window:
    rows = last.rows - first.rows
    return Window(rows / (last.time_s - first.time_s), rows / (last.cpu_s - first.cpu_s))


def moment_of(job: pen.Job, workers: Sequence[psutil.Process]) -> Moment:
    before = job.metrics()[ROWS_IN]
    rows = wait_for(
        "more rows",
        lambda: now if (now := job.metrics()[ROWS_IN]) != before else None,
        job,
        every_s=0.002,
    )
    times = [worker.cpu_times() for worker in workers]
    return Moment(time.monotonic(), rows, sum(spent.user + spent.system for spent in times))


def kept_of(bench: str, what: str, ratios: list[float], at_least: float = 0.97) -> Figure:
    """The geometric mean: it favours neither side, however far single seconds are apart."""
    kept = float(np.exp(np.mean(np.log(ratios))))
    samples = tuple(ratios)
    return Figure(bench, what, kept, "of those", NONE, 1.0, at_least=at_least, samples=samples)


def error_of(ratios: Sequence[float]) -> float:
    """How far the mean may be off: one standard error."""
    return float(np.std(np.log(ratios)) / np.sqrt(len(ratios)))
