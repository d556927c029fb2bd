"""The first pages a newcomer reads: what they show really runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
STATUS = re.compile(r"<Job 'totals': running, last checkpoint \d+> workers: \[(\d+), (\d+)\]")


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text("utf-8"))


@pytest.mark.spark
def test_the_readme_s_job_heals_when_a_worker_it_lists_is_killed(tmp_path: Path) -> None:
    """R1: the program in the README, a kill -9, and totals that are right."""
    (program,) = blocks("README.md")
    (tmp_path / "first.py").write_text(program)
    process = subprocess.Popen(
        [sys.executable, "-u", "first.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line
            found = STATUS.search(line)
            if found:
                os.kill(int(found[1]), signal.SIGKILL)
                break
        rest, _ = process.communicate(timeout=600)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, seen + rest
    assert "<Job 'totals': finished" in rest
    assert "WorkerLost" in rest.splitlines()[-1]
    assert final_totals(tmp_path / "out/totals") == expected_totals()


def final_totals(folder: Path) -> dict[str, tuple[int, int]]:
    """Of each user the update with the most orders; an update that is there twice is an error."""
    rows = [
        row for path in folder.glob("part-*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    assert len({(row["user"], row["orders"]) for row in rows}) == len(rows)
    rows.sort(key=lambda row: row["orders"])
    return {row["user"]: (row["orders"], row["total"]) for row in rows}


def expected_totals() -> dict[str, tuple[int, int]]:
    return {
        f"user-{user}": (40_000, sum(i % 100 for i in range(user, 200_000, 5))) for user in range(5)
    }


def test_the_readme_s_way_to_the_latest_update_of_each_key_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running aggregate's output is a log of updates; files are in no order."""
    folder = tmp_path / "out/totals"
    folder.mkdir(parents=True)
    for name, orders in (("a", [2, 5]), ("b", [1, 3, 4])):
        columns = {
            "user": ["ann"] * len(orders),
            "orders": orders,
            "total": [n * 10 for n in orders],
        }
        pq.write_table(pa.table(columns), folder / f"part-{name}.parquet")
    monkeypatch.chdir(tmp_path)
    (recipe,) = re.findall(r"^```py\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    found = eval(recipe, {"pd": pd})
    assert found.reset_index().to_dict("records") == [{"user": "ann", "orders": 5, "total": 50}]


def test_the_guide_s_code_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything but a job of its own: plans are built, streams are looked at."""
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks("docs/guide.md"):
        exec(compile(block, "docs/guide.md", "exec"), names)
    assert "totals-files" in capsys.readouterr().out
    assert [tuple(row) for row in names["taxed"].take(2)] == [("ann", 3.75), ("bob", 6.25)]
    assert [row.size for row in names["cleaned"].take(2)] == ["small", "large"]
    assert len(names["both"].take(5)) == 3
    assert names["words"].take(1)[0].letter == "a"
    assert names["generated"].take(1)[0].user == 0
