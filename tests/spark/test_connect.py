"""Spark Connect: its sessions have no SparkContext, so they are refused, before anything else happens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
HERE = Path(__file__).resolve().parent


@pytest.mark.timeout(600)
def test_a_spark_connect_session_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """A real one; also where a job wants a local Spark beside it. Nothing is written, and the session goes on."""
    run = subprocess.run(
        [sys.executable, str(HERE / "connect_program.py"), str(tmp_path)],
        env=dict(os.environ, PYTHONPATH=str(HERE.parents[1] / "src")),
        capture_output=True,
        text=True,
        check=False,
        timeout=570,
    )
    said = [line for line in run.stdout.splitlines() if not line.startswith("[Stage")]
    assert [line.split()[0] for line in said] == [
        "session",
        "refused",
        "refused",
        "made",
        "rows",
    ], run.stdout + run.stderr
    assert said[0] == "session pyspark.sql.connect.session 3"
    for line in said[1:3]:
        assert "this program uses Spark Connect" in line
        assert "without .remote(...)" in line and ".start()" in line
    assert said[3:] == ["made []", "rows 5"]
