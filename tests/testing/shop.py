"""A sink that stages and publishes in memory, a source and a function, and the bugs that they can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

import penstock as pen
from penstock.errors import CommitError
from penstock.testing import MemoryTable, may_fail

ORDERS = [(f"c{i % 5}", i) for i in range(40)]
SCHEMA = "customer STRING, amount BIGINT"


def orders() -> pen.Stream:
    return pen.from_rows(ORDERS, SCHEMA)


def shop(bug: str = "") -> pen.Pipeline:
    return orders().filter(pen.col("amount") >= 0).to(ShopSink(bug), name="shop")


def shown(sink: ShopSink) -> list[dict[str, Any]]:
    return sink.table.rows


def staged(sink: ShopSink) -> int:
    return len(sink.table.staged)


class ShopSink(pen.Sink):
    def __init__(self, bug: str = "") -> None:
        self.table = MemoryTable()
        self.bug = bug

    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        return ShopWriter(self.table, context, self.bug)

    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        return ShopCommitter(self.table, context, self.bug)


class ShopWriter(pen.SinkWriter):
    def __init__(self, table: MemoryTable, context: pen.SinkContext, bug: str) -> None:
        self.table, self.context, self.bug = table, context, bug
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        rows = batch.to_pylist()
        self.rows += rows
        if self.bug == "writes at once":
            self.table.rows += rows

    def prepare(self, checkpoint: int) -> Any:
        if not self.rows:
            return None
        name = f"{self.context.index}/{self.context.attempt}/{checkpoint}"
        rows, self.rows = self.rows, []
        if self.bug == "shows what is prepared":
            self.table.rows += rows
        if self.bug == "writes at once":
            return None
        self.table.staged[name] = rows
        if self.bug == "describes with objects":
            return {"name": name, "when": object()}
        return name


class ShopCommitter(pen.SinkCommitter):
    def __init__(self, table: MemoryTable, context: pen.SinkContext, bug: str) -> None:
        self.table, self.context, self.bug = table, context, bug

    def commit(self, transaction: Any) -> None:
        table = self.table
        if transaction in table.published and self.bug != "commits twice":
            return
        if transaction not in table.staged:
            raise CommitError(f"{transaction} is gone")
        rows = table.staged[transaction]
        if self.bug == "commits half":
            table.rows += rows[:1]
            may_fail("the second half")
            rows = rows[1:]
        if self.bug not in ("commits nothing", "shows what is prepared"):
            table.rows += rows
        table.published.add(transaction)
        if self.bug != "commits twice":
            del table.staged[transaction]

    def abort_others(self, keep: Sequence[Any]) -> None:
        if self.bug == "never aborts":
            return
        for name in list(self.table.staged):
            index, attempt, _ = (int(part) for part in name.split("/"))
            mine = index % self.context.parallelism == self.context.index
            if mine and attempt < self.context.attempt and name not in keep:
                del self.table.staged[name]
        if self.bug == "aborts committed rows" and self.context.attempt > 1:
            self.table.rows.clear()


class UpsertSink(pen.Sink):
    """Writes at once, by key. With the bug it appends."""

    idempotent = True

    def __init__(self, appends: bool = False) -> None:
        self.table = MemoryTable()
        self.appends = appends

    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        return UpsertWriter(self.table, self.appends)

    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        return NothingToCommit()


class UpsertWriter(pen.SinkWriter):
    def __init__(self, table: MemoryTable, appends: bool) -> None:
        self.table, self.appends = table, appends

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            if self.appends or row not in self.table.rows:
                self.table.rows.append(row)

    def prepare(self, checkpoint: int) -> None:
        return None


class NothingToCommit(pen.SinkCommitter):
    def commit(self, transaction: Any) -> None:
        raise CommitError("there is nothing to commit")

    def abort_others(self, keep: Sequence[Any]) -> None:
        pass


class Numbers(pen.Source):
    """Lane l has the numbers l, l + 8, ...; its positions are off by `shift` rows."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("number", pa.int64())])

    def reader(self, context: pen.SourceContext, positions: Mapping[int, Any]) -> pen.SourceReader:
        return NumbersReader(context, positions, self.shift)


class NumbersReader(pen.SourceReader):
    def __init__(
        self, context: pen.SourceContext, positions: Mapping[int, Any], shift: int
    ) -> None:
        self.at = {lane: positions.get(lane, 0) for lane in context.lanes}
        self.shift = shift

    def poll(self, max_rows: int) -> pa.RecordBatch | pen.EndOfInput:
        for lane, at in self.at.items():
            end = min(6, at + max_rows)
            if at < end:
                self.at[lane] = end
                rows = [8 * i + lane for i in range(at, end)]
                return pa.RecordBatch.from_arrays([pa.array(rows, pa.int64())], schema=SCHEMA_1)
        return pen.END

    def positions(self) -> Mapping[int, Any]:
        return {lane: min(6, max(0, at + self.shift)) for lane, at in self.at.items()}


SCHEMA_1 = pa.schema([("number", pa.int64())])


class RemembersInSelf:
    """Numbers the rows of each key, and keeps the numbers where no checkpoint finds them."""

    def __init__(self) -> None:
        self.seen: dict[Any, int] = {}

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            self.seen[key] = self.seen.get(key, 0) + 1
            yield (row.customer, self.seen[key])


class RemembersInState:
    def open(self, ctx: Any) -> None:
        self.seen = ctx.value_state("seen", "n BIGINT")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            before = self.seen.get()
            number = (before.n if before is not None else 0) + 1
            self.seen.update((number,))
            yield (row.customer, number)


def numbered(function: Any) -> pen.Stream:
    return orders().key_by("customer").process(function, schema="customer STRING, n BIGINT")
