"""How far a simulation is shows on a terminal, and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

import penstock as pen
from penstock.testing import SimulationFailed, progress, simulate
from penstock.testing.progress import CLEAR, Progress
from tests.testing.shop import orders, shop, shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_short_simulation_says_nothing() -> None:
    clock = iter([0.0, 0.5, 0.9])
    terminal = Terminal()
    shown_on = Progress(1000, terminal, lambda: next(clock))
    shown_on.tried(1)
    shown_on.tried(2)
    shown_on.end()
    assert terminal.getvalue() == ""


def test_a_long_one_says_how_far_it_is_and_cleans_up() -> None:
    clock = iter([0.0, 1.2, 1.3, 30.0, 31.0])
    terminal = Terminal()
    shown_on = Progress(1000, terminal, lambda: next(clock))
    shown_on.tried(40)
    shown_on.tried(41)
    shown_on.tried(999)
    shown_on.shrinks(999, 3)
    shown_on.end()
    assert terminal.getvalue() == (
        f"{CLEAR}simulate: 40 of 1,000 schedules, no rule broken so far (1 s)"
        f"{CLEAR}simulate: 999 of 1,000 schedules, no rule broken so far (30 s)"
        f"{CLEAR}simulate: seed 999 breaks a rule; looking for a smaller schedule, try 3 (31 s)"
        f"{CLEAR}"
    )


def test_a_simulation_tells_the_terminal_also_while_it_looks_for_a_smaller_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SILENT_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert simulate(orders(), seeds=range(3)).ok
    assert "3 of 3 schedules" in terminal.getvalue()
    with pytest.raises(SimulationFailed):
        simulate(shop("commits twice"), seeds=range(60), read=shown)
    assert "breaks a rule; looking for a smaller schedule, try 1" in terminal.getvalue()
    assert terminal.getvalue().endswith(CLEAR)


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_nothing_is_written_where_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None
) -> None:
    """A file, a pipe, pytest's capture, or a program without a standard error."""
    monkeypatch.setattr(progress, "SILENT_S", 0.0)
    monkeypatch.setattr(sys, "stderr", stream)
    assert simulate(pen.from_rows([(1,)], "a BIGINT"), seeds=range(2)).ok
    assert stream is None or stream.getvalue() == ""


def test_a_long_search_for_a_smaller_schedule_is_told_once_also_where_nobody_looks() -> None:
    """A test that has failed and does not end looks like one that hangs."""
    clock = iter(range(100))
    stream = io.StringIO()
    told = Progress(1000, stream, lambda: next(clock))
    for tries in range(1, 9):
        told.tried(tries)
        told.shrinks(999, tries)
    told.end()
    assert stream.getvalue() == (
        "simulate: seed 999 breaks a rule; looking for a smaller schedule\n"
    )
