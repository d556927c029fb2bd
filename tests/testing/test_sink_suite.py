"""The parts of the sink suite that look at recovery: each of these sinks has one bug, and the suite says which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import CommitError
from penstock.testing import MemoryTable, sink_conformance

BUGS = {
    "commits what is gone without a word": "aborted transaction returned without an error",
    "takes the rows when they are made durable": "rows came while the first transaction",
    "forgets what it published when it recovers": "attempt 4 recovered",
    "takes other jobs for its own": "must leave alone what was staged by another job; .*CommitError",
    "aborts what comes later": "must leave alone what was staged by a later attempt; .*CommitError",
    "loses rows of other sinks": "staged by another sink of the job, named 'out-1'; .*rows lost: 2",
}


class Staging(pen.Sink):
    def __init__(self, bug: str = "") -> None:
        self.table = MemoryTable()
        self.bug = bug

    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        return StagingWriter(self.table, context, self.bug)

    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        return StagingCommitter(self.table, context, self.bug)


class StagingWriter(pen.SinkWriter):
    """Makes its rows durable in the background."""

    def __init__(self, table: MemoryTable, context: pen.SinkContext, bug: str) -> None:
        self.table, self.context, self.bug = table, context, bug
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def prepare(self, checkpoint: int) -> Callable[[], str | None]:
        context = self.context
        owner = f"{context.job}/{context.operator}"
        name = f"{owner}/{context.index}/{context.attempt}/{checkpoint}"
        rows, self.rows = self.rows, []
        late = self.bug == "takes the rows when they are made durable"

        def make_durable() -> str | None:
            taken = rows
            if late:
                taken, self.rows = rows + self.rows, []
            if not taken:
                return None
            self.table.staged[name] = taken
            return name

        return make_durable


class StagingCommitter(pen.SinkCommitter):
    def __init__(self, table: MemoryTable, context: pen.SinkContext, bug: str) -> None:
        self.table, self.context, self.bug = table, context, bug

    def commit(self, transaction: Any) -> None:
        if transaction is None or transaction in self.table.published:
            return
        if transaction not in self.table.staged:
            if self.bug == "commits what is gone without a word":
                return
            raise CommitError(f"{transaction} is gone")
        keeps = self.bug == "forgets what it published when it recovers"
        rows = self.table.staged[transaction]
        self.table.rows += rows
        self.table.published.add(transaction)
        if not keeps:
            del self.table.staged[transaction]

    def abort_others(self, keep: Sequence[Any]) -> None:
        context = self.context
        for name in list(self.table.staged):
            owner, index, attempt, _ = name.rsplit("/", 3)
            job, operator = owner.split("/")
            any_job = self.bug == "takes other jobs for its own"
            earlier = int(attempt) < context.attempt
            if self.bug == "aborts what comes later":
                earlier = int(attempt) != context.attempt
            mine = (any_job or job == context.job) and earlier
            if self.bug == "loses rows of other sinks" and operator == "out-1":
                self.table.staged[name] = []
            mine = mine and operator == context.operator
            if mine and int(index) % context.parallelism == context.index and name not in keep:
                del self.table.staged[name]
        if self.bug == "forgets what it published when it recovers" and context.attempt > 2:
            self.table.published.clear()


def conforms(bug: str) -> None:
    sink_conformance(
        lambda: Staging(bug),
        read_back=lambda sink: pa.Table.from_pylist(sink.table.rows),
        count_staged=lambda sink: 0 if bug else len(sink.table.staged),
    )


def test_a_sink_that_prepares_in_the_background_passes() -> None:
    """E2: commits in any order, aborts, repeated recoveries and a crash behind every step."""
    conforms("")


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_sink_with_a_bug_in_its_recovery_does_not_pass(bug: str) -> None:
    """E2, E3, I10."""
    with pytest.raises(AssertionError, match=BUGS[bug]):
        conforms(bug)
