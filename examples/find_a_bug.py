"""A sink with a subtle bug, and the simulator that finds it.

`ShopSink` stages rows under the name of their transaction and publishes them in `commit`. It looks right, and on a
quiet day it is. Run this program to see the schedule that breaks it (which one it is varies with the version of
Penstock); `MendedCommitter` is what mends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import penstock as pen
from penstock.testing import MemoryTable, SimulationFailed, simulate


class ShopSink(pen.Sink):
    """Writes to a table. `MemoryTable` stands for the database here: all copies of it are the same one."""

    def __init__(self, table: MemoryTable) -> None:
        self.table = table

    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        return ShopWriter(self.table, context)

    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        return ShopCommitter(self.table, context)


class ShopWriter(pen.SinkWriter):
    def __init__(self, table: MemoryTable, context: pen.SinkContext) -> None:
        self.table = table
        self.context = context
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def prepare(self, checkpoint: int) -> str | None:
        if not self.rows:
            return None
        name = f"{self.context.index}/{self.context.attempt}/{checkpoint}"
        self.table.staged[name] = self.rows
        self.rows = []
        return name


class ShopCommitter(pen.SinkCommitter):
    def __init__(self, table: MemoryTable, context: pen.SinkContext) -> None:
        self.table = table
        self.context = context

    def commit(self, transaction: Any) -> None:
        self.table.rows += self.table.staged[transaction]

    def abort_others(self, keep: Sequence[Any]) -> None:
        place = self.context
        for name in list(self.table.staged):
            index, attempt, _ = (int(part) for part in name.split("/"))
            mine = index % place.parallelism == place.index and attempt < place.attempt
            if mine and name not in keep:
                del self.table.staged[name]


class MendedCommitter(ShopCommitter):
    def commit(self, transaction: Any) -> None:
        if transaction not in self.table.published:
            self.table.rows += self.table.staged.pop(transaction)
            self.table.published.add(transaction)


class MendedSink(ShopSink):
    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        return MendedCommitter(self.table, context)


def orders_to(sink: pen.Sink) -> pen.Pipeline:
    orders = [(f"customer {i % 7}", 10 * i) for i in range(60)]
    stream = pen.from_rows(orders, "customer STRING, amount BIGINT")
    return stream.filter(pen.col("amount") > 50).to(sink, name="shop")


def shown(sink: ShopSink) -> list[dict[str, Any]]:
    return sink.table.rows


def main() -> None:
    try:
        simulate(orders_to(ShopSink(MemoryTable())), read=shown)
    except SimulationFailed as failed:
        print(failed)
    print()
    print(simulate(orders_to(MendedSink(MemoryTable())), read=shown, seeds=range(100)))


if __name__ == "__main__":
    main()
