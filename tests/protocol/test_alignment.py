"""When a subtask takes its snapshot: with blocked channels (exactly once) and without (at least once)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol import alignment, counting
from penstock.protocol.alignment import Aligning, Alignment, GiveUp, Idle, Ignored, Take
from penstock.protocol.counting import Counting
from penstock.protocol.ids import ChannelId, CheckpointId

A, B, C = (ChannelId(0, source, 0) for source in range(3))
N1, N2, N3 = (CheckpointId(n) for n in (1, 2, 3))


def takes(actions: tuple[alignment.Action, ...]) -> list[int]:
    return [action.checkpoint for action in actions if isinstance(action, Take)]


class Machine:
    """Feeds events to either kind of state and remembers what it asked for."""

    def __init__(self, state: Alignment | Counting) -> None:
        self.state: Any = state
        self.rules: ModuleType = alignment if isinstance(state, Alignment) else counting
        self.taken: list[int] = []

    def __call__(self, event: str, *arguments: Any) -> tuple[alignment.Action, ...]:
        self.state, actions = getattr(self.rules, f"on_{event}")(self.state, *arguments)
        self.taken += takes(actions)
        return tuple(actions)


def aligned(*channels: ChannelId) -> Machine:
    return Machine(Alignment(frozenset(channels)))


def counted(*channels: ChannelId) -> Machine:
    return Machine(Counting(frozenset(channels)))


both = pytest.mark.parametrize("make", [aligned, counted])


def test_a_channel_that_delivered_its_barrier_is_blocked_until_all_have() -> None:
    """B3: nothing behind the barrier is processed before the snapshot."""
    machine = aligned(A, B, C)
    machine("barrier", A, N1)
    assert machine.state.blocked == {A}
    machine("barrier", C, N1)
    assert machine.state.blocked == {A, C}
    assert machine("barrier", B, N1) == (Take(N1),)
    assert machine.state.blocked == frozenset()


def test_at_least_once_never_blocks_and_counts_several_snapshots_at_once() -> None:
    """B4."""
    machine = counted(A, B)
    machine("barrier", A, N1)
    machine("barrier", A, N2)
    assert machine.state.blocked == frozenset()
    assert machine("barrier", B, N1) == (Take(N1),)
    assert machine("barrier", B, N2) == (Take(N2),)


@both
def test_a_source_takes_its_snapshot_on_the_trigger(make: Any) -> None:
    """B1, C2: there is no barrier to wait for."""
    machine = make()
    assert machine("trigger", N1) == (Take(N1),)
    assert takes(machine("trigger", N1)) == []


@both
def test_an_announced_snapshot_waits_for_barriers_while_a_channel_is_open(make: Any) -> None:
    machine = make(A)
    machine("trigger", N1)
    machine("trigger", N1)
    assert machine.taken == []
    machine("barrier", A, N1)
    assert machine.taken == [1]


@both
def test_the_last_end_takes_everything_that_was_announced_in_order(make: Any) -> None:
    """B10: who has no input left holds up nobody."""
    machine = make(A, B)
    machine("trigger", N2)
    machine("trigger", N1)
    machine("end", A)
    assert machine.taken == []
    machine("end", B)
    assert machine.taken == [1, 2]


@both
def test_a_channel_that_ended_owes_no_barrier(make: Any) -> None:
    """B10, bug-B7."""
    machine = make(A, B)
    machine("barrier", A, N1)
    machine("end", B)
    assert machine.taken == [1]
    assert machine.state.blocked == frozenset()


@both
def test_an_end_that_comes_twice_changes_nothing(make: Any) -> None:
    machine = make(A, B)
    machine("end", A)
    before = machine.state
    machine("end", A)
    assert machine.state == before


@both
def test_barriers_of_an_aborted_snapshot_start_nothing(make: Any) -> None:
    """B11, C4: wherever they still are when the abort comes."""
    machine = make(A, B)
    machine("barrier", A, N1)
    machine("abort", N1)
    assert machine.state.blocked == frozenset()
    machine("barrier", B, N1)
    machine("barrier", A, N1)
    assert machine.taken == []
    assert machine.state.blocked == frozenset()


@both
def test_an_abort_that_comes_before_its_barrier_is_remembered(make: Any) -> None:
    """bug-B5: the next snapshot aligns as if the aborted one had never been."""
    machine = make(A, B)
    machine("abort", N1)
    for channel in (A, B):
        machine("barrier", channel, N1)
    machine("barrier", A, N2)
    machine("barrier", B, N2)
    assert machine.taken == [2]


def test_a_newer_barrier_gives_the_older_snapshot_up() -> None:
    """B11, bug-B11: a barrier that was lost on one channel does not block the others for ever."""
    machine = aligned(A, B)
    machine("barrier", A, N1)
    actions = machine("barrier", B, N2)
    assert isinstance(actions[0], GiveUp)
    assert actions[0].checkpoint == N1
    assert machine.state.blocked == {B}
    machine("barrier", A, N2)
    assert machine.taken == [2]


@both
def test_an_older_barrier_behind_a_newer_one_is_let_go(make: Any) -> None:
    """bug-B1: 5 completes although 4 still comes on another channel."""
    machine = make(A, B)
    machine("abort", CheckpointId(4))
    machine("barrier", A, CheckpointId(5))
    machine("barrier", B, CheckpointId(4))
    assert machine.taken == []
    machine("barrier", B, CheckpointId(5))
    assert machine.taken == [5]


@both
def test_a_snapshot_is_never_taken_again_or_out_of_order(make: Any) -> None:
    """bug-B2: 1 is told after 2 was taken."""
    machine = make(A)
    machine("barrier", A, N2)
    assert machine("barrier", A, N1) == (Ignored(alignment.Why.STALE),)
    assert machine("trigger", N1) == (Ignored(alignment.Why.STALE),)
    assert machine("abort", N2) == (Ignored(alignment.Why.STALE),)
    assert machine.taken == [2]


STATES = [
    Alignment(frozenset()),
    Alignment(frozenset({A, B})),
    Alignment(frozenset({A, B}), Aligning(N2, frozenset({A}))),
    Alignment(frozenset({A, B}), Idle(), N1, frozenset({N3}), frozenset({N2})),
    Counting(frozenset({A, B}), {N2: frozenset({A})}, N1, frozenset({N3}), frozenset({N2})),
    Counting(frozenset()),
]
EVENTS = [
    *(("trigger", n) for n in (N1, N2, N3)),
    *(("abort", n) for n in (N1, N2, N3)),
    *(("barrier", channel, n) for channel in (A, B) for n in (N1, N2, N3)),
    *(("end", channel) for channel in (A, B)),
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_every_state_answers_every_event_and_a_refusal_changes_nothing(
    state: Alignment | Counting, event: tuple[Any, ...]
) -> None:
    machine = Machine(state)
    actions = machine(*event)
    assert machine.state.last >= state.last
    assert machine.state.open <= state.open
    stale = (Ignored(alignment.Why.STALE),), (Ignored(alignment.Why.REPEATED),)
    if actions in stale:
        assert machine.state == state
    for checkpoint in takes(actions):
        assert not state.is_over(checkpoint)
        assert machine.state.is_over(checkpoint)


@given(st.data())
def test_a_snapshot_is_taken_exactly_between_what_is_before_and_behind_its_barriers(
    data: st.DataObject,
) -> None:
    """B1-B3, B12, I2: any interleaving of the channels, with some snapshots aborted."""
    channels = [A, B, C][: data.draw(st.integers(1, 3))]
    ids = [CheckpointId(n) for n in range(1, data.draw(st.integers(2, 5)))]
    aborted = set(data.draw(st.lists(st.sampled_from(ids), unique=True, max_size=2)))
    queues: dict[ChannelId, list[Any]] = {c: [x for n in ids for x in ("row", n)] for c in channels}
    machine = aligned(*channels)
    for checkpoint in sorted(aborted):
        machine("abort", checkpoint)
    seen = dict.fromkeys(channels, 0)
    while any(queues.values()):
        readable = [c for c in channels if queues[c] and c not in machine.state.blocked]
        assert readable, "deadlock"
        channel = data.draw(st.sampled_from(readable))
        frame = queues[channel].pop(0)
        if frame == "row":
            seen[channel] += 1
            continue
        for checkpoint in takes(machine("barrier", channel, frame)):
            assert set(seen.values()) == {checkpoint}, "rows of the wrong side are in the snapshot"
    assert machine.taken == [n for n in ids if n not in aborted]
