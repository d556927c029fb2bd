"""W1 and W1s: rows per second of a keyed running aggregate, without checkpoints and with one every second.

The two ways alternate inside one Spark session, and so does whatever they are compared with: on a shared machine only
figures of the same minutes can be compared.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

import penstock as pen
from bench import limit, peers
from bench.figures import Figure, middle
from bench.sizes import Sizes
from bench.waiting import wait_for
from bench.workload import OPERATOR, w1

PARALLELISM = 2
PLAIN, WITH = "no checkpoints", "a checkpoint every second"
ALONE, PAIR = "limit, one process", "limit, two processes at once"
LIMIT_PARTITIONED = "limit, one process, with the partition step"
LOOK_EVERY_S = 0.01


@dataclass
class Rates:
    """Rows per second by what was run, a list per way with one entry per repetition."""

    by_way: dict[str, list[float]] = field(default_factory=dict)

    def add(self, way: str, rows_s: float) -> None:
        self.by_way.setdefault(way, []).append(rows_s)

    def middle(self, way: str) -> float:
        return middle(self.by_way[way])

    def ratios(self, way: str, other: str) -> list[float]:
        """Of the two runs in each repetition."""
        pairs = zip(self.by_way[way], self.by_way[other], strict=True)
        return [above / below for above, below in pairs]


def run(name: str, kind: str, sizes: Sizes, peer_list: Sequence[peers.Peer]) -> list[Figure]:
    ways: dict[str, Callable[[], float]] = {
        PLAIN: lambda: job_rate(kind, sizes, every=None),
        WITH: lambda: job_rate(kind, sizes, every="1 second"),
        ALONE: lambda: limit.rate(kind, sizes, processes=1),
        LIMIT_PARTITIONED: lambda: limit.rate(kind, sizes, processes=1, partition=True),
        PAIR: lambda: limit.rate(kind, sizes, processes=2),
    }
    ways |= {peer.name: peer.rows_per_second for peer in peer_list}
    rates = Rates()
    for repetition in range(sizes.repetitions):
        # Every other round backwards, so that none always comes after the same other.
        for way in list(ways) if repetition % 2 == 0 else reversed(list(ways)):
            rates.add(way, ways[way]())
            millions = rates.by_way[way][-1] / 1e6
            print(f"  {name}, {way}: {millions:.2f} M rows/s", file=sys.stderr, flush=True)
    return _figures(name, rates, peer_list)


def job_rate(kind: str, sizes: Sizes, every: str | None) -> float:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        checkpoint = pen.CheckpointConfig(folder, every=every) if every else None
        job = w1(kind, sizes.keys).start(
            name=f"bench-{kind}", parallelism=PARALLELISM, checkpoint=checkpoint, restore="fresh"
        )
        try:
            return steady_rate(job, sizes.warm_s, sizes.steady_s)
        finally:
            job.cancel(timeout=30)


def steady_rate(job: pen.Job, warm_s: float, steady_s: float) -> float:
    """The slope of the counter of rows into the aggregate, over an interval that begins after a warm-up."""
    name = f'penstock_records_in_total{{operator="{OPERATOR}"}}'

    def rows() -> float:
        if job.exceptions:
            raise RuntimeError(f"the job failed while it was measured: {job.exceptions[0]}")
        return job.metrics().get(name, 0.0)

    wait_for("the first rows", rows, job, within_s=180)
    first_s = time.monotonic() + warm_s
    moments, counts = [], []
    last = rows()
    while (now_s := time.monotonic()) < first_s + steady_s:
        count = rows()
        if count != last and now_s >= first_s:
            moments.append(now_s)
            counts.append(count)
        last = count
        time.sleep(LOOK_EVERY_S)
    if len(moments) < 2:
        raise RuntimeError(f"the counter moved {len(moments)} times in {steady_s} s: too short")
    slope, _ = np.polyfit(np.array(moments) - moments[0], np.array(counts), 1)
    return float(slope)


def _figures(name: str, rates: Rates, peer_list: Sequence[peers.Peer]) -> list[Figure]:
    def figure(what: str, against: str, **target: float) -> Figure:
        samples = tuple(rates.by_way[what])
        reference = rates.middle(against)
        return Figure(
            name, what, rates.middle(what), "rows/s", against, reference, **target, samples=samples
        )

    kept = rates.ratios(WITH, PLAIN)
    per_core = rates.middle(ALONE)
    figures = [
        figure(PLAIN, PAIR),
        figure(WITH, PAIR),
        Figure(
            *(name, "kept with checkpoints", middle(kept), "of plain", "plain", 1.0),
            samples=tuple(kept),
        ),
        Figure(name, PAIR, rates.middle(PAIR), "rows/s", "2 x one process", 2 * per_core),
        figure(LIMIT_PARTITIONED, ALONE),
    ]
    for peer in peer_list:
        what = WITH if peer.checkpoints else PLAIN
        figures.append(figure(what, peer.name, at_least=peer.times))
    return figures
