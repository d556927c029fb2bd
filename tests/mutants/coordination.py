"""Bugs of the coordinator: when snapshots are triggered, which answers count, what completing one means."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from penstock.engine.driver.manager import JobManager
from penstock.engine.driver.progress import Progress
from penstock.protocol.coordinator import (
    Collecting,
    Coordinator,
    CoordinatorConfig,
    Discard,
    Persist,
    Persisting,
    Reason,
    Subsume,
)
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import Notify, SnapshotKind
from penstock.protocol.phases import Outcome
from tests.mutants.registry import simulated, swapped, tested

# ---- triggering


@simulated
def more_are_pending_than_allowed() -> AbstractContextManager[None]:
    """`max_concurrent` is ignored (B6, I26)."""
    original = Coordinator._is_due

    def is_due(self: Coordinator, now_ms: float) -> bool:
        pending = self.unfinished
        self.unfinished = {} if self.last_kind is None else pending
        try:
            return original(self, now_ms)
        finally:
            self.unfinished = pending

    return swapped(Coordinator, "_is_due", is_due)


@tested("tests/protocol/test_coordinator.py::test_the_pause_between_two_is_kept")
def the_pause_is_not_kept() -> AbstractContextManager[None]:
    """`min_pause` is ignored (B6)."""
    return swapped(Coordinator, "_pause_ends_ms", lambda self: float("-inf"))


@tested("tests/protocol/test_coordinator.py::test_a_snapshot_expires_at_its_timeout")
def a_snapshot_never_times_out() -> AbstractContextManager[None]:
    """`timeout` is ignored: a snapshot that somebody owes holds up all later ones (B6, bug-B11)."""
    return _configured(timeout_ms=10**12)


@tested(
    "tests/protocol/test_coordinator.py::test_more_failures_in_a_row_than_tolerated_fail_the_attempt"
)
def any_number_of_failures_is_tolerated() -> AbstractContextManager[None]:
    """`tolerable_failures` is ignored: a job without usable checkpoints goes on (B6)."""
    return _configured(tolerable_failures=10**9)


def _configured(**values: Any) -> AbstractContextManager[None]:
    original = Coordinator.__init__

    def begin(self: Coordinator, config: CoordinatorConfig, *rest: Any, **more: Any) -> None:
        original(self, replace(config, **values), *rest, **more)

    return swapped(Coordinator, "__init__", begin)


@tested("tests/protocol/test_coordinator.py::test_a_success_forgives_the_failures_before_it")
def a_success_forgives_nothing() -> AbstractContextManager[None]:
    """Failures are counted over the whole life of an attempt, not in a row (B6)."""
    original = Coordinator.persisted

    def persisted(self: Coordinator, attempt: Any, checkpoint: Any, now_ms: float) -> Any:
        failures = self.failures_in_a_row
        actions = original(self, attempt, checkpoint, now_ms)
        self.failures_in_a_row = failures
        return actions

    return swapped(Coordinator, "persisted", persisted)


@tested("tests/protocol/test_coordinator.py::test_the_next_one_comes_although_one_failed")
def after_an_abort_there_is_no_next_one() -> AbstractContextManager[None]:
    """An abort takes the periodic trigger with it (bug-A8)."""
    original = Coordinator._abort

    def abort(self: Coordinator, *arguments: Any) -> Any:
        self._next_periodic_ms = None
        return original(self, *arguments)

    return swapped(Coordinator, "_abort", abort)


@tested("tests/protocol/test_coordinator.py::test_after_the_attempt_has_ended_nothing_is_triggered")
def triggers_without_an_attempt() -> AbstractContextManager[None]:
    """The coordinator goes on triggering after the attempt has ended (bug-A4)."""
    original = Coordinator.attempt_ended

    def attempt_ended(self: Coordinator, now_ms: float) -> Any:
        attempt = self.attempt
        actions = original(self, now_ms)
        self.attempt = attempt
        return actions

    return swapped(Coordinator, "attempt_ended", attempt_ended)


@simulated
def ids_begin_again_with_every_attempt() -> AbstractContextManager[None]:
    """A new attempt counts from what it restored: ids come a second time (C7, I7)."""
    original = Coordinator.attempt_started

    def started(self: Coordinator, attempt: Any, subtasks: Any, restored: Any, now: float) -> Any:
        self.next_id = CheckpointId(restored + 1)
        return original(self, attempt, subtasks, restored, now)

    return swapped(Coordinator, "attempt_started", started)


# ---- the last one


@simulated
def the_last_snapshot_waits_for_nobody() -> AbstractContextManager[None]:
    """A last snapshot is triggered beside others, unaligned ones included (bug-B14, I26)."""
    original = Coordinator._is_due

    def is_due(self: Coordinator, now_ms: float) -> bool:
        kind = self.last_kind
        if self.attempt is None or kind is None:
            return original(self, now_ms)
        under_way = [p for p in self.unfinished.values() if p.order.kind is kind]
        return not under_way and self._done_kind is not kind

    return swapped(Coordinator, "_is_due", is_due)


@simulated
def the_last_snapshot_is_taken_again_and_again() -> AbstractContextManager[None]:
    """A final snapshot that is complete is followed by another (I27)."""
    nobody = property(lambda self: None, lambda self, kind: None)
    return swapped(Coordinator, "_done_kind", nobody, new=True)


@simulated
def a_last_snapshot_may_be_unaligned() -> AbstractContextManager[None]:
    """Stopping a job takes a snapshot with rows in flight (B9, bug-B10)."""
    original = Coordinator._hurry

    def hurry(self: Coordinator, kind: SnapshotKind, now_ms: float) -> Any:
        return original(self, SnapshotKind.CHECKPOINT, now_ms)

    return swapped(Coordinator, "_hurry", hurry)


@simulated
def final_when_the_first_has_finished() -> AbstractContextManager[None]:
    """The last snapshot is taken when some subtask has no more input, not when all have none (B10, I27)."""

    def finished(self: Progress, subtasks: Any) -> bool:
        self._finished |= frozenset(subtasks)
        return bool(self._finished)

    return swapped(Progress, "finished", finished)


@simulated
def who_had_finished_counts_in_the_next_attempt() -> AbstractContextManager[None]:
    """A new attempt takes over who had finished in the one before, though it reads again (I27)."""
    original = JobManager._attempt_runs

    def runs(self: JobManager, attempt: Any, restored: Any) -> None:
        before = self._progress
        original(self, attempt, restored)
        self._progress = before

    return swapped(JobManager, "_attempt_runs", runs)


@simulated
def the_job_ends_before_its_last_commit() -> AbstractContextManager[None]:
    """A job counts as finished when its last snapshot is durable, whether or not it was committed (E3, I27)."""
    original = JobManager._completed

    def completed(self: JobManager, action: Any, permit: Any) -> None:
        original(self, action, permit)
        if action.kind is SnapshotKind.FINAL:
            ends = self.machine.completed(permit.attempt, Outcome.FINISHED, self._now())
            self._obey(ends)

    return swapped(JobManager, "_completed", completed)


# ---- unaligned ones


@tested(
    "tests/protocol/test_coordinator.py::test_a_checkpoint_that_takes_too_long_to_align_is_expedited"
)
def aligned_timeout_is_ignored() -> AbstractContextManager[None]:
    """A checkpoint that takes too long to align is never expedited (B8)."""
    original = Coordinator._hurry

    def hurry(self: Coordinator, kind: SnapshotKind, now_ms: float) -> Any:
        urgent, _ = original(self, kind, now_ms)
        return urgent, None

    return swapped(Coordinator, "_hurry", hurry)


@tested("tests/protocol/test_coordinator.py::test_unaligned_checkpoints_are_urgent_from_the_start")
def an_expedited_snapshot_is_not_told_again() -> AbstractContextManager[None]:
    """The table of live snapshots does not say that one has become urgent: a lost message stays lost (B8)."""
    original = Coordinator.live

    def live(self: Coordinator) -> Any:
        return tuple(replace(entry, urgent=False) for entry in original(self))

    return swapped(Coordinator, "live", live)


@tested(
    "tests/protocol/test_coordinator.py::test_after_too_much_in_flight_the_next_checkpoint_is_aligned_and_nothing_is_counted"
)
def too_much_in_flight_is_tried_again_at_once() -> AbstractContextManager[None]:
    """After a snapshot that held too much the next one is unaligned again, for ever (B7, I25)."""
    original = Coordinator._hurry

    def hurry(self: Coordinator, kind: SnapshotKind, now_ms: float) -> Any:
        self._align_next = False
        return original(self, kind, now_ms)

    return swapped(Coordinator, "_hurry", hurry)


@tested(
    "tests/protocol/test_coordinator.py::test_after_too_much_in_flight_the_next_checkpoint_is_aligned_and_nothing_is_counted"
)
def too_much_in_flight_counts_as_a_failure() -> AbstractContextManager[None]:
    """A snapshot that held too much, which the next one makes up for, may fail the attempt (B6)."""
    counted = (Reason.TIMEOUT, Reason.DECLINED, Reason.NOT_DURABLE, Reason.OVERFLOW)
    return swapped(Reason, "counts_as_failure", property(lambda self: self in counted))


# ---- answers


@simulated
def acks_are_counted() -> AbstractContextManager[None]:
    """A second acknowledgement of one subtask counts for somebody else (C2, I5)."""
    original = Coordinator.acked

    def acked(self: Coordinator, attempt: Any, checkpoint: Any, parts: Any, now_ms: float) -> Any:
        pending = self.unfinished.get(checkpoint)
        actions = original(self, attempt, checkpoint, parts, now_ms)
        still = self.unfinished.get(checkpoint)
        if pending is not still or pending is None or isinstance(pending, Persisting):
            return actions
        owed = frozenset(sorted(pending.owed)[len(list(parts)) :])
        if owed:
            self.unfinished[checkpoint] = replace(pending, owed=owed)
            return []
        acks = pending.acks
        self.unfinished[checkpoint] = Persisting(pending.order, pending.triggered_ms, acks)
        return [Persist(checkpoint, pending.order.kind, pending.triggered_ms, acks)]

    return swapped(Coordinator, "acked", acked)


@simulated
def complete_with_the_first_worker() -> AbstractContextManager[None]:
    """A snapshot is complete when the first worker has acknowledged (C2, I5)."""
    original = Coordinator.acked

    def acked(self: Coordinator, attempt: Any, checkpoint: Any, parts: Any, now_ms: float) -> Any:
        pending = self.unfinished.get(checkpoint)
        if isinstance(pending, Collecting):
            mine = frozenset(part.subtask for part in parts)
            self.unfinished[checkpoint] = replace(pending, owed=pending.owed & mine)
        return original(self, attempt, checkpoint, parts, now_ms)

    return swapped(Coordinator, "acked", acked)


@tested("tests/protocol/test_coordinator.py::test_an_ack_of_another_attempt_is_ignored")
def acks_of_other_attempts_count() -> AbstractContextManager[None]:
    """Nobody looks which attempt an acknowledgement comes from (C7, I18)."""
    original = Coordinator.acked

    def acked(self: Coordinator, attempt: Any, *rest: Any) -> Any:
        return original(self, self.attempt.id if self.attempt is not None else attempt, *rest)

    return swapped(Coordinator, "acked", acked)


@simulated
def files_of_a_late_ack_stay() -> AbstractContextManager[None]:
    """Who acknowledges a snapshot that is over leaves its files for ever (bug-A1)."""
    original = Coordinator.acked

    def acked(self: Coordinator, *arguments: Any) -> Any:
        return [a for a in original(self, *arguments) if not isinstance(a, Discard)]

    return swapped(Coordinator, "acked", acked)


@tested(
    "tests/protocol/test_coordinator.py::test_a_decline_of_a_snapshot_that_is_over_counts_for_nothing"
)
def late_refusals_count() -> AbstractContextManager[None]:
    """A refusal of a snapshot that is over counts as one more failure (bug-A7)."""
    original = Coordinator.declined

    def declined(self: Coordinator, attempt: Any, checkpoint: Any, *rest: Any, **more: Any) -> Any:
        if checkpoint not in self.unfinished:
            self.failures_in_a_row += 1
        return original(self, attempt, checkpoint, *rest, **more)

    return swapped(Coordinator, "declined", declined)


# ---- completing and giving up


@simulated
def notify_before_metadata() -> AbstractContextManager[None]:
    """Workers hear of a checkpoint, and commit, before its metadata is durable (C3, I9)."""
    original = JobManager._persist

    def persist(self: JobManager, action: Persist) -> None:
        self._tell_running(lambda attempt: Notify(attempt, action.checkpoint))
        original(self, action)

    return swapped(JobManager, "_persist", persist)


@simulated
def a_kept_checkpoint_is_deleted() -> AbstractContextManager[None]:
    """One checkpoint fewer is kept than was asked for (C5, I12)."""

    def retire(self: Coordinator) -> list[Any]:
        excess = self.completed[: -self.config.keep + 1] if self.config.keep > 1 else self.completed
        self.completed = [n for n in self.completed if n not in excess]
        return [Subsume(tuple(excess))] if excess else []

    return swapped(Coordinator, "_retire", retire)


@simulated
def the_newest_goes_instead_of_the_oldest() -> AbstractContextManager[None]:
    """Of more checkpoints than are kept the newest are deleted (C5, I12)."""

    def retire(self: Coordinator) -> list[Any]:
        excess = self.completed[self.config.keep :]
        self.completed = self.completed[: self.config.keep]
        return [Subsume(tuple(excess))] if excess else []

    return swapped(Coordinator, "_retire", retire)


@simulated
def older_snapshots_stay_pending() -> AbstractContextManager[None]:
    """Completing n leaves what is older and pending alone (C5, I8)."""
    original = Coordinator.persisted

    def persisted(self: Coordinator, attempt: Any, checkpoint: Any, now_ms: float) -> Any:
        older = {n: p for n, p in self.unfinished.items() if n < checkpoint}
        for n in older:
            del self.unfinished[n]
        actions = original(self, attempt, checkpoint, now_ms)
        self.unfinished.update(older)
        return actions

    return swapped(Coordinator, "persisted", persisted)


@tested(
    "tests/protocol/test_coordinator.py::test_the_end_of_an_attempt_aborts_what_collects_and_keeps_what_persists"
)
def files_of_a_persisting_snapshot_are_discarded() -> AbstractContextManager[None]:
    """An attempt that ends takes the files of what is just being persisted with it (I12, bug-A2)."""
    original = Coordinator.attempt_ended

    def attempt_ended(self: Coordinator, now_ms: float) -> Any:
        persisting = [n for n, p in self.unfinished.items() if isinstance(p, Persisting)]
        return [*original(self, now_ms), *[Discard(n) for n in persisting]]

    return swapped(Coordinator, "attempt_ended", attempt_ended)


@simulated
def a_snapshot_that_was_given_up_may_complete() -> AbstractContextManager[None]:
    """Answers still count after everybody was told to abort (C4, I6, bug-A1)."""
    original = Coordinator._abort

    def abort(self: Coordinator, pending: Any, *arguments: Any) -> Any:
        actions = original(self, pending, *arguments)
        if self.attempt is not None:
            self.unfinished[pending.order.id] = pending
        return actions

    return swapped(Coordinator, "_abort", abort)
