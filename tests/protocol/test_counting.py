"""At least once: barriers are counted, nothing is blocked. State by event."""

from __future__ import annotations

import pytest

from penstock.protocol.alignment import Ignored, Take, Why
from penstock.protocol.counting import Counting, on_abort, on_barrier, on_end, on_trigger
from penstock.protocol.ids import ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotOrder

A, B = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
STEPS = {"b": on_barrier, "end": on_end, "trigger": on_trigger, "abort": on_abort}


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def o(number: int, urgent: bool = False) -> SnapshotOrder:
    return SnapshotOrder(n(number), urgent=urgent)


def play(state: Counting, *events: tuple) -> tuple[Counting, list[object]]:
    actions: list[object] = []
    for what, *rest in events:
        state, more = STEPS[what](state, *rest)
        actions += [action for action in more if not isinstance(action, Ignored)]
        assert state.blocked == frozenset(), "at least once never blocks a channel"
    return state, actions


def open_(*channels: ChannelId) -> Counting:
    return Counting(frozenset(channels))


def test_the_snapshot_is_taken_when_the_last_barrier_comes() -> None:
    """B4."""
    state, actions = play(open_(A, B), ("b", A, o(1)))
    assert actions == []
    _, actions = play(state, ("b", B, o(1)))
    assert actions == [Take(o(1))]


def test_several_snapshots_are_counted_at_once() -> None:
    """B4, B6: A is two barriers ahead of B."""
    _, actions = play(open_(A, B), ("b", A, o(1)), ("b", A, o(2)), ("b", B, o(1)), ("b", B, o(2)))
    assert actions == [Take(o(1)), Take(o(2))]


def test_a_newer_snapshot_ends_the_count_of_older_ones() -> None:
    """B11: a barrier that never comes holds up nothing."""
    state, actions = play(open_(A, B), ("b", A, o(1)), ("b", A, o(2)), ("b", B, o(2)))
    assert actions == [Take(o(2))]
    assert state.pending == frozenset()
    _, actions = play(state, ("b", B, o(1)))
    assert actions == []


def test_an_aborted_count_is_let_go_and_late_barriers_with_it() -> None:
    """B11, C4."""
    _, actions = play(open_(A, B), ("b", A, o(1)), ("abort", n(1)), ("b", B, o(1)))
    assert actions == []


@pytest.mark.parametrize("channels", [(), (A,), (A, B)])
def test_an_abort_that_comes_before_its_trigger_is_remembered(
    channels: tuple[ChannelId, ...],
) -> None:
    """B11, C4: neither the trigger that comes late nor the barriers start what nobody waits for any more."""
    barriers = [("b", channel, o(1)) for channel in channels]
    state, actions = play(open_(*channels), ("abort", n(1)), ("trigger", o(1)), *barriers)
    assert actions == []
    assert state.pending == frozenset()
    barriers = [("b", channel, o(2)) for channel in channels]
    _, actions = play(state, ("trigger", o(2)), *barriers)
    assert actions == [Take(o(2))], "the next one is taken"


def test_an_ended_channel_counts_for_everything() -> None:
    """B10."""
    _, actions = play(open_(A, B), ("b", A, o(1)), ("b", A, o(2)), ("end", B))
    assert actions == [Take(o(1)), Take(o(2))]


def test_without_open_channels_the_trigger_decides() -> None:
    """B10."""
    _, actions = play(open_(A), ("trigger", o(1)), ("end", A), ("trigger", o(2)))
    assert actions == [Take(o(1)), Take(o(2))]


STATES = {
    "idle": open_(A, B),
    "announced": play(open_(A, B), ("trigger", o(5)))[0],
    "counting": play(open_(A, B), ("b", A, o(5)))[0],
    "counting two": play(open_(A, B), ("b", A, o(5)), ("b", A, o(6)))[0],
    "aborted": play(open_(A, B), ("abort", n(5)))[0],
    "taken": play(open_(A, B), ("b", A, o(5)), ("b", B, o(5)))[0],
    "one ended": play(open_(A, B), ("end", A))[0],
    "all ended": play(open_(A, B), ("end", A), ("end", B))[0],
    "source": open_(),
}
EVENTS = [
    *[("b", channel, o(i)) for channel in (A, B) for i in (4, 5, 6)],
    *[("trigger", o(i, urgent)) for i in (4, 5, 6) for urgent in (False, True)],
    *[("abort", n(i)) for i in (4, 5, 6)],
    ("end", A),
    ("end", B),
]


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_every_state_answers_every_event(name: str, event: tuple) -> None:
    """A refused event changes nothing; a snapshot is taken at most once; ids only grow."""
    state = STATES[name]
    after, actions = STEPS[event[0]](state, *event[1:])
    if actions in ((Ignored(Why.STALE),), (Ignored(Why.REPEATED),)):
        assert after == state
    assert after.last >= state.last
    assert after.blocked == frozenset()
    for action in actions:
        if isinstance(action, Take):
            assert not state.is_over(action.order.id)
            assert after.is_over(action.order.id)
    assert not any(k <= after.last for k in after.dead | after.pending)
