"""What a job may be forgiven, stated exactly: that it fails, and that it goes back.

Both only ever because of damage to a file that it needs, or because another driver has taken it over. Whatever else
happens in a world in which something was damaged is held against the job as anywhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId
from penstock.wire import paths
from penstock.wire.manifest import Manifest

if TYPE_CHECKING:
    from penstock.shells.sim.cluster import DriverProcess
    from penstock.shells.sim.world import World


def may_fail(world: World, driver: DriverProcess) -> bool:
    """Whether this driver had a reason to give its job up for good."""
    reason = driver.manager.reason
    if not world.durable or damage_stops(world, driver):
        return True
    return reason.startswith("JobFenced") and world.checkers.owner not in ("", driver.name)


def damage_stops(world: World, driver: DriverProcess) -> bool:
    """The newest checkpoint that counts, of those that the driver saw, is damaged, and to go back would show rows
    twice. A damaged tombstone above it looks just like that."""
    if world.scenario.idempotent or not driver.manager.reason.startswith("CheckpointCorrupt"):
        return False
    checkers = world.checkers
    seen = {paths.metadata_of(name) for name in checkers.listed(driver.name)}
    counting = [n for n, m in checkers.manifests.items() if n in seen and not checkers.is_void(m)]
    newest = max(counting, default=NO_CHECKPOINT)
    if newest != NO_CHECKPOINT and is_damaged(world, checkers.manifests[newest]):
        return True
    harmed = [n for name in sorted(world.harmed) if (n := paths.metadata_of(name)) is not None]
    return any(n > newest and checkers.is_tombstone_that_counts(n) for n in harmed)


def may_restore(world: World, restored: CheckpointId) -> bool:
    """Whether an attempt may begin below what is out already: something newer is damaged, and no sink minds."""
    newer = [m for n, m in world.checkers.manifests.items() if n > restored]
    return world.scenario.idempotent and any(is_damaged(world, manifest) for manifest in newer)


def is_damaged(world: World, manifest: Manifest) -> bool:
    """Its metadata, or a file that it names."""
    needed = {paths.metadata(manifest.checkpoint), *manifest.files}
    return not needed.isdisjoint(world.harmed)


def newest_sound(world: World, listed: list[str]) -> CheckpointId:
    """The newest checkpoint among these files that is whole and counts. One with as many newer ones as are kept may be
    about to go."""
    checkers = world.checkers
    there = sorted(n for name in listed if (n := paths.metadata_of(name)) in checkers.manifests)
    kept = sorted(checkers.manifests)[-world.settings.coordinator.keep :]
    sound = [
        n
        for n in there
        if n >= min(kept, default=NO_CHECKPOINT)
        and not checkers.is_void(checkers.manifests[n])
        and not is_damaged(world, checkers.manifests[n])
    ]
    return max(sound, default=NO_CHECKPOINT)
