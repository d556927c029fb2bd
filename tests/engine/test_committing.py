"""Commits on a worker: tried again with growing pauses, never skipped, failing the attempt in the end."""

from __future__ import annotations

import pytest

from penstock.engine.committing import FIRST_PAUSE_MS, TRIES_MAX
from penstock.errors import CommitError
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import Ack, Committed, SnapshotKind
from tests.engine.kit import Bench, ListSink, NumberSource, pipeline

N1, N2 = CheckpointId(1), CheckpointId(2)


def with_one_complete(sink: ListSink) -> Bench:
    bench = Bench(pipeline(NumberSource(1_000), sink))
    bench.step(3)
    bench.attempt.trigger(N1, SnapshotKind.CHECKPOINT)
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
    bench.attempt.trigger(N2, SnapshotKind.CHECKPOINT)
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
    bench.attempt.trigger(N1, SnapshotKind.CHECKPOINT)
    bench.step(2)
    bench.attempt.completed(N1)
    bench.step(1)
    assert bench.said(Committed)[-1].checkpoint == N1


def test_the_loop_is_not_held_up_by_a_slow_commit() -> None:
    sink = ListSink()
    bench = with_one_complete(sink)
    bench.background.held = True
    emitted = bench.attempt.subtasks[0].chain.counts()[0][2]
    bench.step(5)
    assert bench.attempt.subtasks[0].chain.counts()[0][2] > emitted
