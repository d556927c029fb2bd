"""What a row costs with more and more keys: in a job, which makes it, sends it to the worker of its key and counts it;
and of that in the aggregate alone, in a plain loop, all sizes in one process, in turns.

The loop runs once with keys that lie close together, as those of W1 do, and once with keys from all over the numbers,
which are found in another way.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.figures import Figure, middle
from bench.limit import new_aggregate
from bench.sizes import Sizes
from bench.state.pairs import running
from bench.state.rows import Rows
from bench.throughput import PARALLELISM, steady_rate
from bench.workload import INT_SCHEMA, int_batch, keys_of
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.shells.spark.entry import tune_process

NAME = "state: cost per row by number of keys"
BATCH_ROWS = 65_536
TIMES = 3.0
APART = np.int64(0x5851F42D4C957F2D)
"""Odd: different keys stay different."""
KINDS = ("close together", "all over")


def run(sizes: Sizes) -> list[Figure]:
    return [_in_a_job(sizes), *_in_a_loop(sizes)]


def _in_a_job(sizes: Sizes) -> Figure:
    """The time of the cores that it has, by the rows that it counts: few keys and many in turns."""
    few, many = sizes.scale_keys[0], sizes.scale_keys[-1]
    costs: dict[int, list[float]] = {few: [], many: []}
    for keys in (few, many) * sizes.scale_jobs:
        with running("keys", Rows(keys)) as job:
            rows_s = steady_rate(job, sizes.warm_s, sizes.steady_s)
            costs[keys].append(PARALLELISM * 1e9 / rows_s)
    against, reference = f"{few:,} keys", middle(costs[few])
    return Figure(
        *(NAME, f"{many:,} keys, a job", middle(costs[many]), "ns/row", against, reference),
        at_most=TIMES,
        samples=tuple(costs[many]),
    )


def _in_a_loop(sizes: Sizes) -> list[Figure]:
    figures = []
    for kind in KINDS:
        arguments = [kind, str(sizes.scale_s), *map(str, sizes.scale_keys)]
        ended = subprocess.run(
            [sys.executable, "-m", "bench.state.scale", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
            timeout=900,
        )
        costs = {int(keys): list(ns) for keys, ns in json.loads(ended.stdout).items()}
        fewest, *others = sizes.scale_keys
        reference = middle(costs[fewest])
        for keys in others:
            ns = costs[keys]
            what, against = f"of that counting, {keys:,} keys {kind}", f"{fewest:,} keys"
            figures.append(
                Figure(
                    *(NAME, what, middle(ns), "ns/row", against, reference),
                    samples=tuple(ns),
                )
            )
    return figures


def loop(kind: str, seconds: float, sizes: list[int]) -> dict[int, list[float]]:
    """Nanoseconds per row, in rounds of a quarter of a second for each size."""
    loops = {keys: _Loop(kind, keys) for keys in sizes}
    costs: dict[int, list[float]] = {keys: [] for keys in sizes}
    for _ in range(max(1, round(seconds / 0.25))):
        for keys, each in loops.items():
            costs[keys].append(each.ns_per_row(min(seconds, 0.25)))
    return costs


class _Loop:
    """The rows are made beforehand, and only the operator is timed."""

    def __init__(self, kind: str, keys: int) -> None:
        self._operator: RunningAggregate = new_aggregate(INT_SCHEMA)
        spread = APART if kind == KINDS[1] else np.int64(1)
        self._batch: Callable[[np.ndarray, np.ndarray], pa.RecordBatch] = lambda found, numbers: (
            int_batch(found * spread, numbers)
        )
        self._keys = keys
        self._next = 0
        order = np.random.default_rng(11).permutation(keys)
        for start in range(0, keys, BATCH_ROWS):
            some = order[start : start + BATCH_ROWS]
            self._operator.process(self._batch(some, some), 0)
        self.ns_per_row(0.05)

    def ns_per_row(self, seconds: float) -> float:
        rows, spent_s = 0, 0.0
        while spent_s < seconds:
            numbers = np.arange(self._next, self._next + BATCH_ROWS, dtype=np.int64)
            self._next += BATCH_ROWS
            batch = self._batch(keys_of(numbers, self._keys), numbers)
            began_s = time.perf_counter()
            self._operator.process(batch, 0)
            spent_s += time.perf_counter() - began_s
            rows += BATCH_ROWS
        return spent_s / rows * 1e9


if __name__ == "__main__":
    tune_process()
    print(json.dumps(loop(sys.argv[1], float(sys.argv[2]), [int(each) for each in sys.argv[3:]])))
