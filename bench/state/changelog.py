"""With a changelog a checkpoint takes as long for much state as for little: a job with a hundred times as many keys as
two others, before it and after it. In all of them as many keys change between two checkpoints."""

from __future__ import annotations

import time

from bench.figures import Figure, middle
from bench.sizes import Sizes
from bench.state.pairs import checkpoint, running
from bench.state.rows import Rows

NAME = "state: changelog"
FEWER = 100
RATE = 1_000_000.0
PAUSE_S = 1.0
TIMES = 1.2


def run(sizes: Sizes) -> list[Figure]:
    """Less than half of the few keys change in a second: where all do, a checkpoint just writes all rows."""
    many, few = sizes.large_keys, sizes.large_keys // FEWER
    window = round(0.4 * few)
    taken: dict[int, list[float]] = {many: [], few: []}
    for keys in (few, many, few):
        with running("changelog", Rows(keys, window, window / 4), RATE, changelog=True) as job:
            for _ in range(2):
                checkpoint(job)
            for _ in range(sizes.changelog_checkpoints):
                time.sleep(PAUSE_S)
                taken[keys].append(checkpoint(job).duration_ms or 0.0)
    many_ms, few_ms = taken[many], taken[few]
    against = f"{few:,} keys"
    return [
        Figure(
            *(NAME, f"checkpoint of {many:,} keys", middle(many_ms), "ms"),
            *(against, middle(few_ms)),
            at_most=TIMES,
            samples=tuple(many_ms),
        ),
        Figure(NAME, "the longest", max(many_ms), "ms", f"{against}, the longest", max(few_ms)),
    ]
