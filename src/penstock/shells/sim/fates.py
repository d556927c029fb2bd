"""What becomes of every snapshot, from outside: what drivers tell their workers, what reaches the drivers, and what is
written to storage. Nobody asks a coordinator what it thinks.

A driver that has triggered a snapshot has it pending until the metadata exists, until it tells the workers to abort
it, or until it drops the attempt; where all have answered by then, until it deploys the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.engine.history.pages import decode
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId, SubtaskId
from penstock.protocol.messages import (
    Abort,
    Ack,
    Deploy,
    Drop,
    FromWorker,
    Notify,
    SnapshotOrder,
    Sync,
    ToWorker,
    Trigger,
)
from penstock.protocol.phases import Outcome
from penstock.protocol.retention import Role
from penstock.wire import paths

if TYPE_CHECKING:
    from penstock.shells.sim.cluster import DriverProcess
    from penstock.shells.sim.world import World


@dataclass
class Pending:
    attempt: AttemptId
    owed: set[SubtaskId]
    """Whose acknowledgement has not reached the driver."""
    shared: set[str] = field(default_factory=set)
    """Shared files that it may refer to: all of its base, and what it has acknowledged."""


@dataclass
class Told:
    """What one driver has said and heard about its snapshots."""

    pending: dict[CheckpointId, Pending] = field(default_factory=dict)
    given_up: set[CheckpointId] = field(default_factory=set)
    complete: set[CheckpointId] = field(default_factory=set)
    damaged: set[CheckpointId] = field(default_factory=set)
    """Complete once, and then found damaged and deleted by the driver itself."""
    notified: CheckpointId = NO_CHECKPOINT
    late: list[Ack] = field(default_factory=list)
    """Acknowledgements of snapshots that were given up, until the driver has looked at them."""
    useless: set[str] = field(default_factory=set)
    """State files of snapshots that were given up: they were there then, and are to be deleted."""
    refused: set[CheckpointId | None] = field(default_factory=set)
    """Snapshots of which storage did not let the driver delete everything."""
    unsure: int = 0
    """How often storage did not say who owns the job: each time that may have cost one deletion."""
    found: set[str] = field(default_factory=set)
    """Those of the useless files that it found when it looked through all at its end."""
    excess: list[CheckpointId] = field(default_factory=list)
    """Checkpoints beyond those to keep that it found then."""
    strays: set[str] = field(default_factory=set)
    """Shared files of checkpoints that were gone then."""
    gone_unseen: set[CheckpointId] = field(default_factory=set)
    """Checkpoints that another driver deleted after this one had looked which there are."""


class Fates:
    """I6: a snapshot ends once. I8: a complete one ends those before it, and the files of one that was given up go
    while the job runs. I13: so do checkpoints beyond those to keep. I26: not more are pending than allowed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: dict[int, Told] = {}

    def of(self, driver: int) -> Told:
        return self._told.setdefault(driver, Told())

    # ---- messages

    def on_sent(self, driver: int, message: ToWorker) -> None:
        told = self.of(driver)
        match message:
            case Trigger(attempt, order):
                self._triggered(driver, told, attempt, order)
            case Abort(_, checkpoint):
                self._aborted(told, checkpoint)
            case Notify(_, checkpoint):
                self._notified(told, checkpoint)
            case Sync():
                self._synced(told, message)
            case Drop(attempt):
                self._dropped(told, attempt)
            case Deploy(attempt):
                self._deployed(told, attempt)
            case _:
                pass

    def _triggered(self, driver: int, told: Told, attempt: AttemptId, order: SnapshotOrder) -> None:
        checkpoint = order.id
        if checkpoint in told.given_up | told.complete:
            self._violation("I6", f"checkpoint {checkpoint} is over and is triggered again")
        elif checkpoint not in told.pending:
            subtasks = self._world.cluster.drivers[driver].plan.subtasks
            base = self._world.checkers.manifests.get(order.base)
            files = shared_among(base.files) if base is not None else set()
            told.pending[checkpoint] = Pending(attempt, set(subtasks), files)
            self._check_number(len(told.pending))

    def _aborted(self, told: Told, checkpoint: CheckpointId) -> None:
        if checkpoint in told.complete - told.damaged:
            self._violation("I6", f"checkpoint {checkpoint} is durable and was given up")
        elif checkpoint not in told.given_up:
            self._give_up(told, checkpoint)

    def _notified(self, told: Told, checkpoint: CheckpointId) -> None:
        if checkpoint in told.given_up:
            self._violation("I6", f"checkpoint {checkpoint} was given up and is notified")
        told.pending.pop(checkpoint, None)
        told.complete.add(checkpoint)
        told.notified = max(told.notified, checkpoint)

    def _synced(self, told: Told, message: Sync) -> None:
        live = [order.id for order in message.live]
        over = sorted(told.given_up.union(told.complete).intersection(live))
        if over:
            self._violation("I6", f"checkpoints {over} are over and called live")
        if live and min(live) < message.completed:
            self._violation("I8", f"{live} are called live below {message.completed}")
        self._check_number(len(live))

    def _check_number(self, pending: int) -> None:
        if pending > self._world.settings.coordinator.max_concurrent:
            self._violation("I26", f"{pending} snapshots are pending")

    def _dropped(self, told: Told, attempt: AttemptId) -> None:
        """What was pending is given up; where all have answered, storage has the word."""
        for checkpoint, pending in list(told.pending.items()):
            if pending.attempt <= attempt and pending.owed:
                self._give_up(told, checkpoint)

    def _deployed(self, told: Told, attempt: AttemptId) -> None:
        """By now storage has had the word about all that came before."""
        older = [n for n, pending in told.pending.items() if pending.attempt < attempt]
        for checkpoint in older:
            del told.pending[checkpoint]
            told.given_up.add(checkpoint)

    def _give_up(self, told: Told, checkpoint: CheckpointId) -> None:
        told.pending.pop(checkpoint, None)
        told.given_up.add(checkpoint)
        there = self._world.disk.list(paths.checkpoint_folder(checkpoint))
        told.useless.update(name for name in there if paths.worker_file_of(name) is not None)
        shared = self._world.disk.list(paths.SHARED_FOLDER)
        told.useless.update(name for name in shared if written_for(name) == checkpoint)

    def on_answer(self, driver: int, message: FromWorker) -> None:
        """An answer reaches the driver."""
        if not isinstance(message, Ack):
            return
        told = self.of(driver)
        pending = told.pending.get(message.checkpoint)
        if pending is not None and pending.attempt == message.attempt:
            pending.owed -= {snapshot.subtask for snapshot in message.snapshots}
            pending.shared |= shared_among(files_of(message))
        elif message.checkpoint in told.given_up:
            told.late.append(message)

    def after_driver(self, driver: DriverProcess) -> None:
        """The driver has looked at everything that had reached it."""
        told = self.of(driver.number)
        for checkpoint, pending in told.pending.items():
            if checkpoint < told.notified and pending.owed:
                self._violation("I8", f"{checkpoint} is pending below {told.notified}")
        late, told.late = told.late, []
        if driver.manager.outcome is None:
            present = set(self._world.disk.list()) if late else set()
            own = {f for ack in late for f in files_of(ack) if written_for(f) == ack.checkpoint}
            told.useless |= present & own

    # ---- storage

    def on_complete(self, driver: int, checkpoint: CheckpointId) -> None:
        """The metadata of a snapshot was created."""
        told = self.of(driver)
        if checkpoint in told.given_up:
            self._violation("I6", f"checkpoint {checkpoint} was given up and comes to exist")
        told.pending.pop(checkpoint, None)
        told.complete.add(checkpoint)

    def on_gone(self, driver: int, checkpoint: CheckpointId, *, damaged: bool) -> None:
        """A driver deletes metadata. What was damaged before anybody was told of it may be given up yet."""
        for number, told in self._told.items():
            if number != driver:
                told.gone_unseen.add(checkpoint)
        if damaged:
            self.of(driver).damaged.add(checkpoint)

    def on_written(self, name: str) -> None:
        for told in self._told.values():
            told.useless.discard(name)

    def on_refused(self, driver: int, name: str) -> None:
        """Storage did not do what the driver wanted of this file or folder."""
        told = self.of(driver)
        told.refused.add(paths.checkpoint_of(f"{name}/0-1") or paths.checkpoint_of(name))
        told.unsure += name.startswith(paths.OWNER_FOLDER)
        if not name:
            told.found, told.excess, told.strays = set(), [], set()

    def on_listed(self, driver: int, names: list[str]) -> None:
        """The driver looks through everything. At its end that comes behind all other clean-up."""
        process, told = self._world.cluster.drivers[driver], self.of(driver)
        if process.manager.outcome is None:
            told.gone_unseen.clear()
            return
        there = told.useless.intersection(names)
        damaged = self._world.checkers.damaged
        excused = told.refused | damaged
        replaced = self._world.checkers.owner != process.name
        there -= shared_among(there) if damaged or replaced else set()
        told.found = {
            n for n in there if excused.isdisjoint((paths.checkpoint_of(n), written_for(n)))
        }
        if process.manager.outcome in (Outcome.FINISHED, Outcome.STOPPED):
            excess = [n for n in self._beyond_keep(process, names) if n not in excused]
            told.excess = excess[told.unsure :]
            excused_all = excused or told.unsure or replaced
            told.strays = set() if excused_all else self._strays(told, names)

    def _strays(self, told: Told, names: list[str]) -> set[str]:
        """Shared files that went out of use when the checkpoints went that referred to them, as far as the driver can
        know."""
        manifests = self._world.checkers.manifests
        once = {file for manifest in manifests.values() for file in manifest.files}
        once.difference_update(*(manifests[n].files for n in told.gone_unseen if n in manifests))
        there = {n for name in names if (n := paths.metadata_of(name)) in manifests}
        needed = {file for n in there for file in manifests[n].files}
        return shared_among((once - needed).intersection(names))

    def needed_by_pending(self, driver: int) -> dict[str, CheckpointId]:
        """Shared files that snapshots may refer to, each with one of those. A driver that has lost all its workers
        gives a snapshot up without a word: here it is asked what it is still waiting for."""
        unfinished = self._world.cluster.drivers[driver].manager.coordinator.unfinished
        found = [(n, p) for n, p in self.of(driver).pending.items() if n in unfinished]
        return {name: n for n, pending in found for name in pending.shared}

    def _beyond_keep(self, driver: DriverProcess, names: list[str]) -> list[CheckpointId]:
        """Checkpoints of its own that were to go when the newest one was complete. Of others it may not know, nor of
        one that is settled behind the end; where the newest was only restored, they go now."""
        checkers, told = self._world.checkers, self.of(driver.number)
        made = checkers.manifests.get(told.notified)
        if checkers.owner != driver.name or made is None or made.attempt != checkers.newest_attempt:
            return []
        there = {n for name in names if (n := paths.metadata_of(name)) in checkers.manifests}
        own = sorted(n for n in there & told.complete if n <= told.notified)
        counting = [n for n in own if not checkers.is_void(checkers.manifests[n])]
        whole = [n for n in counting if n not in checkers.damaged]
        return whole[: -self._world.settings.coordinator.keep]

    def on_closed(self, driver: int) -> None:
        """The driver has done all it wanted to."""
        told = self.of(driver)
        if told.found:
            what = f"files of snapshots that were given up stayed: {sorted(told.found)}"
            self._violation("I8", what)
        if told.excess:
            self._violation("I13", f"checkpoints {told.excess} stayed until the job ended")
        if told.strays:
            self._violation("I13", f"shared files stayed until the end: {sorted(told.strays)}")

    def at_end(self) -> None:
        """I6: what was written down for people is what became of each snapshot, and says so once."""
        complete = {n for told in self._told.values() for n in told.complete}
        damaged = {n for told in self._told.values() for n in told.damaged}
        ends: dict[int, str] = {}
        for name in self._world.disk.list(paths.HISTORY_FOLDER):
            for entry in decode(self._world.disk.read(name), name).entries:
                n, status = entry.info.id, entry.info.status
                if ends.setdefault(n, status) != status:
                    self._violation("I6", f"checkpoint {n} is told to be {ends[n]} and {status}")
                if (status == "completed") != (n in complete) and n not in damaged:
                    self._violation("I6", f"checkpoint {n} is told to be {status} and is not")

    def _violation(self, invariant: str, what: str) -> None:
        self._world.violation(invariant, what)


def files_of(ack: Ack) -> set[str]:
    """The state files that an acknowledgement names."""
    segments = [segment for snapshot in ack.snapshots for segment in snapshot.segments]
    return {paths.segment_file(s.file) for s in segments if s.inline is None and s.file}


def shared_among(files: Iterable[str]) -> set[str]:
    return {file for file in files if paths.shared_of(file) is not None}


def written_for(name: str) -> CheckpointId | None:
    """The snapshot that a state file was written for. Some are written for none."""
    if any(file.role is not Role.OWN for file in paths.shared_among([name])):
        return None
    file = paths.worker_file_of(name) or paths.shared_of(name)
    return None if file is None else file.checkpoint
