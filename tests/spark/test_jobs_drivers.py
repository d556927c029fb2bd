"""Drivers die, are started again, or find another one in their place; executors die; Spark is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import until

pytestmark = pytest.mark.spark
PROGRAM = Path(__file__).with_name("job_program.py")
ROWS = 12_000


@contextmanager
def program(mode: str, folder: Path, rows: int = ROWS) -> Iterator[subprocess.Popen[str]]:
    """Runs the program; at the end none of its processes is left, whatever happens."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), mode, str(folder), str(rows)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(PROGRAM.parents[2] / "src")),
    )
    assert process.stdout is not None
    family: list[psutil.Process] = []
    try:
        yield process
        family = (
            psutil.Process(process.pid).children(recursive=True)
            if process.returncode is None
            else []
        )
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for each in family:
            if each.is_running():
                each.kill()


def said(process: subprocess.Popen[str], word: str) -> str:
    """The rest of the next printed line that starts with this word."""
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith(word + " "):
            return text.removeprefix(word + " ").strip()
    pytest.fail(f"the program ended without saying {word!r}")


def take_over(spark: Any, folder: Path, rows: int = ROWS) -> pen.Job:
    """The same program, started again, by another driver."""
    return jobs.to_files(folder / "out", rows, 20_000).start(
        spark, name="program", checkpoint=jobs.config(folder / "chk"), restart=jobs.AT_ONCE
    )


@pytest.mark.timeout(180)
def test_a_killed_driver_goes_on_by_being_started_again(spark: Any, tmp_path: Path) -> None:
    """R5, I1, I2, I7: nothing but the same program is needed; its workers have left by themselves."""
    with program("drive", tmp_path) as driver:
        pids = [int(each) for each in said(driver, "pids").split()]
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        until(lambda: not any(jobs.runs(pid) for pid in pids), within_s=5)
    before = jobs.read_parts(tmp_path / "out").num_rows
    assert 0 < before < ROWS
    job = take_over(spark, tmp_path)
    with jobs.running(job):
        jobs.finish(job)
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), ROWS)
    assert not list((tmp_path / "out").glob("_staging/**/*.parquet"))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("asleep", [False, True], ids=["awake", "asleep"])
def test_a_second_driver_fences_off_the_first(spark: Any, tmp_path: Path, asleep: bool) -> None:
    """R5, I18, bug-E15, bug-F20: the first one, awake or asleep meanwhile, ends and does no harm."""
    with program("drive", tmp_path, rows=4 * ROWS) as first:
        said(first, "pids")
        if asleep:
            os.kill(first.pid, signal.SIGSTOP)
        job = take_over(spark, tmp_path, rows=4 * ROWS)
        with jobs.running(job):
            jobs.more_checkpoints(job, 2)
            os.kill(first.pid, signal.SIGCONT)
            ended = said(first, "ended")
            assert "JobFailed" in ended and "taken over by another driver" in ended
            jobs.finish(job)
        assert first.wait(30) == 0
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), 4 * ROWS)


@pytest.mark.timeout(180)
def test_a_killed_executor_changes_nothing_in_the_output(tmp_path: Path) -> None:
    """R1, I1, I2, bug-I1: its workers come back elsewhere, those of the other executor keep their pids."""
    with program("cluster", tmp_path, rows=8_000) as driver:
        assert said(driver, "workers") == "2 on the victim 1"
        assert said(driver, "stayed") == "True 1"
        assert said(driver, "ended").endswith("returned True")
        assert said(driver, "left") == "0 0"
        assert driver.wait(40) == 0
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), 8_000)


@pytest.mark.timeout(120)
def test_a_stopped_spark_ends_the_job_and_refuses_another(tmp_path: Path) -> None:
    """bug-I2: in seconds, with the reason, and no worker stays."""
    with program("stopped", tmp_path) as driver:
        seconds, _, told = said(driver, "ended").partition(" ")
        assert int(seconds) < 15 and "JobFailed" in told and "SparkContext was stopped" in told
        assert said(driver, "left") == "0 0"
        seconds, _, told = said(driver, "ended").partition(" ")
        assert int(seconds) < 5 and told.startswith("LaunchError") and "is stopped" in told
        assert driver.wait(30) == 0
