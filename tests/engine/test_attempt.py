"""One deployment on one worker: subtasks, snapshots, commits; everything around it in memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import FrozenOperator, OperatorContext
from penstock.engine.operators.connect import SourceOperator
from penstock.engine.spec import Mode
from penstock.engine.worker.snapshots import WriteWork
from penstock.engine.worker.subtask import Taken
from penstock.errors import CommitError
from penstock.plan.graph import Broadcast, Hash, Input, LogicalGraph, Node
from penstock.protocol.alignment import Alignment
from penstock.protocol.counting import Counting
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import (
    Ack,
    Committed,
    Decline,
    Finished,
    SnapshotKind,
    SnapshotOrder,
    Sync,
)
from penstock.protocol.snapshot import Segment
from penstock.state.aggregates import count
from penstock.state.frozen import Out
from penstock.storage.memory import MemoryStore
from tests.engine.kit import (
    SCHEMA,
    Bench,
    Do,
    ListSink,
    ManualClock,
    NumberSource,
    pipeline,
    two_tasks,
)

N1, N2 = CheckpointId(1), CheckpointId(2)
CHECKPOINT, STOP, FINAL = SnapshotKind.CHECKPOINT, SnapshotKind.STOP, SnapshotKind.FINAL


def lanes(ack: Ack) -> dict:
    (part,) = [p.operators["numbers"] for p in ack.snapshots if "numbers" in p.operators]
    return dict(part.lanes)


def transactions(ack: Ack) -> list:
    (part,) = [p.operators["out"] for p in ack.snapshots if "out" in p.operators]
    return [n for entry in part.transactions for n in entry["rows"]]  # type: ignore[index, call-overload]


@pytest.mark.parametrize("allowed", [False, True])
def test_operators_are_told_whether_state_may_go(allowed: bool) -> None:
    """R8, S10."""
    told = []

    class Asks(Do):
        def open(self, context: OperatorContext) -> None:
            told.append(context.allow_non_restored_state)

    graph = pipeline(NumberSource(2), ListSink(), Asks)
    Bench(graph, allow_non_restored_state=allowed)
    assert told == [allowed]


# ---- snapshots


@pytest.mark.parametrize(
    ("mode", "rules"), [(Mode.EXACTLY_ONCE, Alignment), (Mode.AT_LEAST_ONCE, Counting)]
)
def test_the_mode_of_the_job_says_whether_barriers_are_aligned_or_counted(
    mode: Mode, rules: type
) -> None:
    """B3, B4."""
    bench = Bench(two_tasks(NumberSource(100), ListSink()), mode=mode)
    assert [type(subtask.barriers) for subtask in bench.attempt.subtasks] == [rules, rules]


def test_one_answer_per_worker_when_all_its_subtasks_have_taken_theirs() -> None:
    """C2."""
    bench = Bench(two_tasks(NumberSource(100), ListSink()))
    bench.step(3)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.background.poll()
    assert bench.said(Ack) == []
    bench.step(5)
    (ack,) = bench.said(Ack)
    assert [part.subtask for part in ack.snapshots] == [SubtaskId(0, 0), SubtaskId(1, 0)]


@pytest.mark.parametrize(("inline_bytes_max", "files"), [(0, ["chk-1/0-1"]), (16_384, [])])
def test_a_workers_state_is_one_file_or_none_where_it_is_small(
    inline_bytes_max: int, files: list[str]
) -> None:
    """T6: what is small travels in the acknowledgement, and so in the metadata."""
    count_per_key = partial(RunningAggregate, ("n",), {"rows": count()})
    graph = two_tasks(NumberSource(100), ListSink(), count_per_key)
    bench = Bench(graph, inline_bytes_max=inline_bytes_max)
    bench.step(3)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.step(6)
    (ack,) = bench.said(Ack)
    (segment,) = [
        s for part in ack.snapshots for op in part.operators.values() for s in op.segments
    ]
    assert bench.store.list() == files
    assert [segment.file] == (files or [""])
    assert (segment.inline is None) == bool(files)


def test_a_snapshot_has_just_the_rows_before_the_source_positions() -> None:
    """C2, B2, I2, bug-B4: what the sink has pre-committed is what lies before the position."""
    bench = Bench(two_tasks(NumberSource(100), ListSink()))
    bench.step(4)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.step(6)
    (ack,) = bench.said(Ack)
    position = lanes(ack)[0]
    assert transactions(ack) == list(range(position))


def test_the_stream_goes_on_while_the_snapshot_is_written() -> None:
    """B2."""
    sink = ListSink()
    bench = Bench(pipeline(NumberSource(40), sink))
    bench.step(2)
    bench.background.held = True
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    before = bench.attempt.subtasks[0].chain.counts()[0][2]
    bench.step(5)
    assert bench.attempt.subtasks[0].chain.counts()[0][2] > before
    assert bench.said(Ack) == []


def test_a_write_that_fails_declines_the_snapshot() -> None:
    """C4."""

    class FullStore(MemoryStore):
        def write(self, name: str, chunks: object) -> int:
            raise OSError("no space left on device")

    count_per_key = partial(RunningAggregate, ("n",), {"rows": count()})
    graph = pipeline(NumberSource(10), ListSink(), count_per_key)
    bench = Bench(graph, store=FullStore(), inline_bytes_max=0)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.background.poll()
    (decline,) = bench.said(Decline)
    assert "no space left on device" in decline.reason
    bench.step(1)


def test_rows_that_cannot_be_made_durable_fail_the_attempt() -> None:
    """E3, bug-F7: no later snapshot could do without them, so declining one would decline all."""
    sink = ListSink()
    sink.prepare_error = OSError("quota exceeded")
    bench = Bench(pipeline(NumberSource(10), sink))
    bench.step(2)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.background.poll()
    assert bench.said(Decline) == bench.said(Ack) == []
    with pytest.raises(CommitError, match="sink 'out'.*quota exceeded"):
        bench.step()


def test_a_transaction_of_an_aborted_snapshot_goes_with_the_next() -> None:
    """C4, E3."""
    sink = ListSink()
    bench = Bench(pipeline(NumberSource(100), sink))
    bench.step(2)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.step(1)
    bench.attempt.abort(N1)
    bench.step(2)
    bench.attempt.trigger(SnapshotOrder(N2, CHECKPOINT))
    bench.step(1)
    second = bench.said(Ack)[-1]
    assert second.checkpoint == N2
    assert transactions(second) == list(range(lanes(second)[0]))
    bench.attempt.completed(N2)
    bench.step(1)
    assert sink.numbers == list(range(lanes(second)[0]))


def test_nothing_is_visible_before_the_checkpoint_is_complete() -> None:
    """C3, E2, I9."""
    sink = ListSink()
    bench = Bench(pipeline(NumberSource(20), sink))
    bench.step(3)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.step(5)
    assert sink.visible == {}
    bench.attempt.completed(N1)
    bench.step(1)
    assert sink.numbers
    assert bench.said(Committed)[-1].checkpoint == N1


def test_a_commit_covers_nothing_of_the_next_snapshot() -> None:
    """E3."""
    sink = ListSink()
    bench = Bench(pipeline(NumberSource(100), sink))
    bench.step(3)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.step(3)
    bench.attempt.trigger(SnapshotOrder(N2, CHECKPOINT))
    bench.step(1)
    bench.attempt.completed(N1)
    bench.step(1)
    assert sink.numbers == list(range(lanes(bench.said(Ack)[0])[0]))


# ---- the end of input, and stopping


def test_a_finished_subtask_takes_part_in_later_snapshots() -> None:
    """B10."""
    sink = ListSink()
    bench = Bench(two_tasks(NumberSource(6), sink))
    bench.run_out()
    assert bench.said(Finished)[-1].subtasks == (SubtaskId(0, 0), SubtaskId(1, 0))
    bench.attempt.trigger(SnapshotOrder(N1, FINAL))
    bench.step(1)
    (ack,) = bench.said(Ack)
    assert all(part.finished for part in ack.snapshots)
    bench.attempt.completed(N1)
    bench.step(1)
    assert sink.numbers == list(range(6))


def test_a_source_pauses_behind_a_stop_barrier_and_goes_on_when_it_is_aborted() -> None:
    bench = Bench(pipeline(NumberSource(1_000), ListSink()))
    bench.step(2)
    bench.attempt.trigger(SnapshotOrder(N1, STOP))
    emitted = bench.attempt.subtasks[0].chain.counts()[0][2]
    bench.step(5)
    assert bench.attempt.subtasks[0].chain.counts()[0][2] == emitted
    assert bench.attempt.wake_ms() is None
    bench.attempt.abort(N1)
    bench.step(2)
    assert bench.attempt.subtasks[0].chain.counts()[0][2] > emitted


def test_a_plain_snapshot_pauses_nothing() -> None:
    """B2."""
    bench = Bench(pipeline(NumberSource(1_000), ListSink()))
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.step(3)
    assert bench.attempt.subtasks[0].chain.counts()[0][2] > 0


def test_a_source_with_nothing_to_give_is_asked_again_in_time() -> None:
    bench = Bench(pipeline(NumberSource(10, ready=2), ListSink()))
    bench.step(3)
    assert bench.attempt.wake_ms() == pytest.approx(bench.clock.now_ms + 10, abs=2)


# ---- restoring


def test_a_restored_attempt_goes_on_where_the_snapshot_was_and_commits_what_it_promised() -> None:
    """R1, E2: every transaction of the checkpoint again, everything else is aborted."""
    sink = ListSink()
    first = Bench(pipeline(NumberSource(30), sink))
    first.step(4)
    first.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    first.step(3)
    (ack,) = first.said(Ack)
    first.attempt.close()
    second = Bench(pipeline(NumberSource(30), sink), restored=ack.snapshots, attempt=2)
    assert sink.numbers == list(range(lanes(ack)[0]))
    assert sink.aborted_for[-1] == 2
    second.run_out()
    second.attempt.trigger(SnapshotOrder(N2, FINAL))
    second.step(1)
    second.attempt.completed(N2)
    second.step(1)
    assert sink.numbers == list(range(30))


def test_committing_the_same_promise_again_changes_nothing() -> None:
    """E2, I10."""
    sink = ListSink()
    first = Bench(pipeline(NumberSource(30), sink))
    first.step(4)
    first.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    first.step(3)
    (ack,) = first.said(Ack)
    first.attempt.completed(N1)
    first.step(1)
    before = dict(sink.visible)
    Bench(pipeline(NumberSource(30), sink), restored=ack.snapshots, attempt=2)
    Bench(pipeline(NumberSource(30), sink), restored=ack.snapshots, attempt=3)
    assert sink.visible == before
    assert Counter(sink.calls)[sink.calls[0]] == 3


# ---- lost messages, old attempts


def test_the_table_of_live_snapshots_heals_a_lost_trigger_and_a_lost_notice() -> None:
    """Nothing relies on one message arriving."""
    sink = ListSink()
    bench = Bench(pipeline(NumberSource(1_000), sink))
    bench.step(2)
    table = Sync(bench.attempt.id, (SnapshotOrder(N1, STOP),), N1, CheckpointId(0))
    bench.attempt.sync(table)
    bench.step(1)
    assert [ack.checkpoint for ack in bench.said(Ack)] == [N1]
    bench.attempt.sync(Sync(bench.attempt.id, (), N1, N1))
    bench.step(1)
    assert sink.numbers


def test_the_table_of_live_snapshots_ends_one_whose_abort_was_lost() -> None:
    """B11: its barrier, which is on its way, starts nothing."""
    bench = Bench(two_tasks(NumberSource(1_000), ListSink()))
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.attempt.sync(Sync(bench.attempt.id, (), N1, CheckpointId(0)))
    bench.step(5)
    assert bench.said(Ack) == []


def test_an_answer_that_was_lost_is_said_again_and_not_all_the_time() -> None:
    bench = Bench(pipeline(NumberSource(1_000), ListSink()))
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.step(1)
    table = Sync(bench.attempt.id, (SnapshotOrder(N1, CHECKPOINT),), N1, CheckpointId(0))
    for _ in range(4):
        bench.attempt.sync(table)
    assert len(bench.said(Ack)) == 1
    for _ in range(13):
        bench.attempt.sync(table)
    assert len(bench.said(Ack)) == 4
    bench.attempt.sync(Sync(bench.attempt.id, (), N1, N1))
    for _ in range(40):
        bench.attempt.sync(table)
    assert len(bench.said(Ack)) == 4


def test_a_snapshot_that_is_too_new_for_the_table_is_left_alone() -> None:
    """The table may be older than the trigger that overtook it."""
    bench = Bench(two_tasks(NumberSource(1_000), ListSink()))
    bench.attempt.trigger(SnapshotOrder(N2, CHECKPOINT))
    bench.attempt.sync(Sync(bench.attempt.id, (), N1, CheckpointId(0)))
    bench.step(5)
    assert [ack.checkpoint for ack in bench.said(Ack)] == [N2]


class Kept:
    """Frozen state that holds on to memory until it is released, and cannot be written."""

    held = True

    def write(self, out: Out) -> tuple[Segment, ...]:
        raise OSError("no memory left")

    def release(self) -> None:
        self.held = False


class Keeping(Do):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Kept] = []

    def freeze(self, order: SnapshotOrder) -> FrozenOperator:
        self.kept.append(Kept())
        return FrozenOperator(tables=(self.kept[-1],))


def kept_in(bench: Bench) -> list[Kept]:
    (operator,) = [
        each for task in bench.attempt.subtasks for each in task.chain._operators
        if isinstance(each, Keeping)
    ]  # fmt: skip
    return operator.kept


@pytest.mark.parametrize("end", ["abort", "a newer one completes", "close", "the write fails"])
def test_a_snapshot_that_is_over_holds_on_to_no_state(end: str) -> None:
    """S4, I26: one of two subtasks has frozen its state, and the table under it saves every row that changes for it,
    until it is let go. It is never written."""
    first = pipeline(NumberSource(100), ListSink(), Keeping)
    nodes = [
        replace(node, inputs=_by_key(node)) if node.name == "out" else node for node in first.nodes
    ]
    bench = Bench(LogicalGraph(tuple(nodes)))
    bench.step(2)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    (frozen,) = kept_in(bench)
    assert frozen.held
    match end:
        case "abort":
            bench.attempt.abort(N1)
        case "a newer one completes":
            bench.attempt.completed(N2)
        case "close":
            bench.attempt.close()
        case _:
            bench.step(5)
            assert bench.said(Decline)
    assert not frozen.held


def test_a_job_without_checkpoints_holds_on_to_no_state_either() -> None:
    """S4, I26: its snapshots are for commits only, and nothing is written."""
    kept = Kept()
    taken = Taken(SubtaskId(0, 0), N1, {"op": FrozenOperator(tables=(kept,))}, False, 0, 0)
    (told,) = WriteWork(None, SlotId(0), AttemptId(1), N1, [taken], ManualClock(), 0)()
    assert not kept.held
    assert told.operators["op"].segments == ()


def test_a_transaction_with_nothing_in_it_is_not_promised() -> None:
    """E2: a sink may find out late that there is nothing to commit, while it makes its rows durable."""
    sink = ListSink()
    sink.prepared = lambda: None
    bench = Bench(pipeline(NumberSource(100), sink))
    bench.step(2)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.step(2)
    (ack,) = bench.said(Ack)
    assert [p.operators["out"].transactions for p in ack.snapshots] == [()]
    bench.attempt.completed(N1)
    bench.step(2)
    assert sink.calls == []
    assert bench.said(Committed)[-1].checkpoint == N1


def test_what_is_committed_is_not_promised_again() -> None:
    """E2: the next snapshot has what came after it, and no more."""
    bench = Bench(pipeline(NumberSource(1_000), ListSink()))
    for checkpoint in (N1, N2):
        bench.step(3)
        bench.attempt.trigger(SnapshotOrder(checkpoint, CHECKPOINT))
        bench.step(2)
        bench.attempt.completed(checkpoint)
        bench.step(2)
    first, second = bench.said(Ack)
    assert min(transactions(second)) > max(transactions(first))


def _by_key(node: Node) -> tuple[Input, ...]:
    return tuple(replace(entry, partitioning=Hash(("n",))) for entry in node.inputs)


def test_only_pointwise_edges_are_aligned_in_an_unaligned_snapshot() -> None:
    """B7: a subtask that reads a broadcast beside keyed rows records the keyed ones, and waits for the broadcast
    alone."""
    source = NumberSource(100)
    inputs = (Input("rules", Broadcast()), Input("numbers", Hash(("n",))))
    bench = Bench(
        LogicalGraph(
            (
                Node("rules", "source", lambda: SourceOperator(source), (), SCHEMA, "source"),
                Node("numbers", "source", lambda: SourceOperator(source), (), SCHEMA, "source"),
                Node("work", "map", Do, inputs, SCHEMA),
            )
        )
    )
    barriers = bench.attempt.subtasks[2].barriers
    assert isinstance(barriers, Alignment)
    assert len(barriers.open) == 2
    ports = {bench.plan.edges[channel.edge].port for channel in barriers.pointwise}
    assert ports == {0}


def test_a_closed_attempt_says_nothing_whatever_ends_late() -> None:
    """bug-I8: an upload of the old attempt that ends late changes nothing."""
    sink = ListSink()
    bench = Bench(pipeline(NumberSource(100), sink))
    bench.step(2)
    bench.background.held = True
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.attempt.completed(N1)
    bench.attempt.close()
    said = len(bench.sent)
    bench.background.held = False
    bench.background.poll()
    assert len(bench.sent) == said


# ---- slices and order


def test_a_slow_operator_works_in_slices_and_the_barrier_waits_for_the_last_one() -> None:
    """B1, B3: the rest of a batch that was cut stays before what came behind it."""
    sink = ListSink()
    sizes: list[int] = []
    bench: Bench

    def slow(batch: object) -> None:
        sizes.append(batch.num_rows)  # type: ignore[attr-defined]
        bench.clock.now_ms += batch.num_rows * 20.0  # type: ignore[attr-defined]

    bench = Bench(two_tasks(NumberSource(64, step=16), sink, lambda: Do(slow)))
    bench.step(4)
    bench.attempt.trigger(SnapshotOrder(N1, CHECKPOINT))
    bench.run_out()
    bench.step(3)
    assert sizes[0] == 16
    assert max(sizes[1:]) <= 2, "later batches are cut to what fits into a slice"
    (ack,) = bench.said(Ack)
    assert transactions(ack) == list(range(lanes(ack)[0]))


def test_slices_grow_again_when_the_operator_is_fast_again() -> None:
    sizes: list[int] = []
    bench: Bench

    def slow_at_first(batch: object) -> None:
        sizes.append(batch.num_rows)  # type: ignore[attr-defined]
        bench.clock.now_ms += 400.0 if len(sizes) == 1 else 0.0

    bench = Bench(two_tasks(NumberSource(200, step=16), ListSink(), lambda: Do(slow_at_first)))
    bench.run_out()
    assert sizes[1] == 1
    assert sizes[-1] > 4
