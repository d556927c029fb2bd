"""A source and a sink of your own: from one SQLite table to another, exactly once.

Run it as often as you like, and stop it with Ctrl-C or kill -9 in between: it goes on where it was, and in the end
every order is in the table `copied` once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connectors.base import (
    END,
    EndOfInput,
    Sink,
    SinkCommitter,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceReader,
)
from penstock.errors import CommitError

SCHEMA = pa.schema([("id", pa.int64()), ("item", pa.string())])


# ---- the source


class OrdersSource(Source):
    """The table `orders` of a SQLite file. An order belongs to the lane `id % max_parallelism`, for ever."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def reader(self, context: SourceContext, positions: Mapping[int, Any]) -> SourceReader:
        return OrdersReader(self.path, context, positions)


class OrdersReader(SourceReader):
    """A lane's position is the last id that was read of it."""

    QUERY = "select id, item from orders where id % ? = ? and id > ? order by id limit ?"

    def __init__(self, path: str, context: SourceContext, positions: Mapping[int, Any]) -> None:
        self.connection = sqlite3.connect(path)
        self.lanes_total = context.max_parallelism
        self.last = {lane: positions.get(lane, -1) for lane in context.lanes}
        self.unread = sorted(context.lanes, reverse=True)

    def poll(self, max_rows: int) -> pa.RecordBatch | EndOfInput:
        while self.unread:
            lane = self.unread[-1]
            where = (self.lanes_total, lane, self.last[lane], max_rows)
            rows = self.connection.execute(self.QUERY, where).fetchall()
            if rows:
                self.last[lane] = rows[-1][0]
                ids, items = zip(*rows, strict=True)
                return pa.RecordBatch.from_arrays([pa.array(ids), pa.array(items)], schema=SCHEMA)
            self.unread.pop()
        return END

    def positions(self) -> Mapping[int, Any]:
        return dict(self.last)

    def close(self) -> None:
        self.connection.close()


# ---- the sink

TABLES = """
    create table if not exists copied (id integer, item text);
    create table if not exists staged (name text, owner text, subtask int, attempt int, id int, item text);
    create table if not exists committed (name text primary key);
"""


class CopySink(Sink):
    """The table `copied` of a SQLite file. Rows wait in `staged` until their checkpoint is complete."""

    def __init__(self, path: str) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(TABLES)

    def writer(self, context: SinkContext) -> SinkWriter:
        return CopyWriter(self.path, context)

    def committer(self, context: SinkContext) -> SinkCommitter:
        return CopyCommitter(self.path, context)


class CopyWriter(SinkWriter):
    def __init__(self, path: str, context: SinkContext) -> None:
        self.path = path
        self.context = context
        self.rows: list[tuple[int, str]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        columns = (batch.column(name).to_pylist() for name in SCHEMA.names)
        self.rows += zip(*columns, strict=True)

    def prepare(self, checkpoint: int) -> str | None:
        """From here on the rows are safe, and nobody sees them. The name goes into the checkpoint."""
        if not self.rows:
            return None
        context, owner = self.context, owner_of(self.context)
        name = f"{owner}/{context.index}/{context.attempt}/{checkpoint}"
        place = (name, owner, context.index, context.attempt)
        with closing(sqlite3.connect(self.path)) as connection, connection:
            rows = [(*place, *row) for row in self.rows]
            connection.executemany("insert into staged values (?, ?, ?, ?, ?, ?)", rows)
        self.rows = []
        return name


class CopyCommitter(SinkCommitter):
    """Is called on another thread than the writer: each call has a connection of its own."""

    def __init__(self, path: str, context: SinkContext) -> None:
        self.path = path
        self.context = context

    def commit(self, transaction: Any) -> None:
        """One database transaction: the rows appear and their name is noted, or neither. A second call finds the
        name and does nothing."""
        name = (transaction,)
        with closing(sqlite3.connect(self.path)) as connection, connection:
            if connection.execute("select 1 from committed where name = ?", name).fetchone():
                return
            move = "insert into copied select id, item from staged where name = ?"
            if not connection.execute(move, name).rowcount:
                raise CommitError(f"{self.path}: the staged rows of {transaction} are gone")
            connection.execute("insert into committed values (?)", name)
            connection.execute("delete from staged where name = ?", name)

    def abort_others(self, keep: Sequence[Any]) -> None:
        """What earlier attempts of this subtask, or of one whose place it has taken, left behind."""
        context = self.context
        where = (owner_of(context), context.parallelism, context.index, context.attempt)
        query = (
            "select distinct name from staged where owner = ? and subtask % ? = ? and attempt < ?"
        )
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for name in connection.execute(query, where).fetchall():
                if name[0] not in keep:
                    connection.execute("delete from staged where name = ?", name)


def owner_of(context: SinkContext) -> str:
    """Two jobs, or two sinks of one job, may write into one table."""
    return f"{context.job}/{context.operator}"


# ---- the pipeline


def main() -> None:
    import penstock as pen

    path = "orders.db"
    if not Path(path).exists():
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("create table orders (id integer primary key, item text)")
            rows = [(number, f"item {number % 7}") for number in range(10_000)]
            connection.executemany("insert into orders values (?, ?)", rows)

    pipeline = pen.from_source(OrdersSource(path)).to(CopySink(path))
    job = pipeline.start(None, name="copy-orders", checkpoint=pen.CheckpointConfig("chk/"))
    job.await_termination()
    with closing(sqlite3.connect(path)) as connection:
        print(connection.execute("select count(*), count(distinct id) from copied").fetchone())


if __name__ == "__main__":
    main()
