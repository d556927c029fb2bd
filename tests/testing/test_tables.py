"""Tables of the latest row per key in whole jobs that crash: the sink itself in the simulator, on a real disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.connectors.tables import compaction, ledger, sink
from penstock.testing import SimulationFailed, last_per, simulate
from tests.connectors.table_kit import TableSink, merge_often

STAMPED = sink.stamped
ORDERS = [(f"user {number % 7}", number) for number in range(60)]


class WatchedTable(TableSink):
    """Says that it is not idempotent, so that every moment is looked at, and not only the end."""

    idempotent = False

    def to_table(self) -> Any:
        return pen.read_table(self._path)


def totals(sink: pen.Sink) -> pen.Pipeline:
    stream = pen.from_rows(ORDERS, "user STRING, amount BIGINT").key_by("user")
    return stream.agg(orders=pen.count(), total=pen.sum("amount")).to(sink, name="table")


def numbered(sink: pen.Sink) -> pen.Pipeline:
    """Rows of a user's own function, so that they travel to the subtask of their key."""
    stream = pen.from_rows(ORDERS, "user STRING, amount BIGINT").key_by("user")
    return stream.process(Numbered(), "user STRING, orders BIGINT").to(sink, name="table")


class Numbered:
    def open(self, ctx: Any) -> None:
        self.seen = ctx.value_state("seen", "n BIGINT")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        n = (self.seen.get() or (0,))[0]
        for _ in rows:
            n += 1
            yield (key.user, n)
        self.seen.update((n,))


def staged(sink: Any) -> int:
    return len(list(Path(sink._path, "_staging").rglob("*.*")))


@pytest.mark.parametrize("pipeline", [totals, numbered])
def test_every_look_at_a_table_shows_the_newest_committed_rows(
    monkeypatch: pytest.MonkeyPatch, pipeline: Any
) -> None:
    """E7, E2, E3, I9, I10, R1, R6: through crashes, rescales, lost answers and two drivers at once, while files are
    merged and deleted all the time."""
    merge_often(monkeypatch)
    monkeypatch.setattr(compaction, "GRACE_MS", 50.0)
    monkeypatch.setattr("penstock.connectors.sinks.folder._sync", lambda path: None)
    report = simulate(
        lambda folder: pipeline(WatchedTable(str(folder / "table"), "user")),
        compare=last_per("user"),
        staged=staged,
        seeds=range(25),
    )
    assert report.ok
    assert report.attempts > 40


@pytest.mark.parametrize(
    ("owner", "name", "bug", "found"),
    [
        (sink, "last_rows", lambda keys: np.arange(1), "keys have another value"),
        (sink, "stamped", lambda rows, keys, n: STAMPED(rows, keys, 999 - n), "another value"),
        (ledger, "has", lambda *_: False, "a completed checkpoint promises"),
        (sink, "STAGED", re.compile("nothing"), "is not a transaction"),
    ],
)
def test_a_table_with_a_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, bug: Any, found: str
) -> None:
    """The test above would notice."""
    merge_often(monkeypatch)
    monkeypatch.setattr(compaction, "GRACE_MS", 0.0)
    monkeypatch.setattr("penstock.connectors.sinks.folder._sync", lambda path: None)
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(SimulationFailed, match=found):
        simulate(
            lambda folder: totals(WatchedTable(str(folder / "table"), "user")),
            compare=last_per("user"),
            seeds=range(60),
        )


def test_a_pipeline_with_a_shipped_table_is_compared_by_its_key(tmp_path: Path) -> None:
    """E7: nobody has to say so; and nothing is written to the disk."""
    path = tmp_path / "table"
    assert simulate(numbered(pen.UpsertFileSink(str(path), "user")), seeds=range(10)).ok
    assert not path.exists()
