"""The pytest plugin, as a user has it: a fixture, a marker, options, and a failure that says how to see it again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
from tests.testing.shop import shop, shown


def test_good(penstock_simulate):
    report = penstock_simulate(shop(), read=shown)
    print("tried", report.schedules)


@pytest.mark.penstock_seeds(4)
def test_few(penstock_simulate):
    print("tried", penstock_simulate(shop(), read=shown).schedules)


def test_own_seeds(penstock_simulate):
    print("tried", penstock_simulate(shop(), read=shown, seeds=range(2)).schedules)


def test_bad(penstock_simulate):
    penstock_simulate(shop("commits twice"), read=shown)
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_shop.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {ROOT}\naddopts = --strict-markers\n"
    )
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )


def test_options_and_markers_say_how_many_schedules_are_tried(tmp_path: Path) -> None:
    names = "test_good or test_few or test_own_seeds"
    done = run_pytest(tmp_path, "-k", names, "--penstock-seeds", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"tried (\d+)", done.stdout) == ["3", "3", "2"]
    marked = run_pytest(tmp_path, "-k", "test_few")
    assert re.findall(r"tried (\d+)", marked.stdout) == ["4"], marked.stdout + marked.stderr


def test_a_failing_test_prints_the_seed_and_the_way_to_replay_it(tmp_path: Path) -> None:
    """I28: the printed command fails in the same schedule."""
    done = run_pytest(tmp_path, "-k", "test_bad")
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.search(r"Replay it with: pytest '(\S+)' --penstock-seed (\d+)", done.stdout)
    assert found, done.stdout
    assert "commit() of this sink" in done.stdout
    again = run_pytest(tmp_path, found[1], "--penstock-seed", found[2])
    assert again.returncode == 1
    assert f"seed {found[2]} breaks a rule (1 schedule of" in again.stdout


def test_the_options_are_explained() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True, check=True
    )
    assert "--penstock-seeds=N" in done.stdout
    assert "--penstock-seed=SEED" in done.stdout


PLAIN = """
import penstock as pen
from penstock.testing import simulate, sink_conformance
from tests.testing.shop import ShopSink, shop, shown


def test_bad():
    simulate(shop("commits twice"), read=shown)


def test_always_raises():
    def fails(row):
        raise ZeroDivisionError("a mistake of mine")

    simulate(pen.from_rows([(1,)], "a BIGINT").map(fails))


def test_bad_sink():
    def read_back(sink):
        return []

    sink_conformance(lambda: ShopSink("commits twice"), read_back)
"""


def test_a_failing_test_shows_the_report_and_no_frames_of_penstock(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(PLAIN)
    for name in ("test_plain.py", "test_shop.py::test_bad"):
        done = run_pytest(tmp_path, name)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "src/penstock/testing" not in done.stdout
        assert "breaks a rule" in done.stdout
    everything = run_pytest(tmp_path, "test_plain.py").stdout
    assert "a mistake of mine" in everything
    assert "E       AssertionError: " in everything
