"""A running job in which stretches with a checkpoint every second and stretches without take turns.

As in `bench.modes`, and for the same reason: two equal jobs differ by more than checkpoints cost.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

import penstock as pen
from bench.figures import Figure
from bench.modes import Window, between, error_of, kept_of, moment_of
from bench.state.rows import Rows, much_state, wait_for_all_keys
from bench.throughput import PARALLELISM

NEVER = "1 day"


@contextmanager
def running(name: str, rows: Rows, rate: float | None = None, **options: Any) -> Iterator[pen.Job]:
    """A job in which all keys have come, and that takes checkpoints when it is told to."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        settings = {"every": NEVER, **options}
        job = (
            much_state(rows, rate)
            .to(pen.BlackholeSink())
            .start(
                name=f"bench-{name}",
                parallelism=PARALLELISM,
                checkpoint=pen.CheckpointConfig(folder, **settings),
                restore="fresh",
            )
        )
        try:
            wait_for_all_keys(job, rows.keys)
            yield job
        finally:
            job.cancel(timeout=30)


def checkpoint(job: pen.Job, timeout_s: float = 180.0) -> pen.CheckpointInfo:
    info = job.trigger_checkpoint(timeout_s)
    if info.status != "completed":
        raise RuntimeError(f"a checkpoint failed while it was measured: {info.failure}")
    return info


@dataclass
class Pairs:
    plain: list[Window] = field(default_factory=list)
    taken: list[Window] = field(default_factory=list)
    checkpoints: list[pen.CheckpointInfo] = field(default_factory=list)
    regular: list[pen.CheckpointInfo] = field(default_factory=list)
    """Those among them that came a second after another one, and not after a stretch without."""

    def kept(self, bench: str, what: str, at_least: float) -> list[Figure]:
        pairs = list(zip(self.taken, self.plain, strict=True))
        rows_s = [now.rows_s / then.rows_s for now, then in pairs]
        cpu_s = [now.rows_cpu_s / then.rows_cpu_s for now, then in pairs]
        error = f"+- {error_of(rows_s):.3f}"
        return [
            kept_of(bench, f"{what}: kept of the rows/s, {error}", rows_s, at_least),
            kept_of(bench, f"{what}: kept of the rows per CPU second", cpu_s, at_least),
        ]


def alternated(job: pen.Job, pairs: int, seconds: int) -> Pairs:
    """Stretches of so many seconds; every other pair begins with the one that has checkpoints."""
    found, workers = Pairs(), [psutil.Process(worker.pid) for worker in job.workers]
    checkpoint(job)
    moment = moment_of(job, workers)
    for pair in range(pairs):
        for with_them in (True, False) if pair % 2 else (False, True):
            end_s = moment.time_s + seconds
            if with_them:
                taken = _every_second(job, end_s)
                found.checkpoints += taken
                found.regular += taken[1:]
            time.sleep(max(0.0, end_s - time.monotonic()))
            last, moment = moment, moment_of(job, workers)
            (found.taken if with_them else found.plain).append(between(last, moment))
    return found


def _every_second(job: pen.Job, end_s: float) -> Sequence[pen.CheckpointInfo]:
    taken = []
    due_s = time.monotonic()
    while due_s < end_s - 0.5:
        taken.append(checkpoint(job))
        due_s = max(due_s + 1.0, time.monotonic())
        time.sleep(max(0.0, min(due_s, end_s) - time.monotonic()))
    return taken
