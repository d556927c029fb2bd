"""W3: how long a row takes from the moment it was due to the moment the sink has its result.

Rows carry the time at which they were scheduled, not the time at which they were made: where the system stalls, the
rows that it delays by that are counted, too. The sink's transactions are histograms of what it saw; the driver
gets each of them once, when its checkpoint is complete.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from bench.figures import Figure, middle, within
from bench.sizes import Sizes
from bench.workload import keys_of
from penstock.protocol.snapshot import Plain

RATE = 10_000
PARALLELISM = 2
P50_MS, P99_MS = 3.0, 15.0
"""The targets, met at one setting of the dial at least."""
STEP = math.log(1.02)
"""Buckets are 2 % wide."""
SCHEMA = pa.schema([("key", pa.int64()), ("due_ms", pa.float64())])


class DueSource(pen.Source):
    """`rate` rows a second over all subtasks, for `seconds`; `due_ms` is when a row was due, on the machine's
    monotonic clock."""

    bounded = True

    def __init__(self, rate: float, seconds: float, keys: int) -> None:
        self.rate = rate
        self.rows = int(rate * seconds)
        self.keys = keys

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def reader(self, context: pen.SourceContext, positions: Mapping[int, Plain]) -> DueReader:
        return DueReader(self, context, positions)


class DueReader(pen.SourceReader):
    """Subtask i of p has the rows i, i + p, i + 2p and so on: one lane is enough."""

    def __init__(
        self, source: DueSource, context: pen.SourceContext, positions: Mapping[int, Plain]
    ) -> None:
        self._source = source
        self._lane, self._step = context.index, context.parallelism
        self._now_ms = context.now_ms
        position = positions.get(self._lane, self._lane)
        assert isinstance(position, int)
        self._next = position
        self._opened_ms = context.now_ms() - position * 1000 / source.rate

    def poll(self, max_rows: int) -> pa.RecordBatch | pen.Wait | pen.EndOfInput:
        source = self._source
        if self._next >= source.rows:
            return pen.END
        due = int((self._now_ms() - self._opened_ms) * source.rate / 1000) + 1
        numbers = np.arange(self._next, min(due, source.rows), self._step)[:max_rows]
        if not len(numbers):
            return pen.Wait(self._opened_ms + self._next * 1000 / source.rate)
        self._next = int(numbers[-1]) + self._step
        due_ms = self._opened_ms + numbers * (1000 / source.rate)
        columns = [pa.array(keys_of(numbers, source.keys)), pa.array(due_ms)]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def positions(self) -> Mapping[int, Plain]:
        return {self._lane: self._next}


class LatencySink(pen.Sink):
    """Keeps, in the driver, histograms of now minus `due_ms`, for rows due `warm_s` after the writer was made."""

    def __init__(self, warm_s: float) -> None:
        self.warm_s = warm_s
        self.parts: dict[tuple[int, int], dict[str, Any]] = {}

    def writer(self, context: pen.SinkContext) -> LatencyWriter:
        return LatencyWriter(context.index, context.schema, self.warm_s)

    def committer(self, context: pen.SinkContext) -> LatencyCommitter:
        return LatencyCommitter(context)

    def receive(self, item: Plain) -> None:
        assert isinstance(item, dict)
        self.parts[item["index"], item["checkpoint"]] = item  # type: ignore[index]

    def percentile_ms(self, percent: float) -> float:
        total: dict[str, int] = {}
        for part in self.parts.values():
            for bucket, count in part["counts"].items():
                total[bucket] = total.get(bucket, 0) + count
        ordered = sorted((int(bucket), count) for bucket, count in total.items())
        counts = np.cumsum([count for _, count in ordered])
        if not len(counts):
            raise RuntimeError("no row arrived after the warm-up")
        at = int(np.searchsorted(counts, counts[-1] * percent / 100))
        return math.exp((ordered[at][0] + 0.5) * STEP) / 1000

    @property
    def max_ms(self) -> float:
        return max(part["max_us"] for part in self.parts.values()) / 1000

    @property
    def rows(self) -> int:
        return sum(sum(part["counts"].values()) for part in self.parts.values())


class LatencyWriter(pen.SinkWriter):
    def __init__(self, index: int, schema: pa.Schema, warm_s: float) -> None:
        self._index = index
        self._column = schema.get_field_index("due_ms")
        self._count_from_ms = time.monotonic() * 1000 + warm_s * 1000
        self._seen: list[np.ndarray] = []

    def write(self, batch: pa.RecordBatch) -> None:
        due_ms = batch.column(self._column).to_numpy()
        late_us = (time.monotonic() * 1000 - due_ms) * 1000
        self._seen.append(late_us[due_ms >= self._count_from_ms])

    def prepare(self, checkpoint: int) -> Plain:
        late_us = np.concatenate([*self._seen, np.empty(0)])
        self._seen = []
        if not len(late_us):
            return None
        buckets = np.floor(np.log(np.maximum(late_us, 1.0)) / STEP).astype(np.int64)
        numbers, counts = np.unique(buckets, return_counts=True)
        pairs = zip(numbers.tolist(), counts.tolist(), strict=True)
        return {
            "index": self._index,
            "checkpoint": checkpoint,
            "max_us": float(late_us.max()),
            "counts": {str(bucket): count for bucket, count in pairs},
        }


class LatencyCommitter(pen.SinkCommitter):
    def __init__(self, context: pen.SinkContext) -> None:
        self._to_driver = context.to_driver

    def commit(self, transaction: Plain) -> None:
        self._to_driver(transaction)

    def abort_others(self, keep: object) -> None:
        """Nothing is staged anywhere."""


def measure(buffer_timeout_ms: int, sizes: Sizes) -> LatencySink:
    """A whole job: rows at an even rate, counted by key, a checkpoint every second."""
    source = DueSource(RATE, sizes.latency_warm_s + sizes.latency_s, sizes.keys)
    sink = LatencySink(sizes.latency_warm_s)
    counts = pen.from_source(source).key_by("key").agg(n=pen.count(), due_ms=pen.last("due_ms"))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        job = (
            counts.named("counts")
            .to(sink)
            .start(
                name="bench-latency",
                parallelism=PARALLELISM,
                checkpoint=pen.CheckpointConfig(folder, every="1 second"),
                restore="fresh",
                buffer_timeout=f"{buffer_timeout_ms} ms",
            )
        )
        if not job.await_termination(sizes.latency_warm_s + sizes.latency_s + 120):
            job.cancel(timeout=30)
            raise TimeoutError("the latency job did not end")
    return sink


def run(sizes: Sizes) -> list[Figure]:
    """Every setting of the dial in turn, several times over."""
    runs: dict[int, list[LatencySink]] = {dial: [] for dial in sizes.buffer_timeouts_ms}
    for _ in range(sizes.repetitions):
        for dial, sinks in runs.items():
            sinks.append(measure(dial, sizes))
    return [figure for dial, sinks in runs.items() for figure in _figures(dial, sinks)]


def _figures(dial_ms: int, sinks: list[LatencySink]) -> list[Figure]:
    name = f"W3, buffer_timeout {dial_ms} ms"
    p50_ms = [sink.percentile_ms(50) for sink in sinks]
    p99_ms = [sink.percentile_ms(99) for sink in sinks]
    max_ms = [sink.max_ms for sink in sinks]
    return [
        within(name, "p50", p50_ms, "ms", P50_MS),
        within(name, "p99", p99_ms, "ms", P99_MS),
        Figure(
            *(name, "max", middle(max_ms), "ms", "its p50", middle(p50_ms)), samples=tuple(max_ms)
        ),
    ]
