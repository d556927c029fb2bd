"""Work in the background in its order, work at a later time, and the last clean-up behind all other."""

from __future__ import annotations

import pytest

from penstock.engine.checkpoints.cleaning import TIDY_PAUSE_MS, TIDY_TRIES_MAX, CleanUp
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.restore_points import RestoreWish
from penstock.engine.later import Later
from penstock.engine.serial import Serial, State
from penstock.errors import StorageError
from penstock.protocol.coordinator import Coordinator, CoordinatorConfig
from penstock.protocol.ids import AttemptId, CheckpointId, RequestId, SubtaskId
from penstock.protocol.phases import Outcome
from penstock.protocol.snapshot import SubtaskSnapshot
from penstock.storage.memory import MemoryStore
from tests.engine.kit import HeldBackground, ManualClock

X = SubtaskId(0, 0)
N1 = CheckpointId(1)

# ---- one after the other


def test_work_is_done_in_the_order_in_which_it_was_handed_in() -> None:
    """C3: a claim behind the metadata that it is to find; each begins when the one before has been told."""
    background, told = HeldBackground(), []
    queue = Serial(background)
    for number in range(4):
        queue.submit(lambda number=number: number, told.append, told.append)  # type: ignore[misc]
        assert len(background.waiting) == 1, "one at a time"
    background.poll()
    assert told == [0, 1, 2, 3]


def test_what_fails_or_cannot_be_told_does_not_stop_the_queue() -> None:
    """I25: whoever hears of it may raise; what waits behind it is done all the same."""
    background, told = HeldBackground(), []
    queue = Serial(background)

    def refuse(_: object) -> None:
        raise ValueError("not heard")

    def fail() -> None:
        raise StorageError("no")

    queue.submit(lambda: 1, refuse, told.append)
    queue.submit(fail, told.append, refuse)
    queue.submit(lambda: 3, told.append, told.append)
    for _ in range(2):
        with pytest.raises(ValueError, match="not heard"):
            background.poll()
    background.poll()
    assert told == [3]
    assert queue.idle


def test_a_queue_is_idle_when_nothing_is_under_way_and_nothing_waits() -> None:
    """I13: the end of a job waits for it. What was taken back is not waited for, nor done."""
    background, idle = HeldBackground(), []
    queue = Serial(background)
    assert queue.idle
    queue.submit(lambda: 1, lambda _: idle.append(queue.idle), idle.append)
    taken_back = queue.submit(lambda: 2, idle.append, idle.append)
    queue.submit(lambda: 3, lambda _: idle.append(queue.idle), idle.append)
    taken_back.take_back()
    assert (queue.idle, taken_back.state) == (False, State.OVER)
    background.poll()
    assert idle == [False, True]


# ---- later


def test_what_is_due_is_done_once_in_its_order_and_what_that_puts_in_the_next_time() -> None:
    """C6: a retry that fails at once puts in the next one; it is neither lost nor done for ever in one go."""
    later, done = Later(), []

    def again() -> None:
        done.append("first")
        later.at(5.0, lambda: done.append("again"))

    later.at(10.0, again)
    later.at(5.0, lambda: done.append("second"))
    later.at(11.0, lambda: done.append("not yet"))
    later.run_due(10.0)
    assert done == ["first", "second"]
    assert (later.idle, sorted(later.times_ms)) == (False, [5.0, 11.0])
    later.run_due(10.0)
    assert done == ["first", "second", "again"]
    later.run_due(11.0)
    assert done[-1] == "not yet"
    assert later.idle


# ---- the last clean-up


class Broken(MemoryStore):
    """Nothing can be listed in it, `times` times."""

    times = 0
    tried = 0

    def list(self, prefix: str = "") -> list[str]:
        if self.times and prefix == "":
            self.times -= 1
            self.tried += 1
            raise StorageError("no answer")
        return super().list(prefix)


class Bench:
    """The clean-up of a job that has claimed its first attempt."""

    def __init__(self) -> None:
        self.store, self.clock, self.later = Broken(), ManualClock(), Later()
        self.files = CheckpointFiles(self.store, "job", "driver-a", self.clock.wall_ms)
        self.files.claim(RestoreWish(), may_fall_back=False, damaged={})
        self.storage, self.cleaning = HeldBackground(), HeldBackground()
        queues = (Serial(self.storage), Serial(self.cleaning))
        self.clean_up = CleanUp("job", self.files, *queues, self.later, self.clock)
        self.coordinator = Coordinator(CoordinatorConfig(every_ms=None))
        self.coordinator.attempt_started(AttemptId(1), (X,), CheckpointId(0), 0.0)

    def persisting(self) -> None:
        """Checkpoint 1 is acknowledged, and nobody knows whether its metadata is there."""
        self.store.write("chk-1/0-1", [b"x"])
        self.coordinator.request(RequestId(1), 0.0)
        self.coordinator.acked(AttemptId(1), N1, [SubtaskSnapshot(X, {})], 0.0)

    def end(self) -> None:
        self.clean_up.at_end(Outcome.CANCELLED, self.coordinator, CheckpointId(0))

    def run(self, rounds: int = 100) -> None:
        for _ in range(rounds):
            self.cleaning.poll()
            self.storage.poll()
            self.clock.now_ms += TIDY_PAUSE_MS
            self.later.run_due(self.clock.now_ms)

    @property
    def state_files(self) -> list[str]:
        return [name for name in self.store.list() if name.startswith("chk-")]


def test_the_last_clean_up_comes_again_until_it_is_known_what_exists() -> None:
    """I12, I13: what is not settled keeps its files, and loses them when it turns out not to exist."""
    bench = Bench()
    bench.persisting()
    bench.end()
    bench.run(rounds=3)
    assert bench.state_files == ["chk-1/0-1"]
    bench.coordinator.persist_failed(N1, "no", 1.0)
    bench.run(rounds=3)
    assert bench.state_files == []


def test_the_last_clean_up_is_not_tried_for_ever() -> None:
    """I25: a job must end, also where its store never answers."""
    bench = Bench()
    bench.store.times = 1_000
    bench.end()
    bench.run()
    assert bench.store.tried == TIDY_TRIES_MAX
    assert bench.later.idle


def test_the_last_clean_up_waits_for_all_other() -> None:
    """I12, I13: a deletion that is under way must not find files that the last one leaves, or leave what it would have
    found."""
    bench = Bench()
    bench.clean_up.discard(N1)
    bench.end()
    bench.storage.poll()
    assert not bench.storage.waiting, "it has not been asked for yet"
    bench.cleaning.poll()
    assert bench.storage.waiting


def test_a_checkpoint_has_gone_when_it_is_deleted_and_not_when_that_is_asked_for() -> None:
    """I12: until then the next attempt may go back to it, and needs what it needs."""
    bench, gone = Bench(), list[CheckpointId]()
    bench.clean_up.discard(CheckpointId(9))
    bench.clean_up.delete([N1], gone.append)
    assert not bench.clean_up.spare(), "nothing is under way"
    bench.cleaning.poll()
    assert gone == []
    bench.clean_up.delete([N1], gone.append)
    assert gone == []
    bench.cleaning.poll()
    assert gone == [N1]
