"""What is played with real processes: workers and drivers are killed, stopped and woken at random moments."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock as pen
from tests.spark import jobs
from tests.spark.taps import Tap
from tests.spark.test_jobs_drivers import program, said

RATE = 1_500
MARGIN_S = 30.0
"""How long it may take until every source knows where the input ends."""


# ---- what can happen to workers


def kill_one(draw: random.Random) -> None:
    _signal(draw.choice(jobs.workers() or [0]), signal.SIGKILL)


def kill_all(draw: random.Random) -> None:
    for pid in jobs.workers():
        _signal(pid, signal.SIGKILL)


def kill_twice(draw: random.Random) -> None:
    """The second while the job recovers from the first."""
    kill_one(draw)
    jobs.let_pass(draw.uniform(0, 1.5))
    kill_one(draw)


def nap(draw: random.Random) -> None:
    """Too short to be noticed, or just at the edge of it."""
    _sleep_and_wake(draw, draw.uniform(0.1, 2.2))


def long_sleep(draw: random.Random) -> None:
    """Wakes up when another worker has its place."""
    _sleep_and_wake(draw, draw.uniform(3, 5))


ACTIONS: list[Callable[[random.Random], None]] = [kill_one, kill_all, kill_twice, nap, long_sleep]


def _sleep_and_wake(draw: random.Random, seconds: float) -> None:
    pid = draw.choice(jobs.workers() or [0])
    _signal(pid, signal.SIGSTOP)
    jobs.let_pass(seconds)
    _signal(pid, signal.SIGCONT)


def _signal(pid: int, which: int) -> None:
    if pid and jobs.runs(pid):
        jobs.kill(pid, which)


# ---- checks


def assert_so_far(folder: Path) -> int:
    """I1, I2 at any time: no row twice, and each key's rows numbered 1, 2, 3 without a gap."""
    table = jobs.read_parts(folder)
    rows = table["i"].to_pylist()
    assert len(rows) == len(set(rows)), "a row is there twice"
    numbers: dict[int, list[int]] = {}
    for row in table.to_pylist():
        numbers.setdefault(row["k"], []).append(row["nth"])
    for key, nths in numbers.items():
        assert sorted(nths) == list(range(1, len(nths) + 1)), f"key {key}"
    return len(rows)


# ---- plays


def play_with_workers(spark: Any, folder: Path, rounds: int, draw: random.Random) -> None:
    traces, began_s = jobs.Traces(), time.monotonic()
    tap, out, sums = Tap(folder / "end", RATE), folder / "out", pen.CollectSink(limit_bytes=1 << 30)
    stream = tap.stream()
    counted = jobs.count_up(stream).to(pen.FileSink(str(out)))
    job = pen.Pipeline(counted, jobs.totals(stream).to(sums)).start(
        spark, name="chaos", checkpoint=jobs.config(folder / "chk"), restart=jobs.AT_ONCE
    )
    with jobs.running(job):
        jobs.more_checkpoints(job)
        for number in range(rounds):
            action = draw.choice(ACTIONS)
            print(f"round {number}: {action.__name__}")
            action(draw)
            jobs.more_checkpoints(job, draw.choice([0, 1, 3]))
            assert_so_far(out)
        rows = int((time.monotonic() - began_s + MARGIN_S) * RATE)
        tap.end(rows)
        jobs.finish(job, within_s=600)
    jobs.assert_numbered(jobs.read_parts(out), rows)
    jobs.assert_totals(sums.to_table(), rows)
    traces.none_left(files_more=12)
    print(
        f"{rounds} rounds, {jobs.restarts(job)} restarts, {jobs.completed(job)} checkpoints, {rows} rows"
    )


def play_with_drivers(folder: Path, lives: int, draw: random.Random) -> None:
    rows = 6_000 * lives
    for life in range(lives):
        with program("drive", folder, rows) as driver:
            if draw.random() < 0.7:
                said(driver, "pids")
            jobs.let_pass(draw.uniform(0, 3))
            os.kill(driver.pid, signal.SIGKILL)
        print(f"life {life}: {assert_so_far(folder / 'out')} of {rows} rows")
    Tap(folder / "end", RATE).end(rows)
    with program("drive", folder, rows) as driver:
        assert said(driver, "ended") == "returned True"
    jobs.assert_numbered(jobs.read_parts(folder / "out"), rows)
