"""A first look at a stream: the same operators, run right here, with one subtask each and no checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.engine.operators.base import Operator
from penstock.engine.spec import JobSpec
from penstock.engine.worker.attempt import Attempt
from penstock.plan.graph import Forward, Input, LogicalGraph, Node
from penstock.plan.physical import make_plan
from penstock.ports.background import Background
from penstock.ports.channel import InputChannel, OutputChannel
from penstock.ports.clock import Clock
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, ChannelId, SlotId
from penstock.protocol.messages import Deploy, FromWorker

GROUPS = 128


class _Keep(Operator):
    """The end of the pipeline: keeps the first rows."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0

    def process(self, batch: pa.RecordBatch, port: int) -> tuple[pa.RecordBatch, ...]:
        wanted = batch.slice(0, self.limit - self.rows)
        if wanted.num_rows:
            self.batches.append(wanted)
            self.rows += wanted.num_rows
        return ()


class NoNetwork:
    """All channels lead back into the same process."""

    def bind(self, inputs: Sequence[tuple[ChannelId, object]]) -> dict[str, str]:
        return {}

    def connect(self, outputs: Sequence[tuple[ChannelId, str]]) -> None:
        """Nothing to connect to."""

    def unreached(self) -> Sequence[str]:
        return ()

    def settled(self) -> None:
        """Nobody could come."""

    def check(self) -> None:
        """Nobody could be lost."""

    def input(self, channel: ChannelId) -> InputChannel:
        raise KeyError(channel)

    def output(self, channel: ChannelId) -> OutputChannel:
        raise KeyError(channel)

    def close(self) -> None:
        """Nothing to close."""


def run_inline(
    graph: LogicalGraph, limit: int, clock: Clock, background: Background, idle_ms: float = 5_000.0
) -> pa.Table:
    """The first `limit` rows of the last operator; fewer when the input ends or pauses for `idle_ms`."""
    last = graph.nodes[-1]
    keep = _Keep(limit)
    end = Node("take", "take", lambda: keep, (Input(last.name, Forward()),), last.schema)
    plan = make_plan(replace(graph, nodes=(*graph.nodes, end)), 1, GROUPS)
    deploy = Deploy(AttemptId(1), SlotId(0), NO_CHECKPOINT, ())
    attempt = Attempt(
        JobSpec("take", plan, buffer_timeout_ms=0.0),
        deploy,
        NoNetwork(),
        (None, None),
        clock,
        background,
        _ignore,
    )
    try:
        attempt.prepare()
        attempt.connect({})
        attempt.start()
        quiet_since_ms = clock.monotonic_ms()
        while keep.rows < limit and not all(task.finished for task in attempt.subtasks):
            background.poll()
            if attempt.step():
                quiet_since_ms = clock.monotonic_ms()
            elif clock.monotonic_ms() - quiet_since_ms > idle_ms:
                break
    finally:
        attempt.close()
    return pa.Table.from_batches(keep.batches, schema=last.schema)


def _ignore(message: FromWorker) -> None:
    """Nobody listens."""
