"""What the tests of tables stand on: subtasks that write one, in this process, with a clock that is set by hand."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.base import SinkContext, SinkWriter
from penstock.connectors.tables import compaction
from penstock.connectors.tables.compaction import Aside
from penstock.connectors.tables.names import TableFile, live, parse
from penstock.connectors.tables.reader import read_table
from penstock.connectors.tables.sink import TableCommitter, UpsertFileSink
from penstock.protocol.snapshot import Plain

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])


class AtOnce:
    """Compaction that has happened when the commit returns."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.wanted = work

    def close(self) -> None:
        pass


class TableSink(UpsertFileSink):
    def _aside(self, work: Callable[[], None]) -> Aside:
        return AtOnce(work)


class Place:
    """A table's folder, and the processes that use it."""

    def __init__(
        self, path: str | Path, key: Any = "user", schema: pa.Schema = SCHEMA, kind: Any = TableSink
    ) -> None:
        self.path = str(path)
        self.sink = kind(self.path, key)
        self.sink.check(schema)
        self.schema = schema
        self.now_ms = 0.0

    def subtask(
        self,
        index: int = 0,
        of: int = 1,
        attempt: int = 1,
        job: str = "job",
        schema: pa.Schema | None = None,
    ) -> Subtask:
        now_ms: Callable[[], float] = lambda: self.now_ms
        schema = schema or self.schema
        where = SinkContext(job, "out", index, of, attempt, schema, lambda _: None, now_ms)
        sink: UpsertFileSink = pickle.loads(pickle.dumps(self.sink))
        return Subtask(sink, where)

    def seen(self) -> dict[Any, Any]:
        """By the first column."""
        table = read_table(self.path)
        values = [tuple(row.values()) for row in table.to_pylist()]
        assert len({row[0] for row in values}) == len(values), f"a key is there twice: {values}"
        return {row[0]: row[1] if len(row) == 2 else row[1:] for row in values}

    def files(self) -> list[TableFile]:
        folder = Path(self.path, "_rows")
        return [file for path in sorted(folder.glob("*")) if (file := parse(path.name)) is not None]

    def live(self) -> list[TableFile]:
        return live(self.files())

    def staged(self) -> list[str]:
        return sorted(path.name for path in Path(self.path, "_staging").rglob("*.*"))


class Subtask:
    def __init__(self, sink: UpsertFileSink, where: SinkContext) -> None:
        self.schema = where.schema
        committer = sink.committer(where)
        assert isinstance(committer, TableCommitter)
        self.committer = committer
        self.writer: SinkWriter = sink.writer(where)
        self.checkpoint = 0

    def write(self, *rows: tuple[Any, ...]) -> None:
        columns = [pa.array(values, f.type) for values, f in zip(zip(*rows), self.schema)]
        self.writer.write(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def prepare(self, *rows: tuple[Any, ...], checkpoint: int | None = None) -> Plain:
        if rows:
            self.write(*rows)
        self.checkpoint = self.checkpoint + 1 if checkpoint is None else checkpoint
        made = self.writer.prepare(self.checkpoint)
        return made() if callable(made) else made

    def commit(self, *rows: tuple[Any, ...], checkpoint: int | None = None) -> Plain:
        made = self.prepare(*rows, checkpoint=checkpoint)
        self.committer.commit(made)
        return made

    def merges_only_when_told(self) -> None:
        """By the test, with a step of the compaction."""
        self.committer._aside = AtOnce(lambda: None)

    def close(self) -> None:
        self.writer.close()
        self.committer.close()


def merge_often(monkeypatch: pytest.MonkeyPatch, fan_in: int = 2) -> None:
    """Two small files are enough for a merge, and a few rows for a tier."""
    monkeypatch.setattr(compaction, "FAN_IN", fan_in)
    monkeypatch.setattr(compaction, "TIER_ROWS", 4)


def users(numbers: Iterable[int], n: int) -> list[tuple[str, int]]:
    return [(f"user {number}", n) for number in numbers]
