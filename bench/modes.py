"""What each kind of checkpoint costs W1: none, aligned, at least once and unaligned, one every second, in turn."""

from __future__ import annotations

import sys
from typing import Any

from bench.figures import Figure, middle
from bench.sizes import Sizes
from bench.throughput import Rates, job_rate

NAME = "W1 by kind of checkpoint"
NONE = "none"
EVERY_SECOND: dict[str, dict[str, Any]] = {
    "aligned": {},
    "at least once": {"mode": "at_least_once"},
    "unaligned": {"unaligned": True},
}


def run(sizes: Sizes) -> list[Figure]:
    rates = Rates()
    for repetition in range(sizes.repetitions):
        ways = [NONE, *EVERY_SECOND]
        for way in ways if repetition % 2 == 0 else reversed(ways):
            options = EVERY_SECOND.get(way)
            every = None if options is None else "1 second"
            rates.add(way, job_rate("int", sizes, every, **(options or {})))
            millions = rates.by_way[way][-1] / 1e6
            print(f"  {NAME}, {way}: {millions:.2f} M rows/s", file=sys.stderr, flush=True)
    kept = {way: rates.ratios(way, NONE) for way in EVERY_SECOND}
    return [
        Figure(
            *(NAME, f"{way}, kept", middle(ratios), "of none", NONE, 1.0),
            at_least=0.97,
            samples=tuple(ratios),
        )
        for way, ratios in kept.items()
    ]
