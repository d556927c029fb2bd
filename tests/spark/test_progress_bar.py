"""Spark's progress bar on a session of the user's: not over what is typed while a job runs, and back afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
HERE = Path(__file__).resolve().parent
BAR = "[Stage"


@pytest.mark.timeout(300)
def test_the_bar_is_off_while_jobs_run_and_comes_back_with_the_user_s_own_queries(
    tmp_path: Path,
) -> None:
    """Two jobs, so that the first to end does not bring it back. The query ends when its bar has been seen."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "bar_program.py"), str(tmp_path)],
        env=dict(os.environ, PYTHONPATH=str(HERE.parents[1] / "src")),
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    said = ""
    try:
        while piece := os.read(process.stderr.fileno(), 4096):
            said += piece.decode()
            if "<a query>" in said and BAR in said.partition("<a query>")[2]:
                (tmp_path / "seen").touch()
        assert process.wait(timeout=60) == 0, said
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    jobs, _, after = said.partition("<a query>")
    assert "<one has run>" in jobs and "<two has run>" in jobs, said
    assert BAR not in jobs
    assert BAR in after and "<the end>" in after
