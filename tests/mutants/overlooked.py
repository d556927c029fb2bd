"""Bugs that were put in and that nothing caught, until a test was written for each: between protocol, state, storage
and settings."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from penstock.engine.checkpoints import claiming, persisting
from penstock.engine.checkpoints.cleaning import CleanUp
from penstock.engine.checkpoints.durable import Durable
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.driver.manager import JobManager
from penstock.engine.serial import Serial, State
from penstock.engine.worker import committing, snapshots
from penstock.engine.worker.attempt import Attempt
from penstock.engine.worker.snapshots import Assembler
from penstock.protocol import counting
from penstock.protocol.alignment import Alignment, Ignored, Why
from penstock.protocol.coordinator import CoordinatorConfig, Reason
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import Failed
from penstock.protocol.snapshot import Timings
from penstock.shells.spark import start
from penstock.state.columns import PiledColumn
from penstock.state.folds import NullUntilSeen
from penstock.state.table import Table
from tests.mutants.registry import swapped, tested

STORAGE = "tests/engine/test_manager_storage.py"
ATTEMPT = "tests/engine/test_attempt.py"
OPTIONS = "tests/spark/test_start_options.py::test_every_option_of_a_checkpoint_reaches_the_job"


@tested(
    "tests/state/test_running_aggregate.py"
    "::test_nothing_seen_is_null_and_something_seen_is_not_on_both_sides_of_a_restore"
)
def nulls_are_forgotten_over_a_restore() -> AbstractContextManager[None]:
    """A sum that has seen no value before a restore is something else after it than it would have been (I2)."""
    original = NullUntilSeen.restored

    def restored(self: NullUntilSeen, table: Table) -> None:
        original(self, table)
        self._holes = False

    return swapped(NullUntilSeen, "restored", restored)


@tested(f"{STORAGE}::test_a_job_falls_back_only_where_none_of_its_sinks_minds")
def one_sink_that_does_not_mind_is_enough() -> AbstractContextManager[None]:
    """A job falls back behind committed rows because one of its sinks is idempotent (I17)."""
    return swapped(claiming, "all", any)


@tested(
    "tests/protocol/test_coordinator.py::test_metadata_that_could_not_be_written_is_a_failed_checkpoint"
)
def metadata_that_fails_does_not_count() -> AbstractContextManager[None]:
    """A store that takes no metadata never fails a job, which runs on without checkpoints (C4)."""
    counted = (Reason.TIMEOUT, Reason.DECLINED)
    return swapped(Reason, "counts_as_failure", property(lambda self: self in counted))


@tested(
    "tests/protocol/test_counting.py::test_an_abort_that_comes_before_its_trigger_is_remembered"
)
def an_abort_before_its_trigger_is_forgotten() -> AbstractContextManager[None]:
    """At least once: the late trigger of an aborted snapshot starts it all the same (B11)."""
    original = counting.on_abort

    def on_abort(state: counting.Counting, checkpoint: CheckpointId) -> counting.Step:
        if checkpoint not in state.pending:
            return state, (Ignored(Why.STALE),)
        return original(state, checkpoint)

    return swapped(counting, "on_abort", on_abort)


@tested(
    "tests/engine/test_manager.py"
    "::test_a_late_failure_of_an_older_attempt_is_no_failure_of_the_present_one"
)
def a_late_failure_ends_the_present_attempt() -> AbstractContextManager[None]:
    """What went wrong in an older attempt, told late, ends the job or its present attempt (R1, I25)."""
    original = JobManager._on_failed

    def on_failed(self: JobManager, message: Failed, now_ms: float) -> None:
        with swapped(self, "_present_attempt", lambda: message.attempt):
            original(self, message, now_ms)

    return swapped(JobManager, "_on_failed", on_failed)


@tested(f"{ATTEMPT}::test_a_snapshot_that_is_over_holds_on_to_no_state")
def undo_logs_of_subsumed_snapshots_are_kept() -> AbstractContextManager[None]:
    """A snapshot that a newer one overtook makes its tables save every change for it, for ever (I26)."""
    original = Assembler.forget

    def forget(self: Assembler, upto: Any = None, only: Any = None) -> None:
        original(self, only=only)

    return swapped(Assembler, "forget", forget)


@tested(f"{ATTEMPT}::test_only_pointwise_edges_are_aligned_in_an_unaligned_snapshot")
def one_broadcast_edge_aligns_all() -> AbstractContextManager[None]:
    """Beside a broadcast no checkpoint is unaligned any more (B7)."""
    original = Attempt._barriers

    def barriers(self: Attempt, channels: Any) -> Any:
        made = original(self, channels)
        if isinstance(made, Alignment) and made.pointwise:
            return Alignment(made.open, pointwise=made.open)
        return made

    return swapped(Attempt, "_barriers", barriers)


@tested("tests/engine/test_subtask.py::test_the_rows_that_came_in_while_it_was_aligned_are_counted")
def rows_of_an_alignment_are_not_counted() -> AbstractContextManager[None]:
    """Every checkpoint says that no row came in while it was aligned (C6)."""

    def timings(*times: Any, **counts: Any) -> Timings:
        return Timings(*times, **{**counts, "alignment_rows": 0})

    return swapped(snapshots, "Timings", timings)


# ---- what is told


@tested(f"{STORAGE}::test_a_store_that_takes_no_metadata_for_long_is_told_of")
def a_full_disk_is_told_late() -> AbstractContextManager[None]:
    """A store that takes no metadata is told of after a long time only (C6)."""
    return swapped(persisting, "TRIES_UNTOLD", 32)


@tested(f"{STORAGE}::test_a_checkpoint_whose_metadata_did_not_fit_says_why")
def a_checkpoint_that_failed_does_not_say_why() -> AbstractContextManager[None]:
    """Metadata could not be written, and nobody learns that the disk is full (C6)."""
    return swapped(Durable, "not_written", property(lambda self: ""))


# ---- settings


def _dropping(option: str) -> AbstractContextManager[None]:
    def config(**given: Any) -> CoordinatorConfig:
        return CoordinatorConfig(**{name: v for name, v in given.items() if name != option})

    return swapped(start, "CoordinatorConfig", config)


@tested(OPTIONS)
def min_pause_is_dropped() -> AbstractContextManager[None]:
    """Checkpoints follow each other without the pause that was asked for (C1)."""
    return _dropping("min_pause_ms")


@tested(OPTIONS)
def max_concurrent_is_dropped() -> AbstractContextManager[None]:
    """One checkpoint at a time, whatever was asked for (C1)."""
    return _dropping("max_concurrent")


@tested(OPTIONS)
def the_timeout_is_dropped() -> AbstractContextManager[None]:
    """Checkpoints hang for ten minutes, whatever was asked for (C4)."""
    return _dropping("timeout_ms")


@tested(OPTIONS)
def tolerable_failures_are_dropped() -> AbstractContextManager[None]:
    """The first failed checkpoint fails the attempt, whatever was asked for (C4)."""
    return _dropping("tolerable_failures")


# ---- in the background, and at last


@tested("tests/engine/test_committing.py::test_a_worker_has_committed_when_all_its_sinks_have")
def the_first_sink_commits_for_all() -> AbstractContextManager[None]:
    """A job ends when one of its sinks has committed; the rows of the others are never seen (E3, I27)."""
    return swapped(committing, "min", max)


@tested("tests/engine/test_queues.py::test_work_is_done_in_the_order_in_which_it_was_handed_in")
def the_last_piece_of_work_goes_first() -> AbstractContextManager[None]:
    """A claim overtakes the metadata that it is to find (C3, R1)."""

    def next_(self: Serial) -> None:
        while self._waiting and not self._busy:
            piece = self._waiting.pop()
            if piece.state is State.WAITING:
                self._begin(piece)

    return swapped(Serial, "_next", next_)


@tested(
    "tests/engine/test_queues.py::test_the_last_clean_up_comes_again_until_it_is_known_what_exists"
)
def the_last_clean_up_comes_once() -> AbstractContextManager[None]:
    """What was not settled when the job ended keeps its files for ever (I13)."""
    original = CleanUp._at_last
    return swapped(CleanUp, "_at_last", lambda self, work: original(self, work, 1))


@tested(
    "tests/engine/test_checkpoint_files.py::test_a_driver_that_was_overtaken_while_it_claimed_gets_nothing"
)
def a_claim_is_not_looked_at_again() -> AbstractContextManager[None]:
    """Two drivers claim at the same time, and use the same ids (R5, I18, bug-E15)."""
    original = CheckpointFiles.claim

    def claim(self: CheckpointFiles, *arguments: Any, **named: Any) -> Any:
        with swapped(self._owner, "check", lambda **_: None):
            return original(self, *arguments, **named)

    return swapped(CheckpointFiles, "claim", claim)


@tested(f"{STORAGE}::test_a_checkpoint_that_only_workers_find_damaged_is_not_tried_again")
def what_workers_find_damaged_is_forgotten() -> AbstractContextManager[None]:
    """A checkpoint that no worker can read is restored again and again (T5, I17)."""
    return swapped(claiming.Claims, "point_is_damaged", lambda self, why: None)


@tested(f"{ATTEMPT}::test_a_job_without_checkpoints_holds_on_to_no_state_either")
def undo_logs_are_kept_without_checkpoints() -> AbstractContextManager[None]:
    """A job that takes no checkpoints saves every row that changes, for nobody (I26)."""
    return swapped(snapshots, "release_all", lambda taken: None)


@tested(
    "tests/state/test_running_aggregate.py::test_a_table_that_grows_has_nulls_where_nothing_came"
)
def grown_columns_of_text_begin_with_the_first_value() -> AbstractContextManager[None]:
    """The smallest text of a key that is new is compared with another key's (S1)."""

    def grow(self: PiledColumn, count: int, capacity: int) -> None:
        self._numbers._fill = 0
        self._numbers.grow(count, capacity)

    return swapped(PiledColumn, "grow", grow)
