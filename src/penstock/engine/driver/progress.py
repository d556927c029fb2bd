"""How far the running attempt has come: who has finished and what is committed. Every attempt has its own."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.plan.physical import PhysicalPlan
from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.phases import Outcome

OUTCOMES = {SnapshotKind.FINAL: Outcome.FINISHED, SnapshotKind.STOP: Outcome.STOPPED}


class Progress:
    def __init__(self, plan: PhysicalPlan) -> None:
        self._subtasks = frozenset(plan.subtasks)
        self._slots = plan.parallelism
        self._finished: frozenset[SubtaskId] = frozenset()
        self._committed: dict[SlotId, CheckpointId] = {}
        self._last: tuple[CheckpointId, Outcome] | None = None

    def finished(self, subtasks: Iterable[SubtaskId]) -> bool:
        """These have no more input; True when nobody has any."""
        self._finished |= frozenset(subtasks)
        return self._finished == self._subtasks

    def completed(self, checkpoint: CheckpointId, kind: SnapshotKind) -> None:
        """After a last snapshot the job ends as soon as everything in it is committed."""
        if kind in OUTCOMES:
            self._last = (checkpoint, OUTCOMES[kind])

    def committed(self, slot: SlotId, checkpoint: CheckpointId) -> Outcome | None:
        """A worker has committed everything up to `checkpoint`. How the job ends, if this was all."""
        self._committed[slot] = max(checkpoint, self._committed.get(slot, NO_CHECKPOINT))
        if self._last is None or len(self._committed) < self._slots:
            return None
        last, outcome = self._last
        return outcome if min(self._committed.values()) >= last else None
