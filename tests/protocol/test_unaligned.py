"""Unaligned snapshots: taken at once, with what is still on its way. State by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.protocol.alignment import (
    Aligning,
    Alignment,
    GiveUp,
    Idle,
    Ignored,
    Recorded,
    Recording,
    Take,
    Why,
    on_abort,
    on_barrier,
    on_barrier_read,
    on_end,
    on_end_read,
    on_overflow,
    on_trigger,
)
from penstock.protocol.ids import ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder

A, B, C = (ChannelId(0, source, 0) for source in range(3))
STEPS = {
    "b": on_barrier,
    "read b": on_barrier_read,
    "end": on_end,
    "read end": on_end_read,
    "trigger": on_trigger,
    "abort": on_abort,
    "overflow": on_overflow,
}


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def o(number: int, urgent: bool = False) -> SnapshotOrder:
    return SnapshotOrder(n(number), urgent=urgent)


def open_(*channels: ChannelId, pointwise: tuple[ChannelId, ...] = ()) -> Alignment:
    return Alignment(frozenset(channels), pointwise=frozenset(pointwise))


def play(state: Alignment, *events: tuple) -> tuple[Alignment, list[object]]:
    actions: list[object] = []
    for what, *rest in events:
        state, more = STEPS[what](state, *rest)
        actions += [action for action in more if not isinstance(action, Ignored)]
    return state, actions


def test_an_urgent_trigger_takes_the_snapshot_at_once_and_records_every_channel() -> None:
    """B7."""
    state, actions = play(open_(A, B), ("trigger", o(1, True)))
    assert actions == [Take(o(1, True), frozenset((A, B)))]
    assert state.phase == Recording(n(1), frozenset((A, B)))
    assert state.aside == {A, B}
    assert not state.blocked


def test_an_urgent_barrier_is_as_good_as_the_trigger() -> None:
    """B7: whichever comes first."""
    state, actions = play(open_(A, B), ("b", A, o(1, True)))
    assert actions == [Take(o(1, True), frozenset((B,)))]
    assert state.aside == {B}
    assert on_trigger(state, o(1, True)) == (state, (Ignored(Why.STALE),))


def test_the_snapshot_is_whole_when_every_channel_has_brought_its_barrier_or_its_end() -> None:
    """B7, bug-C1."""
    state, _ = play(open_(A, B, C), ("trigger", o(1, True)))
    state, actions = play(state, ("read b", A, o(1, True)), ("read end", B))
    assert actions == []
    assert state.aside == {C}
    state, actions = play(state, ("read b", C, o(1, True)))
    assert actions == [Recorded(n(1))]
    assert state.phase == Idle()


def test_a_barrier_that_was_read_already_starts_nothing_when_it_is_processed() -> None:
    state, _ = play(open_(A, B), ("trigger", o(1, True)))
    state, _ = play(state, ("read b", A, o(1, True)), ("read b", B, o(1, True)))
    assert play(state, ("b", A, o(1, True)), ("b", B, o(1, True))) == (state, [])


def test_an_aligned_snapshot_that_is_expedited_keeps_the_channels_that_have_delivered() -> None:
    """B8, bug-B8: only the rows of the others are in flight."""
    state, actions = play(open_(A, B, C), ("trigger", o(1)), ("b", A, o(1)))
    assert actions == []
    assert state.blocked == {A}
    state, actions = play(state, ("trigger", o(1, True)))
    assert actions == [Take(o(1, True), frozenset((B, C)))]
    assert not state.blocked


def test_expediting_what_has_been_taken_changes_nothing() -> None:
    """B8, bug-B8: the timeout at the very last barrier."""
    state, actions = play(open_(A, B), ("b", A, o(1)), ("b", B, o(1)))
    assert actions == [Take(o(1))]
    assert on_trigger(state, o(1, True)) == (state, (Ignored(Why.STALE),))


def test_a_pointwise_channel_aligns_and_the_others_are_read_aside_meanwhile() -> None:
    """B7, bug-C6, bug-C7: a broadcast edge never has rows in flight."""
    state, actions = play(open_(A, B, C, pointwise=(C,)), ("trigger", o(1, True)))
    assert actions == []
    assert state.aside == {A, B}
    assert state.blocked == {A, B}
    state, actions = play(state, ("read b", A, o(1, True)))
    assert actions == []
    assert state.aside == {B}
    state, actions = play(state, ("b", C, o(1, True)))
    assert actions == [Take(o(1, True), frozenset((A, B)))]
    assert state.phase == Recording(n(1), frozenset((B,)))


def test_pointwise_channels_that_end_hold_nothing_up() -> None:
    """B10."""
    state, _ = play(open_(A, C, pointwise=(C,)), ("trigger", o(1, True)))
    _, actions = play(state, ("end", C))
    assert actions == [Take(o(1, True), frozenset((A,)))]


def test_a_subtask_without_open_channels_takes_it_whole() -> None:
    """B10: a source, or one whose inputs have ended."""
    _, actions = play(open_(), ("trigger", o(1, True)))
    assert actions == [Take(o(1, True))]
    _, actions = play(open_(A), ("end", A), ("trigger", o(1, True)))
    assert actions == [Take(o(1, True))]


def test_a_channel_whose_end_was_read_is_recorded_and_not_waited_for() -> None:
    """B10: its queue is still in flight."""
    state, _ = play(open_(A, B), ("trigger", o(1, True)), ("read end", A), ("abort", n(1)))
    state, actions = play(state, ("trigger", o(2, True)))
    assert actions == [Take(o(2, True), frozenset((A, B)))]
    assert state.aside == {B}
    state, _ = play(state, ("end", A))
    assert state.aside == {B}


def test_an_aborted_recording_stops_and_its_barriers_start_nothing() -> None:
    """B11, bug-C12."""
    state, _ = play(open_(A, B), ("trigger", o(1, True)))
    state, actions = play(state, ("abort", n(1)))
    assert (state.phase, actions) == (Idle(), [])
    assert not state.aside
    _, actions = play(state, ("b", A, o(1, True)), ("trigger", o(1, True)))
    assert actions == []


def test_a_newer_barrier_shows_that_the_older_one_will_never_come() -> None:
    """B11, bug-B11: the barrier of 1 was taken out of a queue of the sender."""
    state, _ = play(open_(A, B), ("trigger", o(1, True)))
    state, actions = play(state, ("read b", A, o(2, True)))
    assert [type(action) for action in actions] == [GiveUp, Take]
    assert actions[1] == Take(o(2, True), frozenset((A, B)))
    assert state.phase == Recording(n(2), frozenset((B,)))


def test_a_newer_aligned_barrier_that_was_read_ahead_waits_for_its_turn() -> None:
    """B11: after an overflow the next snapshot is aligned."""
    state, _ = play(open_(A, B), ("trigger", o(1, True)))
    state, actions = play(state, ("read b", A, o(2)))
    assert [type(action) for action in actions] == [GiveUp]
    assert state.phase == Idle()
    state, actions = play(state, ("b", A, o(2)))
    assert state.phase == Aligning(o(2), frozenset((A,)))
    _, actions = play(state, ("b", B, o(2)))
    assert actions == [Take(o(2))]


def test_expediting_a_snapshot_whose_barrier_waits_in_a_queue_does_not_read_behind_it() -> None:
    """B8, I3: rows behind the barrier are not in flight."""
    state, _ = play(open_(A, B), ("trigger", o(1, True)), ("read b", A, o(2)))
    state, actions = play(state, ("trigger", o(2, True)))
    assert actions == [Take(o(2, True), frozenset((A, B)))]
    assert state.aside == {B}


def test_a_snapshot_that_a_newer_barrier_in_a_queue_has_overtaken_is_given_up() -> None:
    """B11."""
    state, _ = play(open_(A, B), ("trigger", o(1, True)), ("read b", A, o(3)))
    _, actions = play(state, ("trigger", o(2, True)))
    assert [(type(a), a.checkpoint) for a in actions] == [(GiveUp, n(2))]


def test_a_newer_trigger_ends_a_recording() -> None:
    """B11: only one is pending at a time, so the older one is over."""
    state, _ = play(open_(A, B), ("trigger", o(1, True)))
    after, actions = play(state, ("trigger", o(2)))
    assert [(type(a), a.checkpoint) for a in actions] == [(GiveUp, n(1))]
    assert after.phase == Idle()
    _, actions = play(state, ("trigger", o(2, True)))
    assert [type(a) for a in actions] == [GiveUp, Take]
    assert actions[1].order == o(2, True)


def test_an_older_trigger_does_not_end_a_recording() -> None:
    state, _ = play(open_(A, B), ("trigger", o(2, True)))
    assert on_trigger(state, o(1, True)) == (state, (Ignored(Why.STALE),))
    assert on_barrier(state, A, o(1, True)) == (state, (Ignored(Why.STALE),))


def test_what_grows_too_large_is_given_up() -> None:
    """I26."""
    state, actions = play(
        open_(A, B), ("trigger", o(1, True)), ("overflow", "300 MiB are in flight")
    )
    assert actions[-1] == GiveUp(n(1), "300 MiB are in flight")
    assert state.phase == Idle()
    assert state.is_over(n(1))
    assert on_overflow(state, "again") == (state, (Ignored(Why.STALE),))


def test_an_announced_snapshot_is_pending_until_it_is_whole() -> None:
    """C4: what the coordinator's table no longer has is aborted, a recording too."""
    state, _ = play(open_(A), ("trigger", o(1, True)))
    assert state.pending == {n(1)}
    state, _ = play(state, ("read b", A, o(1, True)))
    assert state.pending == frozenset()


# ---- what an order says


@pytest.mark.parametrize("first", ["trigger", "b"])
def test_whoever_meets_an_order_first_knows_all_about_it(first: str) -> None:
    """B1, S6: the snapshot that is taken is the one that was ordered: its kind, and what it builds on."""
    order = SnapshotOrder(n(5), SnapshotKind.STOP, base=n(3))
    told = {"trigger": ("trigger", order), "b": ("b", A, order)}
    _, actions = play(open_(A), told[first], ("b", A, order))
    assert actions == [Take(order)]
    _, actions = play(open_(A), told["trigger"], ("end", A))
    assert actions == [Take(order)]


def test_an_order_that_becomes_urgent_stays_what_it_is() -> None:
    """B8, S6: by the message that says so, or by a barrier that comes as urgent."""
    order = SnapshotOrder(n(5), base=n(3))
    urgent = replace(order, urgent=True)
    for hurry in (("trigger", urgent), ("b", B, urgent)):
        state, _ = play(open_(A, B, C), ("trigger", order), ("b", A, order))
        _, actions = play(state, hurry)
        (take,) = actions
        assert take.order == urgent
