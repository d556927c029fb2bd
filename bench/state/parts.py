"""The parts of the benchmark of state.

`python -m bench state` runs all parts, `python -m bench state_restore state_pause` some of them.
"""

from __future__ import annotations

from collections.abc import Callable

from bench import peers
from bench.figures import Figure
from bench.sizes import Sizes
from bench.state import (
    changelog,
    functions,
    increments,
    larger,
    pauses,
    restore,
    rocksdb,
    scale,
)

Part = Callable[[Sizes, bool], list[Figure]]

PARTS: dict[str, Part] = {
    "rocksdb": lambda sizes, others: rocksdb.run(sizes, peers.ROCKSDB_PEERS if others else ()),
    "increments": lambda sizes, others: increments.few_change(sizes),
    "all_change": lambda sizes, others: increments.all_change(sizes),
    "changelog": lambda sizes, others: changelog.run(sizes),
    "pause": lambda sizes, others: pauses.run(sizes),
    "restore": lambda sizes, others: restore.run(sizes),
    "larger": lambda sizes, others: larger.run(sizes, others=others),
    "keys": lambda sizes, others: scale.run(sizes),
    "functions": lambda sizes, others: functions.run(sizes),
}
"""Called with whether other systems run beside it."""


def run(sizes: Sizes, others: bool) -> list[Figure]:
    return [figure for part in PARTS.values() for figure in part(sizes, others)]
