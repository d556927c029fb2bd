"""What each kind of checkpoint costs W1: none, aligned, at least once and unaligned, one every second, in turn.

Rows per second say what a user sees, rows per second of processor time what the work costs: on a machine that others
use, too, the second varies less.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import psutil

import penstock as pen
from bench.figures import Figure, middle
from bench.sizes import Sizes
from bench.throughput import PARALLELISM, Rates, steady_rate
from bench.waiting import wait_for
from bench.workload import w1

NAME = "W1 by kind of checkpoint"
NONE = "none"
KINDS: dict[str, dict[str, Any] | None] = {
    NONE: None,
    "aligned": {},
    "at least once": {"mode": "at_least_once"},
    "unaligned": {"unaligned": True},
}


def run(sizes: Sizes) -> list[Figure]:
    rates, per_cpu = Rates(), Rates()
    for repetition in range(sizes.repetitions):
        for kind in list(KINDS) if repetition % 2 == 0 else reversed(list(KINDS)):
            rows_s, rows_cpu_s = measured(sizes, KINDS[kind])
            rates.add(kind, rows_s)
            per_cpu.add(kind, rows_cpu_s)
            told = f"{rows_s / 1e6:.2f} M rows/s, {rows_cpu_s / 1e6:.2f} M rows per CPU second"
            print(f"  {NAME}, {kind}: {told}", file=sys.stderr, flush=True)
    kinds = [kind for kind in KINDS if kind != NONE]
    figures = [_kept(f"{kind}, kept of the rows/s", rates.ratios(kind, NONE)) for kind in kinds]
    return figures + [
        _kept(f"{kind}, kept of the rows per CPU second", per_cpu.ratios(kind, NONE))
        for kind in kinds
    ]


def measured(sizes: Sizes, options: dict[str, Any] | None) -> tuple[float, float]:
    """Rows per second, and per second of the workers' processor time."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        checkpoint = None
        if options is not None:
            checkpoint = pen.CheckpointConfig(folder, every="1 second", **options)
        job = w1("int", sizes.keys).start(
            name="bench-modes", parallelism=PARALLELISM, checkpoint=checkpoint, restore="fresh"
        )
        try:
            wait_for("all workers", lambda: job.status == "running", job, within_s=90)
            time.sleep(sizes.warm_s)
            workers = [psutil.Process(worker.pid) for worker in job.workers]
            before_s = _cpu_s(workers)
            rows_s = steady_rate(job, 0.0, sizes.steady_s)
            return rows_s, rows_s * sizes.steady_s / (_cpu_s(workers) - before_s)
        finally:
            job.cancel(timeout=30)


def _cpu_s(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(spent.user + spent.system for spent in times)


def _kept(what: str, ratios: list[float]) -> Figure:
    return Figure(
        *(NAME, what, middle(ratios), "of none", NONE, 1.0), at_least=0.97, samples=tuple(ratios)
    )
