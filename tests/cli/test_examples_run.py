"""The examples that start jobs run to their end, one after the other on one Spark, in a program of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
BOTH = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
"""


@pytest.mark.spark
def test_the_examples_with_jobs_do_what_they_say(tmp_path: Path) -> None:
    """E2: each order is copied once; the two sinks of one job have what belongs there."""
    programs = [str(EXAMPLES / name) for name in ("two_sinks.py", "own_source_and_sink.py")]
    done = subprocess.run(
        [sys.executable, "-c", BOTH, *programs],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "(10000, 10000)"
    files = tmp_path / "two-sinks-out"
    whole = f"select count(*) from '{files}/all/*.parquet'"
    large = f"select \"user\" from '{files}/large/*.json' order by 1"
    assert duckdb.sql(whole).fetchall() == [(4,)]
    assert duckdb.sql(large).fetchall() == [("bob",), ("eve",)]


def test_the_example_without_a_job_shows_its_jump(capsys: pytest.CaptureFixture[str]) -> None:
    import runpy

    runpy.run_path(str(EXAMPLES / "own_function.py"), run_name="__main__")
    assert "35.0" in capsys.readouterr().out
