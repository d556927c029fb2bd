"""Random lives of the coordinator: whatever happens in whatever order, its promises hold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.protocol.coordinator import (
    Aborted,
    Answer,
    Collecting,
    Completed,
    Coordinator,
    CoordinatorConfig,
    Discard,
    Persist,
    Persisting,
    SendTrigger,
    Subsume,
)
from penstock.protocol.ids import AttemptId, CheckpointId, RequestId, SubtaskId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder
from penstock.protocol.snapshot import SubtaskSnapshot

SUBTASKS = tuple(SubtaskId(0, i) for i in range(3))


class CoordinatorLife(RuleBasedStateMachine):
    @initialize(
        max_concurrent=st.integers(1, 3),
        keep=st.integers(1, 3),
        tolerable=st.integers(0, 2),
        incremental=st.booleans(),
    )
    def begin(self, max_concurrent: int, keep: int, tolerable: int, incremental: bool) -> None:
        config = CoordinatorConfig(
            every_ms=50,
            timeout_ms=200,
            max_concurrent=max_concurrent,
            keep=keep,
            tolerable_failures=tolerable,
            incremental=incremental,
        )
        self.coordinator = Coordinator(config)
        self.now_ms = 0.0
        self.attempt = 0
        self.ids: list[int] = []
        self.ended: dict[int, str] = {}
        self.acked: dict[int, set[SubtaskId]] = {}
        self.deleted: set[int] = set()
        self.requests = 0
        self.asked: set[RequestId] = set()
        self.orders: dict[int, SnapshotOrder] = {}

    def _do(self, actions: list) -> None:
        for action in actions:
            match action:
                case SendTrigger(order):
                    assert not self.ids or order.id > self.ids[-1], "I7: ids only grow"
                    self.ids.append(order.id)
                    self._note_order(order)
                case Answer(request, checkpoint):
                    assert request in self.asked, "each request is answered once"
                    assert checkpoint == self.ids[-1], "with what was triggered for it"
                    self.asked.remove(request)
                case Persist(checkpoint, acks=acks):
                    assert acks.keys() == set(SUBTASKS), "C2: everybody has acknowledged"
                    assert self.acked[checkpoint] == set(SUBTASKS)
                case Completed(permit):
                    self._end(permit.checkpoint, "completed")
                case Aborted(checkpoint):
                    self._end(checkpoint, "aborted")
                case Subsume(checkpoints):
                    self.deleted |= set(checkpoints)
                case Discard(checkpoint):
                    assert self.ended.get(checkpoint) != "completed", "I12: files of a complete one"
                case _:
                    pass

    def _end(self, checkpoint: int, how: str) -> None:
        assert checkpoint not in self.ended, "I6: a snapshot ends once"
        self.ended[checkpoint] = how

    @rule(pick=st.integers(0, 20), subtask=st.sampled_from(SUBTASKS), old=st.booleans())
    def ack(self, pick: int, subtask: SubtaskId, old: bool) -> None:
        if not self.ids:
            return
        checkpoint = CheckpointId(self.ids[-1 - pick % len(self.ids)])
        attempt = AttemptId(self.attempt - 1 if old else self.attempt)
        pending = self.coordinator.unfinished.get(checkpoint)
        if self.coordinator.attempt is not None and not old and isinstance(pending, Collecting):
            self.acked.setdefault(checkpoint, set()).add(subtask)
        parts = [SubtaskSnapshot(subtask, {})]
        self._do(self.coordinator.acked(attempt, checkpoint, parts, self.now_ms))

    @rule(pick=st.integers(0, 20))
    def decline(self, pick: int) -> None:
        if self.ids:
            checkpoint = CheckpointId(self.ids[-1 - pick % len(self.ids)])
            attempt = AttemptId(self.attempt)
            self._do(self.coordinator.declined(attempt, checkpoint, "no", self.now_ms))

    @rule(durable=st.booleans(), pick=st.integers(0, 2))
    def storage_answers(self, durable: bool, pick: int) -> None:
        waiting = [
            n for n, p in sorted(self.coordinator.unfinished.items()) if isinstance(p, Persisting)
        ]
        if waiting:
            checkpoint = waiting[pick % len(waiting)]
            attempt = AttemptId(self.attempt)
            if durable:
                self._do(self.coordinator.persisted(attempt, checkpoint, self.now_ms))
            else:
                self._do(self.coordinator.persist_failed(checkpoint, "no", self.now_ms))

    @rule(passed_ms=st.sampled_from((1.0, 49.0, 50.0, 51.0, 200.0)))
    def time_passes(self, passed_ms: float) -> None:
        self.now_ms += passed_ms
        self._do(self.coordinator.tick(self.now_ms))

    @rule()
    def a_person_asks(self) -> None:
        self.requests += 1
        request = RequestId(self.requests)
        self.asked.add(request)
        self._do(self.coordinator.request(request, self.now_ms))

    @rule(kind=st.sampled_from((SnapshotKind.STOP, SnapshotKind.FINAL)))
    def the_end_is_near(self, kind: SnapshotKind) -> None:
        self._do(self.coordinator.request_last(kind, self.now_ms))

    @rule()
    def attempt_starts(self) -> None:
        """As the job manager does it: only after what was being persisted is settled."""
        settled = not self.coordinator.unfinished
        if self.coordinator.attempt is None and settled:
            self.attempt += 1
            restored = self.coordinator.newest_completed
            started = self.coordinator.attempt_started(
                AttemptId(self.attempt), SUBTASKS, restored, self.now_ms
            )
            self._do(started)

    def _note_order(self, order: SnapshotOrder) -> None:
        self.orders[order.id] = order
        completed = [n for n, how in self.ended.items() if how == "completed"]
        wanted = max(completed, default=0) if self.coordinator.config.incremental else 0
        assert order.base == wanted, "S6: it builds on the newest complete one"

    @invariant()
    def orders_stay_as_they_are_and_what_they_build_on_is_pinned(self) -> None:
        if hasattr(self, "coordinator"):
            for order in self.coordinator.live():
                assert replace(order, urgent=False) == replace(self.orders[order.id], urgent=False)
            bases = {self.orders[n].base for n in self.coordinator.unfinished}
            assert self.coordinator.pinned == bases - {0}, "I12"

    @rule()
    def attempt_ends(self) -> None:
        self._do(self.coordinator.attempt_ended(self.now_ms))

    @invariant()
    def no_more_are_pending_than_allowed(self) -> None:
        if hasattr(self, "coordinator"):
            allowed = self.coordinator.config.max_concurrent
            assert len(self.coordinator.unfinished) <= allowed, "I26"

    @invariant()
    def what_collects_is_newer_than_what_is_complete(self) -> None:
        if hasattr(self, "coordinator"):
            live = [order.id for order in self.coordinator.live()]
            assert all(n > self.coordinator.newest_completed for n in live), "I8"

    @invariant()
    def the_newest_complete_ones_are_kept(self) -> None:
        if hasattr(self, "coordinator"):
            complete = sorted(n for n, how in self.ended.items() if how == "completed")
            keep = self.coordinator.config.keep
            assert not self.deleted & set(complete[-keep:]), "C5"


CoordinatorLife.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True
)
TestCoordinatorLife = CoordinatorLife.TestCase
