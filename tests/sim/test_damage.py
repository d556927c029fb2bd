"""Bits of completed checkpoints change: a job goes back where no sink minds, and refuses where one would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from penstock.protocol.phases import Outcome
from penstock.shells.sim.scenario import Draw, Drawn, draw_everything
from penstock.shells.sim.world import World

SEEDS = (*range(60), 596, 669, 797)
"""596 once found a checkpoint that was kept in the place of a damaged one and then damaged itself (checker too strict),
the last two damage that struck before anybody was told of the checkpoint."""


NAMED = ("chk-", "shared/", "inline")
"""One of these is in what is said about damage."""


def damaging(idempotent: bool) -> Draw:
    """What the seed draws, with sinks that do or do not mind, much damage, and many restarts that run into it."""

    def draw(world: World, rng: Random) -> Drawn:
        drawn = draw_everything(world, rng)
        for sink in drawn.scenario.sinks.values():
            sink.idempotent = idempotent
        faults = replace(drawn.faults, damage=0.01, crash=0.004, driver_crash=0.001)
        return replace(drawn, faults=faults)

    return draw


def damaged_worlds(idempotent: bool) -> Iterator[World]:
    """Runs all seeds; the checkers raise if an invariant breaks."""
    for seed in SEEDS:
        world = World(seed, draw=damaging(idempotent))
        world.run()
        if world.harmed and world.durable:
            yield world


def told(world: World) -> str:
    """What all drivers of this world said about damage."""
    lines = []
    for driver in world.cluster.drivers:
        lines.append(driver.manager.reason)
        lines += [f"{e.error}: {e.message}" for e in driver.manager.history.exceptions]
    return "\n".join(lines)


def test_where_no_sink_minds_a_job_goes_back_and_finishes() -> None:
    """I17, I24, T5, bug-E2, bug-E3: never refused, every row is there, and it says what it passed over."""
    passed_over = 0
    for world in damaged_worlds(idempotent=True):
        assert "The newest checkpoint cannot be used" not in told(world)
        assert any(d.manager.outcome is Outcome.FINISHED for d in world.cluster.drivers)
        passed_over += "; going on from" in told(world) or "; starting from" in told(world)
    assert passed_over >= 3, "too little damage was met: this proves little"


def test_where_rows_would_come_twice_a_job_never_goes_back() -> None:
    """I17, I24, bug-E2: no row twice (checked in every schedule); the refusal names the damaged file."""
    refused = 0
    for world in damaged_worlds(idempotent=False):
        assert "; going on from" not in told(world)
        assert "; starting from" not in told(world)
        refusals = [line for line in told(world).splitlines() if "cannot be used" in line]
        assert all(any(each in line for each in NAMED) for line in refusals)
        refused += bool(refusals)
    assert refused >= 3, "too little damage was met: this proves little"
