"""The invariants, watched from outside: the checkers see storage, messages and the external table, never the machines'
own opinion of themselves.

Each check names the invariant it belongs to; the first violation ends the run. What must hold when all is over is in
`verdict`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from xxhash import xxh3_128_hexdigest

from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import (
    Committed,
    Deploy,
    FromWorker,
    Notify,
    Sync,
    ToWorker,
    Trigger,
)
from penstock.protocol.phases import Outcome
from penstock.protocol.snapshot import Segment
from penstock.shells.sim import excuses
from penstock.shells.sim.cuts import Cuts, check_order
from penstock.shells.sim.fates import Fates
from penstock.shells.sim.inflight import fetch_from
from penstock.shells.sim.leftovers import Leftovers
from penstock.shells.sim.orders import Orders
from penstock.shells.sim.states import StateChecks
from penstock.wire import manifest as manifests
from penstock.wire import paths, records
from penstock.wire.manifest import Manifest
from penstock.wire.tombstones import is_tombstone

if TYPE_CHECKING:
    from penstock.shells.sim.cluster import DriverProcess, Process
    from penstock.shells.sim.world import World


class Checkers:
    def __init__(self, world: World) -> None:
        self._world = world
        self.manifests: dict[CheckpointId, Manifest] = {}
        """Every checkpoint that ever came to exist, also those deleted since."""
        self.completed_ms: dict[CheckpointId, float] = {}
        """When each came to exist."""
        self.went_back = False
        """An attempt began below what was out already, and had a reason: rows may come twice."""
        self.cuts = Cuts(world)
        self.fates = Fates(world)
        self.orders = Orders(world)
        self.leftovers = Leftovers(world)
        self.states = StateChecks(world)
        self._claims: dict[int, str] = {}
        """Per attempt, the driver that claimed it."""
        self._restored: dict[int, CheckpointId] = {}
        """Per attempt, what it recorded to have restored."""
        self._looked_ms: dict[int, float] = {}
        """Per attempt, when it looked for what to restore."""
        self._listed: dict[str, list[str]] = {}
        """Per driver, what it saw when it looked through everything the last time."""
        self._tombstones: dict[CheckpointId, int] = {}
        """Snapshots that never came to exist, each with the newest attempt of that time."""
        self._triggered: dict[CheckpointId, int] = {}
        self._notified = CheckpointId(0)

    @property
    def completed(self) -> int:
        return len(self.manifests)

    @property
    def newest_attempt(self) -> int:
        return max(self._restored, default=0)

    @property
    def owner(self) -> str:
        """The driver that claimed the job last; empty before anybody has."""
        return self._claims[max(self._claims)] if self._claims else ""

    @property
    def owner_knows_what_to_restore(self) -> bool:
        return max(self._claims, default=0) in self._restored

    @property
    def damaged(self) -> set[CheckpointId]:
        """Snapshots of which any file is not what was written, also one that they share with others."""
        harmed = self._world.harmed
        found = {n for name in harmed if (n := paths.checkpoint_of(name)) is not None}
        return found.union(n for n, m in self.manifests.items() if not harmed.isdisjoint(m.files))

    def listed(self, who: str) -> list[str]:
        """What somebody saw when it looked through everything the last time."""
        return self._listed.get(who, [])

    def restored_by(self, attempt: int) -> CheckpointId | None:
        """What an attempt recorded to have restored."""
        return self._restored.get(attempt)

    def is_void(self, manifest: Manifest) -> bool:
        """Whether a later attempt went back behind this checkpoint, or had looked before it came to be, and none after
        that went on from it: one that was overtaken while it looked for the newest checkpoint records what it saw, and
        does nothing more."""
        checkpoint, came_ms = manifest.checkpoint, self.completed_ms.get(manifest.checkpoint, 0.0)
        own = [a for a, restored in self._restored.items() if restored == checkpoint]
        newest = max(own, default=manifest.attempt)
        return any(
            attempt > max(newest, manifest.attempt)
            and (restored < checkpoint or self._looked_ms[attempt] < came_ms)
            for attempt, restored in self._restored.items()
        )

    def is_tombstone_that_counts(self, checkpoint: CheckpointId) -> bool:
        """Whether a snapshot never came to exist, and no later attempt has gone on from an older one."""
        attempt = self._tombstones.get(checkpoint)
        return attempt is not None and not any(
            later > attempt and restored < checkpoint for later, restored in self._restored.items()
        )

    # ---- storage

    def on_written(self, name: str) -> None:
        self.leftovers.on_written(name)
        self.fates.on_written(name)
        if paths.metadata_of(name) is not None:
            self._violation("I5", f"{name} is written over: metadata is created exclusively")

    def on_created(self, who: str, name: str, data: bytes) -> None:
        self.leftovers.on_written(name)
        self._world.harmed.discard(name)
        checkpoint = paths.metadata_of(name)
        if (attempt := paths.owner_of(name)) is not None:
            self._claims[attempt] = records.decode_owner(data, name).driver
        if (attempt := paths.restored_of(name)) is not None:
            restored = records.decode_restored(data, name).checkpoint
            self._check_restored(who, attempt, restored)
            self._restored[attempt] = restored
            self._looked_ms[attempt] = self.leftovers.looked_ms(who)
        if checkpoint is None:
            return
        if is_tombstone(name, data):
            self._tombstones[checkpoint] = self.newest_attempt
            self.manifests.pop(checkpoint, None)  # damaged before anybody was told: it never was
            return
        manifest = manifests.decode(data, name)
        if self.manifests.get(checkpoint) == manifest and manifest.attempt < self.newest_attempt:
            return  # a driver that was overtaken, and did not know whether it had written it: nobody asks for it
        self.manifests[checkpoint] = manifest
        self.completed_ms[checkpoint] = self._world.clock.now_ms
        self.fates.on_complete(number_of(who), checkpoint)
        if not self.is_void(manifest) and not excuses.is_damaged(self._world, manifest):
            self._check_complete(manifest)
            if self._world.problem is None:
                self._check_contents(manifest)

    def _check_contents(self, manifest: Manifest) -> None:
        self.states.check(manifest)
        restored = self._restored.get(manifest.attempt, NO_CHECKPOINT)
        self.cuts.check(manifest, self.manifests.get(restored))

    def _check_restored(self, who: str, attempt: int, restored: CheckpointId) -> None:
        """I7: of what a driver saw when it looked it takes the newest that is whole and counts."""
        sound = excuses.newest_sound(self._world, self.listed(who))
        if restored < sound:
            self._violation("I7", f"attempt {attempt} restores {restored}, and {sound} is sound")

    def on_listed(self, who: str, names: list[str]) -> None:
        """Somebody looked through everything."""
        self._listed[who] = names
        self.leftovers.on_listed(who)
        self.fates.on_listed(number_of(who), names)

    def on_refused(self, who: str, name: str) -> None:
        """Storage did not do what somebody wanted of this file or folder."""
        self.leftovers.on_refused(who, name)
        if is_driver(who):
            self.fates.on_refused(number_of(who), name)

    def on_deleted(self, who: str, name: str) -> None:
        self.leftovers.on_deleted(name)
        self._check_deleted(name)
        checkpoint = paths.metadata_of(name)
        if checkpoint is not None:
            damaged = name in self._world.harmed
            self.fates.on_gone(number_of(who), checkpoint, damaged=damaged)

    def _check_deleted(self, name: str) -> None:
        """I12: a file goes only when no checkpoint that still exists needs it, and a checkpoint only when enough
        newer ones exist, or when it is void or damaged."""
        checkpoint = paths.checkpoint_of(name)
        if paths.shared_of(name) is not None:
            self._check_shared_deleted(name)
        if checkpoint is None or checkpoint not in self.manifests:
            return
        there = self._existing()
        if checkpoint not in there:
            return
        manifest = self.manifests[checkpoint]
        if paths.metadata_of(name) is None:
            if not self.is_void(manifest):
                self._violation("I12", f"{name} is deleted while checkpoint {checkpoint} exists")
            return
        newer = [n for n in there if n > checkpoint and self._may_have_counted(n)]
        keep = self._world.settings.coordinator.keep
        given_up = self.is_void(manifest) or excuses.is_damaged(self._world, manifest)
        if len(newer) < keep and not given_up:
            self._violation("I12", f"checkpoint {checkpoint} goes, newer ones are {newer}")

    def _check_shared_deleted(self, name: str) -> None:
        """I12: no checkpoint that exists refers to it, nor one that is pending, nor what that builds on."""
        by = [n for n in self._existing() if name in self.manifests[n].files]
        by = [n for n in by if not self.is_void(self.manifests[n])]
        if by:
            self._violation("I12", f"{name} is deleted, and checkpoints {by} refer to it")
        elif self.owner and name in (needed := self.fates.needed_by_pending(number_of(self.owner))):
            self._violation("I12", f"{name} is deleted, and {needed[name]} may refer to it")

    def _may_have_counted(self, checkpoint: CheckpointId) -> bool:
        """When a deletion was begun that ends now: one that is damaged may have been left behind since."""
        manifest = self.manifests[checkpoint]
        return not self.is_void(manifest) or excuses.is_damaged(self._world, manifest)

    def _existing(self) -> list[CheckpointId]:
        """Checkpoints whose metadata lies in storage."""
        names = self._world.disk.list()
        found = [n for name in names if (n := paths.metadata_of(name)) is not None]
        return [n for n in found if n in self.manifests]

    def _check_complete(self, manifest: Manifest) -> None:
        """I5: every subtask is in it once, and every file it names is there, with the bytes that it should have."""
        subtasks = Counter(snapshot.subtask for snapshot in manifest.snapshots)
        tasks = {operator.task for operator in manifest.operators}
        wanted = [SubtaskId(t, i) for t in sorted(tasks) for i in range(manifest.parallelism)]
        if subtasks != Counter(wanted):
            self._violation("I5", f"checkpoint {manifest.checkpoint} has the subtasks {subtasks}")
        present = set(self._world.disk.list())
        missing = sorted(set(manifest.files) - present)
        if missing:
            self._violation("I5", f"checkpoint {manifest.checkpoint} lacks {missing}")
            return
        for segment in segments_of(manifest):
            fetch = fetch_from(self._world.disk, segment)
            for block in segment.blocks:
                if xxh3_128_hexdigest(fetch(block)) != block.checksum:
                    what = f"{segment.file or 'state within the metadata'} has other bytes"
                    self._violation("I5", f"checkpoint {manifest.checkpoint}: {what}")

    # ---- messages

    def on_sent(self, driver: int, message: ToWorker) -> None:
        self.fates.on_sent(driver, message)
        self.orders.on_sent(message)
        if isinstance(message, Trigger):
            self._on_trigger(driver, message)
        elif isinstance(message, Notify):
            self._on_notify(message)
        elif isinstance(message, Sync):
            self._on_sync(message)
        elif isinstance(message, Deploy):
            self._on_deploy(message)

    def on_answer(self, driver: int, message: FromWorker) -> None:
        """I10: a worker that says it has committed has."""
        self.fates.on_answer(driver, message)
        if not isinstance(message, Committed) or message.checkpoint not in self.manifests:
            return
        visible = self._world.table.visible
        for name in self.transactions(self.manifests[message.checkpoint], message.slot):
            if name not in visible:
                self._violation("I10", f"{message} and {name} is not visible")

    def _on_trigger(self, driver: int, message: Trigger) -> None:
        """I7: ids only ever grow, over all drivers."""
        checkpoint = message.order.id
        known = self._triggered.get(checkpoint)
        if known is None:
            newest = max(self._triggered, default=0)
            by_same = [n for n, d in self._triggered.items() if d == driver]
            if checkpoint < max(by_same, default=0):
                self._violation("I7", f"id {checkpoint} is triggered after {newest}")
            self._triggered[checkpoint] = driver
        elif known != driver:
            self._violation("I7", f"id {checkpoint} is triggered by two drivers")

    def _on_notify(self, message: Notify) -> None:
        """I9, I18: nobody hears of a checkpoint that is not durable, or that a later attempt has left behind."""
        manifest = self.manifests.get(message.checkpoint)
        self._check_durable(message.checkpoint)
        if manifest is not None and self.is_void(manifest):
            self._violation("I18", f"checkpoint {message.checkpoint} is notified and void")
        self._notified = max(self._notified, message.checkpoint)

    def _on_sync(self, message: Sync) -> None:
        """I9: the table that is told again and again says the same."""
        if message.completed != NO_CHECKPOINT:
            self._check_durable(message.completed)

    def _check_durable(self, checkpoint: CheckpointId) -> None:
        if self._world.durable and checkpoint not in self.manifests:
            self._violation("I9", f"checkpoint {checkpoint} is called complete and is not durable")

    def _on_deploy(self, message: Deploy) -> None:
        """I7, I17, I24: what is restored is the newest that anybody was told of or that rows are out of, or a newer
        one, just as it was taken. What a driver does that has been replaced and has not noticed does not count."""
        if not self._world.durable or message.attempt < self.newest_attempt:
            return
        restored = message.restored
        out = max((t.checkpoint for t in self._world.table.visible.values()), default=0)
        if restored < max(out, self._notified):
            if excuses.may_restore(self._world, restored):
                self.went_back = True
            elif restored < out:
                what = f"attempt {message.attempt} restores {restored}, rows of {out} are out"
                self._violation("I17", what)
            else:
                what = f"attempt {message.attempt} restores {restored} below {self._notified}"
                self._violation("I7", what)
        taken = self.manifests.get(message.restored)
        if taken is not None and not excuses.is_damaged(self._world, taken):
            missing = sorted(set(taken.files).difference(self._world.disk.list()))
            if missing:
                what = f"attempt {message.attempt} restores {restored}, which lacks {missing}"
                self._violation("I12", what)
        if taken is not None and taken.snapshots != message.snapshots:
            self._violation("I24", f"checkpoint {message.restored} is restored as another one")

    # ---- the external table

    def on_commit(self, name: str) -> None:
        """I9, I18: a transaction becomes visible only if a completed checkpoint of a lineage that is still alive
        lists it."""
        if not self._world.durable:
            return
        if self._world.table.effects[name]:
            self._violation("I10", f"{name} was visible already and is made visible again")
        listed = [m for m in self.manifests.values() if name in self.transactions(m)]
        if not listed:
            self._violation("I9", f"{name} is committed and no completed checkpoint lists it")
        elif all(self.is_void(manifest) for manifest in listed) and not self.went_back:
            what = f"{name} is committed though a later attempt went back behind it"
            self._violation("I18", what)

    def transactions(self, manifest: Manifest, slot: SlotId | None = None) -> list[str]:
        return [
            str(name)
            for snapshot in manifest.snapshots
            if slot is None or snapshot.subtask.index == slot
            for part in snapshot.operators.values()
            for name in part.transactions
        ]

    # ---- processes

    def after_driver(self, driver: DriverProcess) -> None:
        """I27: a job that is given up for good has a reason."""
        self.fates.after_driver(driver)
        outcome, ended_ms = driver.manager.outcome, self.leftovers.ended_ms
        if outcome is None or driver.name in ended_ms:
            return
        ended_ms[driver.name] = self._world.clock.now_ms
        if outcome is Outcome.FAILED and not excuses.may_fail(self._world, driver):
            self._violation("I27", f"{driver.name} failed: {driver.manager.reason}")

    def after_process(self, process: Process) -> None:
        attempt = process.worker.attempt
        for subtask in attempt.subtasks if attempt is not None else ():
            subtask.check()

    def at_end(self) -> None:
        from penstock.shells.sim.verdict import judge

        judge(self._world, self)
        self.fates.at_end()
        if self._world.exactly_once and not self.went_back:
            check_order(self._world)

    def _violation(self, invariant: str, what: str) -> None:
        self._world.violation(invariant, what)


def is_driver(who: str) -> bool:
    return who.startswith("driver-")


def number_of(driver: str) -> int:
    return int(driver.removeprefix("driver-"))


def segments_of(manifest: Manifest) -> Iterator[Segment]:
    for snapshot in manifest.snapshots:
        for part in snapshot.operators.values():
            yield from part.segments
        for entry in snapshot.inflight:
            yield entry.segment
