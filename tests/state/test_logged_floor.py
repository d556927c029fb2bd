"""A changelog over a floor: rows that changed and left memory are in the next delta, as they were at the freeze."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.engine.worker.segment_files import SegmentFiles
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import Segment
from penstock.state import changelog
from penstock.state.floored import Budget
from penstock.state.logged_floor import LoggedFloor
from penstock.storage.memory import MemoryStore
from penstock.wire import paths
from penstock.wire.paths import WorkerFile
from tests.state.helpers import inline_out, segments_of, snapshot_of
from tests.state.log_kit import Listed
from tests.state.test_floored import Job as FlooredJob
from tests.state.test_floored import _v
from tests.state.ways import WAYS, NoRoom

LOGGED = WAYS["changelog over floors"]


class Job(FlooredJob):
    """A function over floors with a changelog."""

    def __init__(self, restored: Any = (), restored_id: int = 0) -> None:
        self.log = Listed()
        super().__init__(restored=restored, way=LOGGED, log=self.log, restored_id=restored_id)
        self.base = restored_id

    @property
    def changes(self) -> LoggedFloor:
        """Of the value state."""
        found = next(changes for table, changes in self.log.admitted if table.state == "value")
        assert isinstance(found, LoggedFloor)
        return found

    def freeze(self, number: int) -> Any:
        order = SnapshotOrder(CheckpointId(number), base=CheckpointId(self.base))
        return self.operator.freeze(order)

    def written(self, frozen: Any, number: int) -> list[Segment]:
        self.base = number
        return [segment for table in frozen.tables for segment in segments_of(table)]

    def checkpoint(self, number: int) -> list[Segment]:
        return self.written(self.freeze(number), number)

    def put(self, keys: Sequence[int], value: int) -> None:
        self.run(keys, lambda f, rows: f.value.update_batch(rows, _v(rows)), value)

    def clear(self, keys: Sequence[int]) -> None:
        self.run(keys, lambda f, rows: f.value.clear_batch(rows))

    def values(self, keys: Sequence[int]) -> list[int | None]:
        found: list[int | None] = self.run(
            keys, lambda f, rows: f.value.get_batch(rows).column("n").to_pylist()
        )
        return found


def values_in(segments: Sequence[Segment], keys: Sequence[int]) -> list[int | None]:
    return Job((snapshot_of(*segments),), 1).values(keys)


def rows_of(segments: Sequence[Segment]) -> int:
    """Of the deltas of the value state."""
    return sum(b.rows for s in segments if s.state == "value" and s.delta for b in s.blocks)


def test_a_row_that_changed_and_left_memory_is_in_the_next_delta() -> None:
    """S7: it lies in the floor when that is written."""
    job = Job()
    job.put(range(100), 1)
    job.checkpoint(1)
    job.put([7], 2)
    job.put([8], 2)
    assert job.operator._scope.keyed.space.cells.count == 1, "7 is not in memory"
    segments = job.checkpoint(2)
    assert not any(each.member for each in segments), "nothing but deltas"
    assert values_in(segments, [7, 8, 9]) == [2, 2, 1]


def test_what_left_memory_before_checkpoints_that_were_given_up_is_in_the_next_delta(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S7, C4: so many of them that what changed before the first is noted together with what changed later."""
    monkeypatch.setattr(changelog, "INTERVALS_MAX", 2)
    job = Job()
    job.put(range(100), 1)
    job.checkpoint(1)
    for number in range(2, 8):
        job.put([number], 2)
        job.put([50], number)
        for table in job.freeze(number).tables:
            table.release()
    segments = job.checkpoint(8)
    assert values_in(segments, [2, 3, 6, 7, 8, 50]) == [2, 2, 2, 2, 1, 7]


def test_a_delta_has_the_row_of_the_freeze_though_the_floor_has_a_later_one() -> None:
    """S7, I2, bug-D19."""
    job = Job()
    job.put([1, 2], 1)
    job.checkpoint(1)
    job.put([1], 2)
    job.put([2], 2)
    frozen = job.freeze(2)
    job.put([1], 3)
    job.put([5], 5)
    job.put([2], 3)
    assert values_in(job.written(frozen, 2), [1, 2, 5]) == [2, 2, None]
    assert job.values([1, 2, 5]) == [3, 3, 5]


def test_a_row_that_left_memory_and_was_removed_does_not_come_back() -> None:
    """S7, I21: whether it was removed before the cut or after it."""
    job = Job()
    job.put([1, 2, 3], 1)
    job.checkpoint(1)
    job.put([1], 2)
    job.put([9], 1)
    job.clear([1])
    job.put([2], 2)
    job.log.begin("cut")
    job.clear([2])
    job.put([9], 2)
    job.log.end()
    segments = job.checkpoint(2)
    assert values_in(segments, [1, 2, 3, 9]) == [None, None, 1, 2]


def test_a_row_that_was_written_down_with_all_rows_counts_on_until_those_are_used() -> None:
    """S7: all rows are written in the background and never become durable; the row leaves memory unchanged."""
    job = Job()
    job.put([1], 1)
    job.checkpoint(1)
    job.operator._scope.keyed._budget = Budget(1 << 30)
    job.put([1], 2)
    for table, changes in job.log.admitted:
        table.view(changes.materialize()).write(inline_out())
    job.operator._scope.keyed._budget = NoRoom()
    job.put([5], 1)
    assert values_in(job.checkpoint(2), [1, 5]) == [2, 1]


def test_a_chain_begins_with_the_files_of_the_floor_once_they_are_durable() -> None:
    """S7, S5: all rows are never written from memory."""
    job = Job()
    job.put(range(50), 1)
    job.checkpoint(1)
    job.put([3], 2)
    job.log.begin("whole")
    job.put([4], 2)
    job.log.end()
    segments = [each for each in job.checkpoint(2) if each.state == "value"]
    assert segments[0].member == "CURRENT"
    assert [each.delta for each in segments if not each.member] == [True]
    assert 1 <= rows_of(segments) <= 2, "and perhaps of what left memory after that"
    assert values_in(segments, [3, 4, 5]) == [2, 2, 1]


def test_a_floor_that_nobody_can_build_on_is_taken_whole() -> None:
    """S7: another job's checkpoint is no base, and the rows in its files are in no delta."""
    job = Job()
    job.put(range(20), 1)
    job.log.begin("whole")
    job.log.end()
    segments = job.checkpoint(1)
    other = Job((snapshot_of(*segments),), restored_id=0)
    other.put([3], 2)
    assert values_in(other.checkpoint(1), [3, 4]) == [2, 1]


def test_without_a_changelog_what_one_has_written_is_gone_on_with_and_the_reverse() -> None:
    """S7, bug-D22."""
    job = Job()
    job.put(range(20), 1)
    job.log.begin("whole")
    job.log.end()
    job.put([3], 2)
    segments = job.checkpoint(1)
    plain = FlooredJob(restored=(snapshot_of(*segments),))
    plain.run([4], lambda f, rows: f.value.update_batch(rows, _v(rows)), 9)
    assert values_in([*plain.snapshot(2).segments], [3, 4, 5]) == [2, 9, 1]


def test_all_files_of_a_floor_lie_where_later_checkpoints_may_refer_to_them() -> None:
    """T4, I12, bug-D1: also those that change with every snapshot."""
    job, store = Job(), MemoryStore()
    job.put(range(50), 1)
    place = WorkerFile(CheckpointId(1), SlotId(0), AttemptId(1), "base-0-1")
    out = SegmentFiles(store, place, 0)
    segments = job.log.admitted[1][0].view(job.changes.materialize()).write(out)
    out.finish()
    assert segments and all(paths.shared_of(each.file) for each in segments)
