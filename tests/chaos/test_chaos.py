"""Real processes are killed, stopped and woken at random for as long as one likes: `make chaos CHAOS_ROUNDS=n`."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from tests.chaos.endless import NumbersUntilTold
from tests.spark import jobs
from tests.spark.ends import on_another_machine, until
from tests.spark.test_jobs_drivers import program, said

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(3600)]
RATE = 1_500


# ---- what can happen to workers


def kill_one(draw: random.Random) -> None:
    _signal(draw.choice(jobs.workers() or [0]), signal.SIGKILL)


def kill_all(draw: random.Random) -> None:
    for pid in jobs.workers():
        _signal(pid, signal.SIGKILL)


def kill_twice(draw: random.Random) -> None:
    """The second while the job recovers from the first."""
    kill_one(draw)
    wait(draw.uniform(0, 1.5))
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
    wait(seconds)
    _signal(pid, signal.SIGCONT)


def _signal(pid: int, which: int) -> None:
    if pid and jobs.runs(pid):
        os.kill(pid, which)


def wait(seconds: float) -> None:
    """Lets time pass: what happens when is the very thing that is drawn."""
    end_s = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end_s, within_s=seconds + 5)


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


def test_workers_are_killed_and_stopped_at_random(
    spark: Any,
    tmp_path: Path,
    rounds: int,
    draw: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R1, I1, I2, I26, bug-I1, bug-I5, bug-F20: out of the driver's reach, so that who was stopped wakes up."""
    on_another_machine(monkeypatch)
    traces, began_s = jobs.Traces(), time.monotonic()
    end_file, out, sums = tmp_path / "end", tmp_path / "out", pen.CollectSink(limit_bytes=1 << 30)
    stream = pen.from_source(NumbersUntilTold(end_file, RATE), "numbers")
    counted = jobs.count_up(stream).to(pen.FileSink(str(out)))
    job = pen.Pipeline(counted, jobs.totals(stream).to(sums)).start(
        spark, name="chaos", checkpoint=jobs.config(tmp_path / "chk"), restart=jobs.AT_ONCE
    )
    with jobs.running(job):
        jobs.more_checkpoints(job, within_s=60)
        for number in range(rounds):
            action = draw.choice(ACTIONS)
            print(f"round {number}: {action.__name__}")
            action(draw)
            jobs.more_checkpoints(job, draw.choice([0, 1, 3]), within_s=60)
            assert_so_far(out)
        rows = int((time.monotonic() - began_s + 5) * RATE)
        end_file.write_text(str(rows))
        jobs.finish(job, within_s=300)
    jobs.assert_numbered(jobs.read_parts(out), rows)
    jobs.assert_totals(sums.to_table(), rows)
    traces.none_left(files_more=12)
    print(
        f"{rounds} rounds, {jobs.restarts(job)} restarts, {jobs.completed(job)} checkpoints, {rows} rows"
    )


def test_drivers_are_killed_at_random_and_started_again(
    tmp_path: Path, rounds: int, draw: random.Random
) -> None:
    """R5, I1, I2, I7, I18: killed at any moment of their life, also while they start or recover."""
    lives = max(2, rounds // 4)
    rows = 6_000 * lives
    for life in range(lives):
        with program("drive", tmp_path, rows) as driver:
            if draw.random() < 0.7:
                said(driver, "pids")
            wait(draw.uniform(0, 3))
            os.kill(driver.pid, signal.SIGKILL)
        print(f"life {life}: {assert_so_far(tmp_path / 'out')} of {rows} rows")
    with program("drive", tmp_path, rows) as driver:
        assert driver.wait(300) == 0
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), rows)
