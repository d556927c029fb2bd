"""At least once: barriers are counted and no channel is ever blocked.

The snapshot is taken when the last open channel has delivered its barrier; records that came behind the barrier on
faster channels are in the state already and will be counted again after a recovery. Several snapshots may be
counted at once. The functions have the shape of those in `alignment`, so that a subtask can use either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.protocol.alignment import Action, Ignored, Take, Why
from penstock.protocol.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotOrder


@dataclass(frozen=True, slots=True)
class Counting:
    """`counts` has, per snapshot under way, the channels that have delivered its barrier."""

    open: frozenset[ChannelId]
    counts: Mapping[SnapshotOrder, frozenset[ChannelId]] = field(default_factory=dict)
    last: CheckpointId = NO_CHECKPOINT
    dead: frozenset[CheckpointId] = frozenset()
    announced: frozenset[SnapshotOrder] = frozenset()

    @property
    def blocked(self) -> frozenset[ChannelId]:
        return frozenset()

    @property
    def aside(self) -> frozenset[ChannelId]:
        return frozenset()

    @property
    def pending(self) -> frozenset[CheckpointId]:
        return frozenset(order.id for order in (*self.announced, *self.counts))

    def is_over(self, checkpoint: CheckpointId) -> bool:
        return checkpoint <= self.last or checkpoint in self.dead


Step: TypeAlias = tuple[Counting, tuple[Action, ...]]


def on_trigger(state: Counting, order: SnapshotOrder) -> Step:
    order = _patient(order)
    if state.is_over(order.id):
        return state, (Ignored(Why.STALE),)
    if not state.open:
        return _taken(state, order.id), (Take(order),)
    if order in state.announced:
        return state, (Ignored(Why.REPEATED),)
    return replace(state, announced=state.announced | {order}), (Ignored(Why.ANNOUNCED),)


def on_barrier(state: Counting, channel: ChannelId, order: SnapshotOrder) -> Step:
    order = _patient(order)
    if state.is_over(order.id):
        return state, (Ignored(Why.STALE),)
    delivered = state.counts.get(order, frozenset()) | {channel}
    state = replace(state, counts={**state.counts, order: delivered})
    return _take_due(state)


def on_end(state: Counting, channel: ChannelId) -> Step:
    if channel not in state.open:
        return state, (Ignored(Why.REPEATED),)
    return _take_due(replace(state, open=state.open - {channel}))


def on_abort(state: Counting, checkpoint: CheckpointId) -> Step:
    if state.is_over(checkpoint):
        return state, (Ignored(Why.STALE),)
    counts = {order: channels for order, channels in state.counts.items() if order.id != checkpoint}
    after = replace(
        state,
        counts=counts,
        dead=state.dead | {checkpoint},
        announced=frozenset(order for order in state.announced if order.id != checkpoint),
    )
    return after, ()


def _patient(order: SnapshotOrder) -> SnapshotOrder:
    """Nothing is ever urgent here: no barrier is waited for with a blocked channel."""
    return replace(order, urgent=False)


def _take_due(state: Counting) -> Step:
    due = {order for order, delivered in state.counts.items() if state.open <= delivered}
    if not state.open:
        due |= state.announced
    actions: list[Action] = []
    for order in sorted(due, key=lambda each: each.id):
        if not state.is_over(order.id):
            state = _taken(state, order.id)
            actions.append(Take(order))
    return state, tuple(actions) or (Ignored(Why.WAITING),)


def _taken(state: Counting, checkpoint: CheckpointId) -> Counting:
    return replace(
        state,
        counts={order: having for order, having in state.counts.items() if order.id > checkpoint},
        last=checkpoint,
        dead=frozenset(n for n in state.dead if n > checkpoint),
        announced=frozenset(order for order in state.announced if order.id > checkpoint),
    )
