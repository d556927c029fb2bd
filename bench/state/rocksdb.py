"""W1 with its state in RocksDB and a checkpoint every second, beside W1 on the heap and other systems' RocksDB."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence

import penstock as pen
from bench.figures import Figure
from bench.peers import Peer
from bench.sizes import Sizes
from bench.throughput import PARALLELISM, Rates, steady_rate
from bench.workload import w1

NAME = "state: W1 on RocksDB"
ROCKSDB, HEAP = "RocksDB, a checkpoint every second", "heap"
OF_HEAP = 1 / 1.5
STEADY_S_MAX = 5.0
"""Several checkpoints are in that, and the parts of this benchmark are many."""


def run(sizes: Sizes, peers: Sequence[Peer]) -> list[Figure]:
    ways: dict[str, Callable[[], float]] = {
        ROCKSDB: lambda: _rate("rocksdb", sizes),
        HEAP: lambda: _rate("heap", sizes),
        **{peer.name: peer.rows_per_second for peer in peers},
    }
    rates = Rates()
    for repetition in range(-(-sizes.repetitions // 2)):
        for way in list(ways) if repetition % 2 == 0 else reversed(list(ways)):
            rates.add(way, ways[way]())
            millions = rates.by_way[way][-1] / 1e6
            print(f"  {NAME}, {way}: {millions:.2f} M rows/s", file=sys.stderr, flush=True)
    targets = {HEAP: OF_HEAP, **{peer.name: peer.times for peer in peers}}
    value, samples = rates.middle(ROCKSDB), tuple(rates.by_way[ROCKSDB])
    return [
        Figure(
            *(NAME, ROCKSDB, value, "rows/s", other, rates.middle(other)),
            at_least=times,
            samples=samples,
        )
        for other, times in targets.items()
    ]


def _rate(backend: str, sizes: Sizes) -> float:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        job = w1("int", sizes.keys).start(
            name=f"bench-{backend}",
            parallelism=PARALLELISM,
            checkpoint=pen.CheckpointConfig(folder, every="1 second", backend=backend),  # type: ignore[arg-type]
            restore="fresh",
        )
        try:
            return steady_rate(job, sizes.warm_s, min(sizes.steady_s, STEADY_S_MAX))
        finally:
            job.cancel(timeout=30)
