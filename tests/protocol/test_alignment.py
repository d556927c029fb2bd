"""Exactly once: when a subtask takes its snapshot, and what it does not read meanwhile. State by event."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.protocol.alignment import (
    Aligning,
    Alignment,
    GiveUp,
    Idle,
    Ignored,
    Take,
    Why,
    on_abort,
    on_barrier,
    on_end,
    on_trigger,
)
from penstock.protocol.ids import ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotOrder

A, B, C = (ChannelId(0, source, 0) for source in range(3))


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def o(number: int, urgent: bool = False) -> SnapshotOrder:
    return SnapshotOrder(n(number), urgent=urgent)


def open_(*channels: ChannelId) -> Alignment:
    return Alignment(frozenset(channels))


def play(state: Alignment, *events: tuple) -> tuple[Alignment, list[object]]:
    """Events are ("b", channel, id), ("end", channel), ("trigger", id), ("abort", id); returns all actions."""
    actions: list[object] = []
    for what, *rest in events:
        step = {"b": on_barrier, "end": on_end, "trigger": on_trigger, "abort": on_abort}[what]
        state, more = step(state, *rest)
        actions += [action for action in more if not isinstance(action, Ignored)]
    return state, actions


# ---- aligning


def test_a_channel_that_delivered_its_barrier_is_blocked_until_all_have() -> None:
    """B3."""
    state, actions = play(open_(A, B), ("b", A, o(1)))
    assert actions == []
    assert state.blocked == {A}
    state, actions = play(state, ("b", B, o(1)))
    assert actions == [Take(o(1))]
    assert state.blocked == frozenset()


@pytest.mark.parametrize("order", list(itertools.permutations((A, B, C))))
def test_the_snapshot_is_taken_with_the_last_barrier_in_any_order(order: tuple) -> None:
    """B3, B12: over all channels, whatever input they belong to."""
    state, actions = play(open_(A, B, C), *[("b", channel, o(1)) for channel in order[:2]])
    assert actions == []
    state, actions = play(state, ("b", order[2], o(1)))
    assert actions == [Take(o(1))]


def test_one_channel_needs_no_waiting() -> None:
    """B2."""
    _, actions = play(open_(A), ("b", A, o(1)), ("b", A, o(2)))
    assert actions == [Take(o(1)), Take(o(2))]


def test_a_trigger_alone_starts_nothing_where_barriers_will_come() -> None:
    """B1: the barrier in the channel decides, not the message beside it; bug-B2."""
    state, actions = on_trigger(open_(A), o(1))
    assert actions == (Ignored(Why.ANNOUNCED),)
    assert state.phase == Idle()
    assert state.pending == {n(1)}


def test_a_source_takes_its_snapshot_on_the_trigger() -> None:
    """B1, C2."""
    _, actions = play(open_(), ("trigger", o(1)), ("trigger", o(1)))
    assert actions == [Take(o(1))]


# ---- aborted, late and overtaken


def test_a_newer_barrier_gives_the_older_snapshot_up() -> None:
    """B11, bug-B1: barrier 5 on one channel, then a late 4 on another."""
    state, actions = play(open_(A, B), ("b", A, o(4)), ("b", B, o(5)))
    assert [type(action) for action in actions] == [GiveUp]
    assert actions[0].checkpoint == n(4)
    assert state.blocked == {B}
    state, actions = play(state, ("b", A, o(5)))
    assert actions == [Take(o(5))]


def test_an_obsolete_barrier_behind_a_newer_one_is_let_go() -> None:
    """bug-B1: chk 4 was declined upstream; 5 comes first on one channel, 4 on the other."""
    state, actions = play(open_(A, B), ("b", A, o(5)), ("b", B, o(4)))
    assert actions == []
    assert state.blocked == {A}
    _, actions = play(state, ("b", B, o(5)))
    assert actions == [Take(o(5))]


def test_an_abort_between_the_barriers_unblocks() -> None:
    """B11, bug-B5: A has 1 and 2, B has the abort of 1 and then 2."""
    state, actions = play(open_(A, B), ("b", A, o(1)), ("abort", n(1)))
    assert state.blocked == frozenset()
    state, actions = play(state, ("b", A, o(2)), ("b", B, o(2)))
    assert actions == [Take(o(2))]


def test_a_barrier_of_an_aborted_snapshot_starts_nothing_wherever_it_still_is() -> None:
    """B11, C4."""
    state, actions = play(open_(A, B), ("abort", n(1)), ("b", A, o(1)), ("b", B, o(1)))
    assert actions == []
    assert state.blocked == frozenset()


def test_an_abort_of_one_snapshot_leaves_the_next_alone() -> None:
    """B11, bug-A5."""
    _, actions = play(open_(A, B), ("b", A, o(2)), ("abort", n(1)), ("b", B, o(1)), ("b", B, o(2)))
    assert actions == [Take(o(2))]


def test_a_lost_barrier_holds_up_only_its_own_snapshot() -> None:
    """bug-B11: B never gets barrier 1; 2 completes all the same."""
    state, actions = play(open_(A, B), ("b", A, o(1)), ("b", B, o(2)), ("b", A, o(2)))
    assert Take(o(2)) in actions
    assert state.blocked == frozenset()


# ---- ends


def test_an_ended_channel_owes_no_barrier() -> None:
    """B10."""
    _, actions = play(open_(A, B), ("b", A, o(1)), ("end", B))
    assert actions == [Take(o(1))]


def test_a_subtask_without_open_inputs_goes_by_the_trigger() -> None:
    """B10, bug-B7: the barrier comes by message because no channel could bring it."""
    state, actions = play(open_(A), ("end", A), ("trigger", o(3)))
    assert actions == [Take(o(3))]
    assert state.blocked == frozenset()


def test_the_last_end_takes_what_was_announced_in_order_of_ids() -> None:
    """B10."""
    _, actions = play(open_(A), ("trigger", o(2)), ("trigger", o(1)), ("end", A))
    assert actions == [Take(o(1)), Take(o(2))]


def test_an_end_that_comes_again_changes_nothing() -> None:
    """B10: End is idempotent."""
    state, _ = play(open_(A, B), ("end", A))
    again, actions = on_end(state, A)
    assert again == state
    assert actions == (Ignored(Why.REPEATED),)


def test_an_aborted_announcement_is_not_taken_at_the_end() -> None:
    """B11."""
    _, actions = play(open_(A), ("trigger", o(1)), ("abort", n(1)), ("end", A))
    assert actions == []


# ---- every state answers every event

STATES = {
    "idle": open_(A, B),
    "announced": play(open_(A, B), ("trigger", o(5)))[0],
    "aligning": play(open_(A, B), ("b", A, o(5)))[0],
    "aligning, next announced": play(open_(A, B), ("b", A, o(5)), ("trigger", o(6)))[0],
    "aborted": play(open_(A, B), ("abort", n(5)))[0],
    "taken": play(open_(A, B), ("b", A, o(5)), ("b", B, o(5)))[0],
    "one ended": play(open_(A, B), ("end", A))[0],
    "all ended": play(open_(A, B), ("end", A), ("end", B))[0],
    "source": open_(),
}
EVENTS = [
    *[("b", channel, o(i)) for channel in (A, B) for i in (4, 5, 6)],
    *[("trigger", o(i)) for i in (4, 5, 6)],
    *[("abort", n(i)) for i in (4, 5, 6)],
    ("end", A),
    ("end", B),
]


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_every_state_answers_every_event(name: str, event: tuple) -> None:
    """A refused event changes nothing; a snapshot is taken at most once; ids only grow."""
    state = STATES[name]
    what, *rest = event
    step = {"b": on_barrier, "end": on_end, "trigger": on_trigger, "abort": on_abort}[what]
    after, actions = step(state, *rest)
    if actions in ((Ignored(Why.STALE),), (Ignored(Why.REPEATED),)):
        assert after == state
    assert after.last >= state.last
    for action in actions:
        if isinstance(action, Take):
            assert not state.is_over(action.order.id)
            assert after.is_over(action.order.id)
    assert after.blocked <= after.open
    assert not any(checkpoint <= after.last for checkpoint in after.dead | after.pending)


# ---- random lives


class AlignmentLife(RuleBasedStateMachine):
    """Channels that deliver increasing barriers, with some left out, aborts at any time, and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.state = open_(A, B, C)
        self.sent = dict.fromkeys((A, B, C), 0)
        self.taken: list[int] = []
        self.aborted: set[int] = set()

    def _do(self, step: tuple) -> None:
        before = self.state.last
        self.state, actions = step
        for action in actions:
            if isinstance(action, Take):
                taken = action.order.id
                assert taken > before
                assert taken not in self.aborted
                owing = [c for c in self.state.open if self.sent[c] < taken]
                assert not owing, f"taken although {owing} may still bring rows of it"
                self.taken.append(taken)

    @rule(channel=st.sampled_from((A, B, C)), skip=st.integers(1, 2))
    def barrier(self, channel: ChannelId, skip: int) -> None:
        if channel in self.state.open and channel not in self.state.blocked:
            self.sent[channel] += skip
            self._do(on_barrier(self.state, channel, o(self.sent[channel])))

    @rule(channel=st.sampled_from((A, B, C)))
    def end(self, channel: ChannelId) -> None:
        if channel not in self.state.blocked:
            self._do(on_end(self.state, channel))

    @rule(id=st.integers(1, 12))
    def abort(self, id: int) -> None:
        if id not in self.taken:
            self.aborted.add(id)
        self._do(on_abort(self.state, n(id)))

    @rule(id=st.integers(1, 12))
    def trigger(self, id: int) -> None:
        self._do(on_trigger(self.state, o(id)))

    @precondition(lambda self: bool(self.state.blocked))
    @rule()
    def the_rest_delivers(self) -> None:
        """Whoever is waited for can always end the wait."""
        phase = self.state.phase
        assert isinstance(phase, Aligning)
        for channel in sorted(self.state.open - self.state.blocked):
            if self.sent[channel] < phase.checkpoint and self.state.phase == phase:
                self.sent[channel] = phase.checkpoint
                self._do(on_barrier(self.state, channel, phase.order))
                phase = self.state.phase
                if not isinstance(phase, Aligning):
                    break

    @invariant()
    def snapshots_are_taken_in_order_and_once(self) -> None:
        assert self.taken == sorted(set(self.taken))

    @invariant()
    def only_open_channels_are_blocked_and_never_all(self) -> None:
        assert self.state.blocked <= self.state.open
        assert not self.state.open or self.state.blocked != self.state.open


AlignmentLife.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, derandomize=True
)
TestAlignmentLife = AlignmentLife.TestCase


@settings(derandomize=True, deadline=None)
@given(st.data())
def test_a_snapshot_holds_just_the_rows_before_its_barriers(data: st.DataObject) -> None:
    """B1-B3, B12, I2, bug-B4: any interleaving of the channels, with some snapshots aborted."""
    channels = [A, B, C][: data.draw(st.integers(1, 3))]
    ids = [n(i) for i in range(1, data.draw(st.integers(2, 5)))]
    aborted = set(data.draw(st.lists(st.sampled_from(ids), unique=True, max_size=2)))
    queues: dict[ChannelId, list] = {c: [x for i in ids for x in ("row", i)] for c in channels}
    state, _ = play(open_(*channels), *[("abort", i) for i in sorted(aborted)])
    seen, taken = dict.fromkeys(channels, 0), []
    while any(queues.values()):
        readable = [c for c in channels if queues[c] and c not in state.blocked]
        assert readable, "deadlock"
        channel = data.draw(st.sampled_from(readable))
        frame = queues[channel].pop(0)
        if frame == "row":
            seen[channel] += 1
            continue
        state, actions = play(state, ("b", channel, o(frame)))
        for action in actions:
            assert set(seen.values()) == {action.order.id}, "rows of the wrong side are in it"
            taken.append(action.order.id)
    assert taken == [i for i in ids if i not in aborted]
