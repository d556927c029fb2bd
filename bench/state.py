"""State, in one process and on a real disk: what an increment costs beside a whole checkpoint, how long the loop
stands still for a snapshot, and how fast users' functions are with each kind of state."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from bench.figures import Figure, middle, within
from bench.sizes import Sizes
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.engine.operators.process import Process
from penstock.engine.worker.segment_files import SegmentFiles
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import SnapshotOrder
from penstock.storage.filesystem import FilesystemStore
from penstock.wire.paths import WorkerFile

BATCH = 65_536
CHANGED = 0.01
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
OUT = pa.schema([("n", pa.int64())])
FEW_KEYS = 1_000
PAUSE_MS = 5.0


def run(sizes: Sizes) -> list[Figure]:
    return [*increments(sizes), *functions(sizes)]


# ---- checkpoints


def increments(sizes: Sizes) -> list[Figure]:
    keys, rng = sizes.large_keys, np.random.default_rng(7)
    operator = RunningAggregate(("k",), {"n": pen.count(), "total": pen.sum("v")})
    operator.open(_context())
    for start in range(0, keys, BATCH):
        numbers = np.arange(start, min(start + BATCH, keys))
        operator.process(_batch(numbers * 7919), 0)
    whole, parts, pauses = _Sample(), _Sample(), list[float]()
    with _folder() as store:
        checkpoint = 0
        for _ in range(sizes.snapshots):
            checkpoint += 1
            whole.add(_written(operator, store, checkpoint, 0, pauses))
            for _ in range(3):
                operator.process(_batch(rng.integers(0, keys, int(keys * CHANGED)) * 7919), 0)
                checkpoint += 1
                parts.add(_written(operator, store, checkpoint, checkpoint - 1, pauses))
    what = f"{keys:,} keys, {CHANGED:.0%} changed"
    return [
        Figure(
            "increments",
            f"bytes of an increment, {what}",
            middle(parts.bytes),
            "bytes",
            "all rows",
            middle(whole.bytes),
            at_most=0.03,
        ),
        Figure(
            "increments",
            f"time to write an increment, {what}",
            middle(parts.seconds),
            "s",
            "all rows",
            middle(whole.seconds),
            at_most=0.10,
        ),
        within("increments", f"pause for a snapshot of {keys:,} keys", pauses, "ms", PAUSE_MS),
    ]


class _Sample:
    def __init__(self) -> None:
        self.bytes: list[float] = []
        self.seconds: list[float] = []

    def add(self, measured: tuple[float, float]) -> None:
        size, seconds = measured
        self.bytes.append(size)
        self.seconds.append(seconds)


def _written(
    operator: Operator, store: FilesystemStore, checkpoint: int, base: int, pauses: list[float]
) -> tuple[float, float]:
    order = SnapshotOrder(CheckpointId(checkpoint), base=CheckpointId(base))
    began_s = time.perf_counter()
    frozen: FrozenOperator = operator.freeze(order)
    pauses.append((time.perf_counter() - began_s) * 1e3)
    began_s = time.perf_counter()
    place = WorkerFile(CheckpointId(checkpoint), SlotId(0), AttemptId(1))
    out = SegmentFiles(store, place, 16_384)
    for table in frozen.tables:
        table.write(out)
    out.finish()
    return float(out.bytes_put), time.perf_counter() - began_s


# ---- users' functions


class _Sums:
    """One key at a time."""

    def open(self, ctx: pen.ProcessContext) -> None:
        self.sum = ctx.value_state("sum", "total BIGINT")

    def process(self, key: Any, rows: list[Any], ctx: pen.ProcessContext) -> None:
        before = self.sum.get()
        self.sum.update(((before.total if before else 0) + sum(row.v for row in rows),))


class _LastValues:
    """Whole batches: what each key had before, and what it has now."""

    def open(self, ctx: pen.ProcessContext) -> None:
        self.last = ctx.value_state("last", "v BIGINT")

    def process_batch(self, batch: pa.RecordBatch, ctx: pen.ProcessContext) -> None:
        self.last.get_batch(batch)
        self.last.update_batch(batch, batch.select(["v"]))


class _Pages:
    """Whole batches: a map for each key."""

    def open(self, ctx: pen.ProcessContext) -> None:
        self.map = ctx.map_state("map", "v BIGINT", "n BIGINT")

    def process_batch(self, batch: pa.RecordBatch, ctx: pen.ProcessContext) -> None:
        keys = batch.select(["v"])
        self.map.get_batch(batch, keys)
        self.map.put_batch(batch, keys, pa.record_batch([batch.column("v")], names=["n"]))


def functions(sizes: Sizes) -> list[Figure]:
    """Rows per second of one core, beside what they are to be."""
    wanted: list[tuple[str, Callable[[], Any], int, float]] = [
        ("value state, key by key, keys repeat", _Sums, FEW_KEYS, 0.5e6),
        ("value state, whole batches", _LastValues, sizes.keys, 5e6),
        ("map state, whole batches", _Pages, sizes.keys, 2e6),
    ]
    figures = []
    for what, function, keys, target in wanted:
        samples = [_rows_per_s(function, keys, sizes.limit_s) for _ in range(sizes.repetitions)]
        figures.append(
            Figure(
                "own functions",
                what,
                middle(samples),
                "rows/s",
                "target",
                target,
                at_least=1.0,
                samples=tuple(samples),
            )
        )
    return figures


def _rows_per_s(function: Callable[[], Any], keys: int, seconds: float) -> float:
    operator = Process(function(), ("k",), OUT)
    operator.open(_context())
    rng = np.random.default_rng(5)
    batches = [_batch(rng.integers(0, keys, BATCH), rng.integers(0, 8, BATCH)) for _ in range(8)]
    for batch in batches:
        operator.process(batch, 0)
    rows, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        for batch in batches:
            operator.process(batch, 0)
            rows += BATCH
    return rows / (time.perf_counter() - began_s)


# ---- small things


def _batch(keys: Any, values: Any = None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys), pa.array(keys if values is None else values)], SCHEMA)


def _context() -> OperatorContext:
    return OperatorContext(
        job="state",
        operator="state",
        index=0,
        parallelism=1,
        max_parallelism=128,
        attempt=1,
        input_schemas=(SCHEMA,),
        now_ms=lambda: time.monotonic() * 1e3,
        wall_ms=lambda: time.time() * 1e3,
        restored=(),
        read_segments=lambda segments, groups: (),
        to_driver=lambda item: None,
        incremental=True,
    )


@contextmanager
def _folder() -> Iterator[FilesystemStore]:
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        yield FilesystemStore(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
