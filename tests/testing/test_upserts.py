"""Sinks that stage rows and put them in by key when they are committed: they show the newest row of each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.testing import Outside, SimulationFailed, last_per, simulate

ORDERS = [(f"user {number % 7}", number) for number in range(120)]


class Table(Outside):
    def __init__(self) -> None:
        self.staged: dict[str, list[dict[str, Any]]] = {}
        self.by_user: dict[str, dict[str, Any]] = {}
        self.committed: set[str] = set()


class Upserts(pen.Sink):
    def __init__(self, bug: str = "") -> None:
        self.table = Table()
        self.bug = bug

    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        return Writer(self.table, context, self.bug)

    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        return Committer(self.table, context, self.bug)


class Writer(pen.SinkWriter):
    def __init__(self, table: Table, context: pen.SinkContext, bug: str) -> None:
        self.table, self.context, self.bug = table, context, bug
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def prepare(self, checkpoint: int) -> str | None:
        if not self.rows:
            return None
        name = f"{self.context.index}/{self.context.attempt}/{checkpoint}"
        self.table.staged[name], self.rows = self.rows, []
        if self.bug == "shows what is prepared":
            put(self.table, self.table.staged[name])
        return name


class Committer(pen.SinkCommitter):
    def __init__(self, table: Table, context: pen.SinkContext, bug: str) -> None:
        self.table, self.context, self.bug = table, context, bug

    def commit(self, transaction: Any) -> None:
        if transaction in self.table.committed and self.bug != "puts old rows in again":
            return
        if self.bug != "puts nothing in":
            put(self.table, self.table.staged[transaction])
        self.table.committed.add(transaction)
        if self.bug != "puts old rows in again":
            del self.table.staged[transaction]

    def abort_others(self, keep: Sequence[Any]) -> None:
        for name in set(self.table.staged) - set(keep):
            index, attempt, _ = map(int, name.split("/"))
            mine = index % self.context.parallelism == self.context.index
            if mine and attempt < self.context.attempt:
                del self.table.staged[name]


def put(table: Table, rows: list[dict[str, Any]]) -> None:
    table.by_user.update({row["user"]: row for row in rows})


def totals(sink: pen.Sink) -> pen.Pipeline:
    stream = pen.from_rows(ORDERS, "user STRING, amount BIGINT").key_by("user")
    return stream.agg(orders=pen.count(), total=pen.sum("amount")).to(sink, name="table")


def shown(sink: Any) -> list[dict[str, Any]]:
    return list(sink.table.by_user.values())


def test_a_sink_that_keeps_the_newest_row_of_each_key_passes() -> None:
    """E4, I10: in two phases, so that nothing shows before its checkpoint is complete."""
    report = simulate(
        totals(Upserts()),
        read=shown,
        staged=lambda sink: len(sink.table.staged),
        compare=last_per("user"),
        seeds=range(60),
    )
    assert report.ok
    assert report.attempts > 60


@pytest.mark.parametrize(
    ("bug", "look_at"),
    [
        ("puts old rows in again", "would bring old values back"),
        ("shows what is prepared", "visible before their checkpoint is complete"),
    ],
)
def test_a_key_that_does_not_show_its_newest_committed_row_is_found(bug: str, look_at: str) -> None:
    """I9, I10, bug-F13: also one that is right again at the end."""
    with pytest.raises(SimulationFailed, match="keys have another value") as failed:
        simulate(totals(Upserts(bug)), read=shown, compare=last_per("user"), seeds=range(60))
    assert look_at in " ".join(str(failed.value).split())


def test_rows_that_never_show_are_found() -> None:
    with pytest.raises(SimulationFailed, match="cannot be seen"):
        simulate(totals(Upserts("puts nothing in")), read=shown, compare=last_per("user"))


def test_without_the_comparison_the_error_says_which_one_is_meant() -> None:
    with pytest.raises(SimulationFailed, match=r"compare=last_per\(") as failed:
        simulate(totals(Upserts()), read=shown, seeds=range(5))
    assert "rows lost" in str(failed.value)
