"""The README's program, as a newcomer runs it: killed with -9 in the middle and started again, it goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S, until

ROOT = Path(__file__).parents[2]


def first_program() -> str:
    readme = (ROOT / "README.md").read_text("utf-8")
    found = re.search(r"```python example\n(.*?)```", readme, re.DOTALL)
    assert found is not None
    return found[1]


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program, from its own folder, in an environment that is activated as the README says."""
    environment = {name: text for name, text in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (folder / "said").open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "first.py"], cwd=folder, env=environment, stdout=said, stderr=said
        )
    family: list[psutil.Process] = []
    try:
        yield process
    except BaseException:
        print((folder / "said").read_text()[-5_000:])
        raise
    finally:
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def orders(folder: Path) -> int:
    """How many orders the table counts now."""
    try:
        return int(sum(pen.read_table(str(folder / "out/totals"))["orders"].to_pylist()))
    except pen.PenstockError:
        return 0


def shown(folder: Path) -> int:
    """How many tables the program has printed that have rows."""
    return (folder / "said").read_text().count("|user-0|")


@pytest.mark.spark
def test_the_first_program_goes_on_when_anything_is_killed(tmp_path: Path) -> None:
    """R1, R5, E1, E7: a worker, then the program itself; then it is told to stop."""
    (tmp_path / "first.py").write_text(first_program())
    with running(tmp_path) as program:
        until(lambda: orders(tmp_path) > 0 and shown(tmp_path) > 0)
        jobs.kill(jobs.workers(program.pid)[0])
        seen = orders(tmp_path)
        until(lambda: orders(tmp_path) > seen)
        program.kill()
        program.wait()
    seen = orders(tmp_path)
    with running(tmp_path) as program:
        until(lambda: orders(tmp_path) > seen)
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE_S) in (0, -signal.SIGTERM, 143)
    table = pen.read_table(str(tmp_path / "out/totals")).to_pylist()
    assert sorted(row["user"] for row in table) == [f"user-{n}" for n in range(5)]
