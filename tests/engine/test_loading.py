"""State is read back block by block, in order; how far it is is told when it takes long; a failure ends it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.engine.driver.restores import Restores
from penstock.engine.operators.base import OperatorContext
from penstock.engine.spec import JobSpec
from penstock.engine.worker.loading import Loading
from penstock.engine.worker.segment_files import SegmentFiles
from penstock.engine.worker.snapshots import fetch_from
from penstock.engine.worker.worker import Worker
from penstock.errors import CheckpointCorrupt, SchemaError
from penstock.plan.physical import make_plan
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import Deploy, Failed, Ready, Restoring
from penstock.protocol.snapshot import OperatorSnapshot, SubtaskSnapshot
from penstock.state.segments import GROUP_FIELD
from penstock.storage.memory import MemoryStore
from penstock.storage.memory_floor import MemoryFloors
from penstock.wire.paths import WorkerFile
from tests.engine.kit import (
    Do,
    HeldBackground,
    ListDriver,
    ListSink,
    ManualClock,
    NoHost,
    NumberSource,
    pipeline,
)
from tests.engine.whole_job import Job

ONE = CheckpointId(1)
GROUPS = range(8)
SCHEMA = pa.schema([GROUP_FIELD, pa.field("n", pa.int64())])


class Backwards(HeldBackground):
    """Carries pieces of work out from the last to the first, and hands their results over in order."""

    closed = 0

    def each(self, works: Iterable[Callable]) -> Generator:
        try:
            yield from [work() for work in reversed(list(works))][::-1]
        finally:
            self.closed += 1


def stored(store: MemoryStore, slot: int) -> SubtaskSnapshot:
    """State of one subtask of the operator `work`, in a file: a block of one row in each key group."""
    batches = (
        pa.record_batch([pa.array([group], pa.uint16()), pa.array([100 * slot + group])], SCHEMA)
        for group in GROUPS
    )
    out = SegmentFiles(store, WorkerFile(ONE, SlotId(slot), AttemptId(1)), 0)
    segment = out.put("s", SCHEMA, batches)
    out.finish()
    return SubtaskSnapshot(SubtaskId(0, slot), {"work": OperatorSnapshot((segment,))})


class Restore:
    """What two old subtasks had is read back by one new one."""

    def __init__(self, background: Any = None) -> None:
        self.store, self.clock, self.told = MemoryStore(), ManualClock(), []
        self.snapshots = tuple(stored(self.store, slot) for slot in (0, 1))
        self.deploy = Deploy(AttemptId(3), SlotId(0), ONE, self.snapshots)
        made = (self.deploy, fetch_from(self.store), background or Backwards(), self.clock)
        self.loading = Loading(*made, self.told.append, MemoryFloors)
        self.segments = [s for part in self.snapshots for s in part.operators["work"].segments]

    def read(self, groups: range = GROUPS) -> Iterable[int]:
        for batch in self.loading.read(self.segments, groups):
            yield from batch.column("n").to_pylist()


def test_rows_come_in_the_order_of_their_segments_and_blocks() -> None:
    """I2: what a later segment says of a key counts, so none may overtake another."""
    assert list(Restore().read()) == [*range(8), *range(100, 108)]
    assert list(Restore().read(range(2, 4))) == [2, 3, 102, 103]


def test_a_block_that_cannot_be_read_is_not_passed_over() -> None:
    """T5: whichever of many it is, on whatever thread."""
    restore = Restore(HeldBackground())
    file = restore.segments[1].file
    restore.store.write(file, [restore.store.read(file)[:-200], bytes(200)])
    read = iter(restore.read())
    assert [next(read) for _ in range(8)] == list(range(8))
    with pytest.raises(CheckpointCorrupt, match=file):
        list(read)


# ---- how far it is


def test_a_restore_that_takes_long_says_how_far_it_is() -> None:
    """R1: rows and bytes of all that this slot has to read, once a second; those it does not own do not count."""
    restore = Restore()
    for _ in restore.read(range(4)):
        restore.clock.now_ms += 400
    size = sum(b.length for s in restore.segments for b in s.blocks if b.last_group < 4)
    assert [(m.rows, m.rows_total) for m in restore.told] == [(3, 8), (6, 8)]
    assert [m.bytes_total for m in restore.told] == [size, size]
    assert 0 < restore.told[0].bytes < restore.told[1].bytes < size
    assert (restore.told[0].attempt, restore.told[0].slot) == (3, 0)


def test_a_quick_restore_says_nothing() -> None:
    restore = Restore()
    assert list(restore.read()) and restore.told == []


# ---- in a worker


class Restless(Do):
    """Fails in the middle of taking its state back. Its errors stay around, with all that they hold on to."""

    errors: ClassVar[list[Exception]] = []

    def open(self, context: OperatorContext) -> None:
        for number, _ in enumerate(context.rows_of("s")):
            if number == 2:
                self.errors.append(SchemaError("not what it was"))
                raise self.errors[-1]


def test_an_attempt_whose_operator_fails_reads_no_further() -> None:
    """bug-D21: the threads that read ahead end with the attempt, not when somebody forgets its error."""
    store, driver, background = MemoryStore(), ListDriver(), Backwards()
    plan = make_plan(pipeline(NumberSource(10), ListSink(), Restless), 1, 8)
    spec = JobSpec("job", plan, open_store=lambda: store)
    worker = Worker(lambda: spec, driver, NoHost(), ManualClock(), background)
    driver.inbox.append(Deploy(AttemptId(1), SlotId(0), ONE, (stored(store, 0),)))
    worker.step()
    assert [type(message) for message in driver.sent] == [Failed]
    assert background.closed == 1


# ---- in the driver


def restoring(slot: int, rows: int, attempt: int = 3) -> Restoring:
    return Restoring(AttemptId(attempt), SlotId(slot), rows, rows << 20, 1_000, 1_000 << 20)


def test_what_all_workers_say_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """In the log now and then, and beside the status whenever somebody looks."""
    caplog.set_level(logging.INFO, "penstock")
    clock = ManualClock()
    restores = Restores("totals", clock)
    restores.heard(restoring(0, 100))
    restores.heard(restoring(1, 250))
    assert restores.text == "restoring state: 350 of 2,000 rows, 350.0 of 2,000.0 MiB"
    assert [r.message for r in caplog.records] == [
        "job totals: attempt 3: restoring state: 100 of 1,000 rows, 100.0 of 1,000.0 MiB"
    ]
    clock.now_ms += 5_000
    restores.heard(restoring(0, 900))
    restores.ready(AttemptId(3), SlotId(1))
    assert len(caplog.records) == 2
    assert restores.text.startswith("restoring state: 1,900 of 2,000 rows")
    restores.heard(restoring(0, 1, attempt=4))
    assert restores.text.startswith("restoring state: 1 of 1,000 rows"), "a new attempt begins anew"


def test_a_job_tells_it_only_while_its_workers_restore() -> None:
    """R1: when it runs there is nothing more to tell."""
    job = Job(NumberSource(4, ready=2), ListSink())
    job.workers.miss = Ready
    job.until(lambda: bool(job.workers.missed))
    (ready,) = job.workers.missed
    attempt = ready.message.attempt
    assert job.manager.details == ""
    job.workers.events.append(type(ready)(ready.worker, restoring(0, 5, attempt)))
    job.step()
    assert job.manager.details.startswith("restoring state: 5 of 1,000 rows")
    assert job.manager.status == "starting"
    job.workers.miss = None
    job.workers.events.append(ready)
    job.until(lambda: job.manager.status == "running")
    assert job.manager.details == ""
