"""Bugs of what is written ahead of checkpoints: rows that are in no file, files that are not there, files that stay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from penstock.engine.worker import writing_ahead
from penstock.engine.worker.kept_copies import KeptCopies
from penstock.engine.worker.writing_ahead import WritingAhead
from penstock.protocol.ids import CheckpointId
from penstock.protocol.retention import Retention, Role, SharedFile
from penstock.protocol.snapshot import Segment
from penstock.state import changelog
from penstock.state.changelog import Changelog, Tail, Whole
from penstock.state.changes import Chain, Link
from penstock.state.intervals import Interval
from tests.mutants.registry import swapped, tested

LOG = "tests/state/test_changelog.py::"
LIFE = LOG + "test_whatever_happens_a_checkpoint_has_the_rows_of_its_moment"
PURE = "tests/protocol/test_retention.py::"
WORKER = "tests/engine/test_writing_ahead.py::"


# ---- rows


@tested(LOG + "test_a_checkpoint_writes_only_what_changed_since_the_last_cut", LIFE)
def the_tail_has_nothing_of_what_came_after_the_cut() -> AbstractContextManager[None]:
    """Rows that changed between the cut and the barrier are in no file (S7, I2)."""
    original = Tail.write

    def write(self: Tail, view: Any, out: Any) -> tuple[Segment, ...]:
        return original(replace(self, intervals=self.intervals[:-1] or self.intervals), view, out)

    return swapped(Tail, "write", write)


@tested(LOG + "test_a_removal_between_the_cut_and_the_barrier_counts", LIFE)
def a_removal_behind_the_cut_is_lost() -> AbstractContextManager[None]:
    """A key that went after the cut is there again after a restore (S7, I21)."""
    original = changelog.put_delta

    def put_delta(view: Any, out: Any, cells: Any, intervals: Sequence[Interval]) -> Segment:
        return original(view, out, cells, ())

    return swapped(changelog, "put_delta", put_delta)


@tested(LOG + "test_all_rows_are_written_over_several_checkpoints_and_then_come_first", LIFE)
def all_rows_are_taken_for_those_of_a_later_moment() -> AbstractContextManager[None]:
    """The mark of a materialization is taken after its freeze: what changed in between is lost (S7, bug-D10)."""
    original = Changelog.materialize

    def materialize(self: Changelog) -> Whole:
        return replace(original(self), mark=self._mark + 1)

    return swapped(Changelog, "materialize", materialize)


@tested(LOG + "test_what_is_written_after_the_barrier_is_not_in_the_checkpoint", LIFE)
def a_checkpoint_has_what_came_after_it() -> AbstractContextManager[None]:
    """What was written of a later moment, and is durable in time, is taken for its own (S7, I2)."""
    original = changelog.covering

    def covering(base: Chain, ahead: Sequence[Link], mark: int) -> Chain:
        return original(base, [replace(x, until=min(x.until, mark)) for x in ahead], mark)

    return swapped(changelog, "covering", covering)


@tested(LOG + "test_a_key_that_went_before_a_gap_and_came_back_behind_it_is_there", LIFE)
def what_lies_behind_a_gap_is_used() -> AbstractContextManager[None]:
    """What changed in the gap is in no file (S7, I2, I21)."""
    original = changelog.covering

    def covering(base: Chain, ahead: Sequence[Link], mark: int) -> Chain:
        return original(base, [replace(link, since=0) for link in ahead], mark)

    return swapped(changelog, "covering", covering)


@tested(LOG + "test_memory_is_bounded_while_no_checkpoint_completes", LIFE)
def intervals_that_become_one_lose_their_rows() -> AbstractContextManager[None]:
    """What changed long before the base that is waited for is forgotten (S7, I2)."""

    def joined(self: Interval, other: Interval) -> Interval:
        return replace(other, since=self.since)

    return swapped(Interval, "joined", joined)


# ---- files that somebody needs


@tested(LOG + "test_files_of_a_checkpoint_that_was_given_up_are_not_used_again", LIFE)
def files_of_a_checkpoint_that_was_given_up_are_used_again() -> AbstractContextManager[None]:
    """The next one refers to files that were deleted with it (bug-D1, I12)."""
    original = Changelog.written

    def written(self: Changelog, checkpoint: int, chain: Chain) -> None:
        original(self, checkpoint, chain)
        self.add([link for link in chain.links if link.segment.delta and link not in self.ahead])

    return swapped(Changelog, "written", written)


def _as_if(role: Role, instead: Role) -> AbstractContextManager[None]:
    original = Retention._is_settled

    def is_settled(self: Retention, file: SharedFile) -> bool:
        return original(self, replace(file, role=instead) if file.role is role else file)

    return swapped(Retention, "_is_settled", is_settled)


@tested(
    PURE + "test_changes_that_were_written_ahead_outlive_a_snapshot_that_is_given_up",
    LIFE,
)
def the_log_goes_with_a_snapshot_that_is_given_up() -> AbstractContextManager[None]:
    """The next one refers to changes that are not there any more (S7, bug-D7, I12)."""
    return _as_if(Role.LOG, Role.OWN)


@tested(
    PURE + "test_all_rows_stay_until_a_base_begins_with_later_ones",
    LOG + "test_all_rows_outlive_the_checkpoint_in_whose_time_they_were_begun",
)
def all_rows_go_before_they_are_used() -> AbstractContextManager[None]:
    """A materialization that spans several checkpoints is deleted while it waits for the next (S7, I12)."""
    return _as_if(Role.BASE, Role.LOG)


@tested(WORKER + "test_files_are_named_by_the_newest_checkpoint_that_the_table_knows")
def files_are_named_by_the_restored_checkpoint() -> AbstractContextManager[None]:
    """They are taken for older than they are, and go while they are needed (S7, I12)."""
    original = WritingAhead._begin

    def begin(self: WritingAhead, entry: Any, plan: Any, role: Role) -> None:
        entry.changes.newest = 0
        original(self, entry, plan, role)

    return swapped(WritingAhead, "_begin", begin)


@tested(PURE + "test_a_late_answer_says_nothing_about_all_rows")
def a_late_answer_lets_all_rows_go() -> AbstractContextManager[None]:
    """A snapshot that is under way begins with rows that are deleted meanwhile (S7, I12)."""
    original = Retention._without_strays

    def without_strays(self: Retention, files: Any, last: CheckpointId) -> Any:
        return original(self, files, min(last, CheckpointId(1)))

    return swapped(Retention, "_without_strays", without_strays)


@tested(WORKER + "test_copies_of_what_no_checkpoint_refers_to_yet_stay")
def copies_of_what_waits_go() -> AbstractContextManager[None]:
    """After a failure the largest file is read from afar (S7, R4)."""
    original = KeptCopies.completed

    def completed(self: KeptCopies, checkpoint: CheckpointId, held: Collection[str] = ()) -> None:
        original(self, checkpoint)

    return swapped(KeptCopies, "completed", completed)


# ---- files that nobody needs


@tested(
    PURE + "test_what_was_written_ahead_ends_with_its_attempt",
    LOG + "test_a_dead_attempt_leaves_nothing_that_is_not_needed",
)
def the_rows_of_a_dead_attempt_stay() -> AbstractContextManager[None]:
    """A materialization that its attempt did not live to use is there for ever (S7, I13)."""
    original = Retention._is_settled

    def is_settled(self: Retention, file: SharedFile) -> bool:
        return original(self, file) and (file.role is Role.OWN or file.attempt == self.attempt)

    return swapped(Retention, "_is_settled", is_settled)


@tested(PURE + "test_changes_in_a_checkpoint_that_went_are_looked_at_again")
def nobody_looks_again_at_the_log() -> AbstractContextManager[None]:
    """What somebody might have needed when its checkpoint went is there until the job ends (S7, I13)."""
    original = Retention._without_strays

    def without_strays(self: Retention, files: Any, last: CheckpointId) -> Any:
        after, strays = original(self, files, last)
        return replace(after, left={}), strays

    return swapped(Retention, "_without_strays", without_strays)


@tested(PURE + "test_all_rows_that_no_checkpoint_begins_with_any_more_go")
def rows_that_nobody_begins_with_stay() -> AbstractContextManager[None]:
    """Where a checkpoint has written all rows itself, those of the background stay until the job ends (S7, I13)."""
    original = Retention._without_strays

    def without_strays(self: Retention, files: Any, last: CheckpointId) -> Any:
        after, strays = original(self, files, last)
        return replace(after, let_go=frozenset()), strays

    return swapped(Retention, "_without_strays", without_strays)


@tested(LOG + "test_what_is_thrown_away_does_not_stay")
def nobody_looks_through_everything() -> AbstractContextManager[None]:
    """Files that no checkpoint was told of stay until something fails (S7, I13, bug-D6)."""
    return swapped(Retention, "is_rebased", lambda self, base: False)


@tested(WORKER + "test_an_attempt_that_ends_drops_what_it_was_writing")
def an_attempt_that_has_ended_writes_on() -> AbstractContextManager[None]:
    """All rows of a dead attempt come into storage minutes later (S7, I13)."""
    return swapped(writing_ahead._UntilClosed, "check", lambda self: None)


# ---- when


@tested(WORKER + "test_a_snapshot_waits_for_what_is_being_written_ahead")
def a_snapshot_writes_what_is_being_written() -> AbstractContextManager[None]:
    """Every checkpoint that comes while a cut is under way writes the same rows once more (S7)."""
    return swapped(WritingAhead, "when_cut", lambda self, act: act())


@tested(WORKER + "test_a_write_ahead_that_fails_costs_the_checkpoint_nothing")
def what_failed_is_tried_again_at_once() -> AbstractContextManager[None]:
    """A store that is out is asked twenty times a second (S7)."""
    return swapped(writing_ahead, "RETRY_MS", 0.0)


@tested(WORKER + "test_all_rows_that_could_not_be_written_are_tried_again_later")
def what_failed_is_never_tried_again() -> AbstractContextManager[None]:
    """The chain grows until the attempt ends (S7)."""
    original = WritingAhead._failed

    def failed(self: WritingAhead, role: Role, piece: Any, *how: Any) -> None:
        original(self, role, piece, *how)
        piece.entry.not_before_ms = float("inf")

    return swapped(WritingAhead, "_failed", failed)


@tested(LOG + "test_chains_stay_short_without_writing_all_rows")
def a_changelog_grows_for_ever() -> AbstractContextManager[None]:
    """A restore reads every change there ever was (S7)."""
    return swapped(Changelog, "is_long", property(lambda self: False))
