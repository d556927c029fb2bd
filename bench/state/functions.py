"""How fast users' functions are with each kind of state: rows per second of one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from bench.figures import Figure, middle
from bench.sizes import Sizes
from bench.state.stage import context
from penstock.engine.operators.process import Process

BATCH = 65_536
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
OUT = pa.schema([("n", pa.int64())])
FEW_KEYS = 1_000


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


def run(sizes: Sizes) -> list[Figure]:
    """Rows per second of one core, beside what they are to be."""
    wanted: list[tuple[str, Callable[[], Any], int, float]] = [
        ("value state, key by key, keys repeat", _Sums, FEW_KEYS, 0.5e6),
        ("value state, whole batches", _LastValues, sizes.keys, 5e6),
        ("map state, whole batches", _Pages, sizes.keys, 2e6),
    ]
    figures = []
    for what, function, keys, target in wanted:
        samples = [
            _rows_per_s(function, keys, sizes.limit_s) for _ in range(-(-sizes.repetitions // 2))
        ]
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
    operator.open(context(SCHEMA))
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


def _batch(keys: Any, values: Any = None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys), pa.array(keys if values is None else values)], SCHEMA)
