"""Back pressure as a number between 0 and 1: the share of time with full outputs."""

from __future__ import annotations

import pytest

from penstock.engine.worker.metrics import attempt_metrics
from penstock.engine.worker.pressure import WINDOW_MS, Pressure
from penstock.ports.channel import Batch
from penstock.protocol.messages import SnapshotOrder
from tests.engine.kit import ManualClock, rows
from tests.engine.test_subtask import N1, Bench

SERIES = 'penstock_back_pressure{operator="work",subtask="0"}'


def test_the_share_is_that_of_the_time_with_full_outputs() -> None:
    clock = ManualClock()
    pressure = Pressure(clock)
    for now_ms, full in ((0, False), (100, True), (150, True), (400, False), (900, True)):
        clock.now_ms = float(now_ms)
        pressure.note(full)
    clock.now_ms = WINDOW_MS
    assert pressure.share() == pytest.approx(0.4)
    clock.now_ms += WINDOW_MS / 2
    assert pressure.share() == pytest.approx(0.4), "until the next window is over"
    clock.now_ms += WINDOW_MS / 2
    assert pressure.share() == 1.0, "it was full all the time"
    pressure.note(False)
    clock.now_ms += WINDOW_MS
    assert pressure.share() == 0.0


def after_a_window(bench: Bench) -> float:
    bench.subtask.step()
    bench.clock.now_ms += WINDOW_MS
    bench.subtask.step()
    return attempt_metrics([bench.subtask])[SERIES]


def test_a_subtask_whose_output_is_full_is_pressed_until_there_is_room() -> None:
    """E5."""
    bench = Bench(room=1)
    assert after_a_window(bench) == 0.0
    bench.a.frames += [Batch(rows(1)), Batch(rows(2)), Batch(rows(3))]
    bench.run()
    after_a_window(bench)
    assert after_a_window(bench) == 1.0
    bench.out.room = 100
    bench.run()
    after_a_window(bench)
    assert after_a_window(bench) == 0.0


def test_a_subtask_that_waits_for_word_of_an_urgent_barrier_is_pressed_too() -> None:
    """B7: its reader has not processed what came before."""
    bench = Bench()
    bench.out.confirms = False
    bench.subtask.outputs.barrier(SnapshotOrder(N1, urgent=True))
    after_a_window(bench)
    assert after_a_window(bench) == 1.0
    bench.out.confirm(N1)
    after_a_window(bench)
    assert after_a_window(bench) == 0.0
