"""What lies about when all is over: files in storage (I13), transactions in the external table (I11)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.engine.checkpoints.cleaning import TIDY_TRIES_MAX
from penstock.protocol.ids import CheckpointId
from penstock.wire import paths
from penstock.wire.tombstones import is_tombstone

if TYPE_CHECKING:
    from penstock.shells.sim.world import World


class Leftovers:
    """Watches what is written and deleted, and when the last owner of the job looked through all of it.

    At the end there are the `keep` newest checkpoints that count, whole, and nothing else of any snapshot. One that was
    damaged may be there, too, unless so many newer ones are whole: nobody knows whether that was before the job chose
    which to keep, or after. Not held against the job is what
    came after the last owner's last look, what storage did not let it delete then, after it had looked as often as it
    may, and all that lies there where it could not find out what to go on from: then it deletes nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._written_ms: dict[str, float] = {}
        self._metadata_gone_ms: dict[CheckpointId, float] = {}
        self._listed_ms: dict[str, float] = {}
        self._looks: Counter[str] = Counter()
        """By driver, since its end: how often it looked, or tried to."""
        self._refused_ms: dict[tuple[str, CheckpointId | None], float] = {}
        """By driver, since its end: when storage last did not delete a file of a checkpoint, or did not say what there
        is or whose."""
        self.ended_ms: dict[str, float] = {}
        """When each driver decided that its job is over."""

    # ---- told

    def on_written(self, name: str) -> None:
        self._written_ms[name] = self._world.clock.now_ms

    def on_deleted(self, name: str) -> None:
        checkpoint = paths.metadata_of(name)
        if checkpoint is not None:
            self._metadata_gone_ms[checkpoint] = self._world.clock.now_ms

    def on_listed(self, who: str) -> None:
        self._listed_ms[who] = self._world.clock.now_ms
        self._looks[who] += who in self.ended_ms

    def on_refused(self, who: str, name: str) -> None:
        """`name`: a file, or a folder that was to be listed; empty for all there is."""
        checkpoint = paths.checkpoint_of(f"{name}/0-1") or paths.checkpoint_of(name)
        of_all = not name or name.startswith((paths.OWNER_FOLDER, paths.SHARED_FOLDER))
        of_the_sweep = of_all or checkpoint is not None
        if who in self.ended_ms and of_the_sweep:
            self._looks[who] += not name
            self._refused_ms[who, checkpoint] = self._world.clock.now_ms

    def looked_ms(self, who: str) -> float:
        """When it looked through everything the last time."""
        return self._listed_ms.get(who, 0.0)

    # ---- files

    def check_files(self) -> None:
        checkers = self._world.checkers
        owner = checkers.owner
        if owner not in self.ended_ms or not checkers.owner_knows_what_to_restore:
            return
        left = [name for name in self._superfluous() if self._could_go(owner, name)]
        if left:
            self._world.violation("I13", f"files that nothing refers to: {left}")

    def _superfluous(self) -> list[str]:
        names, disk = self._world.disk.list(), self._world.disk
        manifests = self._world.checkers.manifests
        complete = sorted(
            n
            for name in names
            if (n := paths.metadata_of(name)) in manifests
            and not is_tombstone(name, disk.read(name))
        )
        counting = [n for n in complete if not self._world.checkers.is_void(manifests[n])]
        whole = [n for n in counting if n not in self._world.checkers.damaged]
        keep = self._world.settings.coordinator.keep
        kept = {n for n in counting if sum(other > n for other in whole) < keep}
        needed = {name for n in kept for name in (paths.metadata(n), *manifests[n].files)}
        left = [n for n in names if paths.checkpoint_of(n) is not None and n not in needed]
        return left + self._strays(names, complete)

    def _strays(self, names: list[str], complete: list[CheckpointId]) -> list[str]:
        """Shared files that no checkpoint refers to which is there, not even one that was damaged."""
        manifests, damaged = self._world.checkers.manifests, self._world.checkers.damaged
        needed = {file for n in complete for file in manifests[n].files}
        shared = [(name, paths.shared_of(name)) for name in names if name not in needed]
        newest_damaged = max(damaged, default=0)
        return [name for name, file in shared if file and file.checkpoint > newest_damaged]

    def _could_go(self, owner: str, name: str) -> bool:
        checkpoint = paths.checkpoint_of(name)
        looked_ms = max(self.ended_ms[owner], self.looked_ms(owner))
        came_before = self._written_ms[name] < looked_ms and self._unneeded_ms(name) < looked_ms
        refused_ms = self._last_refused_ms(owner, checkpoint)
        given_up = refused_ms >= looked_ms and self._looks[owner] >= TIDY_TRIES_MAX
        return came_before and not given_up

    def _unneeded_ms(self, name: str) -> float:
        """When the metadata went of the last checkpoint that had, or referred to, this file."""
        own, manifests = paths.checkpoint_of(name), self._world.checkers.manifests
        times = (
            time_ms
            for n, time_ms in self._metadata_gone_ms.items()
            if n == own or (n in manifests and name in manifests[n].files)
        )
        return max(times, default=0.0)

    def _last_refused_ms(self, owner: str, checkpoint: CheckpointId | None) -> float:
        """A shared file, which is no one checkpoint's, also stays where storage does not say what another refers to."""
        kinds = (checkpoint, None)
        times = (
            time_ms
            for (who, n), time_ms in self._refused_ms.items()
            if who == owner and (checkpoint is None or n in kinds)
        )
        return max(times, default=0.0)

    # ---- transactions

    def check_transactions(self, final_ms: float) -> None:
        """I11: every transaction is committed or aborted. A worker that nobody knew to be alive may have begun one
        after the last checkpoint: nobody can know of it before the job of this name starts again."""
        newest = self._world.checkers.newest_attempt
        dangling = [
            name
            for name, entry in self._world.table.prepared.items()
            if entry.attempt >= newest or entry.began_ms <= final_ms
        ]
        if dangling:
            what = f"transactions neither committed nor aborted: {sorted(dangling)}"
            self._world.violation("I11", what)
