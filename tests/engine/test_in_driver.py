"""Checkpoints in the driver's memory: all state travels in acknowledgements and deployments, and has to be small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.operators.base import FrozenOperator, OperatorContext
from penstock.engine.operators.held_rows import FrozenRows, held_rows
from penstock.engine.spec import InDriver
from penstock.engine.worker.inputs import ChannelRows
from penstock.engine.worker.snapshots import WriteWork, fetch_from, read_inflight, reader
from penstock.engine.worker.subtask import Taken
from penstock.errors import StorageError
from penstock.ports.control import LaunchEnded
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.phases import Outcome
from penstock.protocol.snapshot import SubtaskSnapshot
from penstock.wire import paths
from tests.engine.kit import SCHEMA, Do, ListSink, ManualClock, NumberSource, numbers, rows
from tests.engine.whole_job import Job

N1 = CheckpointId(1)
ROOM = InDriver(1 << 20, 1 << 20)
MANY = rows(*range(4_000))
"""More than what travels in an acknowledgement otherwise."""


def state(batch: pa.RecordBatch) -> FrozenOperator:
    return FrozenOperator(tables=(FrozenRows((batch,), 0),))


def written(limits: InDriver, *inflight: ChannelRows, **operators: Any) -> list[SubtaskSnapshot]:
    taken = [Taken(SubtaskId(0, 3), N1, operators, False, 0, 0, 0, inflight)]
    place = (SlotId(3), AttemptId(1), N1)
    return list(WriteWork(None, *place, taken, ManualClock(), 16_384, in_driver=limits)())


def test_state_of_any_size_that_fits_travels_in_the_acknowledgement() -> None:
    """T1: with the rows in flight; it is read back without a store."""
    flying = ChannelRows(0, 1, [MANY])
    (told,) = written(ROOM, flying, work=state(MANY))
    (segment,) = told.operators["work"].segments
    assert segment.inline is not None and len(segment.inline) > 16_384 and not segment.file
    (back,) = reader(None)(segment, range(8))
    assert numbers(held_rows(back)) == numbers(MANY)
    (rows_back,) = read_inflight(fetch_from(None), told.inflight[0], SCHEMA)
    assert numbers(rows_back) == numbers(MANY)


def test_a_state_that_is_too_large_is_refused_with_what_it_is_and_what_to_do() -> None:
    """T1: the limit itself still fits, one byte more does not."""
    (told,) = written(ROOM, work=state(MANY))
    size = len(told.operators["work"].segments[0].inline or b"")
    written(replace(ROOM, state_bytes_max=size), work=state(MANY))
    with pytest.raises(StorageError) as caught:
        written(replace(ROOM, state_bytes_max=size - 1), small=state(rows(1)), work=state(MANY))
    assert str(caught.value) == (
        f"state 'held' of operator 'work' in subtask 3 has {size:,} bytes, and a checkpoint in the driver's memory"
        f' (CheckpointConfig("memory:")) may have {size - 1:,} of that: give the job a directory, as in'
        ' CheckpointConfig("checkpoints/")'
    )


def test_a_state_in_several_pieces_counts_as_a_whole() -> None:
    """T1: as the files of a floor are."""
    pieces = FrozenOperator(tables=(FrozenRows((MANY,), 0), FrozenRows((MANY,), 0)))
    (told,) = written(ROOM, work=pieces)
    size = sum(len(each.inline or b"") for each in told.operators["work"].segments)
    written(replace(ROOM, state_bytes_max=size), work=pieces)
    with pytest.raises(StorageError, match=f"has {size:,} bytes"):
        written(replace(ROOM, state_bytes_max=size - 1), work=pieces)


def test_many_small_states_are_too_large_together() -> None:
    """T1: what one worker may send has a limit, rows in flight count."""
    (told,) = written(ROOM, work=state(MANY))
    size = len(told.operators["work"].segments[0].inline or b"")
    limits = InDriver(size, 2 * size)
    written(limits, a=state(MANY), b=state(MANY))
    with pytest.raises(StorageError, match="all state of a worker together has"):
        written(limits, ChannelRows(0, 1, [rows(1)]), a=state(MANY), b=state(MANY))


# ---- a whole job


class Numbered(Do):
    """Numbers all rows: its state is how many there were, and some ballast."""

    ballast = 4_000

    def open(self, context: OperatorContext) -> None:
        read = context.rows_of("held")
        self.seen = max((n for batch in read for n in numbers(held_rows(batch))), default=0)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        first, self.seen = self.seen, self.seen + batch.num_rows
        return (rows(*range(first, self.seen)),)

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        return state(rows(*[0] * self.ballast, self.seen))


def test_a_killed_worker_goes_on_from_the_drivers_memory() -> None:
    """T1, R1, I1, I2."""
    sink = ListSink()
    job = Job(NumberSource(400), sink, operator=Numbered, in_driver=ROOM)
    job.until(job.completed(3))
    job.workers.kill(next(iter(job.workers.workers)))
    job.workers.events.append(LaunchEnded(0, "killed"))
    assert job.run() is Outcome.FINISHED
    assert sink.numbers == list(range(400))
    assert job.errors == ["WorkerLost"]
    assert not [name for name in job.store.list() if paths.worker_file_of(name) is not None]


def test_a_checkpoint_that_is_too_large_fails_like_any_other() -> None:
    """T1, C5: as often as is tolerable, then the attempt fails with what the worker said."""
    limits = InDriver(10_000, 1 << 20)
    job = Job(NumberSource(400), ListSink(), operator=Numbered, in_driver=limits)
    assert job.run() is Outcome.FAILED
    aborted = [info.failure or "" for info in job.manager.history.checkpoints]
    assert len(aborted) > 1 and all("state 'held' of operator 'work'" in each for each in aborted)
    assert 'CheckpointConfig("checkpoints/")' in job.manager.reason
