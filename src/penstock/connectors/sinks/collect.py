"""Committed rows in the memory of the driver: for tests, notebooks and small results.

The rows travel inside the checkpoint and, when it is complete, to the driver. They live as long as the driver
does: one that is started again knows only what was committed since.
"""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.base import Sink, SinkCommitter, SinkContext, SinkWriter
from penstock.errors import CommitError, ConfigError
from penstock.protocol.snapshot import Plain

LIMIT_BYTES = 64 << 20


class CollectSink(Sink):
    """`to_table()` is what was committed so far, also while the job runs."""

    _lock: threading.Lock
    _received: dict[str, pa.Table]
    _bytes_total: int
    _is_full: bool

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        if limit_bytes <= 0:
            raise ConfigError(f"CollectSink: limit_bytes must be > 0, not {limit_bytes!r}")
        self._limit_bytes = limit_bytes
        self._schema: pa.Schema | None = None
        self._forget()

    def check(self, schema: pa.Schema) -> None:
        self._schema = schema

    def writer(self, context: SinkContext) -> SinkWriter:
        return CollectWriter(context, self._limit_bytes)

    def committer(self, context: SinkContext) -> SinkCommitter:
        return CollectCommitter(context)

    def receive(self, item: Plain) -> None:
        """Keeps the rows of one committed transaction; a second time changes nothing. Beyond the limit nothing
        more is kept, and reading says so."""
        name, payload = _parse(item)
        table = pa.ipc.open_stream(base64.b64decode(payload)).read_all()
        with self._lock:
            if name in self._received or self._is_full:
                return
            if self._bytes_total + table.nbytes > self._limit_bytes:
                self._is_full = True
                return
            self._bytes_total += table.nbytes
            self._received[name] = table

    def to_table(self) -> pa.Table:
        """The committed rows so far, by checkpoint and subtask."""
        with self._lock:
            if self._is_full:
                raise _too_much(self._limit_bytes)
            received = sorted(self._received.items(), key=lambda each: _order(each[0]))
        if received:
            return pa.concat_tables([table for _, table in received])
        return (self._schema or pa.schema([])).empty_table()

    def to_pylist(self) -> list[dict[str, Any]]:
        """The same as a list of dicts."""
        rows: list[dict[str, Any]] = self.to_table().to_pylist()
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """What goes to the workers: parameters, no rows."""
        return {"limit_bytes": self._limit_bytes, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._limit_bytes = state["limit_bytes"]
        self._schema = state["schema"]
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._received = {}
        self._bytes_total = 0
        self._is_full = False


class CollectWriter(SinkWriter):
    def __init__(self, context: SinkContext, limit_bytes: int) -> None:
        self._context = context
        self._limit_bytes = limit_bytes
        self._run = uuid.uuid4().hex[:8]
        self._batches: list[pa.RecordBatch] = []
        self._bytes_total = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._bytes_total += batch.nbytes
        if self._bytes_total > self._limit_bytes:
            raise _too_much(self._limit_bytes)
        if batch.num_rows:
            self._batches.append(batch)

    def prepare(self, checkpoint: int) -> Plain:
        if not self._batches:
            return None
        context = self._context
        place = f"{context.job}/{context.operator}/{context.index}"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._batches[0].schema) as writer:
            for batch in self._batches:
                writer.write_batch(batch)
        self._batches = []
        rows = base64.b64encode(sink.getvalue()).decode()
        return {"id": f"{place}/{checkpoint}/{context.attempt}/{self._run}", "rows": rows}

    def close(self) -> None:
        self._batches = []


class CollectCommitter(SinkCommitter):
    def __init__(self, context: SinkContext) -> None:
        self._context = context

    def commit(self, transaction: Plain) -> None:
        if transaction is not None:
            _parse(transaction)
            self._context.to_driver(transaction)

    def abort_others(self, keep: Sequence[Plain]) -> None:
        """Rows that were not committed are only in checkpoints: there is nothing to remove."""


def _parse(item: Plain) -> tuple[str, str]:
    match item:
        case {"id": str(name), "rows": str(rows)} if name.count("/") >= 5:
            return name, rows
        case _:
            raise CommitError(
                "CollectSink: this is not a transaction of a CollectSink; the snapshot was taken"
                " with another kind of sink under this name"
            )


def _order(name: str) -> tuple[int, int, str]:
    """By checkpoint, then subtask; the job's and the operator's name may have slashes."""
    _, index, checkpoint, _, _ = name.rsplit("/", 4)
    return int(checkpoint), int(index), name


def _too_much(limit_bytes: int) -> ConfigError:
    return ConfigError(
        f"CollectSink: more than {limit_bytes} bytes of rows; it is meant for small results."
        ' Use FileSink("out/") for this many, or raise CollectSink(limit_bytes=...)'
    )
