"""Drivers die, are started again, or find another one in their place; executors die; Spark is stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S, until
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
PROGRAM = Path(__file__).with_name("job_program.py")
ROWS = 12_000


@contextmanager
def program(mode: str, folder: Path, rows: int = ROWS) -> Iterator[subprocess.Popen[str]]:
    """Runs the program; at the end none of its processes is left, whatever happens. What it says on its standard error
    is shown where a test fails."""
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), mode, str(folder), str(rows)],
            stdout=subprocess.PIPE,
            stderr=errors,
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
    except BaseException:
        print((folder / "stderr").read_text()[-5_000:])
        raise
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for each in family:
            with suppress(psutil.NoSuchProcess):  # gone by itself
                each.kill()


def said(process: subprocess.Popen[str], word: str) -> str:
    """The rest of the next printed line that starts with this word."""
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith(word + " "):
            return text.removeprefix(word + " ").strip()
    pytest.fail(f"the program ended without saying {word!r}")


def tap(folder: Path) -> Tap:
    """The end of the input of such a program."""
    return Tap(folder / "end", rate=20_000, held=ROWS - 500)


def take_over(spark: Any, folder: Path, *, to_the_end: bool = True) -> pen.Job:
    """The same program, started again, by another driver."""
    if to_the_end:
        tap(folder).end(ROWS)
    return jobs.to_files(folder / "out", tap(folder).stream()).start(
        spark, name="program", checkpoint=jobs.config(folder / "chk"), restart=jobs.AT_ONCE
    )


def test_a_killed_driver_goes_on_by_being_started_again(
    spark: Any, tmp_path: Path, draw: random.Random
) -> None:
    """R5, I1, I2, I7: killed at a random moment; nothing but the same program is needed, and its workers have left by
    themselves."""
    with program("drive", tmp_path) as driver:
        pids = [int(each) for each in said(driver, "pids").split()]
        jobs.let_pass(draw.uniform(0, 2))
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        until(lambda: not any(jobs.runs(pid) for pid in pids))
    before = jobs.read_parts(tmp_path / "out").num_rows
    assert 0 < before < ROWS
    job = take_over(spark, tmp_path)
    with jobs.running(job):
        jobs.finish(job)
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), ROWS)
    assert not list((tmp_path / "out").glob("_staging/**/*.parquet"))


@pytest.mark.parametrize("asleep", [False, True], ids=["awake", "asleep"])
def test_a_second_driver_fences_off_the_first(spark: Any, tmp_path: Path, asleep: bool) -> None:
    """R5, I18, bug-E15, bug-F20: the first one, awake or asleep meanwhile, ends and does no harm."""
    with program("drive", tmp_path) as first:
        said(first, "pids")
        if asleep:
            os.kill(first.pid, signal.SIGSTOP)
        job = take_over(spark, tmp_path, to_the_end=False)
        with jobs.running(job):
            jobs.more_checkpoints(job, 2)
            os.kill(first.pid, signal.SIGCONT)
            ended = said(first, "ended")
            assert "JobFailed" in ended and "taken over by another driver" in ended
            tap(tmp_path).end(ROWS)
            jobs.finish(job)
        assert first.wait(PATIENCE_S) == 0
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), ROWS)


def test_a_killed_executor_changes_nothing_in_the_output(tmp_path: Path) -> None:
    """R1, I1, I2, bug-I1: its workers come back elsewhere, those of the other executor keep their pids."""
    with program("cluster", tmp_path, rows=8_000) as driver:
        assert said(driver, "workers") == "2 on the victim 1"
        assert said(driver, "stayed") == "True 1"
        assert said(driver, "ended").endswith("returned True")
        assert said(driver, "left") == "0 0"
        assert driver.wait(PATIENCE_S) == 0
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), 8_000)


def test_a_stopped_spark_ends_the_job_and_refuses_another(tmp_path: Path) -> None:
    """bug-I2: with the reason, and no worker stays."""
    with program("stopped", tmp_path) as driver:
        told = said(driver, "ended")
        assert "JobFailed" in told and "SparkContext was stopped" in told
        assert said(driver, "left") == "0 0"
        told = said(driver, "ended")
        assert told.startswith("LaunchError") and "is stopped" in told
        assert driver.wait(PATIENCE_S) == 0
