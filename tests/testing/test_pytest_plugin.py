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
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


def test_options_and_markers_say_how_many_schedules_are_tried(tmp_path: Path) -> None:
    names = "test_good or test_few or test_own_seeds"
    done = run_pytest(tmp_path, "-k", names, "--penstock-seeds", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"tried (\d+)", done.stdout) == ["3", "4", "2"], "a marker is not lowered"
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


MARKED = """
import pytest
from penstock.testing import simulation


@pytest.fixture(autouse=True)
def told(monkeypatch):
    monkeypatch.setattr(simulation, "simulate", lambda _, seeds: print("seeds", list(seeds)))


@pytest.mark.penstock_seeds
def test_nothing(penstock_simulate):
    penstock_simulate(None)


@pytest.mark.penstock_seeds("many")
def test_words(penstock_simulate):
    penstock_simulate(None)


@pytest.mark.penstock_seeds(0)
def test_zero(penstock_simulate):
    penstock_simulate(None)


@pytest.mark.penstock_seeds(n=5)
def test_by_name(penstock_simulate):
    penstock_simulate(None)


@pytest.mark.penstock_seeds([3, -4])
def test_negative(penstock_simulate):
    penstock_simulate(None)


@pytest.mark.penstock_seeds(3)
def test_good_number(penstock_simulate):
    penstock_simulate(None)


@pytest.mark.penstock_seeds([3, 4])
def test_good_list(penstock_simulate):
    penstock_simulate(None)


@pytest.mark.penstock_seeds(range(5, 7))
def test_good_range(penstock_simulate):
    penstock_simulate(None)


def test_good_own(penstock_simulate):
    penstock_simulate(None, seeds=[8])
"""


def test_a_marker_takes_a_number_or_seeds_and_refuses_the_rest(tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED)
    done = run_pytest(tmp_path, "test_marked.py")
    seeds = re.findall(r"seeds (\[.*\])", done.stdout)
    assert seeds == ["[0, 1, 2]", "[3, 4]", "[5, 6]", "[8]"], done.stdout
    for told in ("()", "('many')", "(0)", "(n=5)", "([3, -4])"):
        assert f"ConfigError: @pytest.mark.penstock_seeds{told}: write @pytest" in done.stdout
    assert "errors" in done.stdout.splitlines()[-1]


def test_more_seeds_are_added_to_those_of_a_marker_and_one_seed_replaces_all(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED)
    more = run_pytest(tmp_path, "test_marked.py", "-k", "good", "--penstock-seeds", "4")
    seeds = re.findall(r"seeds (\[.*\])", more.stdout)
    assert seeds == ["[0, 1, 2, 3]", "[3, 4, 0, 1]", "[5, 6, 0, 1]", "[8]"], more.stdout
    one = run_pytest(tmp_path, "test_marked.py", "-k", "good", "--penstock-seed", "6")
    assert re.findall(r"seeds (\[.*\])", one.stdout) == 4 * ["[6]"], one.stdout


def test_options_that_would_try_nothing_are_refused(tmp_path: Path) -> None:
    for option, value in (
        ("--penstock-seeds", "0"),
        ("--penstock-seeds", "-5"),
        ("--penstock-seed", "x"),
    ):
        done = run_pytest(tmp_path, "-k", "test_few", f"{option}={value}")
        assert done.returncode == 4, done.stdout
        assert f"argument {option}: '{value}' is not a whole number from" in done.stderr


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
