"""Bugs of shared files: that go while somebody needs them, or never."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from penstock.engine.checkpoints import files as checkpoint_files
from penstock.engine.checkpoints import garbage, leases, shared
from penstock.engine.checkpoints.cleaning import CleanUp
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.ownership import Ownership
from penstock.engine.checkpoints.shared import SharedFiles
from penstock.engine.driver.manager import Durable
from penstock.protocol.ids import CheckpointId
from penstock.protocol.retention import Files, Retention, SharedFile, Strays
from penstock.wire import paths
from tests.mutants.registry import simulated, swapped, tested

PURE = "tests/protocol/test_retention.py::"
STORED = "tests/engine/test_shared_files.py::"
GC = "tests/cli/test_gc.py::"
LIFE = "tests/engine/test_shared_life.py::test_the_life_of_shared_files"


# ---- too soon


@tested(PURE + "test_a_file_goes_with_the_last_checkpoint_that_refers_to_it", LIFE)
def a_file_goes_with_the_first_that_refers_to_it() -> AbstractContextManager[None]:
    """The newest checkpoint cannot be restored any more (T4, I12)."""

    def only_of(self: Retention, checkpoint: CheckpointId) -> Strays:
        return tuple(sorted(self.existing.get(checkpoint, ())))

    return swapped(Retention, "only_of", only_of)


@tested(STORED + "test_a_base_is_not_deleted_while_something_builds_on_it", LIFE)
def bases_are_not_pinned() -> AbstractContextManager[None]:
    """A checkpoint comes to exist whose files went with its base while it was pending (I12)."""
    return swapped(Retention, "is_pinned", lambda self, checkpoint: False)


@tested(STORED + "test_a_deletion_that_fails_keeps_the_shared_files_for_the_checkpoint", LIFE)
def shared_files_go_when_a_deletion_is_asked_for() -> AbstractContextManager[None]:
    """A checkpoint whose deletion fails, or is taken back, has lost its files (I12, I17)."""
    original = CleanUp.delete

    def delete(self: CleanUp, checkpoints: Iterable[CheckpointId], gone: Any) -> None:
        doomed = list(checkpoints)
        original(self, doomed, gone)
        for checkpoint in doomed:
            self._turn(self._shared.retention.deleted(checkpoint))

    return swapped(CleanUp, "delete", delete)


@tested(STORED + "test_shared_files_go_when_the_metadata_of_the_last_that_refers_to_them_has")
def shared_files_go_before_the_metadata() -> AbstractContextManager[None]:
    """Whoever is interrupted in between leaves a checkpoint by halves (I12)."""
    original = CheckpointFiles.delete_checkpoint

    def delete(self: CheckpointFiles, checkpoint: CheckpointId) -> dict[CheckpointId, Strays]:
        self.shared.delete_only_of(checkpoint)
        return original(self, checkpoint)

    return swapped(CheckpointFiles, "delete_checkpoint", delete)


@tested(PURE + "test_only_files_that_nobody_can_come_to_refer_to_are_strays", LIFE)
def what_nobody_refers_to_yet_is_a_stray() -> AbstractContextManager[None]:
    """The files of a snapshot that is under way go before it is complete (I12)."""
    return swapped(Retention, "_is_settled", lambda self, file: file.attempt <= self.attempt)


@tested(PURE + "test_only_files_that_nobody_can_come_to_refer_to_are_strays")
def files_of_newer_attempts_are_strays() -> AbstractContextManager[None]:
    """A driver that was replaced deletes the files of its successor (I18)."""
    original = Retention._is_settled

    def is_settled(self: Retention, file: SharedFile) -> bool:
        return original(self, replace(file, attempt=min(file.attempt, self.attempt)))

    return swapped(Retention, "_is_settled", is_settled)


@tested(STORED + "test_a_claim_finds_what_dead_attempts_left_behind", LIFE)
def a_claim_knows_of_no_other_attempts_files() -> AbstractContextManager[None]:
    """The first clean-up of a new attempt destroys the checkpoint that it goes on from (I14, bug-D3)."""
    return swapped(checkpoint_files, "references", lambda *_: {})


@tested(STORED + "test_a_checkpoint_that_cannot_be_read_keeps_what_it_may_refer_to", LIFE)
def what_cannot_be_read_refers_to_nothing() -> AbstractContextManager[None]:
    """A damaged checkpoint cannot be repaired any more (I12, T5)."""
    return swapped(checkpoint_files, "_newest_unreadable", lambda facts, names: CheckpointId(0))


@tested(STORED + "test_a_deletion_that_is_taken_back_leaves_the_shared_files_where_they_are")
def deletions_are_not_taken_back_for_shared_files() -> AbstractContextManager[None]:
    """The checkpoint that is needed again after all has lost its files (I12, I17)."""
    original = CleanUp.spare

    def spare(self: CleanUp) -> frozenset[CheckpointId]:
        for checkpoint, _ in self._doomed:
            self._clean(partial(self._shared._delete, self._shared.retention.only_of(checkpoint)))
        return original(self)

    return swapped(CleanUp, "spare", spare)


@tested(PURE + "test_what_is_going_while_an_attempt_is_claimed_may_not_have_gone")
def a_claim_forgets_what_is_going() -> AbstractContextManager[None]:
    """A checkpoint whose deletion fails has lost its files (I12)."""
    original = Retention.claimed

    def claimed(
        self: Retention, attempt: Any, existing: Any, unreadable: Any = 0, going: Any = ()
    ) -> Retention:
        return original(self, attempt, existing, unreadable)

    return swapped(Retention, "claimed", claimed)


@tested(STORED + "test_a_lease_keeps_the_shared_files_of_a_checkpoint_that_has_gone", LIFE)
def a_lease_does_not_say_which_shared_files_are_read() -> AbstractContextManager[None]:
    """When the job's driver changes, a reader loses what it reads (I12, P5)."""
    original = leases.take

    def take(store: Any, checkpoint: Any, borrower: Any, length_ms: float, files: Any = ()) -> Any:
        return original(store, checkpoint, borrower, length_ms)

    return swapped(leases, "take", take)


@tested(STORED + "test_the_end_of_a_job_leaves_what_its_checkpoints_refer_to")
def the_end_does_not_wait_for_what_is_unsettled() -> AbstractContextManager[None]:
    """A checkpoint that turns out to exist has lost its files (I12)."""
    original = CheckpointFiles.sweep

    def sweep(
        self: CheckpointFiles,
        kept: Collection[CheckpointId],
        before: CheckpointId,
        unsettled: Collection[CheckpointId] = (),
        *,
        spare_newer: bool = False,
    ) -> None:
        original(self, [*kept, *unsettled], before, spare_newer=spare_newer)

    return swapped(CheckpointFiles, "sweep", sweep)


@tested(STORED + "test_a_driver_that_lost_its_job_deletes_no_shared_file", LIFE)
def strays_go_whoever_owns_the_job() -> AbstractContextManager[None]:
    """A driver that was replaced deletes what it takes for strays (I18)."""

    @contextmanager
    def mutated() -> Any:
        original = SharedFiles.delete_strays

        def delete_strays(self: SharedFiles, files: Iterable[SharedFile]) -> None:
            with swapped(Ownership, "check", lambda self, *, thoroughly=False: None):
                original(self, files)

        with swapped(SharedFiles, "delete_strays", delete_strays):
            yield

    return mutated()


# ---- never


@tested(PURE + "test_the_files_of_a_late_answer_go_unless_others_refer_to_them", LIFE)
def the_files_of_a_late_answer_stay() -> AbstractContextManager[None]:
    """They lie about until the job ends (I8, C4)."""
    original = Retention.acknowledged

    def acknowledged(
        self: Retention, checkpoint: CheckpointId, files: Files
    ) -> tuple[Retention, Strays]:
        return original(self, checkpoint, files)[0], ()

    stack = ExitStack()
    stack.enter_context(swapped(Retention, "acknowledged", acknowledged))
    stack.enter_context(swapped(SharedFiles, "sweep", lambda self: None))
    return stack


@simulated
def nobody_looks_for_strays() -> AbstractContextManager[None]:
    """What a worker wrote and did not tell of stays (I13, bug-D6)."""
    return swapped(SharedFiles, "sweep", lambda self: None)


@simulated
def the_end_forgets_shared_files() -> AbstractContextManager[None]:
    """What the last attempt left behind stays for ever (I13)."""
    return swapped(SharedFiles, "sweep_last", lambda self, names, now_ms: None)


@tested(PURE + "test_two_that_go_in_one_piece_of_work_leave_nothing")
def what_two_left_to_each_other_stays() -> AbstractContextManager[None]:
    """Two checkpoints that go at once leave what both referred to (I13)."""
    original = Retention.deleted

    def deleted(
        self: Retention, checkpoint: CheckpointId, with_it: Collection[SharedFile] = ()
    ) -> tuple[Retention, Strays]:
        return original(self, checkpoint, with_it)[0], ()

    return swapped(Retention, "deleted", deleted)


@tested(STORED + "test_a_checkpoint_that_is_read_when_the_job_ends_keeps_its_own_files_alone", LIFE)
def what_is_read_counts_as_unreadable() -> AbstractContextManager[None]:
    """A checkpoint that somebody reads at the end keeps every file that is older than it (I13)."""
    original = shared.read_references

    def read_references(store: Any, names: Collection[str], now_ms: float) -> Any:
        found, unreadable = original(store, names, now_ms)
        return found, max([unreadable, *shared.left_to_readers(names)])

    return swapped(shared, "read_references", read_references)


# ---- the job manager


@simulated
def nobody_is_told_of_completed_checkpoints() -> AbstractContextManager[None]:
    """The files of every checkpoint go as soon as something else is given up (I12)."""

    def completed(self: Durable, checkpoint: CheckpointId, parts: Any) -> None:
        self._clean_up.discard(checkpoint)

    return swapped(Durable, "completed", completed)


@tested(STORED + "test_a_job_keeps_just_the_shared_files_that_its_checkpoints_refer_to")
def nobody_is_told_of_snapshots() -> AbstractContextManager[None]:
    """Every answer is late: the files of a snapshot go before it is complete (I12)."""
    return swapped(Durable, "triggered", lambda self, checkpoint, base: None)


# ---- penstock gc


@tested(GC + "test_an_attempt_that_has_not_looked_yet_ends_nothing")
def a_claim_ends_the_attempts_before_it_at_once() -> AbstractContextManager[None]:
    """The files of a checkpoint go that the new attempt finds complete and goes on from (I12, I18)."""

    @contextmanager
    def mutated() -> Any:
        claimed = SimpleNamespace(**{**vars(paths), "restored_of": paths.owner_of})
        with swapped(garbage, "paths", claimed):
            yield

    return mutated()


@tested(GC + "test_what_no_checkpoint_needs_is_listed_and_then_deleted")
def gc_takes_what_is_under_way() -> AbstractContextManager[None]:
    """The files of a snapshot go before it is complete (I12)."""
    return swapped(garbage, "_newest_complete", lambda *_: CheckpointId(1 << 40))


@tested(GC + "test_damage_and_readers_keep_what_they_may_need")
def gc_takes_what_somebody_reads() -> AbstractContextManager[None]:
    """A reader loses what it reads (I12, P5)."""
    stack = ExitStack()
    stack.enter_context(swapped(leases, "is_read", lambda *_: False))
    stack.enter_context(swapped(leases, "files_read", lambda *_: {}))
    return stack
