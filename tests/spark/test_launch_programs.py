"""Whole programs: a driver that is killed, workers on several executors, and twins of workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.spark.ends import PATIENCE_S, until

pytestmark = pytest.mark.spark
HERE = Path(__file__).resolve().parent


@contextmanager
def program(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(HERE / name), *arguments]
    environment = dict(os.environ, PYTHONPATH=str(HERE.parents[1] / "src"))
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def line(process: subprocess.Popen[str], word: str) -> list[int]:
    """The numbers of the next printed line that starts with this word."""
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith(word + " "):
            return [int(each) for each in text.split()[1:]]
    pytest.fail(f"the program ended without saying {word!r}")


def test_a_killed_driver_leaves_no_worker_behind(tmp_path: Path) -> None:
    """R5, bug-I5: workers leave by themselves, also those that are stuck in user code."""
    with program("driver_program.py", str(tmp_path / "pid")) as driver:
        pids = line(driver, "pids")
        family = [process.pid for process in psutil.Process(driver.pid).children(recursive=True)]
        assert set(pids) <= set(family)
        os.kill(driver.pid, signal.SIGKILL)
        until(lambda: not any(_runs(pid) for pid in pids))
        until(lambda: not any(_runs(pid) for pid in family))


def test_workers_spread_over_idle_executors_and_spark_replaces_a_killed_one() -> None:
    """R1, bug-I1: three workers on three executors, and Spark's own retry where it has one."""
    with program("cluster_program.py") as driver:
        daemons = line(driver, "daemons")
        assert len(set(daemons)) == 3, "two workers share an executor while another is idle"
        assert line(driver, "again") == [1]
        assert driver.wait(timeout=PATIENCE_S) == 0


def test_a_second_copy_that_spark_runs_by_itself_is_parked_until_the_worker_is_gone(
    tmp_path: Path,
) -> None:
    """bug-I7: Spark's own speculation, between two hosts; the twin disturbs nobody and takes over at once."""
    with program("twin_program.py", str(tmp_path)) as driver:
        assert line(driver, "twin") == [2, 0, 0]
        answering, worker = line(driver, "answers")
        assert answering == worker
        assert line(driver, "took-over") == [0]
        assert driver.wait(timeout=PATIENCE_S) == 0


def _runs(pid: int) -> bool:
    try:
        return str(psutil.Process(pid).status()) != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
