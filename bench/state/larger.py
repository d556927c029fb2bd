"""A state that is four times as large as the memory it may have, on RocksDB: whether the workers' own memory stays what
it is, and how many rows are processed when any key may come next.

The memory that counts is anonymous (`RssAnon`): files that RocksDB has mapped are the page cache's, which gives way.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import penstock as pen
from bench.figures import Figure, middle
from bench.peers import rocksdb_given
from bench.sizes import Sizes
from bench.state.pairs import running
from bench.state.rows import ROWS_IN, TEXT_BYTES, Rows
from bench.throughput import PARALLELISM

NAME = "state: larger than its memory"
ROW_BYTES = TEXT_BYTES + 3 * 8
"""A key, a count, a sum and a text."""
FEW_KEYS = 1_000
FLINK_ROWS_MAX = 3_000_000
FLAT = 1.1
LOOK_EVERY_S = 0.2


def run(sizes: Sizes, *, others: bool) -> list[Figure]:
    """`others`: beside Flink with the same memory. It begins with nothing and sees about as many rows as there are
    keys, since it is slow; that is to its advantage."""
    budget = sizes.state_memory_bytes
    keys = sizes.larger_times * budget * PARALLELISM // ROW_BYTES
    options = {"backend": "rocksdb", "state_memory": budget, "every": "5 seconds"}
    with running("little", Rows(FEW_KEYS, texts=True), **options) as job:
        _, little = _watch(job, sizes.warm_s)
    with running("larger", Rows(keys, texts=True), **options) as job:
        time.sleep(sizes.warm_s)
        rows_s, memory = _watch(job, sizes.larger_s)
    third = max(1, len(memory) // 3)
    first, last = middle(memory[:third]), middle(memory[-third:])
    what = f"{keys:,} keys, {budget >> 20} MiB"
    rows = "rows that may have any key"
    beside = []
    if others:
        peer = rocksdb_given(budget * PARALLELISM, keys, min(keys, FLINK_ROWS_MAX))
        rate = peer.rows_per_second()
        beside = [Figure(NAME, rows, rows_s, "rows/s", peer.name, rate, at_least=peer.times)]
    return [
        Figure(
            *(NAME, f"memory of a worker at the end, {what}", last / 2**20, "MiB"),
            *("at the beginning", first / 2**20),
            at_most=FLAT,
            samples=tuple(each / 2**20 for each in memory),
        ),
        Figure(
            *(NAME, "the most", max(memory) / 2**20, "MiB"),
            *(f"with {FEW_KEYS:,} keys", max(little) / 2**20),
        ),
        Figure(NAME, rows, rows_s, "rows/s", "keys", float(keys)),
        *beside,
    ]


def _watch(job: pen.Job, seconds: float) -> tuple[float, list[float]]:
    """Rows per second, and the memory of the larger worker all the time."""
    began_s, moments, counts, memory = time.monotonic(), [], [], []
    while (now_s := time.monotonic()) - began_s < seconds:
        moments.append(now_s - began_s)
        counts.append(job.metrics()[ROWS_IN])
        memory.append(max(anonymous_bytes(worker.pid) for worker in job.workers))
        time.sleep(LOOK_EVERY_S)
    if job.exceptions:
        raise RuntimeError(f"the job failed while it was measured: {job.exceptions[0]}")
    slope, _ = np.polyfit(moments, counts, 1)
    return float(slope), memory


def anonymous_bytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    (line,) = (line for line in lines if line.startswith("RssAnon"))
    return float(line.split()[1]) * 1024
