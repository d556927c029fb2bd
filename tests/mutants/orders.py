"""Bugs of orders: what a snapshot builds on, who knows of it, and who gets the answer to what they asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from penstock.engine.worker.chain import Chain
from penstock.engine.worker.outputs import Outputs
from penstock.protocol.coordinator import Answer, Coordinator
from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId, RequestId
from penstock.protocol.messages import SnapshotOrder
from penstock.shells.spark import network
from tests.mutants.registry import simulated, swapped, tested, together

COORDINATOR = "tests/protocol/test_coordinator.py"
CHANNELS = "tests/spark/test_transport_channels.py"

# ---- what a snapshot builds on


@simulated
def a_snapshot_builds_on_an_unfinished_one() -> AbstractContextManager[None]:
    """Its base is the snapshot before it, complete or not: it refers to files that are thrown away (S6, I12)."""
    return _building_on(lambda coordinator: CheckpointId(coordinator.next_id - 1))


@tested(
    f"{COORDINATOR}::test_a_snapshot_of_an_attempt_that_was_restored_builds_on_what_it_was_restored_from"
)
def a_snapshot_builds_on_another_attempts() -> AbstractContextManager[None]:
    """A checkpoint that this attempt did not go on from is complete, but no subtask has its state (S6, I12)."""
    newest: dict[int, CheckpointId] = {}
    original = Coordinator.persisted

    def persisted(self: Coordinator, attempt: Any, checkpoint: CheckpointId, now_ms: float) -> Any:
        newest[id(self)] = checkpoint
        return original(self, attempt, checkpoint, now_ms)

    with_base = _building_on(lambda coordinator: newest.get(id(coordinator), NO_CHECKPOINT))
    return together(swapped(Coordinator, "persisted", persisted), with_base)


@simulated
def an_order_that_is_said_again_builds_on_something_else() -> AbstractContextManager[None]:
    """The table of live snapshots names what is the newest by now: who missed the trigger differs (S6, I12)."""
    original = Coordinator.live

    def live(self: Coordinator) -> tuple[SnapshotOrder, ...]:
        return tuple(replace(order, base=self.newest_completed) for order in original(self))

    return swapped(Coordinator, "live", live)


def _building_on(choose: Callable[[Coordinator], CheckpointId]) -> AbstractContextManager[None]:
    original = Coordinator._trigger

    def trigger(self: Coordinator, now_ms: float) -> Any:
        if self.attempt is not None:
            self.attempt.base = choose(self)
        return original(self, now_ms)

    return swapped(Coordinator, "_trigger", trigger)


@tested(f"{COORDINATOR}::test_the_base_of_an_unfinished_snapshot_is_pinned")
def only_what_is_collected_pins_its_base() -> AbstractContextManager[None]:
    """While the metadata is being written the files that it names are deleted (T4, I12, bug-D1)."""

    def pinned(self: Coordinator) -> frozenset[CheckpointId]:
        return frozenset(order.base for order in self.live() if order.base)

    return swapped(Coordinator, "pinned", property(pinned))


# ---- who knows of it


@simulated
def a_barrier_loses_its_base() -> AbstractContextManager[None]:
    """A subtask that meets the barrier first does not know what the snapshot builds on (S6, I12)."""
    original = Outputs.barrier

    def barrier(self: Outputs, order: SnapshotOrder) -> None:
        original(self, replace(order, base=NO_CHECKPOINT))

    return swapped(Outputs, "barrier", barrier)


@tested(f"{CHANNELS}::test_a_barrier_says_what_it_said")
def a_base_gets_lost_on_the_way() -> AbstractContextManager[None]:
    """The same between two processes: the frame has no room for it (S6)."""
    original = network._order_of

    def order_of(data: bytes) -> SnapshotOrder:
        return replace(original(data), base=NO_CHECKPOINT)

    return swapped(network, "_order_of", order_of)


@tested("tests/engine/test_subtask.py::test_operators_freeze_what_was_ordered")
def operators_do_not_hear_the_order() -> AbstractContextManager[None]:
    """An operator is told the number of the snapshot and nothing else: every one of its snapshots is whole (S6)."""
    original = Chain.freeze

    def freeze(self: Chain, order: SnapshotOrder) -> Any:
        return original(self, SnapshotOrder(order.id))

    return swapped(Chain, "freeze", freeze)


# ---- who asked for it


@tested(f"{COORDINATOR}::test_a_request_outlives_the_attempt")
def a_failure_loses_requests() -> AbstractContextManager[None]:
    """Who asked for a checkpoint just before a restart waits for ever (C1)."""
    original = Coordinator.attempt_ended

    def attempt_ended(self: Coordinator, now_ms: float) -> Any:
        self._requests = ()
        return original(self, now_ms)

    return swapped(Coordinator, "attempt_ended", attempt_ended)


@tested(f"{COORDINATOR}::test_who_asks_while_a_periodic_one_is_under_way_gets_the_next")
def requests_are_answered_with_what_is_under_way() -> AbstractContextManager[None]:
    """Who asks for a checkpoint gets one that began before: what they wanted to have in it may be missing (C1)."""
    original = Coordinator.request

    def request(self: Coordinator, request: RequestId, now_ms: float) -> Any:
        for checkpoint in self.unfinished:
            return [Answer(request, checkpoint)]
        return original(self, request, now_ms)

    return swapped(Coordinator, "request", request)
