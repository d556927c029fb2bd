"""Exactly once: when a subtask takes its snapshot, and which channels it does not read meanwhile.

Theory of operation. Barrier n splits every channel into what belongs to snapshot n and what does not. A subtask
may take snapshot n when it has processed everything before barrier n on every open channel, and nothing behind
it on any. So a channel that has delivered barrier n is *blocked*: it is not read until all open channels have
delivered n. A channel that has ended owes nothing. A subtask without open channels (a source, or one whose inputs
have all ended) has no barrier to wait for: it goes by the trigger that the coordinator announces to everyone.

A barrier may be late, from a snapshot that was aborted or overtaken: it is let go. A barrier newer than the one
being aligned shows that the older one can no longer come on that channel: the older one is given up.

Every function takes a state and an event and returns the next state and what to do; nothing is changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from penstock.protocol.ids import NO_CHECKPOINT, ChannelId, CheckpointId


@dataclass(frozen=True, slots=True)
class Take:
    """Take the snapshot now: freeze the state, put the barrier behind what was emitted, on every output."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This snapshot can no longer be taken here: tell the coordinator."""

    checkpoint: CheckpointId
    reason: str


class Why(StrEnum):
    STALE = "the snapshot is over or was overtaken by a newer one"
    ANNOUNCED = "waits for the barriers of open channels"
    WAITING = "other channels still owe this barrier"
    REPEATED = "was told already"


@dataclass(frozen=True, slots=True)
class Ignored:
    why: Why


Action: TypeAlias = Take | GiveUp | Ignored


@dataclass(frozen=True, slots=True)
class Idle:
    """No barrier of a live snapshot has arrived."""


@dataclass(frozen=True, slots=True)
class Aligning:
    """Some channels have delivered the barrier of `checkpoint` and are blocked."""

    checkpoint: CheckpointId
    delivered: frozenset[ChannelId]


@dataclass(frozen=True, slots=True)
class Alignment:
    """`open` has the channels that have not ended; `last` is the newest snapshot taken or given up;
    `dead` has aborted ids above `last`; `announced` those that were triggered and not taken."""

    open: frozenset[ChannelId]
    phase: Idle | Aligning = Idle()
    last: CheckpointId = NO_CHECKPOINT
    dead: frozenset[CheckpointId] = frozenset()
    announced: frozenset[CheckpointId] = frozenset()

    @property
    def blocked(self) -> frozenset[ChannelId]:
        if isinstance(self.phase, Aligning):
            return self.phase.delivered & self.open
        return frozenset()

    @property
    def pending(self) -> frozenset[CheckpointId]:
        """Snapshots this subtask knows of and has not taken."""
        if isinstance(self.phase, Aligning):
            return self.announced | {self.phase.checkpoint}
        return self.announced

    def is_over(self, checkpoint: CheckpointId) -> bool:
        return checkpoint <= self.last or checkpoint in self.dead


Step: TypeAlias = tuple[Alignment, tuple[Action, ...]]


def on_trigger(state: Alignment, checkpoint: CheckpointId) -> Step:
    """The coordinator has announced a snapshot."""
    if state.is_over(checkpoint):
        return state, (Ignored(Why.STALE),)
    if not state.open:
        return _taken(state, checkpoint), (Take(checkpoint),)
    if checkpoint in state.announced:
        return state, (Ignored(Why.REPEATED),)
    return replace(state, announced=state.announced | {checkpoint}), (Ignored(Why.ANNOUNCED),)


def on_barrier(state: Alignment, channel: ChannelId, checkpoint: CheckpointId) -> Step:
    """A barrier has come out of a channel."""
    if state.is_over(checkpoint):
        return state, (Ignored(Why.STALE),)
    match state.phase:
        case Idle():
            return _delivered(state, channel, Aligning(checkpoint, frozenset()))
        case Aligning(current, _) if checkpoint < current:
            return state, (Ignored(Why.STALE),)
        case Aligning(current, _) if checkpoint == current:
            return _delivered(state, channel, state.phase)
        case Aligning(current, _):
            older = replace(_given_up(state, current), phase=Idle())
            after, actions = _delivered(older, channel, Aligning(checkpoint, frozenset()))
            return after, (GiveUp(current, f"barrier {checkpoint} overtook it"), *actions)


def on_end(state: Alignment, channel: ChannelId) -> Step:
    """A channel has ended: it owes no barrier any more."""
    if channel not in state.open:
        return state, (Ignored(Why.REPEATED),)
    state = replace(state, open=state.open - {channel})
    if isinstance(state.phase, Aligning) and state.open <= state.phase.delivered:
        return _take_with_announced(state, state.phase.checkpoint)
    return _take_with_announced(state, None)


def on_abort(state: Alignment, checkpoint: CheckpointId) -> Step:
    """The coordinator has given a snapshot up: its barriers, wherever they are, start nothing."""
    if state.is_over(checkpoint):
        return state, (Ignored(Why.STALE),)
    phase = state.phase
    if isinstance(phase, Aligning) and phase.checkpoint == checkpoint:
        phase = Idle()
    after = replace(
        state,
        phase=phase,
        dead=state.dead | {checkpoint},
        announced=state.announced - {checkpoint},
    )
    return after, ()


def _delivered(state: Alignment, channel: ChannelId, phase: Aligning) -> Step:
    delivered = phase.delivered | {channel}
    if state.open <= delivered:
        return _taken(state, phase.checkpoint), (Take(phase.checkpoint),)
    return replace(state, phase=replace(phase, delivered=delivered)), (Ignored(Why.WAITING),)


def _take_with_announced(state: Alignment, aligned: CheckpointId | None) -> Step:
    """Takes the aligned snapshot, and all announced ones in order of their ids if no channel is left."""
    due = [] if aligned is None else [aligned]
    if not state.open:
        due += sorted(n for n in state.announced if n != aligned)
    actions: list[Action] = []
    for checkpoint in sorted(due):
        if not state.is_over(checkpoint):
            state = _taken(state, checkpoint)
            actions.append(Take(checkpoint))
    return state, tuple(actions)


def _taken(state: Alignment, checkpoint: CheckpointId) -> Alignment:
    return replace(_given_up(state, checkpoint), phase=Idle())


def _given_up(state: Alignment, checkpoint: CheckpointId) -> Alignment:
    """Everything up to `checkpoint` is over for this subtask."""
    return replace(
        state,
        last=max(state.last, checkpoint),
        dead=frozenset(n for n in state.dead if n > checkpoint),
        announced=frozenset(n for n in state.announced if n > checkpoint),
    )
