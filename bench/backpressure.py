"""How long a checkpoint takes when rows pile up before a slow sink: aligned, unaligned, and aligned with a timeout.

An aligned checkpoint waits behind the backlog. An unaligned one takes the backlog with it. The three ways alternate;
each job runs until its channels are full, then its checkpoints are timed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import pyarrow as pa

import penstock as pen
from bench.figures import Figure, middle, within
from bench.sizes import Sizes
from bench.waiting import wait_for
from bench.workload import INT_SCHEMA, OPERATOR, aggregates, rows_function
from penstock.protocol.snapshot import Plain

NAME = "back pressure"
PARALLELISM = 2
FRAME_ROWS = 65_536
FRAMES_MAX = 12
"""More than a channel ever holds: two frames at each end, what lies in the operating system's buffers between
them, and those that wait for room or were read aside."""
ROW_BYTES = 17
"""A key and a value, and a bit each that says whether they are there."""
SOURCE = "numbers"
WAYS: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"unaligned": True},
    "aligned, unaligned after 500 ms": {"aligned_timeout": "500 ms"},
}
ALIGNED, UNALIGNED, EXPEDITED = WAYS


class SlowSink(pen.BlackholeSink):
    """Takes so many rows a second, and keeps none."""

    def __init__(self, rows_s: float) -> None:
        self._rows_s = rows_s

    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        return SlowWriter(self._rows_s)


class SlowWriter(pen.SinkWriter):
    def __init__(self, rows_s: float) -> None:
        self._rows_s = rows_s

    def write(self, batch: pa.RecordBatch) -> None:
        time.sleep(batch.num_rows / self._rows_s)

    def prepare(self, checkpoint: int) -> Plain:
        return None


def run(sizes: Sizes) -> list[Figure]:
    taken: dict[str, list[pen.CheckpointInfo]] = {way: [] for way in WAYS}
    for _ in range(min(sizes.repetitions, 3)):
        for way, options in WAYS.items():
            taken[way] += checkpoints(sizes, options)
            spans = ", ".join(f"{info.duration_ms:,.0f} ms" for info in taken[way])
            print(f"  {NAME}, {way}: {spans}", file=sys.stderr, flush=True)
    return _figures(taken)


def checkpoints(sizes: Sizes, options: dict[str, Any]) -> list[pen.CheckpointInfo]:
    """Some checkpoints of a job whose channels are full."""
    source = pen.GeneratorSource(rows_function("int", sizes.keys), INT_SCHEMA)
    rows = pen.from_source(source).named(SOURCE)
    totals = rows.key_by("key").agg(**aggregates()).named(OPERATOR)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        job = totals.to(SlowSink(sizes.slow_rows_s)).start(
            name="bench-backpressure",
            parallelism=PARALLELISM,
            checkpoint=pen.CheckpointConfig(folder, every="1 hour", **options),
            restore="fresh",
        )
        try:
            _wait_until_full(job)
            found = [job.trigger_checkpoint(timeout=120) for _ in range(sizes.slow_checkpoints)]
        finally:
            job.cancel(timeout=60)
    failed = [info.failure for info in found if info.status != "completed"]
    if failed:
        raise RuntimeError(f"a checkpoint failed while it was measured: {failed[0]}")
    return found


def _wait_until_full(job: pen.Job) -> None:
    """Until so many rows have left the source and not reached the aggregate that the channels are well filled."""
    sent = f'penstock_records_out_total{{operator="{SOURCE}"}}'
    processed = f'penstock_records_in_total{{operator="{OPERATOR}"}}'

    def full() -> bool:
        seen = job.metrics()
        return seen.get(sent, 0) - seen.get(processed, 0) >= PARALLELISM**2 * FRAME_ROWS

    wait_for("full channels", full, job, within_s=180)


def _figures(taken: dict[str, list[pen.CheckpointInfo]]) -> list[Figure]:
    spans = {way: [float(info.duration_ms or 0) for info in found] for way, found in taken.items()}
    aligned_ms = middle(spans[ALIGNED])
    held = [info.inflight_bytes for info in taken[UNALIGNED]]
    limit = PARALLELISM**2 * FRAMES_MAX * (FRAME_ROWS // PARALLELISM) * ROW_BYTES
    return [
        Figure(
            NAME, ALIGNED, aligned_ms, "ms", "the same", aligned_ms, samples=tuple(spans[ALIGNED])
        ),
        Figure(
            *(NAME, UNALIGNED, middle(spans[UNALIGNED]), "ms", ALIGNED, aligned_ms),
            at_most=0.1,
            samples=tuple(spans[UNALIGNED]),
        ),
        within(NAME, UNALIGNED, spans[UNALIGNED], "ms", 1_000.0),
        within(NAME, EXPEDITED, spans[EXPEDITED], "ms", 1_500.0),
        Figure(
            *(
                NAME,
                "in flight, the most",
                float(max(held)),
                "B",
                "room in the channels",
                float(limit),
            ),
            at_most=1.0,
            samples=tuple(map(float, held)),
        ),
        Figure(NAME, "in flight, the least", float(min(held)), "B", "nothing", 1.0, at_least=1.0),
    ]
