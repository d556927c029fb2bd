"""A job whose workers have copies of their state: it goes on with the same state, whatever becomes of the copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.operators.base import FrozenOperator, OperatorContext
from penstock.engine.worker.kept_copies import KeptCopies, files_of
from penstock.errors import StorageError
from penstock.ports.control import LaunchEnded
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.phases import Outcome
from penstock.protocol.snapshot import InFlight, OperatorSnapshot, Segment, SubtaskSnapshot
from penstock.state.frozen import Out
from penstock.state.segments import GROUP_FIELD
from penstock.storage.local_copies import LocalCopies
from penstock.storage.memory import MemoryStore
from penstock.wire import paths
from penstock.wire.paths import WorkerFile
from tests.engine.kit import Do, HeldBackground, ListSink, NumberSource, numbers
from tests.engine.whole_job import Job

ROWS = 200
STATE = pa.schema([GROUP_FIELD, pa.field("n", pa.int64())])
LOCAL, PRIMARY = (
    f'penstock_restored_bytes_total{{copy="{copy}"}}' for copy in ("local", "primary")
)


@dataclass(frozen=True)
class FrozenNumbers:
    """Two segments with a block per ten numbers: one that later checkpoints may share, and one of this one alone."""

    numbers: tuple[int, ...]

    def write(self, out: Out) -> tuple[Segment, ...]:
        half = len(self.numbers) // 2
        return (
            out.put("seen", STATE, _blocks(self.numbers[:half]), shared=True),
            out.put("seen", STATE, _blocks(self.numbers[half:])),
        )

    def release(self) -> None:
        """Nothing is held."""


def _blocks(found: Sequence[int]) -> Iterable[pa.RecordBatch]:
    for at in range(0, len(found), 10):
        part = found[at : at + 10]
        yield pa.record_batch([pa.array([0] * len(part), pa.uint16()), pa.array(part)], STATE)


class Seen(Do):
    """Its state is all the numbers that it has seen; `restored` is what it began with, per attempt."""

    restored: list[list[int]]

    def __init__(self, restored: list[list[int]]) -> None:
        super().__init__(lambda batch: self.seen.extend(numbers(batch)))
        self.restored = restored

    def open(self, context: OperatorContext) -> None:
        segments = [segment for part in context.restored for segment in part.segments]
        read = context.read_segments(segments, range(8))
        self.seen = [n for batch in read for n in batch.column("n").to_pylist()]
        self.restored.append(list(self.seen))

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        return FrozenOperator((FrozenNumbers(tuple(self.seen)),))


class Copied:
    """A job whose state is all in files, with a disk for copies that stays when its worker does not."""

    def __init__(self, disk: MemoryStore | None = None, **options: Any) -> None:
        self.disk = disk or MemoryStore()
        self.restored: list[list[int]] = []
        self.sink = ListSink()
        self.copies = LocalCopies(self.disk)
        self.job = Job(
            NumberSource(ROWS),
            self.sink,
            operator=lambda: Seen(self.restored),
            copies=self.copies,
            inline_bytes_max=0,
            **options,
        )

    def until_a_checkpoint(self) -> None:
        """One that has files, and nothing under way that may still complete."""
        self.job.until(self.job.completed(2))

    def lose_the_worker(self) -> None:
        (name,) = self.job.workers.workers
        self.job.workers.kill(name)
        self.job.workers.events.append(LaunchEnded(0, "killed"))
        self.job.until(lambda: len(self.restored) == 2)

    def finish(self) -> None:
        assert self.job.run() is Outcome.FINISHED
        assert self.sink.numbers == list(range(ROWS))

    def read_back(self) -> tuple[float, float]:
        """What the second attempt has read, from copies and from the store."""
        metrics = self.job.manager.metrics
        return metrics[LOCAL], metrics[PRIMARY]


def missing(disk: MemoryStore, name: str) -> None:
    disk.delete(name)


def truncated(disk: MemoryStore, name: str) -> None:
    disk.write(name, [disk.read(name)[:-20]])


def a_byte_flipped(disk: MemoryStore, name: str) -> None:
    """In the rows of a block."""
    data = bytearray(disk.read(name))
    data[-100] ^= 1
    disk.write(name, [bytes(data)])


def another_files_content(disk: MemoryStore, name: str) -> None:
    (other,) = (each for each in disk.list() if each != name)
    disk.write(name, [disk.read(other)])


def empty(disk: MemoryStore, name: str) -> None:
    disk.write(name, [b""])


def nothing(disk: MemoryStore, name: str) -> None:
    """The copy is as it was written."""


DAMAGE = [missing, truncated, a_byte_flipped, another_files_content, empty]


def test_a_lost_workers_successor_reads_all_of_its_state_from_the_copies() -> None:
    """R4: and it shows in the metrics and in the checkpoint that was gone on from."""
    copied = Copied()
    copied.until_a_checkpoint()
    copied.lose_the_worker()
    assert copied.restored[1] == list(range(len(copied.restored[1]))) != []
    copied.finish()
    local, primary = copied.read_back()
    assert (local > 0, primary) == (True, 0)
    (info,) = [each for each in copied.job.manager.history.checkpoints if each.restored_bytes]
    assert info.restored_bytes == info.restored_local_bytes == local
    assert f"restored {int(local):,} bytes, {int(local):,} of them from local copies" in repr(info)


@pytest.mark.parametrize("kind", [0, 1], ids=["own file", "shared file"])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda each: each.__name__)
def test_a_copy_that_is_not_what_was_written_is_not_used(
    damage: Callable[[MemoryStore, str], None], kind: int
) -> None:
    """R4, bug-E8, I23: the state is the checkpoint directory's, nobody fails, and it shows in the numbers."""
    restored = {}
    for how in (nothing, damage):
        copied = Copied()
        copied.until_a_checkpoint()
        completed = copied.job.manager.coordinator.newest_completed
        ours = [name for name in copied.disk.list() if _checkpoint(name) == completed]
        how(copied.disk, sorted(ours)[kind])
        copied.lose_the_worker()
        restored[how] = copied.restored[1]
        copied.finish()
        assert copied.job.errors == ["WorkerLost"], "a bad copy is no failure"
        assert (copied.read_back()[1] > 0) == (how is damage)
    assert restored[nothing] == restored[damage] != []


def _checkpoint(name: str) -> int:
    file = paths.worker_file_of(name) or paths.shared_of(name)
    assert file is not None
    return file.checkpoint


def test_a_job_without_copies_counts_what_it_reads_as_well() -> None:
    """R4: whoever switches them on wants to see the difference."""
    copied = Copied()
    copied.job = Job(
        NumberSource(ROWS),
        copied.sink,
        operator=lambda: Seen(copied.restored),
        inline_bytes_max=0,
    )
    copied.until_a_checkpoint()
    copied.lose_the_worker()
    copied.finish()
    assert copied.job.manager.metrics[PRIMARY] > 0
    assert LOCAL not in copied.job.manager.metrics
    (info,) = [each for each in copied.job.manager.history.checkpoints if each.restored_bytes]
    assert info.restored_local_bytes == 0


def test_a_disk_that_never_works_fails_neither_checkpoints_nor_restores() -> None:
    """R4."""

    class Broken(MemoryStore):
        def _fail(self, *_: Any) -> Any:
            raise StorageError("no space left on device")

        begin = read = list = delete = _fail  # type: ignore[assignment]

    copied = Copied(Broken())
    copied.until_a_checkpoint()
    copied.lose_the_worker()
    copied.finish()
    history = copied.job.manager.history
    assert (history.aborted_total, copied.job.errors) == (0, ["WorkerLost"])
    assert copied.job.manager.metrics["penstock_local_copies_lost_total"] > 0
    assert copied.read_back()[0] == 0


def test_copies_of_old_checkpoints_do_not_stay() -> None:
    """R4, I26: while the job runs there are those of the newest checkpoint, and of those under way."""
    copied = Copied()
    copied.job.until(copied.job.completed(6))
    newest = copied.job.manager.coordinator.newest_completed
    copied.job.until(lambda: all(_checkpoint(name) >= newest for name in copied.disk.list()))
    assert copied.disk.list()
    copied.finish()
    assert len({_checkpoint(name) for name in copied.disk.list()}) == 1


# ---- which copies stay


def snapshot(slot: int, *files: str) -> SubtaskSnapshot:
    segments = tuple(Segment("s", b"", (), file=file) for file in files)
    return SubtaskSnapshot(SubtaskId(0, slot), {"work": OperatorSnapshot(segments)})


def own(checkpoint: int, slot: int = 0, attempt: int = 2) -> str:
    return paths.worker_file(CheckpointId(checkpoint), SlotId(slot), AttemptId(attempt))


def shared(checkpoint: int, slot: int = 0, attempt: int = 2) -> str:
    place = WorkerFile(CheckpointId(checkpoint), SlotId(slot), AttemptId(attempt), "state")
    return paths.shared_file(place)


class Disk:
    """The copies of slot 0 in attempt 2, beside those of others."""

    def __init__(self, *names: str) -> None:
        self.store, self.background = MemoryStore(), HeldBackground()
        for name in names:
            self.store.write(name, [b"x"])
        made = (LocalCopies(self.store), SlotId(0), AttemptId(2), self.background)
        self.kept = KeptCopies(*made)

    @property
    def names(self) -> set[str]:
        self.background.poll()
        return set(self.store.list())


def test_a_deployment_removes_what_earlier_attempts_left_and_nobody_refers_to() -> None:
    """R4: of all slots, also those that are elsewhere now; what the present attempt of another worker writes stays."""
    wanted = {own(4, 0, 1), shared(2, 1, 1)}
    stays = {own(5, 1, 2), shared(9, 3, 3)}
    disk = Disk(*wanted, *stays, own(3, 0, 1), own(4, 1, 1), shared(1, 7, 1))
    disk.kept.deployed([snapshot(0, own(4, 0, 1)), snapshot(1, shared(2, 1, 1))])
    assert disk.names == wanted | stays


def test_a_shared_file_stays_as_long_as_the_newest_checkpoint_refers_to_it() -> None:
    """R4: increments."""
    disk = Disk(own(3), shared(3), own(4), shared(4), own(4, slot=1))
    disk.kept.acked(CheckpointId(3), [snapshot(0, own(3), shared(3))])
    disk.kept.acked(CheckpointId(4), [snapshot(0, own(4), shared(3), shared(4))])
    disk.kept.completed(CheckpointId(3))
    assert disk.names == {own(3), shared(3), own(4), shared(4), own(4, slot=1)}
    disk.kept.completed(CheckpointId(4))
    assert disk.names == {shared(3), own(4), shared(4), own(4, slot=1)}


def test_what_is_under_way_stays_and_what_was_given_up_goes() -> None:
    """R4."""
    disk = Disk(own(3), own(4), own(5), own(6))
    for number in (3, 5):
        disk.kept.acked(CheckpointId(number), [snapshot(0, own(number))])
    disk.kept.completed(CheckpointId(5))
    assert disk.names == {own(5), own(6)}


def test_a_checkpoint_that_this_attempt_has_not_written_removes_nothing() -> None:
    """R4: the restored one is said to be complete before there is another."""
    disk = Disk(own(3, 0, 1), own(4))
    disk.kept.completed(CheckpointId(3))
    disk.kept.acked(CheckpointId(5), [snapshot(0, own(3, 0, 1))])
    disk.kept.completed(CheckpointId(5))
    disk.kept.completed(CheckpointId(5))
    assert len(disk.background.waiting) == 1, "said again and again, it is done once"
    assert disk.names == {own(3, 0, 1)}


def test_rows_in_flight_have_copies_too() -> None:
    """R4, B7."""
    told = snapshot(0, own(3))
    segment = Segment("in flight", b"", (), file=shared(3))
    flying = replace(told, inflight=(InFlight("work", 0, 0, segment),))
    assert files_of([flying]) == {own(3), shared(3)}
    inline = replace(segment, file="", inline=b"x")
    assert files_of([replace(flying, inflight=(InFlight("work", 0, 0, inline),))]) == {own(3)}
