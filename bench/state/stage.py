"""An operator with keyed state in this process, kept in each of the ways that a job can choose, on a real disk."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from bench.workload import INT_SCHEMA, OPERATOR, aggregates
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.floors import StateFloors
from penstock.engine.spec import Changelogs
from penstock.engine.worker.segment_files import SegmentFiles
from penstock.engine.worker.writing_ahead import WritingAhead
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import Deploy, SnapshotOrder
from penstock.protocol.snapshot import Segment
from penstock.shells.spark.background import ThreadBackground
from penstock.shells.spark.clock import RealClock
from penstock.state.floored import Budget
from penstock.storage.filesystem import FilesystemStore
from penstock.storage.rocks import RocksFloors
from penstock.wire.paths import WorkerFile

WAYS = ("heap", "heap, incremental", "changelog", "rocksdb", "rocksdb, rows leave memory")
GROUPS = 128
MEMORY_BYTES = {"rocksdb": 1 << 30, "rocksdb, rows leave memory": 512 << 20}
"""By default, that of two workers and that of one. 5 million keys fit into the one and not into the other."""
INLINE_BYTES = 16_384
MATERIALIZE_MS = 600_000.0


def context(schema: pa.Schema) -> OperatorContext:
    return OperatorContext(
        job="state",
        operator=OPERATOR,
        index=0,
        parallelism=1,
        max_parallelism=GROUPS,
        attempt=1,
        input_schemas=(schema,),
        now_ms=lambda: time.monotonic() * 1e3,
        wall_ms=lambda: time.time() * 1e3,
        restored=(),
        read_segments=lambda segments, groups: (),
        to_driver=lambda item: None,
        incremental=True,
    )


class Stage:
    """W1's aggregate, and what a worker does around it: between two batches `step`, and snapshots in the background."""

    def __init__(self, way: str, folder: Path) -> None:
        self.operator = RunningAggregate(("key",), aggregates())
        self._store = FilesystemStore(str(folder / "chk"))
        self._background = ThreadBackground()
        self._ahead: WritingAhead | None = None
        self._floors: RocksFloors | None = None
        self._builds_on = way != "heap"
        self._newest = 0
        self._problem: BaseException | None = None
        self.writing = False
        opened = replace(context(INT_SCHEMA), incremental=self._builds_on)
        if way == "changelog":
            clock, deploy = RealClock(), Deploy(AttemptId(1), SlotId(0), NO_CHECKPOINT, ())
            limits, around = Changelogs(MATERIALIZE_MS), (clock, self._background, INLINE_BYTES)
            self._ahead = WritingAhead(limits, deploy, self._store, *around)
            opened = replace(opened, log=self._ahead)
        if way in MEMORY_BYTES:
            self._floors = RocksFloors(folder / "floors")
            floors = StateFloors(self._floors, Budget(MEMORY_BYTES[way]), lambda segment: ())
            opened = replace(opened, floors=floors)
        self.operator.open(opened)

    def process(self, batch: pa.RecordBatch) -> None:
        self.operator.process(batch, 0)
        if self._ahead is not None:
            self._ahead.step()
        self._background.poll()
        if self._problem is not None:
            raise self._problem

    def begin_snapshot(self) -> float:
        """How long the freeze took, in milliseconds. `writing` until the rest is done."""
        base = self._newest if self._builds_on else 0
        self._newest += 1
        number, self.writing = CheckpointId(self._newest), True
        began_s = time.perf_counter()
        tables = self.operator.freeze(SnapshotOrder(number, base=CheckpointId(base))).tables
        freeze_ms = (time.perf_counter() - began_s) * 1e3

        def write() -> list[Segment]:
            out = SegmentFiles(
                self._store, WorkerFile(number, SlotId(0), AttemptId(1)), INLINE_BYTES
            )
            segments = [segment for table in tables for segment in table.write(out)]
            out.finish()
            return segments

        def submit() -> None:
            self._background.submit(write, self._written, self._failed)

        if self._ahead is not None:
            self._ahead.when_cut(submit)
        else:
            submit()
        return freeze_ms

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._background.close()
        if self._floors is not None:
            self._floors.close()

    def _written(self, segments: list[Segment]) -> None:
        self.writing = False

    def _failed(self, error: BaseException) -> None:
        self._problem = error


@contextmanager
def staged(way: str) -> Iterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        stage = Stage(way, folder)
        try:
            yield stage
        finally:
            stage.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
