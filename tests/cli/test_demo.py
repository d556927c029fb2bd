"""The demo as a person runs it: a process of its own, real Spark, real kills."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.spark

ARGUMENTS = ["--rows", "160000", "--rate", "20000", "--json"]
GONE_WITHIN_S = 180


@contextmanager
def a_demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Everything temporary, Spark's own files included, goes below `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_books_balance_although_two_workers_are_killed(tmp_path: Path) -> None:
    """R1, I1, I2, E2: SIGKILL of workers loses nothing and repeats nothing, in state and in files."""
    with a_demo(tmp_path, *ARGUMENTS) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    result = json.loads(out.splitlines()[-1])
    assert result["books_balance"] is True
    assert result["exactly_once"] is True
    assert result["kills"] == 2
    assert result["restarts"] >= 2
    assert len(result["recovery_seconds"]) == 2
    assert result["rows_in"] == 160_000
    assert result["rows_out"] == 320_000
    assert result["checkpoints_completed"] >= 3
    assert result["rows_per_second"] > 0
    assert err.count("kill -9") == 3, "once in the heading, then once for each kill"
    assert not list(tmp_path.glob("penstock*")), "temporary files stay behind"


def test_ctrl_c_ends_the_demo_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """bug-I5: no worker, no temporary file and no exit code of a success."""
    with a_demo(tmp_path, "--rows", "100000000", "--json") as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any(re.search(r"checkpoint \d+ completed", line) for line in lines)
        started = psutil.Process(process.pid).children(recursive=True)
        assert started, "neither Spark nor workers run"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(started, GONE_WITHIN_S)
    assert not alive
    assert not list(tmp_path.glob("penstock*"))
