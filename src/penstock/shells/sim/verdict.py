"""What must hold when a simulated run is over: everything came out once, nothing was left behind."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.protocol.phases import Outcome
from penstock.shells.sim.checkers import at_least, fold
from penstock.wire import paths

if TYPE_CHECKING:
    from penstock.shells.sim.checkers import Checkers
    from penstock.shells.sim.world import World


def judge(world: World, checkers: Checkers) -> None:
    """Tells the world of the first thing that is wrong."""
    ends = [(d.manager.outcome, d.manager.reason) for d in world.cluster.drivers if d.alive]
    outcomes = [outcome for outcome, _ in ends]
    if Outcome.FINISHED in outcomes:
        _check_finished(world, checkers)
    elif not _may_stay_unfinished(world, outcomes):
        world.violation("I27", f"the job did not finish: {ends}")
    finished = Outcome.FINISHED in outcomes
    _check_rows(world, checkers, finished=finished)
    world.scenario.judge(finished, world.exactly_once and not checkers.may_go_back())
    _check_left_behind(world)


def _may_stay_unfinished(world: World, outcomes: list[Outcome | None]) -> bool:
    """Damage that cannot be worked around, and anything at all without checkpoints, ends a job for good."""
    if Outcome.FAILED in outcomes:
        return bool(world.damaged) or not world.durable
    return not world.durable


def _check_finished(world: World, checkers: Checkers) -> None:
    if not world.durable:
        return
    final = [
        n for n, m in checkers.manifests.items() if m.kind == "final" and not checkers.is_void(m)
    ]
    if len(final) != 1:
        world.violation("I27", f"final checkpoints: {final}")
    dangling = [name for name, entry in world.table.prepared.items() if not entry.by_zombie]
    if dangling:
        world.violation("I11", f"transactions neither committed nor aborted: {dangling}")
    _check_storage(world, checkers)


def _check_storage(world: World, checkers: Checkers) -> None:
    """I13: what lies in storage is what the kept checkpoints need, and the claims. Files that a straggler wrote after
    the end are not held against the job, nor what could not be deleted, nor what is left where the newest driver could
    not begin because of damage."""
    newest = world.cluster.drivers[-1].manager
    if world.faults.delete_error or newest.outcome is Outcome.FAILED:
        return
    names = world.disk.list()
    kept: set[str] = set()
    for name in names:
        checkpoint = paths.metadata_of(name)
        if checkpoint is not None and checkpoint in checkers.manifests:
            kept |= {name, *checkers.manifests[checkpoint].files}
    leaked = [
        name
        for name in names
        if name not in kept
        and paths.checkpoint_of(name) not in {None, *checkers.half_deleted}
        and checkers.written_ms[name] < checkers.ended_ms
    ]
    if leaked:
        world.violation("I13", f"files that nothing refers to: {leaked}")


def _check_rows(world: World, checkers: Checkers, *, finished: bool) -> None:
    """I1: every row is there (when the job finished), and none twice (where that was promised)."""
    once = world.exactly_once and not checkers.may_go_back()
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
