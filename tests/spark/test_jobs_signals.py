"""Ctrl-C and `kill` of real programs with real jobs: everything is committed, and the next start goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.wire import manifest as manifests
from penstock.wire import paths
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S, until
from tests.spark.test_jobs_drivers import ROWS, program, said, take_over

pytestmark = pytest.mark.spark

STUCK = """
import pathlib
import penstock as pen

here = pathlib.Path(__file__).parent


def stuck(batch):
    import threading

    (here / "here").touch()
    threading.Event().wait(600)
    return batch


rows = pen.from_rows([("a", 1), ("b", 2)], "k STRING, v BIGINT")
job = rows.map_batches(stuck).to(pen.CollectSink()).start(
    name="stuck", parallelism=1, checkpoint=pen.CheckpointConfig(here / "chk", every="1 hour")
)
job.await_termination()
"""


def newest_kind(folder: Path) -> str:
    """The kind of the newest checkpoint."""
    found = sorted(
        (n, name)
        for path in folder.glob("chk-*/_metadata")
        if (n := paths.metadata_of(name := str(path.relative_to(folder)))) is not None
    )
    name = found[-1][1]
    return str(manifests.decode((folder / name).read_bytes(), name).kind)


def end(folder: Path, mode: str, number: int) -> int:
    """Runs the program, tells it to end, and hands back how it ended; everything is committed, no worker is left."""
    with program(mode, folder) as driver:
        pids = [int(each) for each in said(driver, "pids").split()]
        os.kill(driver.pid, number)
        if mode == "drive":
            assert said(driver, "ended").endswith("returned True")
        code = driver.wait(PATIENCE_S)
        until(lambda: not any(jobs.runs(pid) for pid in pids))
    assert newest_kind(folder / "chk/program") == "stop"
    assert not list((folder / "out").glob("_staging/**/*.parquet"))
    assert 0 < jobs.read_parts(folder / "out").num_rows < ROWS
    return code


@pytest.mark.parametrize(
    ("mode", "number", "code"),
    [("drive", signal.SIGINT, 0), ("unattended", signal.SIGTERM, -signal.SIGTERM)],
)
def test_a_program_that_is_told_to_end_stops_its_job_first(
    tmp_path: Path, mode: str, number: int, code: int
) -> None:
    """P3, I11: 0 where the program goes on to its own end, the signal's where it does something else."""
    assert end(tmp_path, mode, number) == code


def test_a_job_that_a_signal_has_stopped_goes_on_exactly_there(spark: Any, tmp_path: Path) -> None:
    """P3, R5, I1."""
    assert end(tmp_path, "drive", signal.SIGTERM) == 0
    job = take_over(spark, tmp_path)
    with jobs.running(job):
        jobs.finish(job)
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), ROWS)


def test_a_second_ctrl_c_ends_penstock_run_at_once(tmp_path: Path) -> None:
    """bug-I2: a job that cannot stop, because its function hangs, holds nobody up."""
    (tmp_path / "app.py").write_text(STUCK)
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "run", "app.py"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            until((tmp_path / "here").exists)
            started = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            lines = iter(process.stderr.readline, "")
            told = next(line for line in lines if "stopping" in line)
            assert "job stuck: stopping with a last checkpoint (Ctrl-C again ends" in told
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted" in rest and "Traceback" not in rest
    _, alive = psutil.wait_procs(started, PATIENCE_S)
    assert not alive
