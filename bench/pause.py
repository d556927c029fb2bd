"""The pause that a snapshot of much state makes: in a running job, and in a plain loop over the operator.

The job tells the synchronous part of each subtask itself. The loop sees more: the longest time between two batches from
the freeze until a writer, on a thread of its own as in a worker, has encoded everything.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import penstock as pen
from bench.figures import Figure, middle, within
from bench.limit import new_aggregate
from bench.sizes import Sizes
from bench.waiting import wait_for
from bench.workload import INT_SCHEMA, OPERATOR, rows_function, w1
from penstock.engine.worker.segment_files import SegmentFiles
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import SnapshotOrder
from penstock.shells.spark.entry import tune_process
from penstock.storage.memory import MemoryStore
from penstock.wire.paths import WorkerFile

PAUSE_MS = 10.0
BATCH_ROWS = 8_192
BATCHES_BEFORE = 300
COVERED = 6
"""Rows per key before the snapshot: nearly every key has come then."""


def run(sizes: Sizes) -> list[Figure]:
    name = f"snapshot of {sizes.large_keys:,} keys"
    sync_ms, bytes_written = in_a_job(sizes)
    loop = in_a_process(sizes)
    figures = [within(name, "sync part of a subtask, in a job", sync_ms, "ms", PAUSE_MS)]
    usual, longest = middle(loop["before_ms"]), middle(loop["during_ms"])
    figures.append(
        Figure(name, "longest gap between batches, loop", longest, "ms", "before it", usual)
    )
    figures.append(within(name, "freeze alone, loop", loop["freeze_ms"], "ms", PAUSE_MS))
    per_key = bytes_written / sizes.large_keys
    figures.append(Figure(name, "bytes written per key", per_key, "B", "key and values", 24.0))
    return figures


def in_a_job(sizes: Sizes) -> tuple[list[float], int]:
    """The longest synchronous part of each checkpoint, and the bytes of the last one."""
    counter = f'penstock_records_in_total{{operator="{OPERATOR}"}}'
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        job = w1("int", sizes.large_keys).start(
            name="bench-pause",
            parallelism=2,
            checkpoint=pen.CheckpointConfig(folder, every="1 hour", keep=1),
            restore="fresh",
        )
        try:
            enough = COVERED * sizes.large_keys
            wait_for("all keys", lambda: job.metrics().get(counter, 0) >= enough, job, within_s=180)
            taken = [job.trigger_checkpoint(timeout=120) for _ in range(sizes.snapshots)]
        finally:
            job.cancel(timeout=30)
    failed = [info.failure for info in taken if info.status != "completed"]
    if failed:
        raise RuntimeError(f"a checkpoint failed while it was measured: {failed[0]}")
    return [max(part.sync_ms for part in info.subtasks) for info in taken], taken[-1].bytes_full


def in_a_process(sizes: Sizes) -> dict[str, list[float]]:
    """A process of its own, with a worker's settings."""
    command = [sys.executable, "-m", "bench.pause", str(sizes.large_keys), str(sizes.snapshots)]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
        timeout=600,
    )
    return dict(json.loads(ended.stdout))


def loop(keys: int, snapshots: int) -> dict[str, list[float]]:
    """Per snapshot: the longest gap in batches before it and during it, and the freeze itself."""
    generate, operator = rows_function("int", keys), new_aggregate(INT_SCHEMA)
    position = 0

    def gap_ms() -> float:
        nonlocal position
        began_s = time.perf_counter()
        operator.process(generate(position, BATCH_ROWS), 0)
        position += BATCH_ROWS
        return (time.perf_counter() - began_s) * 1000

    while position < COVERED * keys:
        gap_ms()
    measured: dict[str, list[float]] = {"before_ms": [], "during_ms": [], "freeze_ms": []}
    for number in range(snapshots):
        measured["before_ms"].append(max(gap_ms() for _ in range(BATCHES_BEFORE)))
        began_s = time.perf_counter()
        (frozen,) = operator.freeze(SnapshotOrder(CheckpointId(number + 1))).tables
        freeze_ms = (time.perf_counter() - began_s) * 1000
        place = WorkerFile(CheckpointId(number + 1), SlotId(0), AttemptId(1))
        out = SegmentFiles(MemoryStore(), place, inline_bytes_max=0)
        writer = threading.Thread(target=frozen.write, args=(out,))
        writer.start()
        gaps = [gap_ms() + freeze_ms]
        while writer.is_alive():
            gaps.append(gap_ms())
        measured["freeze_ms"].append(freeze_ms)
        measured["during_ms"].append(max(gaps))
    return measured


if __name__ == "__main__":
    tune_process()
    print(json.dumps(loop(int(sys.argv[1]), int(sys.argv[2]))))
