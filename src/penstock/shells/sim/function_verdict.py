"""I1, I21: what a function with state told the world is what it must have remembered of the rows that it had seen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.shells.sim.function_model import Model, is_part, replay
from penstock.shells.sim.functions import Memory
from penstock.shells.sim.outside import row

if TYPE_CHECKING:
    from penstock.shells.sim.world import World


def check_function(world: World, sink: str, *, once: bool, finished: bool) -> None:
    """Every row is there (when the job finished), and none twice (where that was promised): then all that was told of a
    key, put in order, is one history."""
    function, rows = world.scenario.functions[sink], world.table.rows(sink)
    got = Counter(number for _, _, number, _, _ in rows)
    want = function.ids
    wrong = [
        number
        for number in sorted(got | want)
        if (finished and got[number] < want[number]) or (once and got[number] > want[number])
    ]
    if wrong:
        some = {number: (got[number], want[number]) for number in wrong[:5]}
        world.violation("I1", f"{sink}: {len(wrong)} rows wrong (seen, wanted): {some}")
    if once:
        for key in sorted({key for key, *_ in rows}):
            _check_key(world, sink, key, function.memory)


def _check_key(world: World, sink: str, key: int, memory: Memory) -> None:
    rows: list[Any] = sorted(r for r in world.table.rows(sink) if r[0] == key)
    numbers = [n for _, n, *_ in rows]
    if numbers != list(range(1, len(rows) + 1)):
        world.violation("I1", f"{sink}, key {key}: rows are numbered {numbers}")
    strangers = [number for _, _, number, _, _ in rows if row(number)[1] != key]
    if strangers:
        world.violation("I15", f"{sink}: rows {strangers} were seen under key {key}")
    vague = world.clock.went_back and memory.ttl_ms is not None
    must = replay(
        ((number, at_ms) for _, _, number, at_ms, _ in rows),
        Model(memory.for_ever() if vague else memory),
    )
    for (_, n, number, at_ms, told), want in zip(rows, must, strict=True):
        right = is_part(told.split("/"), ["", *want.split("/")]) if vague else told == want
        if not right:
            what = f"row {n}, id {number} at {at_ms}, told {told!r} and not {want!r}, {memory}"
            world.violation("I21" if memory.ttl_ms else "I1", f"{sink}, key {key}: {what}")
