"""What must hold when a simulated run is over: everything came out once, nothing was left behind."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.protocol.phases import Outcome
from penstock.shells.sim.excuses import damage_stops
from penstock.shells.sim.function_verdict import check_function
from penstock.shells.sim.states import at_least, fold

if TYPE_CHECKING:
    from penstock.shells.sim.checkers import Checkers
    from penstock.shells.sim.world import World


def judge(world: World, checkers: Checkers) -> None:
    """Tells the world of the first thing that is wrong."""
    ends = [(d.manager.outcome, d.manager.reason) for d in world.cluster.drivers if d.alive]
    outcomes = [outcome for outcome, _ in ends]
    if Outcome.FINISHED in outcomes:
        _check_finished(world, checkers)
    elif not _may_stay_unfinished(world):
        world.violation("I27", f"the job did not finish: {ends}")
    finished = Outcome.FINISHED in outcomes
    _check_rows(world, checkers, finished=finished)
    world.scenario.judge(finished, world.exactly_once and not checkers.went_back)
    _check_left_behind(world)


def _may_stay_unfinished(world: World) -> bool:
    """Damage that cannot be worked around, and anything at all without checkpoints, ends a job for good."""
    failed = [d for d in world.cluster.drivers if d.manager.outcome is Outcome.FAILED]
    return not world.durable or any(damage_stops(world, driver) for driver in failed)


def _check_finished(world: World, checkers: Checkers) -> None:
    if not world.durable:
        return
    final = [
        n for n, m in checkers.manifests.items() if m.kind == "final" and not checkers.is_void(m)
    ]
    if len(final) != 1:
        world.violation("I27", f"final checkpoints: {final}")
    _check_commits(world, checkers)
    checkers.leftovers.check_transactions(checkers.completed_ms[final[0]] if final else 0.0)
    checkers.leftovers.check_files()


def _check_commits(world: World, checkers: Checkers) -> None:
    """I10: what a checkpoint that counts has promised was made visible, once."""
    for manifest in checkers.manifests.values():
        if not checkers.is_void(manifest):
            for name in checkers.transactions(manifest):
                if world.table.effects[name] != 1:
                    times = world.table.effects[name]
                    what = (
                        f"{name} of checkpoint {manifest.checkpoint} was made visible {times} times"
                    )
                    world.violation("I10", what)


def _check_rows(world: World, checkers: Checkers, *, finished: bool) -> None:
    """I1: every row is there (when the job finished), and none twice (where that was promised)."""
    once = world.exactly_once and not checkers.went_back
    for sink, want in world.scenario.expected.items():
        got = Counter(entry[0] for entry in world.table.rows(sink))
        wrong = [
            number
            for number in sorted(got | want)
            if (finished and got[number] < want[number]) or (once and got[number] > want[number])
        ]
        if wrong:
            some = {number: (got[number], want[number]) for number in wrong[:5]}
            world.violation("I1", f"{sink}: {len(wrong)} rows wrong (seen, wanted): {some}")
    for sink, (_, ids) in world.scenario.aggregates.items():
        _check_aggregate(world, sink, fold(ids), once=once, finished=finished)
    for sink in world.scenario.functions:
        check_function(world, sink, once=once, finished=finished)


def _check_aggregate(
    world: World, sink: str, want: dict[int, tuple[int, int]], *, once: bool, finished: bool
) -> None:
    """The last row of every key has all of its rows, and no count is seen twice."""
    rows = world.table.rows(sink)
    got: dict[int, tuple[int, int]] = {}
    for key, n, total in rows:
        got[key] = max(got.get(key, (0, 0)), (n, total))
    seen = Counter((key, n) for key, n, _ in rows)
    twice = sorted(entry for entry, times in seen.items() if times > 1)
    if once and twice:
        world.violation("I1", f"{sink}: seen twice (key, count): {twice[:5]}")
    wrong = (got != want) if once else not at_least(got, want)
    if finished and wrong:
        world.violation("I1", f"{sink}: last rows {got}, wanted {want}")


def _check_left_behind(world: World) -> None:
    alive = [p.name for p in world.cluster.processes.values() if p.alive]
    if alive:
        world.violation("I26", f"processes left behind: {alive}")
    if world.channels:
        world.violation("I26", f"channels left behind: {sorted(world.channels)}")
