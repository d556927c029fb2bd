"""What checkpoints of 5 million keys cost a running job: when a hundredth of the keys changes in a second, and when all
do."""

from __future__ import annotations

import sys
import time

from bench.figures import Figure, middle
from bench.sizes import Sizes
from bench.state.pairs import alternated, checkpoint, running
from bench.state.rows import Rows

CHANGED = 0.01
BYTES, TIME, KEPT, KEPT_ALL = 0.03, 0.10, 0.97, 0.90


def few_change(sizes: Sizes) -> list[Figure]:
    """One half of what changes in a second is due to keys that take turns, the other to new ones among them. So it is
    `CHANGED`, whenever the second begins."""
    keys, half = sizes.large_keys, round(sizes.large_keys * CHANGED / 2)
    rows = Rows(keys, window=half, moves_s=half)
    full_bytes, full_ms = [], []
    with running("full", rows, incremental=False) as job:
        for _ in range(sizes.snapshots):
            info = checkpoint(job)
            full_bytes.append(float(info.bytes_full))
            full_ms.append(info.duration_ms or 0.0)
    with running("increments", rows) as job:
        checkpoint(job)
        time.sleep(sizes.warm_s)
        found = alternated(job, sizes.stretches, sizes.stretch_s)
    parts = [float(info.bytes_incremental) for info in found.regular]
    times = [info.duration_ms or 0.0 for info in found.regular]
    writing = [max(part.async_ms for part in info.subtasks) for info in found.regular]
    name = f"state: {keys:,} keys, {CHANGED:.0%} change in a second"
    whole_bytes, whole_ms, mean = middle(full_bytes), middle(full_ms), sum(parts) / len(parts)
    print(f"  bytes of increments: {[int(each) for each in parts]}", file=sys.stderr, flush=True)
    return [
        _part(name, "bytes of an increment", parts, "bytes", whole_bytes, BYTES),
        Figure(name, "the same on average", mean, "bytes", "all rows", whole_bytes),
        _part(name, "duration of its checkpoint", times, "ms", whole_ms, TIME),
        Figure(name, "of that, writing", middle(writing), "ms", "all of it", middle(times)),
        *found.kept(name, "checkpoint every second", KEPT),
    ]


def all_change(sizes: Sizes) -> list[Figure]:
    keys = sizes.large_keys
    with running("all-change", Rows(keys)) as job:
        checkpoint(job)
        time.sleep(sizes.warm_s)
        found = alternated(job, -(-sizes.stretches // 2), sizes.stretch_s)
    name = f"state: {keys:,} keys, all change"
    times = [info.duration_ms or 0.0 for info in found.checkpoints]
    return [
        *found.kept(name, "checkpoint every second", KEPT_ALL),
        Figure(
            *(name, "duration of a checkpoint", middle(times), "ms", "interval", 1_000.0),
            samples=tuple(times),
        ),
    ]


def _part(
    bench: str, what: str, samples: list[float], unit: str, whole: float, at_most: float
) -> Figure:
    value = middle(samples)
    return Figure(
        bench, what, value, unit, "all rows", whole, at_most=at_most, samples=tuple(samples)
    )
