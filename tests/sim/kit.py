"""A history for checkers to look at: a real one, of a calm run of the simulator. Everything in it is right until a test
changes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from penstock.shells.sim.faults import Faults
from penstock.shells.sim.keeping import Keeping
from penstock.shells.sim.outside import Transaction
from penstock.shells.sim.scenario import Drawn, draw_everything
from penstock.shells.sim.world import World
from penstock.wire import manifest as manifests
from penstock.wire import paths
from penstock.wire.manifest import Manifest

DRIVER = "driver-0"


def calm(_world: World, rng: Random) -> Drawn:
    """What the seed draws, without faults; every snapshot is kept, and all is aligned."""
    drawn = draw_everything(_world, rng)
    coordinator = replace(
        drawn.settings.coordinator, unaligned=False, aligned_timeout_ms=None, keep=100
    )
    settings = replace(drawn.settings, coordinator=coordinator, inline_bytes_max=0)
    return replace(
        drawn,
        faults=Faults(),
        exactly_once=True,
        durable=True,
        settings=settings,
        keeping=Keeping(),
        keeping_later=None,
    )


def finished_world() -> World:
    """A calm run with rows and an aggregate, several checkpoints and several transactions."""
    for seed in range(500):
        found = World(seed, draw=calm)
        if not (found.scenario.expected and found.scenario.aggregates):
            continue
        found.run()
        if len(found.checkers.manifests) >= 3 and len(found.table.visible) >= 4:
            return found
    raise AssertionError("no seed has such a run any more")


def invariant(found: World) -> str:
    return (found.problem or "none").partition(":")[0]


def newest(found: World) -> Manifest:
    return found.checkers.manifests[max(found.checkers.manifests)]


def with_state(found: World) -> Manifest:
    """A checkpoint that has a state file."""
    return next(m for m in found.checkers.manifests.values() if m.files)


def with_own_file(found: World) -> Manifest:
    """A checkpoint that has a state file which no other refers to."""
    everything = list(found.checkers.manifests.values())
    users = Counter(name for manifest in everything for name in set(manifest.files))
    return next(m for m in everything if any(users[name] == 1 for name in m.files))


def create(found: World, manifest: Manifest) -> str:
    """The checkpoint comes to exist; what do the checkers say?"""
    found.checkers.on_created(
        DRIVER, paths.metadata(manifest.checkpoint), manifests.encode(manifest)
    )
    return invariant(found)


def judged(found: World) -> str:
    found.checkers.at_end()
    return invariant(found)


def any_transaction(found: World) -> tuple[str, Transaction]:
    return next(
        (name, entry)
        for name, entry in found.table.visible.items()
        if entry.operator in found.scenario.expected
    )
