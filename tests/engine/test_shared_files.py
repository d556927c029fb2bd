"""Shared files in storage: what a deletion, a claim, a lease and the end of a job do to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.engine.checkpoints import leases
from penstock.engine.checkpoints.leases import LEASE_MS, Borrower
from penstock.engine.checkpoints.restore_points import RestoreWish
from penstock.errors import JobFenced
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import Abort, Ack, FromWorker
from penstock.protocol.snapshot import OperatorSnapshot, Segment
from penstock.wire import manifest as manifests
from penstock.wire import paths
from penstock.wire.paths import WorkerFile
from tests.engine.kit import ListSink, ManualClock, NumberSource
from tests.engine.test_checkpoint_files import flip
from tests.engine.test_shared_life import Driver, Faulty, Snapshot, manifest_of, parts
from tests.engine.whole_job import Job

FOREVER = 1_000_000


class Recorder(Faulty):
    """Notes what is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []

    def delete(self, name: str) -> None:
        self.deleted.append(name)
        super().delete(name)


class Life:
    """A job whose checkpoints refer to shared files, with one driver at a time."""

    def __init__(self) -> None:
        self.store, self.clock = Recorder(), ManualClock()
        self.next_id = 1
        self.take_over("a")

    def take_over(self, name: str) -> None:
        self.driver = Driver(self.store, name, self.clock)
        self.claim()

    def claim(self, **given: object) -> None:
        wanted = {"may_fall_back": True, "damaged": {}, **given}
        self.point = self.driver.files.claim(RestoreWish(), **wanted)  # type: ignore[arg-type]
        self.driver.clean_up.claimed(self.point)

    def complete(self, number: int, *files: str) -> None:
        answers = {0: set(files), 1: set[str]()}
        checkpoint, clean_up = CheckpointId(number), self.driver.clean_up
        clean_up.triggered(checkpoint, CheckpointId(0))
        clean_up.acknowledged(checkpoint, parts(answers))
        made = manifest_of(number, Snapshot(self.point.attempt, 0, answers))
        assert self.driver.files.persist(made)
        clean_up.completed(checkpoint, parts(answers))

    def delete(self, *numbers: int) -> None:
        doomed = [CheckpointId(number) for number in numbers]
        self.driver.clean_up.delete(doomed, lambda _: None)

    def tidy(self) -> None:
        while self.driver.steps.step():
            pass

    def write(self, checkpoint: int, attempt: int | None = None, part: str = "a") -> str:
        by = self.point.attempt if attempt is None else AttemptId(attempt)
        name = paths.shared_file(WorkerFile(CheckpointId(checkpoint), SlotId(0), by, part))
        self.store.write(name, [b"rows"])
        return name

    @property
    def shared(self) -> set[str]:
        return set(self.store.list(paths.SHARED_FOLDER))


@pytest.fixture
def life() -> Life:
    return Life()


# ---- deleting checkpoints


def test_shared_files_go_when_the_metadata_of_the_last_that_refers_to_them_has(life: Life) -> None:
    """T4, I12: an interruption leaves files that nobody refers to, never a checkpoint without its files."""
    first, second = life.write(1), life.write(2)
    life.complete(1, first)
    life.complete(2, first, second)
    life.complete(3)
    life.tidy()
    life.delete(1)
    life.tidy()
    assert life.shared == {first, second}
    life.store.deleted.clear()
    life.delete(2)
    life.tidy()
    assert life.store.deleted == ["chk-2/_metadata", first, second]


def test_a_deletion_that_is_taken_back_leaves_the_shared_files_where_they_are(life: Life) -> None:
    """I12, I17: the newest one is damaged, and the job goes on from the one that was to go."""
    first, second = life.write(1), life.write(2)
    life.complete(1, first)
    life.complete(2, second)
    life.tidy()
    life.driver.clean_up.discard(CheckpointId(9))
    life.delete(1)  # it waits for the piece of work before it
    flip(life.store, "chk-2/_metadata")
    going = life.driver.clean_up.spare()
    life.claim(going=going)
    life.tidy()
    assert (going, life.point.restored, life.shared) == (frozenset(), 1, {first, second})


def test_a_deletion_that_fails_keeps_the_shared_files_for_the_checkpoint(life: Life) -> None:
    """I12: its metadata may still be there."""
    first = life.write(1)
    life.complete(1, first)
    life.complete(2, first)
    life.complete(3)
    life.tidy()
    life.store.fails_in = 2  # the metadata itself, behind the list of owners
    life.delete(1, 2)
    life.tidy()
    assert "chk-1/_metadata" in life.store.list() and "chk-2/_metadata" not in life.store.list()
    assert life.shared == {first}


def test_a_base_is_not_deleted_while_something_builds_on_it(life: Life) -> None:
    """I12, B6: neither it nor its files, though newer ones are complete."""
    first = life.write(1)
    life.complete(1, first)
    clean_up = life.driver.clean_up
    clean_up.triggered(CheckpointId(3), CheckpointId(1))
    life.complete(2)
    life.delete(1)
    life.tidy()
    assert (life.shared, len(life.store.list("chk-1"))) == ({first}, 1)
    clean_up.discard(CheckpointId(3))
    life.tidy()
    assert (life.shared, life.store.list("chk-1")) == (set(), [])


# ---- dead attempts


def test_a_claim_finds_what_dead_attempts_left_behind(life: Life) -> None:
    """I13, I14, bug-D6, bug-D13: what others refer to stays; what a zombie writes later the next claim finds."""
    kept = life.write(1)
    life.complete(1, kept)
    left = life.write(2)
    life.take_over("b")
    life.tidy()
    assert life.shared == {kept}, f"and not {left}"
    later = life.write(2, attempt=1, part="late")
    life.complete(103)
    life.tidy()
    assert life.shared == {kept, later}
    life.claim()
    life.tidy()
    assert life.shared == {kept}


def test_what_a_snapshot_wrote_that_nobody_was_told_of_goes_when_it_is_given_up(life: Life) -> None:
    """I8, bug-D6: other snapshots are under way."""
    clean_up = life.driver.clean_up
    clean_up.triggered(CheckpointId(1), CheckpointId(0))
    clean_up.triggered(CheckpointId(2), CheckpointId(0))
    life.write(1)
    second = life.write(2)
    third = life.write(3)
    clean_up.discard(CheckpointId(1))
    life.tidy()
    assert life.shared == {second, third}, "3 is not triggered yet, as far as anybody knows"


def test_a_driver_that_lost_its_job_deletes_no_shared_file(life: Life) -> None:
    """I18, I12."""
    first = life.write(1)
    life.complete(1)
    old = life.driver
    life.take_over("b")
    late = life.write(1, attempt=1, part="late")
    old.clean_up.discard(CheckpointId(1))
    old.clean_up.acknowledged(CheckpointId(1), parts({0: {first, late}}))
    while old.steps.step():
        pass
    assert life.shared == {first, late}
    with pytest.raises(JobFenced):
        old.files.sweep([], CheckpointId(9))
    assert life.shared == {first, late}


def test_a_checkpoint_that_cannot_be_read_keeps_what_it_may_refer_to(life: Life) -> None:
    """I12, T5: somebody may repair it."""
    first, second = life.write(1), life.write(2)
    life.complete(1, first)
    life.complete(2, first, second)
    flip(life.store, "chk-2/_metadata")
    life.claim()
    life.complete(103)
    life.delete(1)
    life.tidy()
    assert life.shared == {first, second}


# ---- readers


def test_a_lease_keeps_the_shared_files_of_a_checkpoint_that_has_gone(life: Life) -> None:
    """P5, I12: also when another driver has taken over, who cannot know what the checkpoint referred to."""
    read, other = life.write(1), life.write(1, part="b")
    life.complete(1, read, other)
    me = Borrower("me", life.clock.wall_ms, lambda: f"{7:032x}")
    lease = leases.take(life.store, CheckpointId(1), me, LEASE_MS, [read])
    life.complete(2)
    life.delete(1)
    life.tidy()
    assert life.shared == {read, other}
    life.take_over("b")
    life.tidy()
    assert life.shared == {read}, "nobody reads the other one"
    life.driver.files.sweep([CheckpointId(2)], CheckpointId(999))
    assert life.shared == {read}
    assert lease is not None
    leases.give_back(life.store, lease)
    life.complete(103)
    life.delete(2)
    life.tidy()
    life.claim()
    life.tidy()
    assert life.shared == set()


def test_a_checkpoint_that_is_read_when_the_job_ends_keeps_its_own_files_alone(life: Life) -> None:
    """I12, I13."""
    read, stray = life.write(1), life.write(1, part="stray")
    life.complete(1, read)
    me = Borrower("me", life.clock.wall_ms, lambda: f"{7:032x}")
    leases.take(life.store, CheckpointId(1), me, LEASE_MS, [read])
    life.complete(2)
    life.driver.files.sweep([CheckpointId(2)], CheckpointId(3))
    assert life.shared == {read}, f"nobody reads {stray}"


# ---- the end


def test_the_end_of_a_job_leaves_what_its_checkpoints_refer_to(life: Life) -> None:
    """I13: also what is newer and spared, and what came after all other clean-up."""
    first, second = life.write(1), life.write(2)
    life.complete(1, first)
    life.complete(2, second)
    life.tidy()
    late = life.write(3, part="late")
    files = life.driver.files
    files.sweep([CheckpointId(1)], CheckpointId(4), unsettled=[CheckpointId(3)])
    assert life.shared == {first, second, late}, "nobody knows what checkpoint 3 refers to"
    files.sweep([CheckpointId(1)], CheckpointId(4), spare_newer=True)
    assert life.shared == {first}, "checkpoint 2 went with the sweep before"
    assert life.store.list("chk-1") != []


def test_deleting_everything_deletes_shared_files_behind_the_checkpoints(life: Life) -> None:
    """T3, I12."""
    first = life.write(1)
    life.complete(1, first)
    life.driver.files.delete_everything()
    assert life.store.list() == []
    assert life.store.deleted.index("chk-1/_metadata") < life.store.deleted.index(first)


# ---- the whole job


def sharing(job: Job) -> list[str]:
    """Every answer of the job's worker names a shared file of its own, and the one that is before it."""
    written: list[str] = []

    def edited(message: FromWorker) -> FromWorker:
        if not isinstance(message, Ack):
            return message
        file = WorkerFile(message.checkpoint, SlotId(0), message.attempt, "a")
        job.store.write(paths.shared_file(file), [b"rows"])
        refers = [*written[-1:], paths.shared_file(file)]
        written.append(paths.shared_file(file))
        segments = tuple(Segment("s", b"", (), file=name) for name in refers)
        first, *others = message.snapshots
        name, *_ = first.operators
        part = replace(first.operators[name], segments=segments)
        assert isinstance(part, OperatorSnapshot)
        return replace(
            message,
            snapshots=(replace(first, operators={**first.operators, name: part}), *others),
        )

    job.workers.edited = edited
    return written


def referred(job: Job) -> set[str]:
    """By the checkpoints that exist."""
    names = [name for name in job.store.list() if paths.metadata_of(name) is not None]
    return {f for n in names for f in manifests.decode(job.store.read(n), n).files}


def test_a_job_keeps_just_the_shared_files_that_its_checkpoints_refer_to() -> None:
    """T4, I12, I13, I8: while it runs; of snapshots that are given up and of late answers, too."""
    job = Job(NumberSource(FOREVER), ListSink(), tolerable_failures=5)
    written = sharing(job)
    job.until(job.completed(5))
    job.until(lambda: set(job.store.list("shared")) == referred(job))
    assert len(written) > 4
    job.workers.miss = Ack
    job.until(lambda: any(isinstance(message, Abort) for message in job.workers.sent))
    missed = next(e for e in job.workers.missed if isinstance(e.message, Ack))
    assert isinstance(missed.message, Ack)
    late = max(f for part in missed.message.snapshots for f in (s.file for s in part.segments))
    job.until(lambda: late not in job.store.list())
    job.store.write(late, [b"again"])
    job.workers.events.append(missed)
    job.until(lambda: late not in job.store.list())
    assert referred(job) <= set(job.store.list())
