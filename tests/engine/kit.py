"""What tests of the engine stand on: a clock set by hand, work that ends when it is told to, small pipelines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.base import (
    END,
    EndOfInput,
    Sink,
    SinkCommitter,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceReader,
    Wait,
)
from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.engine.operators.connect import SinkOperator, SourceOperator
from penstock.engine.spec import JobSpec, Mode
from penstock.engine.worker.attempt import Attempt
from penstock.engine.worker.inline import NoNetwork
from penstock.engine.worker.snapshots import reader
from penstock.plan.graph import Forward, Hash, Input, LogicalGraph, Node, Partitioning
from penstock.plan.physical import make_plan
from penstock.ports.background import one_by_one
from penstock.ports.channel import Barrier, Frame
from penstock.ports.control import DriverLost
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import Deploy, FromWorker, SnapshotOrder, ToWorker
from penstock.protocol.snapshot import Plain, Segment, SubtaskSnapshot
from penstock.storage.memory import MemoryStore

SCHEMA = pa.schema([("n", pa.int64())])


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


def numbers(batch: pa.RecordBatch) -> list[int]:
    return batch.column(0).to_pylist()


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> float:
        return 1_000_000.0 + self.now_ms


class HeldBackground:
    """Work is done when the owner polls; while `held`, not even then."""

    def __init__(self) -> None:
        self.held = False
        self.waiting: deque[tuple[Callable, Callable, Callable]] = deque()

    def submit(self, work: Callable, done: Callable, failed: Callable) -> None:
        self.waiting.append((work, done, failed))

    def each(self, works: Iterable[Callable]) -> Generator:
        return one_by_one(works)

    def poll(self) -> bool:
        if self.held or not self.waiting:
            return False
        while self.waiting and not self.held:
            work, done, failed = self.waiting.popleft()
            try:
                result = work()
            except Exception as error:
                failed(error)
            else:
                done(result)
        return True

    def close(self) -> None:
        self.waiting.clear()


def barrier(checkpoint: CheckpointId, urgent: bool = False) -> Barrier:
    return Barrier(SnapshotOrder(checkpoint, urgent=urgent))


def segments_of(
    store: CheckpointStore | None,
) -> Callable[[Sequence[Segment], range], Iterable[pa.RecordBatch]]:
    """How an operator of a test reads its state back."""
    read = reader(store)
    return lambda segments, groups: (batch for each in segments for batch in read(each, groups))


class ShortChannel:
    """An output with room for `room` frames. Its reader `confirms` every barrier at once, or none."""

    confirms = True

    def __init__(self, room: int) -> None:
        self.room = room
        self.frames: list[Frame] = []
        self.confirmations: list[CheckpointId] = []
        self.closed = False

    def try_send(self, frame: Frame) -> bool:
        if len(self.frames) >= self.room:
            return False
        self.frames.append(frame)
        if self.confirms and isinstance(frame, Barrier):
            self.confirm(frame.order.id)
        return True

    def try_receive(self) -> Frame | None:
        return self.frames.pop(0) if self.frames else None

    def confirm(self, checkpoint: CheckpointId) -> None:
        self.confirmations.append(checkpoint)

    def confirmed(self) -> CheckpointId:
        return max(self.confirmations, default=CheckpointId(0))

    def close(self) -> None:
        self.closed = True


# ---- sources, operators, sinks


class NumberSource(Source):
    """The numbers 0.. in lane 0, `step` at a time; after `ready` of them it has to be waited for."""

    def __init__(self, total: int, step: int = 2, ready: int | None = None) -> None:
        self.total, self.step, self.ready = total, step, total if ready is None else ready
        self.lag: Any = {}
        """What its readers say about how far behind they are."""

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        return _NumberReader(self, context, positions)


class _NumberReader(SourceReader):
    def __init__(
        self, source: NumberSource, context: SourceContext, positions: Mapping[int, Plain]
    ) -> None:
        self.source, self.context = source, context
        self.at = int(positions.get(0, 0))  # type: ignore[arg-type]

    def poll(self, max_rows: int) -> pa.RecordBatch | Wait | EndOfInput:
        if 0 not in self.context.lanes or self.at >= self.source.total:
            return END
        if self.at >= self.source.ready:
            return Wait(self.context.now_ms() + 10)
        start = self.at
        self.at = min(self.at + min(self.source.step, max_rows), self.source.total)
        return rows(*range(start, self.at))

    def positions(self) -> Mapping[int, Plain]:
        return {0: self.at} if 0 in self.context.lanes else {}

    def describe(self) -> str:
        return f"number {self.at}"

    def lag(self) -> Mapping[str, float]:
        told: Mapping[str, float] = self.source.lag
        return told


class Do(Operator):
    """Calls a function with every batch; may fail on purpose at any of its moments."""

    def __init__(self, work: Callable[[pa.RecordBatch], Any] = lambda batch: None) -> None:
        self.work = work
        self.at: dict[str, Exception] = {}
        self.closed = 0

    def _maybe_fail(self, moment: str) -> None:
        if moment in self.at:
            raise self.at[moment]

    def open(self, context: OperatorContext) -> None:
        self._maybe_fail("open")

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        self.work(batch)
        return (batch,)

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        self._maybe_fail("freeze")
        return FrozenOperator()

    def close(self) -> None:
        self.closed += 1
        self._maybe_fail("close")


class ListSink(Sink):
    """Commits to a list that tests can see. `fail_commits` is how many commits fail before one succeeds."""

    def __init__(self, idempotent: bool = False) -> None:
        self.idempotent = idempotent
        self.visible: dict[str, list[int]] = {}
        self.calls: list[str] = []
        self.fail_commits = 0
        self.fail_aborts = 0
        self.prepare_error: Exception | None = None
        self.prepared: Any = None
        """What every `prepare` gives, where a test wants something else."""
        self.aborted_for: list[int] = []

    @property
    def numbers(self) -> list[int]:
        return sorted(n for part in self.visible.values() for n in part)

    def writer(self, context: SinkContext) -> SinkWriter:
        return _ListWriter(self, context)

    def committer(self, context: SinkContext) -> SinkCommitter:
        return _ListCommitter(self, context)


class _ListWriter(SinkWriter):
    def __init__(self, sink: ListSink, context: SinkContext) -> None:
        self.sink, self.context, self.rows = sink, context, []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += numbers(batch)

    def prepare(self, checkpoint: int) -> Plain | Callable[[], Plain]:
        if not self.rows:
            return None
        taken, self.rows = self.rows, []
        name = f"{self.context.index}/{checkpoint}/{self.context.attempt}"

        def seal() -> Plain:
            if self.sink.prepare_error is not None:
                raise self.sink.prepare_error
            return {"name": name, "rows": taken}

        return seal if self.sink.prepared is None else self.sink.prepared


class _ListCommitter(SinkCommitter):
    def __init__(self, sink: ListSink, context: SinkContext) -> None:
        self.sink, self.context = sink, context

    def commit(self, transaction: Plain) -> None:
        assert isinstance(transaction, dict)
        name = str(transaction["name"])
        self.sink.calls.append(name)
        if self.sink.fail_commits:
            self.sink.fail_commits -= 1
            raise OSError("the table is locked")
        self.sink.visible[name] = transaction["rows"]  # type: ignore[assignment]

    def abort_others(self, keep: Sequence[Plain]) -> None:
        if self.sink.fail_aborts:
            self.sink.fail_aborts -= 1
            raise OSError("the table is locked")
        self.sink.aborted_for.append(self.context.attempt)


# ---- pipelines


def pipeline(
    source: Source,
    sink: Sink,
    operator: Callable[[], Operator] = Do,
    edge: Partitioning = Forward(),  # noqa: B008
) -> LogicalGraph:
    """source > work > sink, in one chain unless `edge` says otherwise."""
    return LogicalGraph(
        (
            Node("numbers", "source", lambda: SourceOperator(source), (), SCHEMA, "source"),
            Node("work", "map", operator, (Input("numbers", edge),), SCHEMA),
            Node(
                "out",
                "sink",
                lambda: SinkOperator(sink),
                (Input("work", Forward()),),
                SCHEMA,
                "sink",
            ),
        )
    )


def two_tasks(source: Source, sink: Sink, operator: Callable[[], Operator] = Do) -> LogicalGraph:
    return pipeline(source, sink, operator, Hash(("n",)))


class Bench:
    """One attempt on one worker, with everything around it in memory."""

    def __init__(
        self,
        graph: LogicalGraph,
        *,
        store: CheckpointStore | None = None,
        restored: tuple[SubtaskSnapshot, ...] = (),
        attempt: int = 1,
        inline_bytes_max: int = 16_384,
        mode: Mode = Mode.EXACTLY_ONCE,
        **options: Any,
    ) -> None:
        self.clock = ManualClock()
        self.background = HeldBackground()
        self.store = store or MemoryStore()
        self.sent: list[FromWorker] = []
        self.plan = make_plan(graph, 1, 8)
        spec = JobSpec(
            "job",
            self.plan,
            mode,
            buffer_timeout_ms=0.0,
            open_store=lambda: self.store,
            inline_bytes_max=inline_bytes_max,
            **options,
        )
        deploy = Deploy(AttemptId(attempt), SlotId(0), CheckpointId(0), restored)
        self.attempt = Attempt(
            spec,
            deploy,
            NoNetwork(),
            (self.store, self.store),
            self.clock,
            self.background,
            self.sent.append,
        )
        self.attempt.prepare()
        self.attempt.connect({})
        self.attempt.start()

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.now_ms += 1
            self.attempt.step()
            self.background.poll()

    def run_out(self) -> None:
        """Until every subtask has finished."""
        for _ in range(10_000):
            self.step()
            if all(subtask.finished for subtask in self.attempt.subtasks):
                return
        raise AssertionError("the attempt does not finish")

    def said(self, kind: type) -> list:
        return [message for message in self.sent if isinstance(message, kind)]


# ---- the control plane


class ListDriver:
    """The worker's side: messages are put in by hand."""

    def __init__(self) -> None:
        self.inbox: deque[ToWorker] = deque()
        self.sent: list[FromWorker] = []
        self.gone = False

    def receive(self) -> Sequence[ToWorker]:
        if self.gone and not self.inbox:
            raise DriverLost("gone")
        taken = list(self.inbox)
        self.inbox.clear()
        return taken

    def send(self, message: FromWorker) -> None:
        self.sent.append(message)


class NoHost:
    """One slot only: there is nobody to have a channel to."""

    def network(self, attempt: int) -> NoNetwork:
        return NoNetwork()

    def wait(
        self,
        timeout_ms: float,
        *,
        waiting_for_room: Sequence[Any],
        reading: Sequence[Any] | None = None,
    ) -> None:
        """Never waits."""
