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


@dataclass(frozen=True, slots=True)
class Counting:
    """`counts` has, per snapshot under way, the channels that have delivered its barrier."""

    open: frozenset[ChannelId]
    counts: Mapping[CheckpointId, frozenset[ChannelId]] = field(default_factory=dict)
    last: CheckpointId = NO_CHECKPOINT
    dead: frozenset[CheckpointId] = frozenset()
    announced: frozenset[CheckpointId] = frozenset()

    @property
    def blocked(self) -> frozenset[ChannelId]:
        return frozenset()

    @property
    def aside(self) -> frozenset[ChannelId]:
        return frozenset()

    @property
    def pending(self) -> frozenset[CheckpointId]:
        return self.announced | frozenset(self.counts)

    def is_over(self, checkpoint: CheckpointId) -> bool:
        return checkpoint <= self.last or checkpoint in self.dead


Step: TypeAlias = tuple[Counting, tuple[Action, ...]]


def on_trigger(state: Counting, checkpoint: CheckpointId, urgent: bool = False) -> Step:  # noqa: ARG001
    """Nothing is ever urgent here: no barrier is waited for with a blocked channel."""
    if state.is_over(checkpoint):
        return state, (Ignored(Why.STALE),)
    if not state.open:
        return _taken(state, checkpoint), (Take(checkpoint),)
    if checkpoint in state.announced:
        return state, (Ignored(Why.REPEATED),)
    return replace(state, announced=state.announced | {checkpoint}), (Ignored(Why.ANNOUNCED),)


def on_barrier(
    state: Counting,
    channel: ChannelId,
    checkpoint: CheckpointId,
    urgent: bool = False,  # noqa: ARG001
) -> Step:
    if state.is_over(checkpoint):
        return state, (Ignored(Why.STALE),)
    delivered = state.counts.get(checkpoint, frozenset()) | {channel}
    state = replace(state, counts={**state.counts, checkpoint: delivered})
    return _take_due(state)


def on_end(state: Counting, channel: ChannelId) -> Step:
    if channel not in state.open:
        return state, (Ignored(Why.REPEATED),)
    return _take_due(replace(state, open=state.open - {channel}))


def on_abort(state: Counting, checkpoint: CheckpointId) -> Step:
    if state.is_over(checkpoint):
        return state, (Ignored(Why.STALE),)
    counts = {n: channels for n, channels in state.counts.items() if n != checkpoint}
    after = replace(
        state,
        counts=counts,
        dead=state.dead | {checkpoint},
        announced=state.announced - {checkpoint},
    )
    return after, ()


def _take_due(state: Counting) -> Step:
    due = {n for n, delivered in state.counts.items() if state.open <= delivered}
    if not state.open:
        due |= state.announced
    actions: list[Action] = []
    for checkpoint in sorted(due):
        if not state.is_over(checkpoint):
            state = _taken(state, checkpoint)
            actions.append(Take(checkpoint))
    return state, tuple(actions) or (Ignored(Why.WAITING),)


def _taken(state: Counting, checkpoint: CheckpointId) -> Counting:
    return replace(
        state,
        counts={n: channels for n, channels in state.counts.items() if n > checkpoint},
        last=checkpoint,
        dead=frozenset(n for n in state.dead if n > checkpoint),
        announced=frozenset(n for n in state.announced if n > checkpoint),
    )
