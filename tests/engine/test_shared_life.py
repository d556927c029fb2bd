"""Shared files over the life of a job, in any order of events: none goes that somebody needs, none stays that nobody
does. The rules of `protocol.retention` are not asked: what is needed is read from what was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.engine.checkpoints import leases
from penstock.engine.checkpoints.cleaning import CleanUp
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.leases import LEASE_MS, Borrower, Lease
from penstock.engine.checkpoints.restore_points import RestorePoint, RestoreWish
from penstock.engine.later import Later
from penstock.engine.serial import Serial
from penstock.errors import StorageError
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.snapshot import OperatorSnapshot, Segment, SubtaskSnapshot
from penstock.storage.memory import MemoryStore
from penstock.wire import paths
from penstock.wire.manifest import Manifest, ManifestOperator
from penstock.wire.paths import WorkerFile
from tests.engine.kit import ManualClock

KEEP = 2
SLOTS = (0, 1)


class Faulty(MemoryStore):
    """One operation of a driver's clean-up fails, when it is told to: before it is done, or after."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_in: int | None = None
        self.too_late = False

    def _guard(self, act: Callable[[], Any]) -> Any:
        if self.fails_in is None:
            return act()
        self.fails_in -= 1
        if self.fails_in > 0:
            return act()
        self.fails_in = None
        if self.too_late:
            act()
        raise StorageError("simulated")

    def list(self, prefix: str = "") -> list[str]:
        return self._guard(partial(super().list, prefix))

    def delete(self, name: str) -> None:
        self._guard(partial(super().delete, name))


class Steps:
    """Background work that is done one piece at a time, when somebody says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable, Callable, Callable]] = []

    def submit(self, work: Callable, done: Callable, failed: Callable) -> None:
        self.waiting.append((work, done, failed))

    def step(self) -> bool:
        if not self.waiting:
            return False
        work, done, failed = self.waiting.pop(0)
        try:
            result = work()
        except Exception as error:
            failed(error)
        else:
            done(result)
        return True

    def poll(self) -> bool:
        return self.step()

    def close(self) -> None:
        self.waiting.clear()


class Driver:
    def __init__(self, store: Faulty, name: str, clock: ManualClock) -> None:
        self.files = CheckpointFiles(store, "job", name, clock.wall_ms)
        self.steps = Steps()
        queue = Serial(self.steps)
        self.clean_up = CleanUp("job", self.files, Serial(Steps()), queue, Later(), clock)


@dataclass
class Snapshot:
    attempt: int
    base: int
    answers: dict[int, set[str]] = field(default_factory=dict)


def parts(answers: dict[int, set[str]]) -> tuple[SubtaskSnapshot, ...]:
    return tuple(
        SubtaskSnapshot(
            SubtaskId(0, slot),
            {"op": OperatorSnapshot(tuple(Segment("s", b"", (), file=f) for f in sorted(files)))},
        )
        for slot, files in sorted(answers.items())
    )


def manifest_of(number: int, snapshot: Snapshot) -> Manifest:
    return Manifest(
        "job",
        CheckpointId(number),
        AttemptId(snapshot.attempt),
        SnapshotKind.CHECKPOINT,
        0.0,
        1.0,
        len(SLOTS),
        8,
        (ManifestOperator("op", "map"),),
        parts(snapshot.answers),
        CheckpointId(number + 10),
    )


class SharedLife(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.store = Faulty()
        self.clock = ManualClock()
        self.names = 0
        self.written = 0
        self.next_id = 1
        self.pending: dict[int, Snapshot] = {}
        self.over: dict[int, Snapshot] = {}
        """Given up, or of an attempt that is over."""
        self.refers: dict[int, set[str]] = {}
        """Every checkpoint that ever was complete."""
        self.leased: dict[Lease, set[str]] = {}
        self.were_read: set[int] = set()
        """Since the last claim."""
        self.unknown: set[str] = set()
        """Files that nobody was told of, and that nobody has looked for since they came."""
        self.trouble = False
        """Storage failed since the last claim, or that met damage: what was not deleted stays until the next one."""
        self.zombies: list[Driver] = []
        self.damaged: dict[int, bytes] = {}
        self.driver = self._new_driver()
        self._claim()

    # ---- attempts

    def _new_driver(self) -> Driver:
        self.names += 1
        return Driver(self.store, f"driver-{self.names}", self.clock)

    def _claim(self) -> None:
        self.store.fails_in = None
        for number in sorted(self.pending):
            self._give_up(number)
        clean_up = self.driver.clean_up
        point: RestorePoint = self.driver.files.claim(
            RestoreWish(),
            may_fall_back=True,
            damaged={},
            going=clean_up.spare(),
            next_id=CheckpointId(self.next_id),
            ids_reserved=10,
        )
        clean_up.claimed(point)
        self.attempt, self.completed = int(point.attempt), [int(n) for n in point.kept]
        self.next_id = max(self.next_id, int(point.first_id))
        self.were_read, self.unknown = set(), set()
        self.trouble = bool(self.damaged.keys() & self._there())

    @rule()
    def restart(self) -> None:
        self._claim()

    @rule()
    def another_driver_takes_over(self) -> None:
        self.zombies.append(self.driver)
        self.over.update(self.pending)
        self.pending = {}
        self.driver = self._new_driver()
        self._claim()

    # ---- snapshots

    @precondition(lambda self: len(self.pending) < 2)
    @rule(data=st.data())
    def trigger(self, data: st.DataObject) -> None:
        number, self.next_id = self.next_id, self.next_id + 1
        base = data.draw(st.sampled_from([0, *self.completed]))
        self.pending[number] = Snapshot(self.attempt, base)
        self.driver.clean_up.triggered(CheckpointId(number), CheckpointId(base))

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), slot=st.sampled_from(SLOTS), new=st.booleans())
    def answer(self, data: st.DataObject, slot: int, new: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.pending)))
        snapshot = self.pending[number]
        if slot in snapshot.answers:
            return
        old = sorted(self.refers.get(snapshot.base, ()))
        files = set(data.draw(st.lists(st.sampled_from(old), unique=True)) if old else ())
        if new:
            files.add(self._write(number, slot, snapshot.attempt))
        snapshot.answers[slot] = files
        self._tell(number, {slot: files})
        if len(snapshot.answers) == len(SLOTS):
            self._complete(number)

    def _tell(self, number: int, answers: dict[int, set[str]]) -> None:
        self.driver.clean_up.acknowledged(CheckpointId(number), parts(answers))

    def _complete(self, number: int) -> None:
        snapshot = self.pending.pop(number)
        self.store.fails_in = None
        assert self.driver.files.persist(manifest_of(number, snapshot))
        self.refers[number] = set().union(*snapshot.answers.values())
        checkpoint, clean_up = CheckpointId(number), self.driver.clean_up
        clean_up.completed(checkpoint, parts(snapshot.answers))
        for older in [n for n in self.pending if n < number]:
            self._give_up(older)
        self.completed = sorted([*self.completed, number])
        excess, self.completed = self.completed[:-KEEP], self.completed[-KEEP:]
        clean_up.delete([CheckpointId(n) for n in excess], lambda _: None)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._give_up(data.draw(st.sampled_from(sorted(self.pending))))

    def _give_up(self, number: int) -> None:
        self.over[number] = self.pending.pop(number)
        self.unknown = {name for name in self.unknown if _written_for(name) != number}
        self.driver.clean_up.discard(CheckpointId(number))

    def _write(self, number: int, slot: int, attempt: int) -> str:
        self.written += 1
        file = WorkerFile(
            CheckpointId(number), SlotId(slot), AttemptId(attempt), f"p{self.written}"
        )
        name = paths.shared_file(file)
        self.store.write(name, [b"rows"])
        return name

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), slot=st.sampled_from(SLOTS))
    def a_worker_writes_and_dies(self, data: st.DataObject, slot: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.pending)))
        self.unknown.add(self._write(number, slot, self.pending[number].attempt))

    @precondition(lambda self: self.over)
    @rule(data=st.data(), slot=st.sampled_from(SLOTS), answers=st.booleans())
    def a_worker_is_late(self, data: st.DataObject, slot: int, answers: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.over)))
        snapshot = self.over[number]
        name = self._write(number, slot, snapshot.attempt)
        if not answers:
            self.unknown.add(name)
            return
        self._tell(number, {slot: {name, *self.refers.get(snapshot.base, ())}})
        self.driver.clean_up.discard(CheckpointId(number))

    # ---- readers

    @precondition(lambda self: self._there())
    @rule(data=st.data())
    def somebody_reads(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self._there())))
        me = Borrower("me", self.clock.wall_ms, lambda: f"{len(self.leased) + self.written:032x}")
        files = self.refers[number]
        lease = leases.take(self.store, CheckpointId(number), me, LEASE_MS, files)
        self.were_read.add(number)
        if lease is not None:
            self.leased[lease] = files

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def somebody_has_read(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leased, key=lambda each: each.name)))
        fails, self.store.fails_in = self.store.fails_in, None
        leases.give_back(self.store, lease)
        self.store.fails_in = fails
        del self.leased[lease]

    @rule(part=st.sampled_from([0.1, 0.6]))
    def time_passes(self, part: float) -> None:
        self.clock.now_ms += LEASE_MS * part
        now_ms = self.clock.wall_ms()
        self.leased = {k: v for k, v in self.leased.items() if k.expires_ms > now_ms}

    # ---- clean-up and what goes wrong

    @rule()
    def step(self) -> None:
        self.driver.steps.step()

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def a_replaced_driver_goes_on(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.zombies)).steps.step()

    @rule(after=st.integers(1, 6), too_late=st.booleans())
    def storage_fails(self, after: int, too_late: bool) -> None:
        self.store.fails_in, self.store.too_late = after, too_late
        self.trouble = True

    @precondition(lambda self: self._there() - self.damaged.keys())
    @rule()
    def the_newest_is_damaged(self) -> None:
        number = max(self._there() - self.damaged.keys())
        name = paths.metadata(CheckpointId(number))
        self.damaged[number] = data = self.store.read(name)
        self.store.write(name, [data[: len(data) // 2]])

    @precondition(lambda self: self.damaged)
    @rule()
    def what_was_damaged_is_put_back(self) -> None:
        number, data = self.damaged.popitem()
        if number in self._there():
            self.store.write(paths.metadata(CheckpointId(number)), [data])

    # ---- what must hold

    def _names(self) -> set[str]:
        return {*MemoryStore.list(self.store)}

    def _there(self) -> set[int]:
        return {int(n) for name in self._names() if (n := paths.metadata_of(name)) is not None}

    def _needed(self) -> set[str]:
        needed = {file for n in self._there() for file in self.refers[n]}
        for snapshot in self.pending.values():
            needed |= self.refers.get(snapshot.base, set()).union(*snapshot.answers.values())
        return needed.union(*self.leased.values())

    def _shared(self) -> set[str]:
        return {name for name in self._names() if paths.shared_of(name) is not None}

    @invariant()
    def what_is_needed_is_there(self) -> None:
        """I12."""
        if hasattr(self, "store"):
            missing = self._needed() - self._names()
            assert not missing, f"deleted too soon: {sorted(missing)}"

    @rule()
    def all_clean_up_is_done(self) -> None:
        """I13, at any moment: what is left has a reason."""
        while self.driver.steps.step():
            pass
        if self.trouble or self.damaged.keys() & self._there():
            return
        reasons = self._needed() | self.unknown
        reasons.update(file for n in self.were_read for file in self.refers[n])
        left = {name for name in self._shared() - reasons if _written_for(name) not in self.pending}
        assert not left, f"left behind: {sorted(left)}"

    def teardown(self) -> None:
        """I13, at the end of the job."""
        if not hasattr(self, "store"):
            return
        for number in sorted(self.pending):
            self._give_up(number)
        self.store.fails_in = None
        while self.driver.steps.step():
            pass
        kept = [CheckpointId(n) for n in self.completed]
        self.driver.files.sweep(kept, CheckpointId(self.next_id))
        self.what_is_needed_is_there()
        left = self._shared() - self._needed()
        if not self.damaged.keys() & self._there():
            assert not left, f"left behind: {sorted(left)}"
        before = self._there(), self._shared()
        for driver in self.zombies:
            while driver.steps.step():
                pass
        assert (self._there(), self._shared()) == before, "a replaced driver deleted something"


def _written_for(name: str) -> int | None:
    file = paths.shared_of(name)
    return None if file is None else int(file.checkpoint)


def test_the_life_of_shared_files() -> None:
    """T4, I12, I13, I14, bug-D1, bug-D3, bug-D6, bug-D7, bug-D9, bug-D13: in any order of events."""
    run_state_machine_as_test(
        SharedLife,
        settings=settings(
            derandomize=True, deadline=None, max_examples=200, stateful_step_count=60
        ),
    )
