"""Bugs of storage and recovery: metadata, claims, fencing, what is restored and what is deleted."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import xxhash

from penstock.engine.checkpoints import durable, leases
from penstock.engine.checkpoints.cleaning import CleanUp
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.ownership import Ownership
from penstock.engine.checkpoints.restore_points import RestorePoints
from penstock.engine.driver.manager import JobManager
from penstock.errors import CheckpointCorrupt, StorageError
from penstock.protocol import recovery
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId
from penstock.protocol.phases import Outcome
from penstock.state import channel_rows, segments
from penstock.wire import manifest as manifests
from penstock.wire import paths, records
from tests.mutants.registry import simulated, swapped, tested, together

STORAGE = "tests/engine/test_manager_storage.py"
LEASES = "tests/engine/test_leases.py"
SPARED = f"{STORAGE}::test_a_checkpoint_that_the_job_went_back_to_is_deleted_no_more"

# ---- completing


@simulated
def tombstone_is_skipped() -> AbstractContextManager[None]:
    """A write of metadata that failed is taken to have had no effect (C3, I6)."""

    def persist(self: CheckpointFiles, manifest: Any, *, again: bool = False) -> bool:
        try:
            self._store.create(paths.metadata(manifest.checkpoint), manifests.encode(manifest))
        except StorageError:
            return False
        self._owner.check()
        return True

    return swapped(CheckpointFiles, "persist", persist)


@simulated
def a_failed_write_of_metadata_counts() -> AbstractContextManager[None]:
    """A write of metadata that failed is taken to have had its effect (C3, I9)."""
    original = CheckpointFiles.persist

    def persist(self: CheckpointFiles, manifest: Any, *, again: bool = False) -> bool:
        original(self, manifest)
        return True

    return swapped(CheckpointFiles, "persist", persist)


@simulated
def metadata_is_written_over() -> AbstractContextManager[None]:
    """Metadata is not created exclusively: of two drivers the later one wins (C3, I5, bug-E15)."""

    def persist(self: CheckpointFiles, manifest: Any, *, again: bool = False) -> bool:
        name = paths.metadata(manifest.checkpoint)
        self._store.write(name, [manifests.encode(manifest)])
        return True

    return swapped(CheckpointFiles, "persist", persist)


# ---- fencing


@simulated
def a_fenced_driver_goes_on() -> AbstractContextManager[None]:
    """Nobody looks whether another driver has taken the job over (R5, I18, bug-E15)."""
    return swapped(Ownership, "_check", lambda self, claimed, thoroughly=False: None)


@tested("tests/engine/test_checkpoint_files.py::test_a_claim_race_is_won_by_one")
def two_drivers_claim_the_same_attempt() -> AbstractContextManager[None]:
    """An attempt number is written, not created exclusively (R5, I18, bug-E15)."""

    def take_next(self: Ownership) -> AttemptId:
        claimed = self._claimed()
        self._check(claimed)
        attempt = AttemptId(max(claimed, default=0) + 1)
        record = records.OwnerRecord(attempt, self._driver, self._wall_ms())
        self._store.write(paths.owner(attempt), [records.encode_owner(record)])
        self.attempt = attempt
        self.mine.add(attempt)
        return attempt

    return swapped(Ownership, "take_next", take_next)


@tested("tests/engine/test_checkpoint_files.py::test_a_driver_that_lost_its_job_deletes_nothing")
def a_fenced_driver_deletes() -> AbstractContextManager[None]:
    """A driver that lost its job cleans up after itself, and takes away what the new one needs (I12, I18)."""

    def unchecked(original: Any) -> Any:
        def clean_up(self: CheckpointFiles, *arguments: Any) -> None:
            owner = self._owner
            own, owner.attempt = owner.attempt, None
            try:
                original(self, *arguments)
            finally:
                owner.attempt = own

        return clean_up

    return together(
        swapped(CheckpointFiles, "sweep", unchecked(CheckpointFiles.sweep)),
        swapped(CheckpointFiles, "delete_checkpoint", unchecked(CheckpointFiles.delete_checkpoint)),
        swapped(CheckpointFiles, "delete_everything", unchecked(CheckpointFiles.delete_everything)),
    )


# ---- what is restored


@simulated
def a_void_checkpoint_is_restored() -> AbstractContextManager[None]:
    """A checkpoint that a later attempt went back behind is used all the same (R5, I18)."""
    return swapped(recovery, "is_void", lambda found, claims: False)


@simulated
def an_older_checkpoint_is_restored() -> AbstractContextManager[None]:
    """Of several checkpoints not the newest is taken (R1, I7, bug-E5)."""
    return swapped(recovery, "_by_id", lambda found: -found.checkpoint)


@simulated
def claim_looks_before_it_claims() -> AbstractContextManager[None]:
    """The list of checkpoints is older than the claim: what completed in between is missed (R5, I7)."""
    original = CheckpointFiles.claim

    def claim(self: CheckpointFiles, *arguments: Any, **named: Any) -> Any:
        store = self._store
        names = vars(self).setdefault("_names_seen_first", store.list())
        self._store = _StaleList(store, names)  # type: ignore[assignment]
        try:
            return original(self, *arguments, **named)
        finally:
            self._store = store

    return swapped(CheckpointFiles, "claim", claim)


class _StaleList:
    """A store whose list of everything is an old one."""

    def __init__(self, store: Any, names: list[str]) -> None:
        self._store = store
        self._names = names

    def list(self, *folder: str) -> Any:
        return self._store.list(*folder) if folder else self._names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@tested(f"{STORAGE}::test_an_attempt_waits_until_it_is_known_whether_a_checkpoint_exists")
def the_claim_does_not_wait_for_metadata() -> AbstractContextManager[None]:
    """The next attempt looks for a checkpoint while one is still being written (R1, I7)."""

    def claim_at_once(self: JobManager) -> None:
        if self._claims.wanted and not self._ending():
            self._claims.take(
                self.coordinator.next_id, frozenset(), self._claimed, self._claim_failed
            )

    return swapped(JobManager, "_claim_if_settled", claim_at_once)


@simulated
def ids_start_again() -> AbstractContextManager[None]:
    """A new driver counts from what it restored, not from what was reserved (C7, I7, bug-E18)."""

    def first(facts: Any) -> CheckpointId:
        return CheckpointId(max((f.checkpoint for f in facts.found), default=NO_CHECKPOINT) + 1)

    return swapped(recovery, "first_free_id", first)


@simulated
def damage_goes_unnoticed() -> AbstractContextManager[None]:
    """A damaged newest checkpoint is passed over although the sinks have committed it (I17)."""
    original = recovery.decide
    return swapped(
        recovery, "decide", lambda facts, may_fall_back: original(facts, may_fall_back=True)
    )


@tested("tests/engine/test_checkpoint_files.py::test_a_checkpoint_whose_file_is_gone_is_damaged")
def a_missing_file_is_no_damage() -> AbstractContextManager[None]:
    """A checkpoint counts as usable although a file that it names is gone (T5, I24)."""
    return swapped(RestorePoints, "_check_files", lambda self, manifest, names: None)


@tested("tests/state/test_segments.py::test_any_changed_byte_of_a_block_is_noticed")
def checksums_are_not_looked_at() -> AbstractContextManager[None]:
    """State with changed bytes is restored as if nothing had happened (T5, I24, bug-H6)."""
    original = segments.read_batch

    def read_batch(segment: Any, block: Any, schema: Any, fetch: Any) -> Any:
        data = fetch(block)
        there = replace(block, checksum=xxhash.xxh3_128_hexdigest(data))
        return original(segment, there, schema, lambda _: data)

    return together(
        swapped(segments, "read_batch", read_batch), swapped(channel_rows, "read_batch", read_batch)
    )


# ---- what is deleted


@simulated
def files_go_before_the_metadata() -> AbstractContextManager[None]:
    """A checkpoint that is deleted exists by halves for a while (I12)."""

    def delete(self: CheckpointFiles, checkpoint: CheckpointId) -> None:
        names = self._store.list(paths.checkpoint_folder(checkpoint))
        for name in sorted(names, key=lambda name: paths.metadata_of(name) is not None):
            self._store.delete(name)

    return swapped(CheckpointFiles, "delete_checkpoint", delete)


@tested(
    f"{LEASES}::test_a_checkpoint_that_is_deleted_while_it_is_read_can_be_read_to_its_end",
    f"{LEASES}::test_a_sweep_spares_what_is_read_and_the_next_one_does_not",
)
def leases_are_ignored() -> AbstractContextManager[None]:
    """The files of a checkpoint go while somebody reads it (I12)."""
    return swapped(leases, "is_read", lambda store, names, now_ms: False)


@tested(
    f"{LEASES}::test_a_reader_that_comes_at_any_point_of_a_deletion_reads_everything_or_another_checkpoint"
)
def leases_are_looked_for_before_the_metadata_goes() -> AbstractContextManager[None]:
    """A reader that comes between the two loses its files (I12)."""
    files_of = CheckpointFiles._files_of

    def delete(self: CheckpointFiles, checkpoint: CheckpointId, names: Any) -> bool:
        return self._delete_rest([paths.metadata(checkpoint), *files_of(self, checkpoint)])

    return swapped(CheckpointFiles, "_delete", delete)


@simulated
def nothing_is_swept() -> AbstractContextManager[None]:
    """Files that late writers left stay for ever (I13, bug-D6)."""
    return swapped(CheckpointFiles, "sweep", lambda self, *_, **__: None)


@simulated
def the_sweep_takes_what_is_kept() -> AbstractContextManager[None]:
    """The last clean-up deletes checkpoints that somebody may still need (I12)."""
    original = CheckpointFiles.sweep

    def sweep(self: CheckpointFiles, kept: Any, *rest: Any, **how: Any) -> None:
        original(self, (), *rest)

    return swapped(CheckpointFiles, "sweep", sweep)


@tested(SPARED)
def a_queued_deletion_is_not_taken_back() -> AbstractContextManager[None]:
    """The job goes back to a checkpoint that waits for its deletion, and then it is deleted (I12)."""
    return swapped(CleanUp, "spare", lambda self: frozenset())


@tested(SPARED)
def what_is_being_deleted_is_restored() -> AbstractContextManager[None]:
    """A job goes on from a checkpoint that is half gone (I5, I12)."""
    original = CleanUp.spare

    def spare(self: CleanUp) -> frozenset[CheckpointId]:
        original(self)
        return frozenset()

    return swapped(CleanUp, "spare", spare)


@tested(f"{STORAGE}::test_metadata_is_not_tried_again_behind_the_deletion_of_everything")
def metadata_is_tried_again_behind_the_end() -> AbstractContextManager[None]:
    """A retry that was due later writes metadata into a directory that was deleted (I12)."""
    original = CheckpointFiles.persist

    def persist(self: CheckpointFiles, manifest: Any, *, again: bool = False) -> bool:
        return original(self, manifest)

    return swapped(CheckpointFiles, "persist", persist)


@tested(f"{STORAGE}::test_an_older_checkpoint_that_leads_nowhere_costs_nobody_the_newer_one")
def going_back_deletes_what_is_newer_at_once() -> AbstractContextManager[None]:
    """Whoever tries an older checkpoint, in vain, loses the newer ones (I12)."""
    original = CheckpointFiles.sweep

    def sweep(self: CheckpointFiles, *arguments: Any, spare_newer: bool = False) -> None:
        original(self, *arguments)

    return swapped(CheckpointFiles, "sweep", sweep)


@tested(
    "tests/engine/test_checkpoint_files.py"
    "::test_what_a_person_asks_for_is_looked_at_before_it_makes_newer_ones_void"
)
def what_is_asked_for_is_recorded_unseen() -> AbstractContextManager[None]:
    """An unreadable checkpoint that a person names makes the good ones void (I24)."""
    return swapped(RestorePoints, "check_wish", lambda self, wish, names: None)


@tested(
    "tests/protocol/test_recovery.py"
    "::test_metadata_that_an_attempt_went_on_from_and_that_is_gone_is_damage"
)
def lost_metadata_is_no_damage() -> AbstractContextManager[None]:
    """The newest checkpoint's metadata is gone, and the job goes back in silence (I17, I24)."""
    return swapped(recovery, "gone", lambda facts: ())


@tested(
    "tests/engine/test_checkpoint_files.py::test_deleting_everything_ends_no_checkpoint_by_halves"
)
def everything_is_deleted_in_any_order() -> AbstractContextManager[None]:
    """Deleting a job's directory, interrupted, leaves metadata without its files (I12)."""

    def delete_everything(self: CheckpointFiles) -> None:
        for name in self._store.list():
            self._store.delete(name)

    return swapped(CheckpointFiles, "delete_everything", delete_everything)


@tested("tests/engine/test_checkpoint_files.py::test_discarding_leaves_a_tombstone_where_it_is")
def a_tombstone_is_deleted() -> AbstractContextManager[None]:
    """Discarding a snapshot takes its tombstone along: a late write brings its metadata back (I6)."""

    def discard(self: CheckpointFiles, checkpoint: CheckpointId) -> None:
        for name in self._store.list(paths.checkpoint_folder(checkpoint)):
            self._store.delete(name)

    return swapped(CheckpointFiles, "discard", discard)


@tested("tests/engine/test_manager.py::test_what_stays_after_a_cancel_is_what_was_asked_for")
def retention_is_ignored() -> AbstractContextManager[None]:
    """Whatever was asked for, the checkpoints of a job that ended stay (T3)."""
    return swapped(durable, "retains", lambda retain, outcome: True)


# ---- what is left


@simulated
def a_snapshot_that_was_given_up_is_not_discarded() -> AbstractContextManager[None]:
    """Files of aborted snapshots stay until the job ends, which may be never (C4, I8, bug-A1)."""
    return swapped(CleanUp, "discard", lambda self, checkpoint: None)


@simulated
def a_discard_deletes_nothing() -> AbstractContextManager[None]:
    """Files of aborted snapshots are looked at and left where they are (C4, I8, bug-A1)."""
    return swapped(CheckpointFiles, "discard", lambda self, checkpoint: None)


@simulated
def checkpoints_go_only_when_the_job_ends() -> AbstractContextManager[None]:
    """A job that runs for months keeps every checkpoint that it ever took (C5, I13)."""
    return swapped(CleanUp, "delete", lambda self, *_: None)


@simulated
def deletions_that_were_taken_back_are_forgotten() -> AbstractContextManager[None]:
    """A job that ends with the checkpoint it restored leaves more of them than it should (C5, I13)."""
    original = CleanUp.at_end

    def at_end(self: CleanUp, outcome: Outcome, *arguments: Any) -> None:
        original(self, Outcome.CANCELLED, *arguments)

    return swapped(CleanUp, "at_end", at_end)


@tested(
    f"{STORAGE}::test_a_job_that_is_cancelled_before_it_has_proved_its_checkpoint_keeps_all_others"
)
def what_is_too_much_goes_before_the_newest_is_proved() -> AbstractContextManager[None]:
    """A job that is cancelled early deletes what it might have to go back to (I12)."""
    original = CleanUp.at_end

    def at_end(self: CleanUp, outcome: Outcome, *arguments: Any) -> None:
        original(self, Outcome.FINISHED, *arguments)

    return swapped(CleanUp, "at_end", at_end)


@tested(
    "tests/engine/test_checkpoint_files.py"
    "::test_metadata_that_is_damaged_before_anybody_is_told_of_it_is_written_again"
)
def damage_before_anybody_is_told_ends_the_job() -> AbstractContextManager[None]:
    """Metadata that reads back as something else is an error for good, and stands in the way (I24, I27)."""

    def take_away(self: CheckpointFiles, name: str) -> None:
        raise CheckpointCorrupt(f"{name} is not what was written")

    return swapped(CheckpointFiles, "_take_away", take_away)


# ---- claims that are forgotten

FORGOTTEN = "tests/engine/test_forgotten_claims.py"


@tested(f"{FORGOTTEN}::test_numbers_go_on_and_ids_stay_above_all_that_were_reserved")
def the_newest_claim_is_forgotten_too() -> AbstractContextManager[None]:
    """Too much is deleted: the next driver takes the same number, and ids that are reserved (C7, I7, I18)."""
    original = CheckpointFiles.forget_claims

    def forget_claims(self: CheckpointFiles, before: AttemptId) -> None:
        original(self, AttemptId(before + 1))

    return swapped(CheckpointFiles, "forget_claims", forget_claims)


@tested(f"{FORGOTTEN}::test_claims_are_forgotten_when_the_new_one_is_recorded_and_no_sooner")
def claims_are_forgotten_before_the_new_one_is_recorded() -> AbstractContextManager[None]:
    """Whoever is interrupted in between leaves nobody who knows what is void and what is reserved (R5, C7)."""
    original = CheckpointFiles._record

    def record(self: CheckpointFiles, point: Any, facts: Any) -> None:
        self.forget_claims(point.attempt)
        original(self, point, facts)

    return swapped(CheckpointFiles, "_record", record)


@tested(f"{FORGOTTEN}::test_a_late_checkpoint_of_long_ago_stays_void")
def a_claim_keeps_all_that_is_older() -> AbstractContextManager[None]:
    """What a forgotten claim had voided comes back to life, because it is older than what was restored (R5, I18)."""

    def went_on_without(self: recovery.Claim, checkpoint: CheckpointId) -> bool:
        return self.restored is not None and self.restored < checkpoint

    return swapped(recovery.Claim, "went_on_without", went_on_without)


@tested(
    f"{FORGOTTEN}::test_who_takes_a_number_that_is_free_again_finds_a_newer_one_and_records_nothing"
)
def who_takes_an_old_number_does_not_look_again() -> AbstractContextManager[None]:
    """A sleeper records a claim under a number that somebody else has had (I18)."""
    original = Ownership.take_next

    def take_next(self: Ownership) -> AttemptId:
        with swapped(Ownership, "check", lambda self, *, thoroughly=False: None):
            return original(self)

    return swapped(Ownership, "take_next", take_next)


@tested(
    f"{FORGOTTEN}"
    "::test_a_driver_whose_first_claim_failed_late_does_not_fall_behind_what_others_reserved"
)
def own_claims_reserve_nothing() -> AbstractContextManager[None]:
    """A driver that has not used any id yet forgets what others had reserved (C7, bug-E18)."""
    original = RestorePoints._claim_of

    def claim_of(self: RestorePoints, attempt: AttemptId, record: Any) -> Any:
        claim = original(self, attempt, record)
        own = attempt in self._owner.mine
        return replace(claim, ids_until=NO_CHECKPOINT) if own else claim

    return swapped(RestorePoints, "_claim_of", claim_of)
