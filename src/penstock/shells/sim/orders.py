"""Orders of snapshots, watched from outside: whoever says one, driver or barrier, says the same, and it builds on a
checkpoint that is there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId
from penstock.protocol.messages import SnapshotOrder, Sync, ToWorker, Trigger

if TYPE_CHECKING:
    from penstock.shells.sim.world import World


class Orders:
    def __init__(self, world: World) -> None:
        self._world = world
        self._first: dict[CheckpointId, SnapshotOrder] = {}
        """As each was said for the first time, but for its urgency."""

    def on_sent(self, message: ToWorker) -> None:
        if isinstance(message, Trigger):
            self._said(message.attempt, message.order)
        elif isinstance(message, Sync):
            for order in message.live:
                self._said(message.attempt, order)

    def on_met(self, order: SnapshotOrder) -> None:
        """I12: a barrier in a channel, or an operator that freezes, says what the driver said."""
        known = self._first.get(order.id)
        if known != replace(order, urgent=False):
            self._world.violation("I12", f"{order} was {known} when it was triggered")

    def _said(self, attempt: AttemptId, order: SnapshotOrder) -> None:
        if order.id not in self._first:
            self._first[order.id] = replace(order, urgent=False)
            self._check_base(attempt, order)
        self.on_met(order)

    def _check_base(self, attempt: AttemptId, order: SnapshotOrder) -> None:
        """I12, bug-D1: it is complete, and this very attempt has completed it or was restored from it: its subtasks
        know no other."""
        checkers = self._world.checkers
        if order.base == NO_CHECKPOINT or not self._world.durable:
            return
        manifest = checkers.manifests.get(order.base)
        if manifest is None:
            self._world.violation("I12", f"{order} builds on what is not complete")
        elif attempt != manifest.attempt and checkers.restored_by(attempt) != order.base:
            self._world.violation("I12", f"{order} builds on a checkpoint of another attempt")
