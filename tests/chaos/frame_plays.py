"""Streaming DataFrames through killed workers and killed drivers, at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.chaos.plays import assert_so_far
from tests.spark import frames, jobs
from tests.spark.ends import until
from tests.spark.test_jobs_drivers import said

PROGRAM = Path(frames.__file__).with_name("frame_program.py")


def play_with_frames(
    folder: Path, kind: str, drivers: int, workers: int, draw: random.Random
) -> None:
    """So many drivers are killed, and so many workers of each; the last driver stops when it is told."""
    for life in range(drivers + 1):
        with _program(folder, kind) as driver:
            if life == drivers or draw.random() < 0.7:
                said(driver, "pids")
            for _ in range(workers):
                jobs.let_pass(draw.uniform(0, 2))
                pids = jobs.workers(driver.pid)
                jobs.kill(draw.choice(pids)) if pids else None
            jobs.let_pass(draw.uniform(0, 2))
            if life < drivers:
                os.kill(driver.pid, signal.SIGKILL)
                driver.wait()
            else:
                (folder / "stop").touch()
                assert said(driver, "ended") == "True"
        print(
            f"life {life}: {assert_so_far(folder / 'out')} rows, {len(frames.staged(folder))} staged files"
        )


@contextmanager
def _program(folder: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    """Every process of it is gone at the end, as on a machine that crashes: Spark's Java, too."""
    with (folder / "stderr").open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), kind],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=dict(os.environ, PYTHONPATH=str(PROGRAM.parents[2] / "src")),
        )
    assert process.stdout is not None
    me = psutil.Process(process.pid)
    family: list[psutil.Process] = []
    try:
        yield process
    except BaseException:
        print((folder / "stderr").read_text()[-5_000:])
        raise
    finally:
        with suppress(psutil.NoSuchProcess):
            family = me.children(recursive=True)
        process.kill()
        process.wait()
        process.stdout.close()
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        until(lambda: not any(each.is_running() and each.status() != "zombie" for each in family))
