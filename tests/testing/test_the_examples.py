"""What docs/testing.md shows is what happens: the bug of examples/find_a_bug.py is found, the mended sink passes."""

from __future__ import annotations

import re
import runpy
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.testing import FAULTS, simulate

ROOT = Path(__file__).parents[2]


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / name), run_name="example")


def skeleton(text: str) -> set[str]:
    """The lines of a report without numbers and rows, which change with every change of the scheduler."""
    lines = [re.sub(r"\d+", "N", line).strip() for line in text.splitlines()]
    telling = ("rule", "look at", "known:", "and do nothing", "What the sink", "See it again")
    return {line for line in lines if line.startswith(telling)}


def test_the_report_in_the_documentation_is_the_real_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """E2, I10: a commit that is not idempotent is found, with the words that the page shows."""
    example("find_a_bug.py")["main"]()
    printed = capsys.readouterr().out
    page = (ROOT / "docs/testing.md").read_text()
    shown = re.search(r"```text\n(seed .*?)```", page, re.DOTALL)
    assert shown is not None
    assert len(skeleton(shown[1])) == 6
    assert skeleton(shown[1]) <= skeleton(printed)
    assert printed.count("commit('") >= 2, "the calls of the transaction are told"
    assert printed.rstrip().endswith("no rule was broken")


def test_every_kind_of_fault_is_in_the_documentation() -> None:
    page = (ROOT / "docs/testing.md").read_text()
    assert [kind for kind in FAULTS if f"`{kind}`" not in page] == []


def test_the_classes_in_the_documentation_are_those_of_the_example() -> None:
    page = (ROOT / "docs/testing.md").read_text()
    program = (ROOT / "examples/find_a_bug.py").read_text()
    for line in (
        "self.table.rows += self.table.staged[transaction]",
        "if transaction not in self.table.published:",
        "self.table.published.add(transaction)",
    ):
        assert line in page
        assert line in program


def test_the_example_of_an_own_source_and_sink_passes_the_simulator(tmp_path: Path) -> None:
    """E1, E2: a real database file for each schedule."""
    made = example("own_source_and_sink.py")
    orders = str(tmp_path / "orders.db")
    with closing(sqlite3.connect(orders)) as connection, connection:
        connection.execute("create table orders (id integer primary key, item text)")
        rows = [(number, f"item {number % 7}") for number in range(30)]
        connection.executemany("insert into orders values (?, ?)", rows)

    def build(folder: Path) -> pen.Pipeline:
        sink = made["CopySink"](str(folder / "copy.db"))
        return pen.from_source(made["OrdersSource"](orders)).to(sink)

    def copied(sink: Any) -> list[tuple[int, str]]:
        with closing(sqlite3.connect(sink.path)) as connection:
            return connection.execute("select id, item from copied").fetchall()

    def staged(sink: Any) -> int:
        with closing(sqlite3.connect(sink.path)) as connection:
            return int(connection.execute("select count(*) from staged").fetchone()[0])

    report = simulate(build, read=copied, staged=staged, seeds=range(10))
    assert report.attempts > report.schedules


def test_the_tests_in_the_documentation_of_connectors_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they stand there, imports and all."""
    page = (ROOT / "docs/connectors.md").read_text()
    block = re.search(r"```python\n(import itertools\n.*?)```", page, re.DOTALL)
    assert block is not None
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    tests: dict[str, Any] = {}
    exec(compile(block[1], "connectors.md", "exec"), tests)
    tests["test_my_source"](tmp_path)
    tests["test_my_sink"](tmp_path)


def test_the_example_in_the_documentation_of_connectors_has_all_of_its_imports() -> None:
    page = (ROOT / "docs/connectors.md").read_text()
    blocks = re.findall(r"```python example\n(.*?)```", page, re.DOTALL)
    made: dict[str, Any] = {}
    exec(compile("\n".join(blocks), "connectors.md", "exec"), made)
    assert issubclass(made["OrdersSource"], pen.Source)
    assert issubclass(made["CopySink"], pen.Sink)
