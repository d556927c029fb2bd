"""What the engine itself costs per batch: a source, a channel and a sink that do nothing, on batches of one row.

The limit is a bare Python loop that hands the same batch from the same source to the same sink.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import pyarrow as pa

import penstock as pen
from bench.figures import Figure, middle, within
from bench.sizes import Sizes
from penstock.engine.spec import JobSpec
from penstock.engine.worker.inline import NoNetwork
from penstock.engine.worker.inputs import Input, Recorder
from penstock.engine.worker.local_channel import LocalChannel
from penstock.engine.worker.worker import Worker
from penstock.plan.physical import make_plan
from penstock.ports.channel import Batch
from penstock.protocol.alignment import Alignment
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, ChannelId, CheckpointId, SlotId
from penstock.protocol.messages import Deploy, FromWorker, Start, ToWorker
from penstock.protocol.snapshot import Plain
from penstock.shells.spark.background import ThreadBackground
from penstock.shells.spark.clock import RealClock

SCHEMA = pa.schema([("n", pa.int64())])
FEW_US = 5.0
FORWARDED, BARE = "one worker, one channel", "bare loop"


class SameBatch(pen.Source):
    """The same row again and again."""

    bounded = False

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def reader(self, context: pen.SourceContext, positions: Mapping[int, Plain]) -> SameBatchReader:
        return SameBatchReader()


class SameBatchReader(pen.SourceReader):
    def __init__(self) -> None:
        self._batch = pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA)

    def poll(self, max_rows: int) -> pa.RecordBatch:
        return self._batch

    def positions(self) -> Mapping[int, Plain]:
        return {}


class _Orders:
    """`ports.control.Driver`: hands the worker what it is told to do."""

    def __init__(self, messages: Sequence[ToWorker]) -> None:
        self._messages = deque(messages)

    def receive(self) -> Sequence[ToWorker]:
        return (self._messages.popleft(),) if self._messages else ()

    def send(self, message: FromWorker) -> None:
        """Nobody listens."""


class _OneProcess(NoNetwork):
    """`ports.control.Host` and `Network` of a worker that has no others."""

    def network(self, attempt: int) -> _OneProcess:
        return self

    def wait(
        self,
        timeout_ms: float,
        *,
        waiting_for_room: Sequence[ChannelId],
        reading: Sequence[ChannelId] | None = None,
    ) -> None:
        """Never asleep: there is always a batch."""


def new_worker() -> Worker:
    stream = pen.from_source(SameBatch()).rebalance()
    graph = stream.to(pen.BlackholeSink()).graph()
    spec = JobSpec("loop", make_plan(graph, 1, 128), buffer_timeout_ms=0.0)
    attempt = AttemptId(1)
    orders = _Orders([Deploy(attempt, SlotId(0), NO_CHECKPOINT, ()), Start(attempt, {})])
    background = ThreadBackground(threads=0)
    worker = Worker(lambda: spec, orders, _OneProcess(), RealClock(), background)
    while worker.attempt is None or not worker.attempt.running:
        worker.step()
    return worker


def batches_of(worker: Worker) -> int:
    """How many one-row batches have reached the sink."""
    assert worker.attempt is not None
    return worker.attempt.subtasks[-1].chain.rows_in[-1]


def engine_us(batches: int) -> float:
    """Microseconds of the loop per batch that went the whole way."""
    worker = new_worker()
    try:
        first, began_s = batches_of(worker), time.perf_counter()
        while batches_of(worker) - first < batches:
            worker.step()
        return (time.perf_counter() - began_s) / batches * 1e6
    finally:
        worker.close()


def bare_us(batches: int) -> float:
    reader, sink = SameBatchReader(), pen.BlackholeSink()
    place = pen.SinkContext("loop", "sink", 0, 1, 1, SCHEMA, lambda item: None)
    writer = sink.writer(place)
    began_s = time.perf_counter()
    for _ in range(batches):
        writer.write(reader.poll(1))
    return (time.perf_counter() - began_s) / batches * 1e6


def protocol_us(batches: int) -> float:
    """What a subtask with four inputs asks of the protocol before each batch, while nothing is under way."""
    barriers = Alignment(frozenset(ChannelId(0, source, 0) for source in range(4)))
    channel, asked = ChannelId(0, 3, 0), 0
    began_s = time.perf_counter()
    for _ in range(batches):
        if not barriers.aside and channel not in barriers.blocked | barriers.aside:
            asked += 1
    return (time.perf_counter() - began_s) / asked * 1e6


def recording_us(batches: int) -> float:
    """What it costs to set a batch aside and to record it while a snapshot takes the rows in flight with it."""
    channel = ChannelId(0, 0, 0)
    entry = Input(channel, 0, LocalChannel())
    recorder = Recorder([entry], CheckpointId(1))
    row = pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA)
    began_s = time.perf_counter()
    for _ in range(batches):
        frame = Batch(row)
        entry.put(frame)
        recorder.add(channel, frame)
        entry.take_queued()
    return (time.perf_counter() - began_s) / batches * 1e6


def run(sizes: Sizes) -> list[Figure]:
    engine, bare, protocol, recording = [], [], [], []
    for _ in range(sizes.repetitions):
        engine.append(engine_us(sizes.loop_batches))
        bare.append(bare_us(sizes.loop_batches))
        protocol.append(protocol_us(sizes.loop_batches))
        recording.append(recording_us(sizes.loop_batches))
    return [
        Figure(
            *("engine", f"{FORWARDED}, per batch", middle(engine), "us", BARE, middle(bare)),
            samples=tuple(engine),
        ),
        within("engine", "asking the protocol, per batch", protocol, "us", FEW_US),
        within("engine", "recording while in flight, per batch", recording, "us", FEW_US),
    ]
