"""Sinks that want fewer and larger transactions: rows wait as state, and are neither lost nor written twice."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock.connectors.base import Hold
from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.connect import SinkOperator
from penstock.errors import ConfigError, PlanError
from penstock.ports.channel import Barrier, Batch
from penstock.protocol import restart
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder
from penstock.protocol.phases import Outcome
from penstock.protocol.snapshot import OperatorSnapshot
from penstock.storage.memory import MemoryStore
from penstock.testing import FaultySink, fail_before, simulate
from tests.engine import kit, test_subtask
from tests.engine.kit import SCHEMA, ListSink, NumberSource, barrier, rows, segments_of
from tests.engine.whole_job import Job
from tests.state.helpers import segment_of

GROUPS = 8


def holding(bytes_max: int = 1 << 20, wait_ms: float = 1_000.0) -> ListSink:
    sink = ListSink()
    sink.hold = Hold(bytes_max, wait_ms)
    return sink


class Place:
    """One subtask of a sink, with a clock of its own."""

    def __init__(
        self,
        sink: ListSink,
        restored: Iterable[OperatorSnapshot] = (),
        index: int = 0,
        parallelism: int = 1,
        attempt: int = 1,
        schema: pa.Schema = SCHEMA,
    ) -> None:
        self.now_ms = 0.0
        self.sink = sink
        self.operator = SinkOperator(sink)
        self.operator.open(
            OperatorContext(
                job="job",
                operator="out",
                index=index,
                parallelism=parallelism,
                max_parallelism=GROUPS,
                attempt=attempt,
                input_schemas=(schema,),
                now_ms=lambda: self.now_ms,
                wall_ms=lambda: self.now_ms,
                restored=tuple(restored),
                read_segments=segments_of(None),
                to_driver=lambda item: None,
            )
        )

    def write(self, *numbers: int) -> None:
        list(self.operator.process(rows(*numbers), 0))

    def checkpoint(self, number: int, complete: bool = True) -> OperatorSnapshot:
        """What the checkpoint keeps."""
        frozen = self.operator.freeze(SnapshotOrder(CheckpointId(number)))
        segments = tuple(segment_of(table) for table in frozen.tables)
        made = [entry.get() for entry in frozen.transactions]
        work = self.operator.commit_work(CheckpointId(number)) if complete else None
        if work is not None:
            self.operator.commit_done(work())
        return OperatorSnapshot(segments, {}, tuple(each for each in made if each is not None))


def held(snapshot: OperatorSnapshot) -> int:
    return sum(block.rows for segment in snapshot.segments for block in segment.blocks)


# ---- when a transaction ends


def test_rows_wait_in_the_checkpoints_until_the_oldest_has_waited_long_enough() -> None:
    place = Place(holding(wait_ms=1_000))
    for number in range(1, 6):
        place.now_ms = number * 250
        place.write(number)
        assert held(place.checkpoint(number)) == (number if number < 5 else 0)
    assert list(place.sink.visible.values()) == [[1, 2, 3, 4, 5]]
    place.write(6)
    assert held(place.checkpoint(6)) == 1, "the next ones wait anew"


def test_a_transaction_ends_with_the_checkpoint_when_there_are_enough_rows() -> None:
    """Rows that come later go with them: they are of one transaction, and it is not kept open any longer."""
    place = Place(holding(bytes_max=32))
    place.write(1, 2, 3)
    assert held(place.checkpoint(1)) == 3
    place.write(4)
    place.write(5)
    assert held(place.checkpoint(2)) == 0
    assert list(place.sink.visible.values()) == [[1, 2, 3, 4, 5]]
    place.write(6)
    assert held(place.checkpoint(3)) == 1


def test_a_sink_that_does_not_ask_for_it_commits_with_every_checkpoint() -> None:
    place = Place(ListSink())
    for number in (1, 2):
        place.write(number)
        assert held(place.checkpoint(number)) == 0
    assert list(place.sink.visible.values()) == [[1], [2]]


def test_the_end_of_the_input_and_a_stop_hold_nothing_back() -> None:
    for last in ("finish", "hold_nothing_back"):
        place = Place(holding())
        place.write(1)
        place.checkpoint(1)
        getattr(place.operator, last)()
        assert held(place.checkpoint(2)) == 0
        assert place.sink.numbers == [1]


def test_a_checkpoint_that_was_aborted_has_changed_nothing() -> None:
    """C4: rows that it held go on waiting; a transaction that it ended is committed with the next."""
    place = Place(holding())
    place.write(1)
    place.checkpoint(1, complete=False)
    place.write(2)
    place.now_ms = 1_000
    place.checkpoint(2, complete=False)
    place.write(3)
    assert held(place.checkpoint(3)) == 1
    assert place.sink.numbers == [1, 2]


# ---- after a failure


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
def test_held_rows_come_back_once_whatever_the_parallelism_is(parallelism: int) -> None:
    """R1, R6, I16: three subtasks held rows; each row is written by one of those that go on."""
    sink = holding()
    before = [Place(sink, index=index, parallelism=3) for index in range(3)]
    for place in before:
        place.write(*range(10 * before.index(place), 10 * before.index(place) + 5))
    kept = [place.checkpoint(1) for place in before]
    after = [
        Place(sink, kept, index=index, parallelism=parallelism, attempt=2)
        for index in range(parallelism)
    ]
    for place in after:
        place.checkpoint(2)
    assert sink.numbers == [n for first in (0, 10, 20) for n in range(first, first + 5)]


def test_what_was_held_is_written_with_the_next_checkpoint_after_a_restore() -> None:
    """I25: a job that fails more often than it commits would never show a row."""
    place = Place(holding())
    place.write(1)
    kept = place.checkpoint(1)
    again = Place(place.sink, [kept], attempt=2)
    again.write(2)
    assert held(again.checkpoint(2)) == 0
    assert place.sink.numbers == [1, 2]


def test_held_rows_come_back_to_a_sink_that_holds_no_more() -> None:
    place = Place(holding())
    place.write(1)
    kept = place.checkpoint(1)
    place.sink.hold = None
    again = Place(place.sink, [kept], attempt=2)
    again.checkpoint(2)
    assert place.sink.numbers == [1]


def test_held_rows_of_other_columns_are_refused_with_what_to_do() -> None:
    place = Place(holding())
    place.write(1)
    kept = place.checkpoint(1)
    other = pa.schema([("n", pa.string())])
    with pytest.raises(PlanError, match=r"out: the checkpoint holds rows .*job\.stop\(\)"):
        Place(place.sink, [kept], attempt=2, schema=other)


# ---- whole jobs


def test_a_stopped_job_has_committed_the_rows_that_waited() -> None:
    """C3: as without; and few transactions before."""
    store, sink = MemoryStore(), holding(wait_ms=1e9)
    job = Job(NumberSource(3_000), sink, store=store)
    job.until(job.completed(5))
    assert sink.numbers == []
    job.manager.request_stop()
    assert job.run() is Outcome.STOPPED
    assert sink.numbers == list(range(len(sink.numbers))) != []
    again = Job(NumberSource(3_000), sink, store=store, driver="driver-b")
    assert again.run() is Outcome.FINISHED
    assert sink.numbers == list(range(3_000))
    assert len(sink.visible) == 2


def test_a_sink_that_fails_when_the_rows_come_at_last_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They come with a snapshot, and not behind the operator in front of it."""

    def write(self: Any, batch: pa.RecordBatch) -> None:
        raise ValueError("no room")

    monkeypatch.setattr(kit._ListWriter, "write", write)
    job = Job(NumberSource(3_000), holding(wait_ms=1e9), strategy=restart.Never())
    job.until(job.completed(2))
    job.manager.request_stop()
    assert job.run() is Outcome.FAILED
    assert [(info.error, info.operator) for info in job.manager.history.exceptions] == [
        ("ValueError", "out")
    ]


def test_a_barrier_carries_that_it_is_the_last_to_who_has_not_heard_of_it() -> None:
    """C3: the message to this very worker may be late or lost."""
    bench = test_subtask.Bench()
    told: list[str] = []
    operator = bench.subtask.chain._operators[0]
    operator.hold_nothing_back = lambda: told.append("last")  # type: ignore[method-assign]
    n1, n2 = CheckpointId(1), CheckpointId(2)
    for channel in (bench.a, bench.b):
        channel.frames += [
            Batch(rows(1)),
            barrier(n1),
            Barrier(SnapshotOrder(n2, SnapshotKind.STOP)),
        ]
    while bench.subtask.step():
        pass
    assert told == ["last"]
    barriers = [frame for frame in bench.out.frames if isinstance(frame, Barrier)]
    assert barriers == [barrier(n1), Barrier(SnapshotOrder(n2, SnapshotKind.STOP))]


def test_held_rows_survive_every_schedule_of_a_simulation() -> None:
    """I1, I10, I11: crashes, rescales, stops and lost messages; the shipped sink by its stand-in."""
    orders = [(n,) for n in range(60)]
    for every in ("1 ms", "200 ms", "1 hour"):
        sink = FaultySink(pen.FileSink("unused", commit_every=every), [fail_before("commit", 2)])
        report = simulate(pen.from_rows(orders, "n BIGINT").to(sink), seeds=range(60))
        assert report.ok
        assert report.attempts > 60


class OwnFiles(pen.FileSink):
    """Simulations have a stand-in for a `FileSink`; one of the user's own is run as it is."""


def files_of(folder: Path, commit_every: str | None) -> pen.Pipeline:
    sink = OwnFiles(str(folder / "out"), commit_every=commit_every)
    return pen.from_rows([(n,) for n in range(60)], "n BIGINT").to(sink, name="files")


def test_larger_transactions_make_fewer_files_and_the_same_rows() -> None:
    """I1: with real files, in quiet schedules and in bad ones."""
    counts: dict[str | None, int] = {}

    def read(every: str | None, sink: Any) -> list[Any]:
        files = sorted(Path(sink._path).glob("part-*"))
        counts[every] = max(counts.get(every, 0), len(files))
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    for every in (None, "1 hour"):
        build = partial(files_of, commit_every=every)
        assert simulate(
            build, read=partial(read, every), seeds=range(15), parallelism=1, faults=()
        ).ok
        assert simulate(build, read=partial(read, f"{every} with faults"), seeds=range(25)).ok
    assert counts["1 hour"] == 1
    assert (counts[None] or 0) > 3


@pytest.mark.parametrize("wrong", ["0 seconds", "soon", 3])
def test_what_is_no_time_to_wait_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"FileSink\.commit_every"):
        pen.FileSink("unused", commit_every=wrong)
