"""One subtask between its channels: what it reads, what it does not read, what it never waits for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.engine.worker.chain import Chain
from penstock.engine.worker.inputs import Input, Rescued
from penstock.engine.worker.outputs import Output, Outputs
from penstock.engine.worker.partition import make_partitioner
from penstock.engine.worker.snapshots import WriteWork
from penstock.engine.worker.subtask import GivenUp, Subtask, Taken
from penstock.plan.graph import Forward, Hash, LogicalGraph, Node
from penstock.plan.graph import Input as Edge
from penstock.plan.physical import make_plan
from penstock.ports.channel import Barrier, Batch, End
from penstock.protocol.alignment import Alignment
from penstock.protocol.counting import Counting
from penstock.protocol.ids import AttemptId, ChannelId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder
from penstock.storage.memory import MemoryStore
from tests.engine.kit import SCHEMA, Do, ManualClock, ShortChannel, barrier, numbers, rows

A, B = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
N1, N2 = CheckpointId(1), CheckpointId(2)


class Bench:
    """A subtask with two inputs and one output."""

    def __init__(
        self,
        exactly_once: bool = True,
        room: int = 100,
        pointwise: frozenset[ChannelId] = frozenset(),
        inflight_bytes_max: int = 1 << 20,
        rescued: Sequence[Rescued] = (),
    ) -> None:
        self.clock = ManualClock()
        self.seen: list[int] = []
        nodes = (
            Node("in", "map", Do, (), SCHEMA),
            Node(
                "work",
                "map",
                lambda: Do(lambda batch: self.seen.extend(numbers(batch))),
                (Edge("in", Hash(("n",))),),
                SCHEMA,
            ),
            Node("next", "map", Do, (Edge("work", Hash(("n",))),), SCHEMA),
        )
        plan = make_plan(LogicalGraph(nodes), 1, 8)
        self.a, self.b, self.out = ShortChannel(100), ShortChannel(100), ShortChannel(room)
        outputs = [Output(ChannelId(1, 0, 0), self.out)]
        channels = frozenset((A, B))
        aligned = Alignment(channels, pointwise=pointwise)
        self.subtask = Subtask(
            SubtaskId(1, 0),
            Chain(plan.tasks[1]),
            [Input(A, 0, self.a), Input(B, 0, self.b)],
            Outputs({1: (make_partitioner(Forward(), 1, 8), outputs)}),
            aligned if exactly_once else Counting(channels),
            self.clock,
            0.0,
            inflight_bytes_max,
            rescued,
        )

    def run(self) -> None:
        """Until nothing can move."""
        while self.subtask.step():
            self.clock.now_ms += 1
            self.subtask.check()

    @property
    def left(self) -> list:
        return [numbers(f.data) if isinstance(f, Batch) else f for f in self.out.frames]


def test_a_channel_is_not_read_behind_its_barrier_until_the_others_have_theirs() -> None:
    """B3: then it goes on with what waited."""
    bench = Bench()
    bench.a.frames += [Batch(rows(1)), barrier(N1), Batch(rows(2))]
    bench.run()
    assert bench.seen == [1]
    assert bench.subtask.reading() == [B]
    bench.b.frames += [Batch(rows(3)), barrier(N1)]
    bench.run()
    assert bench.seen == [1, 3, 2]
    assert bench.left == [[1], [3], barrier(N1), [2]]


def test_at_least_once_reads_on() -> None:
    """B4."""
    bench = Bench(exactly_once=False)
    bench.a.frames += [Batch(rows(1)), barrier(N1), Batch(rows(2))]
    bench.run()
    assert bench.seen == [1, 2]
    bench.b.frames += [barrier(N1)]
    bench.run()
    assert bench.left == [[1], [2], barrier(N1)]


def test_alignment_takes_as_long_as_the_slowest_channel() -> None:
    """C6."""
    bench = Bench()
    bench.a.frames += [barrier(N1)]
    bench.run()
    bench.clock.now_ms += 500
    bench.b.frames += [barrier(N1)]
    bench.run()
    (taken,) = bench.subtask.news
    assert isinstance(taken, Taken)
    assert 500 <= taken.alignment_ms < 510
    assert taken.alignment_rows == 0


@pytest.mark.parametrize("file", [False, True])
def test_the_rows_that_came_in_while_it_was_aligned_are_counted(file: bool) -> None:
    """C6: those of the channels that were not blocked, and none before or behind."""
    bench = Bench()
    bench.a.frames += [Batch(rows(1, 2)), barrier(N1), Batch(rows(3))]
    bench.run()
    bench.b.frames += [Batch(rows(11, 12)), Batch(rows(13)), barrier(N1), Batch(rows(14))]
    bench.run()
    (taken,) = bench.subtask.news
    assert isinstance(taken, Taken)
    assert taken.alignment_rows == 3
    place = (SlotId(0), AttemptId(1), N1)
    (told,) = WriteWork(MemoryStore(), *place, [taken], bench.clock, -1 if file else 1_000)()
    assert told.timings.alignment_rows == 3


@pytest.mark.parametrize("exactly_once", [True, False])
def test_operators_freeze_what_was_ordered(exactly_once: bool) -> None:
    """B1, S6: also where the word of the coordinator comes late or never; and the barrier goes on as it came."""
    bench = Bench(exactly_once)
    orders: list[SnapshotOrder] = []
    operator = bench.subtask.chain._operators[0]
    freeze = operator.freeze
    operator.freeze = lambda order: orders.append(order) or freeze(order)  # type: ignore[method-assign, func-returns-value]
    order = SnapshotOrder(N2, SnapshotKind.STOP, base=N1)
    bench.a.frames += [Barrier(order)]
    bench.b.frames += [Barrier(order)]
    bench.run()
    bench.subtask.trigger(order)
    assert orders == [order]
    assert bench.left == [Barrier(order)]


def test_an_aborted_alignment_lets_the_blocked_channel_go() -> None:
    """B11."""
    bench = Bench()
    bench.a.frames += [barrier(N1), Batch(rows(1))]
    bench.run()
    assert bench.seen == []
    bench.subtask.abort(N1)
    bench.run()
    assert bench.seen == [1]


def test_a_snapshot_that_was_overtaken_is_given_up_and_said_so() -> None:
    """B11."""
    bench = Bench()
    bench.a.frames += [barrier(N1)]
    bench.b.frames += [barrier(N2)]
    bench.run()
    (news,) = bench.subtask.news
    assert isinstance(news, GivenUp)
    assert news.checkpoint == N1
    assert "barrier 2" in news.reason


def test_a_full_output_stops_reading_and_not_the_barrier_handling_of_others() -> None:
    """Back pressure is per subtask: it takes no input, and a trigger is still answered."""
    bench = Bench(room=0)
    bench.a.frames += [Batch(rows(1)), Batch(rows(2))]
    bench.run()
    assert bench.seen == [1]
    assert bench.subtask.reading() == []
    bench.subtask.trigger(SnapshotOrder(N1, SnapshotKind.CHECKPOINT))
    assert bench.subtask.barriers.pending == {N1}
    bench.out.room = 10
    bench.run()
    assert bench.seen == [1, 2]


def test_it_ends_when_every_input_has() -> None:
    """B10: and takes part in snapshots afterwards without a barrier."""
    bench = Bench()
    bench.a.frames += [End()]
    bench.b.frames += [Batch(rows(1)), End()]
    bench.run()
    assert bench.subtask.finished
    assert bench.left == [[1], End()]
    bench.subtask.trigger(SnapshotOrder(N1, SnapshotKind.FINAL))
    (taken,) = bench.subtask.news
    assert isinstance(taken, Taken)
    assert taken.finished
    assert bench.left == [[1], End()], "nothing goes behind the end"


def test_channels_are_read_in_turn() -> None:
    """No channel starves."""
    bench = Bench()
    bench.a.frames += [Batch(rows(n)) for n in (1, 2, 3)]
    bench.b.frames += [Batch(rows(n)) for n in (11, 12, 13)]
    bench.run()
    assert bench.seen == [1, 11, 2, 12, 3, 13]
