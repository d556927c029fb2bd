"""Commits on a worker: tried again with growing pauses, never skipped, failing the attempt in the end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.engine.operators.connect import SinkOperator
from penstock.engine.worker.committing import FIRST_PAUSE_MS, TRIES_MAX
from penstock.errors import CommitError
from penstock.plan.graph import Forward, Input, LogicalGraph, Node
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import Ack, Committed, SnapshotKind, SnapshotOrder
from tests.engine.kit import Bench, ListSink, NumberSource, pipeline

N1, N2 = CheckpointId(1), CheckpointId(2)


def with_one_complete(sink: ListSink) -> Bench:
    bench = Bench(pipeline(NumberSource(1_000), sink))
    bench.step(3)
    bench.attempt.trigger(SnapshotOrder(N1, SnapshotKind.CHECKPOINT))
    bench.step(2)
    assert bench.said(Ack)
    bench.attempt.completed(N1)
    return bench


def test_a_commit_that_fails_is_tried_again_after_a_pause() -> None:
    """E3."""
    sink = ListSink()
    sink.fail_commits = 1
    bench = with_one_complete(sink)
    bench.step(1)
    assert len(sink.calls) == 1
    bench.step(int(FIRST_PAUSE_MS) // 2)
    assert len(sink.calls) == 1, "not before the pause is over"
    bench.step(int(FIRST_PAUSE_MS))
    assert len(sink.calls) == 2
    assert sink.numbers
    assert bench.said(Committed)[-1].checkpoint == N1


def test_a_commit_that_keeps_failing_fails_the_attempt_and_is_never_skipped() -> None:
    """E3, bug-F8."""
    sink = ListSink()
    sink.fail_commits = 1_000
    bench = with_one_complete(sink)
    with pytest.raises(CommitError, match=rf"sink 'out' .*checkpoint 1, {TRIES_MAX} times.*locked"):
        bench.step(10_000)
    assert len(sink.calls) == TRIES_MAX
    assert not bench.said(Committed)
    assert bench.attempt.current_operator == "out"


def test_a_later_checkpoint_commits_what_an_earlier_one_could_not() -> None:
    """E3: nothing is committed out of order, nothing is left out."""
    sink = ListSink()
    sink.fail_commits = 1
    bench = with_one_complete(sink)
    bench.step(1)
    bench.attempt.trigger(SnapshotOrder(N2, SnapshotKind.CHECKPOINT))
    bench.step(2)
    bench.attempt.completed(N2)
    bench.step(int(FIRST_PAUSE_MS) + 10)
    assert bench.said(Committed)[-1].checkpoint == N2
    assert sink.numbers == list(range(len(sink.numbers)))


def test_being_told_twice_commits_once() -> None:
    """E2: notices are repeated."""
    sink = ListSink()
    bench = with_one_complete(sink)
    bench.attempt.completed(N1)
    bench.step(2)
    bench.attempt.completed(N1)
    bench.step(2)
    assert len(sink.calls) == 1


def test_a_checkpoint_without_rows_is_committed_too() -> None:
    """E3, bug-F17: an empty epoch is confirmed like any other."""
    bench = Bench(pipeline(NumberSource(10, ready=0), ListSink()))
    bench.attempt.trigger(SnapshotOrder(N1, SnapshotKind.CHECKPOINT))
    bench.step(2)
    bench.attempt.completed(N1)
    bench.step(1)
    assert bench.said(Committed)[-1].checkpoint == N1


@pytest.mark.parametrize("kind", [SnapshotKind.FINAL, SnapshotKind.STOP])
@pytest.mark.parametrize("rows", [0, 1_000])
def test_with_the_last_commit_goes_what_lost_workers_have_staged_since(
    kind: SnapshotKind, rows: int
) -> None:
    """I11: also where there is nothing to commit. Nobody comes after this attempt to do it."""
    sink = ListSink()
    bench = Bench(pipeline(NumberSource(rows), sink), attempt=7)
    bench.step(3)
    assert sink.aborted_for == [7], "when it began"
    bench.attempt.trigger(SnapshotOrder(N1, kind))
    bench.step(2)
    bench.attempt.completed(N1)
    bench.step(2)
    assert sink.aborted_for == [7, 7]
    assert bench.said(Committed)[-1].checkpoint == N1


def test_a_last_clean_up_that_fails_is_tried_again_before_anybody_is_told() -> None:
    """I11."""
    sink = ListSink()
    bench = Bench(pipeline(NumberSource(0), sink))
    sink.fail_aborts = 1
    bench.attempt.trigger(SnapshotOrder(N1, SnapshotKind.FINAL))
    bench.step(2)
    bench.attempt.completed(N1)
    bench.step(2)
    assert not bench.said(Committed)
    bench.step(int(FIRST_PAUSE_MS) + 10)
    assert bench.said(Committed)[-1].checkpoint == N1


def test_no_other_commit_asks_a_sink_to_clean_up() -> None:
    """It may have to list a remote folder for that."""
    sink = ListSink()
    with_one_complete(sink).step(2)
    assert sink.aborted_for == [1]


def test_the_loop_is_not_held_up_by_a_slow_commit() -> None:
    sink = ListSink()
    bench = with_one_complete(sink)
    bench.background.held = True
    emitted = bench.attempt.subtasks[0].chain.counts()[0][2]
    bench.step(5)
    assert bench.attempt.subtasks[0].chain.counts()[0][2] > emitted


# ---- several sinks, several tries


def with_two_sinks(first: ListSink, second: ListSink) -> Bench:
    one = pipeline(NumberSource(1_000), first)
    inputs, schema = (Input("work", Forward()),), one.nodes[-1].schema
    another = Node("other", "sink", lambda: SinkOperator(second), inputs, schema, "sink")
    bench = Bench(LogicalGraph((*one.nodes, another)))
    bench.step(3)
    return bench


def complete(bench: Bench, checkpoint: CheckpointId) -> None:
    bench.attempt.trigger(SnapshotOrder(checkpoint, SnapshotKind.CHECKPOINT))
    bench.step(2)
    bench.attempt.completed(checkpoint)


def test_a_worker_has_committed_when_all_its_sinks_have() -> None:
    """E3, I27: a job ends with this word; the sink that is slower would keep rows that nobody ever sees."""
    slow, fast = ListSink(), ListSink()
    for first, second in ((slow, fast), (fast, slow)):
        slow.fail_commits = 1
        bench = with_two_sinks(first, second)
        complete(bench, N1)
        bench.step(2)
        assert fast.numbers and not slow.numbers
        assert not bench.said(Committed)
        bench.step(int(FIRST_PAUSE_MS) + 10)
        assert slow.numbers == fast.numbers
        assert [told.checkpoint for told in bench.said(Committed)] == [N1]
        slow.visible.clear()
        fast.visible.clear()


def test_the_pauses_between_tries_grow() -> None:
    """E3: a table that is locked is not asked all the time."""
    sink = ListSink()
    sink.fail_commits = TRIES_MAX - 1
    bench = with_one_complete(sink)
    times: list[float] = []
    for _ in range(5_000):
        before = len(sink.calls)
        bench.step()
        times += [bench.clock.now_ms] * (len(sink.calls) - before)
    assert len(times) == TRIES_MAX
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert all(later >= 2 * earlier * 0.9 for earlier, later in pairwise(pauses)), pauses


def test_a_commit_that_worked_makes_earlier_failures_forgotten() -> None:
    """E3: a sink that fails now and then does not fail the attempt in the end."""
    sink = ListSink()
    bench = Bench(pipeline(NumberSource(100_000), sink))
    for number in range(1, TRIES_MAX + 3):
        bench.step(3)
        sink.fail_commits = 1
        complete(bench, CheckpointId(number))
        bench.step(int(FIRST_PAUSE_MS) + 10)
        assert bench.said(Committed)[-1].checkpoint == number


def test_an_older_notice_that_comes_late_takes_nothing_back() -> None:
    """E2: also while a commit of the newer one is tried again."""
    sink = ListSink()
    bench = Bench(pipeline(NumberSource(1_000), sink))
    bench.step(3)
    sink.fail_commits = 1
    for checkpoint in (N1, N2):
        bench.attempt.trigger(SnapshotOrder(checkpoint, SnapshotKind.CHECKPOINT))
        bench.step(3)
    bench.attempt.completed(N2)
    bench.step(1)
    bench.attempt.completed(N1)
    bench.step(int(FIRST_PAUSE_MS) + 10)
    assert [told.checkpoint for told in bench.said(Committed)] == [N2]


def test_a_commit_that_failed_for_good_shows_what_the_sink_raised() -> None:
    """E3: its own error, with its traceback, and not only the words of it."""
    sink = ListSink()
    sink.fail_commits = 1_000
    bench = with_one_complete(sink)
    with pytest.raises(CommitError) as caught:
        bench.step(10_000)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.__traceback__ is not None
