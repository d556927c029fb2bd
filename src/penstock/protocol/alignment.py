"""Exactly once: when a subtask takes its snapshot, and which channels it does not process meanwhile.

Theory of operation. Barrier n splits every channel into what belongs to snapshot n and what does not.

*Aligned.* A subtask may take snapshot n when it has processed everything before barrier n on every open channel, and
nothing behind it on any. So a channel that has delivered barrier n is *blocked* until all open channels have. A
channel that has ended owes nothing. A subtask without open channels (a source, or one whose inputs have all ended)
has no barrier to wait for: it goes by the trigger that the coordinator announces to everyone.

*Unaligned*, or *urgent*. The snapshot is taken at once, and the rows before barrier n on the channels that still owe
it become part of it: the subtask is *recording*. Such a channel is read *aside*, into a queue, as fast as frames
come, until its barrier or its end is there; what is in the queue is processed in order, meanwhile or later. A
*pointwise* channel (broadcast, forward) always aligns: while one owes, only these are processed and the others are
read aside, then the snapshot is taken.

So there are two moments in the life of a frame: it is *read* into a queue, and it is *processed*. Where nothing is
read aside they are one, and only processing is told.

A barrier may be late, from a snapshot that was aborted or overtaken: it is let go. A barrier newer than the one being
aligned or recorded shows that the older one can no longer come on that channel: the older one is given up.

Every function takes a state and an event and returns the next state and what to do; nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from penstock.protocol.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotOrder

_NONE: frozenset[ChannelId] = frozenset()


@dataclass(frozen=True, slots=True)
class Take:
    """Take the snapshot now: freeze the state, put the barrier behind what was emitted, on every output.

    `record` has the channels whose queues, up to this barrier, belong to the snapshot. If the subtask is recording
    afterwards the snapshot is whole with `Recorded`, otherwise at once."""

    order: SnapshotOrder
    record: frozenset[ChannelId] = _NONE


@dataclass(frozen=True, slots=True)
class Recorded:
    """The last channel has delivered its barrier: all that was in flight is there."""

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


Action: TypeAlias = Take | Recorded | GiveUp | Ignored


@dataclass(frozen=True, slots=True)
class Idle:
    """No barrier of a live snapshot has arrived."""


@dataclass(frozen=True, slots=True)
class Aligning:
    """Some channels have delivered the barrier of this snapshot and are blocked. An urgent one waits for pointwise
    channels only."""

    order: SnapshotOrder
    delivered: frozenset[ChannelId]

    @property
    def checkpoint(self) -> CheckpointId:
        return self.order.id


@dataclass(frozen=True, slots=True)
class Recording:
    """The snapshot is taken; what these channels bring before their barrier is still to become part of it."""

    checkpoint: CheckpointId
    waiting: frozenset[ChannelId]


@dataclass(frozen=True, slots=True)
class Alignment:
    """`open` has the channels whose end was not processed; `last` is the newest snapshot taken or given up; `dead` has
    aborted ids above `last`; `announced` those that were triggered and not taken."""

    open: frozenset[ChannelId]
    phase: Idle | Aligning | Recording = Idle()
    last: CheckpointId = NO_CHECKPOINT
    dead: frozenset[CheckpointId] = frozenset()
    announced: frozenset[SnapshotOrder] = frozenset()
    pointwise: frozenset[ChannelId] = _NONE
    """Channels that always align."""
    read: Mapping[ChannelId, CheckpointId] = field(default_factory=dict)
    """The newest barrier that was read aside, by channel."""
    end_read: frozenset[ChannelId] = _NONE
    """Channels whose end was read aside."""

    @property
    def blocked(self) -> frozenset[ChannelId]:
        """Nothing of these channels may be processed now."""
        phase = self.phase
        if not isinstance(phase, Aligning):
            return _NONE
        if phase.order.urgent:
            return (phase.delivered | (self.open - self.pointwise)) & self.open
        return phase.delivered & self.open

    @property
    def aside(self) -> frozenset[ChannelId]:
        """These channels are read into their queues, whatever else the subtask waits for."""
        phase = self.phase
        if isinstance(phase, Recording):
            return phase.waiting
        if isinstance(phase, Aligning) and phase.order.urgent:
            return self._owing(phase.checkpoint, self.open - phase.delivered - self.pointwise)
        return _NONE

    @property
    def pending(self) -> frozenset[CheckpointId]:
        """Snapshots this subtask knows of and has not finished."""
        announced = frozenset(order.id for order in self.announced)
        return announced if isinstance(self.phase, Idle) else announced | {self.phase.checkpoint}

    def is_over(self, checkpoint: CheckpointId) -> bool:
        return checkpoint <= self.last or checkpoint in self.dead

    def _owing(
        self, checkpoint: CheckpointId, channels: frozenset[ChannelId]
    ) -> frozenset[ChannelId]:
        """Those that have not brought this barrier, nor their end, as far as they were read."""
        return frozenset(
            c for c in channels - self.end_read if self.read.get(c, NO_CHECKPOINT) < checkpoint
        )


Step: TypeAlias = tuple[Alignment, tuple[Action, ...]]


# ---- from the coordinator


def on_trigger(state: Alignment, order: SnapshotOrder) -> Step:
    """The coordinator has announced a snapshot; an urgent one is not to wait for barriers."""
    if state.is_over(order.id) or _is_older(state, order.id):
        return state, (Ignored(Why.STALE),)
    given_up: tuple[Action, ...] = ()
    if order.urgent or isinstance(state.phase, Recording):
        state, given_up = _without_older(state, order.id, f"{order.id} was triggered")
    if not state.open:
        return _over(state, order.id), (*given_up, Take(order))
    if order.urgent:
        after, actions = _hurry(state, order)
        return after, (*given_up, *actions)
    if order in state.announced:
        return state, (*given_up, Ignored(Why.REPEATED))
    after = replace(state, announced=state.announced | {order})
    return after, (*given_up, Ignored(Why.ANNOUNCED))


def on_abort(state: Alignment, checkpoint: CheckpointId) -> Step:
    """The coordinator has given a snapshot up: its barriers, wherever they are, start nothing."""
    phase = state.phase
    current = not isinstance(phase, Idle) and phase.checkpoint == checkpoint
    if current:
        state = replace(state, phase=Idle())
    if state.is_over(checkpoint):
        return state, () if current else (Ignored(Why.STALE),)
    after = replace(
        state,
        dead=state.dead | {checkpoint},
        announced=frozenset(order for order in state.announced if order.id != checkpoint),
    )
    return after, ()


def on_overflow(state: Alignment, reason: str) -> Step:
    """More is in flight than a snapshot may hold: the one under way is given up."""
    if isinstance(state.phase, Idle):
        return state, (Ignored(Why.STALE),)
    checkpoint = state.phase.checkpoint
    return _over(state, checkpoint), (GiveUp(checkpoint, reason),)


# ---- frames that are processed


def on_barrier(state: Alignment, channel: ChannelId, order: SnapshotOrder) -> Step:
    """A barrier has come out of a channel, or of its queue, and is next to be processed."""
    if state.is_over(order.id) or _is_older(state, order.id):
        return state, (Ignored(Why.STALE),)
    state, given_up = _without_older(state, order.id, f"barrier {order.id} overtook it")
    phase = state.phase if isinstance(state.phase, Aligning) else Aligning(order, _NONE)
    known = order if order.urgent else phase.order
    phase = Aligning(known, phase.delivered | {channel})
    after, actions = _take_if_due(replace(state, phase=phase))
    return after, (*given_up, *actions)


def on_end(state: Alignment, channel: ChannelId) -> Step:
    """The end of a channel is processed: it owes no barrier any more."""
    if channel not in state.open:
        return state, (Ignored(Why.REPEATED),)
    state = replace(
        state,
        open=state.open - {channel},
        end_read=state.end_read - {channel},
        read={c: n for c, n in state.read.items() if c != channel},
    )
    actions: tuple[Action, ...] = ()
    if isinstance(state.phase, Aligning):
        state, actions = _take_if_due(state)
    return _take_announced(state, actions)


# ---- frames that are read aside


def on_barrier_read(state: Alignment, channel: ChannelId, order: SnapshotOrder) -> Step:
    """A barrier was read into the queue of its channel."""
    checkpoint = order.id
    newest = max(checkpoint, state.read.get(channel, NO_CHECKPOINT))
    state = replace(state, read={**state.read, channel: newest})
    phase = state.phase
    if isinstance(phase, Idle) or checkpoint < phase.checkpoint:
        return state, (Ignored(Why.STALE),)
    if checkpoint == phase.checkpoint:
        return _delivered_aside(state, channel)
    state, given_up = _without_older(state, checkpoint, f"barrier {checkpoint} overtook it")
    if not order.urgent or state.is_over(checkpoint):
        return state, given_up
    after, actions = _hurry(state, order)
    return after, (*given_up, *actions)


def on_end_read(state: Alignment, channel: ChannelId) -> Step:
    """The end of a channel was read into its queue: it brings no barrier any more."""
    return _delivered_aside(replace(state, end_read=state.end_read | {channel}), channel)


# ---- steps


def _is_older(state: Alignment, checkpoint: CheckpointId) -> bool:
    return not isinstance(state.phase, Idle) and checkpoint < state.phase.checkpoint


def _without_older(
    state: Alignment, checkpoint: CheckpointId, reason: str
) -> tuple[Alignment, tuple[Action, ...]]:
    """A snapshot that is under way and older can never be whole any more."""
    phase = state.phase
    if isinstance(phase, Idle) or phase.checkpoint >= checkpoint:
        return state, ()
    return _over(state, phase.checkpoint), (GiveUp(phase.checkpoint, reason),)


def _hurry(state: Alignment, order: SnapshotOrder) -> Step:
    """Take the snapshot as soon as the pointwise channels have delivered."""
    if any(n > order.id for n in state.read.values()):
        return _over(state, order.id), (GiveUp(order.id, "a newer barrier is there already"),)
    delivered = state.phase.delivered if isinstance(state.phase, Aligning) else _NONE
    return _take_if_due(replace(state, phase=Aligning(order, delivered)))


def _take_if_due(state: Alignment) -> Step:
    phase = state.phase
    if not isinstance(phase, Aligning):
        return state, (Ignored(Why.STALE),)
    owed = state.open - phase.delivered
    if not owed:
        return _over(state, phase.checkpoint), (Take(phase.order),)
    if not phase.order.urgent or owed & state.pointwise:
        return state, (Ignored(Why.WAITING),)
    take = Take(phase.order, owed)
    waiting = state._owing(phase.checkpoint, owed)
    after = _over(state, phase.checkpoint)
    if not waiting:
        return after, (take, Recorded(phase.checkpoint))
    return replace(after, phase=Recording(phase.checkpoint, waiting)), (take,)


def _delivered_aside(state: Alignment, channel: ChannelId) -> Step:
    phase = state.phase
    if not isinstance(phase, Recording) or channel not in phase.waiting:
        return state, (Ignored(Why.WAITING),)
    waiting = phase.waiting - {channel}
    if waiting:
        return replace(state, phase=replace(phase, waiting=waiting)), (Ignored(Why.WAITING),)
    return replace(state, phase=Idle()), (Recorded(phase.checkpoint),)


def _take_announced(state: Alignment, actions: tuple[Action, ...]) -> Step:
    """Where no channel is left, all announced snapshots are due, in order of their ids."""
    taken = list(actions)
    for order in sorted(state.announced, key=_by_id) if not state.open else ():
        if not state.is_over(order.id):
            state = _over(state, order.id)
            taken.append(Take(order))
    return state, tuple(taken)


def _over(state: Alignment, checkpoint: CheckpointId) -> Alignment:
    """Everything up to `checkpoint` is taken or given up."""
    return replace(
        state,
        phase=Idle(),
        last=max(state.last, checkpoint),
        dead=frozenset(n for n in state.dead if n > checkpoint),
        announced=frozenset(order for order in state.announced if order.id > checkpoint),
    )


def _by_id(order: SnapshotOrder) -> CheckpointId:
    return order.id
