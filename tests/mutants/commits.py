"""Bugs of sinks and commits: what is pre-committed, when it becomes visible, and what a restore does with the rest."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from penstock.connectors.base import Sink, SinkCommitter, SinkContext
from penstock.connectors.sinks import files, folder
from penstock.connectors.sinks.files import FileCommitter, PromisedFile, _parse
from penstock.connectors.sinks.folder import LocalFolder
from penstock.engine.operators import connect
from penstock.engine.operators.base import FrozenOperator, OperatorContext
from penstock.engine.operators.connect import SinkOperator
from penstock.engine.operators.held_rows import HeldRows
from penstock.engine.worker import committing
from penstock.engine.worker.attempt import Attempt
from penstock.engine.worker.chain import Chain
from penstock.engine.worker.subtask import Subtask
from penstock.ports.channel import Barrier
from penstock.protocol.commit import covered
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.shells.sim.outside import _SimWriter
from tests.mutants.registry import simulated, swapped, tested

# ---- pre-commit


@simulated
def commit_at_prepare() -> AbstractContextManager[None]:
    """A sink makes its rows visible with the snapshot, not after the metadata (C3, E2, I9)."""
    original = SinkOperator.freeze

    def freeze(self: SinkOperator, order: SnapshotOrder) -> FrozenOperator:
        frozen = original(self, order)
        for entry in frozen.transactions:
            if self._committer is not None:
                self._committer.commit(entry.get())
        return frozen

    return swapped(SinkOperator, "freeze", freeze)


@simulated
def ack_lists_only_its_own_transaction() -> AbstractContextManager[None]:
    """A snapshot does not list transactions of earlier ones that are not known to be committed (E2, bug-C15)."""
    original = SinkOperator.freeze

    def freeze(self: SinkOperator, order: SnapshotOrder) -> FrozenOperator:
        frozen = original(self, order)
        own = [entry.transaction for entry in self._pending if entry.checkpoint == order.id]
        return replace(frozen, transactions=tuple(own))

    return swapped(SinkOperator, "freeze", freeze)


@simulated
def abort_forgets_transactions() -> AbstractContextManager[None]:
    """Aborting a snapshot throws away the transaction that was pre-committed with it (C4, bug-C15)."""
    original = Subtask.abort

    def abort(self: Subtask, checkpoint: CheckpointId) -> None:
        original(self, checkpoint)
        for _, sink in self.chain.sinks:
            sink._pending = tuple(p for p in sink._pending if p.checkpoint != checkpoint)

    return swapped(Subtask, "abort", abort)


@simulated
def prepare_does_not_sync() -> AbstractContextManager[None]:
    """A transaction is acknowledged before it would outlive its process (E2, bug-F7)."""
    return swapped(_SimWriter, "sync", lambda self, name: name)


@simulated
def a_lost_transaction_is_tolerated_for_ever() -> AbstractContextManager[None]:
    """Rows that could not be made durable are declined again and again, and nothing else happens (bug-F7, I25)."""
    original = Attempt.step

    def step(self: Attempt) -> bool:
        self._broken = None
        return original(self)

    return swapped(Attempt, "step", step)


@tested("tests/connectors/test_file_commit.py::test_a_commit_is_one_rename_of_a_durable_file")
def a_file_is_promised_before_it_is_on_the_disk() -> AbstractContextManager[None]:
    """`FileSink` acknowledges a file that a power cut would take away (E2, bug-F7)."""

    def seal(self: LocalFolder, name: str) -> int:
        return self.size(name) or 0

    return swapped(LocalFolder, "seal", seal)


# ---- commit


@simulated
def commit_covers_too_much() -> AbstractContextManager[None]:
    """Completing n commits everything that is pre-committed, newer snapshots included (I9)."""
    return swapped(connect, "covered", lambda pending, checkpoint: covered(pending, 2**62))


@simulated
def commit_covers_only_its_own() -> AbstractContextManager[None]:
    """Completing n leaves the transactions of older, aborted snapshots uncommitted (E3)."""

    def own(pending: Any, checkpoint: CheckpointId) -> Any:
        return tuple(entry for entry in pending if entry.checkpoint == checkpoint)

    return swapped(connect, "covered", own)


@simulated
def a_failed_commit_is_skipped() -> AbstractContextManager[None]:
    """A commit that raised counts as done (E3, bug-F8)."""

    def try_again(self: committing.Commits, sink: Any, error: BaseException) -> None:
        sink.operator.commit_done(self._wanted)

    return swapped(committing.Commits, "_try_again", try_again)


@tested(
    "tests/engine/test_committing.py::test_a_commit_that_keeps_failing_fails_the_attempt_and_is_never_skipped"
)
def a_commit_is_tried_for_ever() -> AbstractContextManager[None]:
    """A commit that fails for good never fails the job, and nobody hears of it (E3, bug-F8)."""
    return swapped(committing, "TRIES_MAX", 10**9)


@tested("tests/engine/test_committing.py::test_a_commit_that_fails_is_tried_again_after_a_pause")
def a_commit_that_fails_is_tried_without_a_pause() -> AbstractContextManager[None]:
    """A sink that is down is asked again and again as fast as the loop turns (E3)."""
    return swapped(committing, "FIRST_PAUSE_MS", 0.0)


@tested("tests/connectors/test_file_commit.py::test_a_commit_may_be_repeated_any_number_of_times")
def a_file_can_be_committed_only_once() -> AbstractContextManager[None]:
    """`FileSink` takes a commit that is repeated for one whose file is gone (I10, bug-F13)."""
    original = FileCommitter._move

    def commit(self: FileCommitter, transaction: Any) -> None:
        for wanted in _parse(transaction):
            if self._folder.size(wanted.staged) is None:
                raise self._lost(wanted, None)
            original(self, wanted)

    return swapped(FileCommitter, "commit", commit)


@tested("tests/connectors/test_sinks.py::test_a_staged_file_of_another_size_is_not_committed")
def a_changed_file_is_committed() -> AbstractContextManager[None]:
    """`FileSink` makes a staged file visible that is not what the checkpoint promised (E3, bug-H6)."""

    def move(self: FileCommitter, wanted: PromisedFile) -> bool:
        self._folder.move(wanted.staged, wanted.final)
        return True

    return swapped(FileCommitter, "_move", move)


@tested(
    "tests/connectors/test_partitions.py::"
    "test_every_partition_has_a_folder_and_its_columns_are_not_in_the_files"
)
def only_one_partition_is_committed() -> AbstractContextManager[None]:
    """Of a transaction with several files the first is made visible (I10)."""
    return swapped(files, "_parse", lambda transaction: _parse(transaction)[:1])


@tested(
    "tests/connectors/test_partitions.py::"
    "test_a_commit_that_breaks_off_between_two_files_is_completed_by_the_next"
)
def a_commit_that_broke_off_counts_as_done() -> AbstractContextManager[None]:
    """The first file of a transaction that is there says that all are (E3, bug-F8)."""
    original = FileCommitter.commit

    def commit(self: FileCommitter, transaction: Any) -> None:
        if not self._is_committed(_parse(transaction)[0]):
            original(self, transaction)

    return swapped(FileCommitter, "commit", commit)


@tested(
    "tests/connectors/test_partitions.py::"
    "test_the_folders_of_a_partition_are_durable_before_the_commit_counts"
)
def the_folder_of_a_partition_is_lost_in_a_power_cut() -> AbstractContextManager[None]:
    """A file is durable in the folder of its partition, and that folder nowhere (E2, E3)."""

    def settle(self: LocalFolder, name: str) -> None:
        folder._sync((self._root / name).parent)

    return swapped(LocalFolder, "settle", settle)


# ---- restore


@simulated
def notify_lost_on_restart() -> AbstractContextManager[None]:
    """What the restored checkpoint had pre-committed is not committed again (E2)."""
    original = SinkOperator.open

    def open_(self: SinkOperator, context: OperatorContext) -> None:
        original(self, replace(context, restored=()))

    return swapped(SinkOperator, "open", open_)


@simulated
def promised_transactions_are_aborted() -> AbstractContextManager[None]:
    """A restore aborts everything that lies there, then commits what the checkpoint lists (E2, I10)."""
    original = SinkOperator.open

    def open_(self: SinkOperator, context: OperatorContext) -> None:
        original(self, replace(context, restored=()))
        for number, snapshot in enumerate(context.restored):
            if number % context.parallelism == context.index and self._committer is not None:
                for transaction in snapshot.transactions:
                    self._committer.commit(transaction)

    return swapped(SinkOperator, "open", open_)


@simulated
def nothing_is_aborted_on_restore() -> AbstractContextManager[None]:
    """Transactions that no checkpoint lists are left open for ever (E2, I11, bug-F2)."""
    original = SinkOperator.open

    def open_(self: SinkOperator, context: OperatorContext) -> None:
        sink = self._sink
        self._sink = _NeverAborts(sink)
        original(self, context)
        self._sink = sink

    return swapped(SinkOperator, "open", open_)


class _NeverAborts(Sink):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def writer(self, context: SinkContext) -> Any:
        return self._sink.writer(context)

    def committer(self, context: SinkContext) -> SinkCommitter:
        committer = self._sink.committer(context)
        committer.abort_others = lambda keep: None  # type: ignore[method-assign]
        return committer


@tested("tests/engine/test_sink_promises.py::test_every_promise_is_kept_once_by_whoever_goes_on")
def promises_of_subtasks_that_are_gone_are_broken() -> AbstractContextManager[None]:
    """With a smaller parallelism nobody commits what the subtasks had promised that are no more (R6, bug-F2)."""
    original = SinkOperator.open

    def open_(self: SinkOperator, context: OperatorContext) -> None:
        original(self, replace(context, restored=context.restored[: context.parallelism]))

    return swapped(SinkOperator, "open", open_)


@tested("tests/connectors/test_file_commit.py::test_aborting_leaves_the_files_of_others_alone")
def abort_takes_the_files_of_other_sinks() -> AbstractContextManager[None]:
    """`FileSink` deletes whatever is staged in the job's folder, of other sinks and newer attempts, too (bug-F4)."""
    return swapped(FileCommitter, "_is_mine", lambda self, name: True)


# ---- once


@simulated
def what_lost_workers_have_staged_stays() -> AbstractContextManager[None]:
    """Nobody removes what a worker has staged that lived on into the last attempt (I11)."""
    original = SinkOperator.commit_work

    def commit_work(self: SinkOperator, checkpoint: CheckpointId, last: bool = False) -> Any:
        return original(self, checkpoint)

    return swapped(SinkOperator, "commit_work", commit_work)


@simulated
def commits_of_one_sink_overlap() -> AbstractContextManager[None]:
    """A commit is begun again while it is still under way (E2, I10)."""
    original = committing.Commits._begin

    def begin(self: committing.Commits, sink: Any) -> None:
        original(self, sink)
        sink.busy = False

    return swapped(committing.Commits, "_begin", begin)


@simulated
def what_is_committed_stays_pending() -> AbstractContextManager[None]:
    """Every checkpoint commits again all that came before it (E2, I10)."""

    def commit_done(self: SinkOperator, upto: CheckpointId) -> None:
        self.committed = max(self.committed, upto)

    return swapped(SinkOperator, "commit_done", commit_done)


# ---- rows that wait for a larger transaction

HELD = "tests/engine/test_held_rows.py::"


@tested(HELD + "test_held_rows_survive_every_schedule_of_a_simulation")
def rows_that_wait_are_in_no_checkpoint() -> AbstractContextManager[None]:
    """Sources go on behind rows that no transaction and no state has (I1, R1)."""
    return swapped(HeldRows, "freeze", lambda self: ())


@tested(HELD + "test_held_rows_come_back_once_whatever_the_parallelism_is")
def rows_that_wait_come_back_in_every_subtask() -> AbstractContextManager[None]:
    """A restore does not share out what waited: it is written once per subtask (I16)."""
    return swapped(OperatorContext, "key_groups", property(lambda c: range(c.max_parallelism)))


@tested(HELD + "test_a_stopped_job_has_committed_the_rows_that_waited")
def a_stop_leaves_rows_waiting() -> AbstractContextManager[None]:
    """A job that is stopped has rows in its checkpoint that nobody can see (C3)."""
    return swapped(Chain, "hold_nothing_back", lambda self: None)


@tested(HELD + "test_a_barrier_carries_that_it_is_the_last_to_who_has_not_heard_of_it")
def who_has_not_heard_of_the_stop_keeps_rows_waiting() -> AbstractContextManager[None]:
    """That a snapshot is the last is known only to workers whose message was not lost (C3)."""
    original = Subtask._handle

    def handle(self: Subtask, entry: Any, frame: Any) -> None:
        if isinstance(frame, Barrier):
            frame = Barrier(SnapshotOrder(frame.order.id))
        original(self, entry, frame)

    return swapped(Subtask, "_handle", handle)
