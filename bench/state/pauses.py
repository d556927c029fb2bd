"""How long a loop over an operator with millions of keys stands still for a snapshot, for each way to keep state.

As in a worker: the snapshot is written by a thread beside the loop, to a disk. Each way has a process of its own, with
a worker's settings: `python -m bench.state.pauses rocksdb 5000000 3`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figure, middle, within
from bench.sizes import Sizes
from bench.state.rows import Rows
from bench.state.stage import MEMORY_BYTES, WAYS, staged
from penstock.engine.worker.slicing import Slicing
from penstock.shells.spark.entry import tune_process

PAUSE_MS, GAP_MS = 5.0, 20.0
BATCH_ROWS = 8_192
BATCHES_BEFORE = 300
SNAPSHOT_WITHIN_S = 180.0


def run(sizes: Sizes) -> list[Figure]:
    figures = []
    for way in WAYS:
        measured = _in_a_process(way, sizes)
        name, number = f"state: snapshot of {sizes.large_keys:,} keys", len(measured["freeze_ms"])
        longest = f"longest of {number}"
        freeze, gap = max(measured["freeze_ms"]), max(measured["during_ms"])
        usual, took_s = max(measured["before_ms"]), middle(measured["writing_s"])
        if way == "changelog":  # it writes all the time
            gap = max(gap, usual)
        figures += [
            within(name, f"{way}: freeze, {longest}", [freeze], "ms", PAUSE_MS),
            within(name, f"{way}: gap between batches, {longest}", [gap], "ms", GAP_MS),
            Figure(name, f"{way}: the same", gap, "ms", "longest without a snapshot", usual),
        ]
        print(f"  {way}: written in {took_s:.2f} s, beside the loop", file=sys.stderr, flush=True)
    return figures


def _in_a_process(way: str, sizes: Sizes) -> dict[str, list[float]]:
    snapshots = 1 if way in MEMORY_BYTES else sizes.paused_snapshots  # those take half a minute
    arguments = [way, str(sizes.large_keys), str(snapshots)]
    ended = subprocess.run(
        [sys.executable, "-m", "bench.state.pauses", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        timeout=900,
    )
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def loop(way: str, keys: int, snapshots: int) -> dict[str, list[float]]:
    """Per snapshot: the freeze, the longest time between two batches before it and while it was written, and how long
    that took. Keys are drawn from all of them: much changes from one to the next."""
    generate, position, slicing = Rows(keys), 0, Slicing()
    measured: dict[str, list[float]] = {
        name: [] for name in ("freeze_ms", "before_ms", "during_ms", "writing_s")
    }
    with staged(way) as stage:

        def gap_ms() -> float:
            """Until the loop would look at something else, as a subtask's does between slices of a batch."""
            nonlocal position
            rows = min(BATCH_ROWS, slicing.rows)
            began_s = time.perf_counter()
            stage.process(generate(position, rows))
            took_ms = (time.perf_counter() - began_s) * 1e3
            slicing.took(rows, took_ms)
            position += rows
            return took_ms

        def longest_ms() -> float:
            """Of as many rows as `BATCHES_BEFORE` batches have."""
            nonlocal position
            end, gaps = position + BATCHES_BEFORE * BATCH_ROWS, [0.0]
            while position < end:
                gaps.append(gap_ms())
            return max(gaps)

        while position < keys:
            gap_ms()
        longest_ms()
        for _ in range(snapshots):
            measured["before_ms"].append(longest_ms())
            began_s = time.perf_counter()
            freeze_ms = stage.begin_snapshot()
            gaps = [gap_ms() + freeze_ms]
            while stage.writing:
                gaps.append(gap_ms())
                if time.perf_counter() - began_s > SNAPSHOT_WITHIN_S:
                    raise TimeoutError(f"{way}: a snapshot took {SNAPSHOT_WITHIN_S:g} s")
            measured["freeze_ms"].append(freeze_ms)
            measured["during_ms"].append(max(gaps))
            measured["writing_s"].append(time.perf_counter() - began_s)
    return measured


if __name__ == "__main__":
    tune_process()
    print(json.dumps(loop(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
