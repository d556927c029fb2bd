"""Workers have copies of their state on a disk that fails, forgets and flips bits: no schedule depends on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

from penstock.protocol.phases import Outcome
from penstock.shells.sim.copies import CopiesDisk
from penstock.shells.sim.keeping import Keeping
from penstock.shells.sim.scenario import Drawn, draw_everything
from penstock.shells.sim.world import World

SEEDS = range(60)


def copying(world: World, rng: Random) -> Drawn:
    """What the seed draws, with all state in files, copies of these, and many restarts that read them. The files
    themselves stay as they are: whatever is said to be damaged is a copy."""
    drawn = draw_everything(world, rng)
    faults = replace(drawn.faults, crash=0.004, driver_crash=0.001, damage=0.0)
    settings = replace(drawn.settings, inline_bytes_max=0)
    return replace(
        drawn,
        faults=faults,
        settings=settings,
        keeping=Keeping(copies=drawn.durable),
        keeping_later=None,
    )


def worlds(seeds: Iterable[int]) -> Iterator[tuple[World, CopiesDisk]]:
    """Runs all seeds; the checkers raise if an invariant breaks."""
    for seed in seeds:
        world = World(seed, draw=copying)
        world.run()
        if world.local_disk is not None:
            yield world, world.local_disk


def test_no_schedule_depends_on_copies() -> None:
    """R4, I23, I25, bug-E8: every row is there as often as it should be (checked in every schedule), copies are read,
    bad ones are met, and no checkpoint ever seems to be damaged."""
    good = bad = read = 0.0
    for world, disk in worlds(SEEDS):
        good, bad = good + disk.reads_good, bad + disk.reads_bad
        managers = [driver.manager for driver in world.cluster.drivers]
        errors = {e.error for manager in managers for e in manager.history.exceptions}
        assert "CheckpointCorrupt" not in errors
        assert any(manager.outcome is Outcome.FINISHED for manager in managers)
        metrics = [item for manager in managers for item in manager.metrics.items()]
        read += sum(value for name, value in metrics if 'copy="local"' in name)
    assert min(good, bad, read) > 50, f"{good} good reads, {bad} bad ones: this proves little"
