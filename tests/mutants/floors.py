"""Bugs of floors: rows that come back from the dead, are lost on their way down, or are in the wrong snapshot."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from penstock.engine.operators import floors as adopting
from penstock.engine.operators.states.lists import ListState
from penstock.plan.keyhash import I64, Flags
from penstock.shells.spark import floors_dir
from penstock.state import floor_files, floored, row_bytes, write_back
from penstock.state.cached_space import CachedSpace
from penstock.state.exact_sums import SumIntegers
from penstock.state.floored import Budget, FlooredKeyed
from penstock.state.folds import NullUntilSeen
from penstock.state.table import Table
from penstock.state.write_back import WriteBack, WriteDown
from penstock.storage import rocks
from penstock.storage.rocks import KeptFiles
from tests.mutants.registry import swapped, tested

STATES = "tests/engine/test_states.py::test_states_answer_as_dictionaries_would[floors]"
AGGREGATE = "tests/state/test_running_aggregate.py::"
FLOORED = "tests/state/test_floored.py::"
FLOORS = "tests/storage/test_floors.py::"
BYTES = "tests/state/test_row_bytes.py::"


@tested(STATES)
def a_removed_row_is_still_below() -> AbstractContextManager[None]:
    """What was cleared comes back when the key does (S1, S5)."""
    return swapped(WriteBack, "gone", lambda self: ())


@tested(
    FLOORED + "test_what_was_cleared_does_not_come_back_while_a_snapshot_is_written_down[entries]"
)
def what_is_gone_is_asked_for_after_the_floor_was_read() -> AbstractContextManager[None]:
    """A snapshot that is written down meanwhile brings back what was cleared before it (S1, S5)."""

    class Later:
        """Asked for each key, when the floor has been read."""

        def __init__(self, changes: WriteBack) -> None:
            self._changes = changes

        def __contains__(self, key: bytes) -> bool:
            return any(key in each for each in original(self._changes))

    original = WriteBack.gone
    return swapped(WriteBack, "gone", lambda self: (Later(self),))


@tested(STATES)
def a_row_that_came_again_is_removed_below() -> AbstractContextManager[None]:
    """A key that was cleared, set and evicted loses its new row with the next snapshot (S5, I2)."""
    original = WriteBack.write_down

    def write_down(self: WriteBack, cells: I64) -> None:
        self._take_back()
        gone = set(self._gone)
        original(self, cells)
        self._gone |= gone

    return swapped(WriteBack, "write_down", write_down)


@tested(FLOORED + "test_only_what_the_last_batches_had_stays_in_memory")
def rows_leave_without_being_written_down() -> AbstractContextManager[None]:
    """What leaves memory is lost (S5, I2)."""
    return swapped(WriteBack, "write_down", lambda self, cells: None)


@tested(FLOORED + "test_only_what_changed_is_written_down_again")
def all_that_leaves_is_written_down() -> AbstractContextManager[None]:
    """Reading costs as much as writing (S5)."""
    original = WriteBack.write_down

    def write_down(self: WriteBack, cells: I64) -> None:
        self.dirty[cells] = True
        original(self, cells)

    return swapped(WriteBack, "write_down", write_down)


@tested(FLOORED + "test_rows_leave_memory_while_a_snapshot_is_to_be_written_down")
def any_row_leaves_while_a_snapshot_is_to_be_written_down() -> AbstractContextManager[None]:
    """A checkpoint has rows of after its barrier (I2, I3)."""
    return swapped(FlooredKeyed, "_can_leave", lambda self, cells: np.ones(len(cells), np.bool_))


@tested(FLOORED + "test_rows_leave_memory_while_a_snapshot_is_to_be_written_down")
def nothing_leaves_while_a_snapshot_is_to_be_written_down() -> AbstractContextManager[None]:
    """The loop stands still for as long as a snapshot takes (I25)."""
    return swapped(FlooredKeyed, "_can_leave", lambda self, cells: np.zeros(len(cells), np.bool_))


@tested(FLOORED + "test_rows_leave_memory_while_a_snapshot_is_to_be_written_down")
def what_a_snapshot_has_still_to_write_down_leaves_without_it() -> AbstractContextManager[None]:
    """A row is neither in memory nor below until the snapshot gets to it (I2)."""
    return swapped(WriteBack, "_write_ahead", lambda self, cells: None)


@tested(
    FLOORED + "test_rows_that_changed_behind_a_snapshot_that_was_given_up_wait_for_the_one_before"
)
def a_snapshot_that_was_given_up_says_nothing_of_later_changes() -> AbstractContextManager[None]:
    """The one before it has rows of after its barrier (I2, B6)."""

    def can_go_down(self: WriteBack, cells: I64) -> Flags:
        return ~self.dirty.take(cells)

    return swapped(WriteBack, "can_go_down", can_go_down)


@tested(
    FLOORED + "test_a_key_that_was_cleared_and_came_back_before_a_snapshot_is_not_taken_away_by_it"
)
def rows_go_down_before_what_their_keys_had_is_taken_away() -> AbstractContextManager[None]:
    """A key that was cleared and set again is lost (S1, I2)."""

    def can_go_down(self: WriteBack, cells: I64) -> Flags:
        later = [
            each
            for _, plan in self._plans[:1]
            for each in self._frozen
            if each not in plan.intervals
        ]
        return ~write_back._set_in([self.dirty, *(each.dirty for each in later)], cells)

    return swapped(WriteBack, "can_go_down", can_go_down)


@tested(FLOORED + "test_snapshots_are_written_down_in_the_order_of_their_freezes")
def a_later_snapshot_may_be_written_down_first() -> AbstractContextManager[None]:
    """Two checkpoints under way: the older one has the younger one's rows (I2, B6)."""

    def settle(self: WriteDown, view: Any) -> Any:
        if self.kept is None:
            self._write_down(view)
            self.kept = self.changes.floor.keep()
            view.release()
        return self.kept

    return swapped(WriteDown, "settle", settle)


@tested(FLOORED + "test_what_a_snapshot_that_was_given_up_had_is_written_down_with_the_next")
def a_snapshot_that_was_given_up_takes_its_changes_along() -> AbstractContextManager[None]:
    """After an abort the next checkpoint lacks what changed before it (C4, I2)."""
    original = WriteBack.plan

    def plan(self: WriteBack, base: int, checkpoint: int) -> WriteDown:
        made = original(self, base, checkpoint)
        return replace(made, intervals=made.intervals[-1:])

    return swapped(WriteBack, "plan", plan)


@tested(FLOORED + "test_what_a_snapshot_that_was_given_up_had_is_there_when_it_left_memory_since")
def what_was_given_up_leaves_memory_unwritten() -> AbstractContextManager[None]:
    """After an abort rows are lost that leave memory (C4, I2)."""
    return swapped(WriteBack, "_take_back", lambda self: None)


@tested(FLOORED + "test_a_checkpoint_uploads_only_files_that_its_base_does_not_have")
def every_checkpoint_uploads_all_files() -> AbstractContextManager[None]:
    """Incremental checkpoints cost as much as full ones (S5)."""
    original = WriteBack.plan
    return swapped(WriteBack, "plan", lambda self, base, checkpoint: original(self, 0, checkpoint))


@tested(FLOORED + "test_a_checkpoint_uploads_only_files_that_its_base_does_not_have")
def files_of_any_checkpoint_are_used_again() -> AbstractContextManager[None]:
    """A checkpoint refers to files of one that was never completed, which go (T4, bug-D1)."""
    original = WriteBack.plan

    def plan(self: WriteBack, base: int, checkpoint: int) -> WriteDown:
        made = original(self, base, checkpoint)
        every = {name: seg for files in self.bases.values() for name, seg in files.items()}
        return replace(made, known=every)

    return swapped(WriteBack, "plan", plan)


@tested(FLOORED + "test_a_restored_checkpoint_is_a_base")
def a_restored_checkpoint_is_no_base() -> AbstractContextManager[None]:
    """After every restart all state is uploaded again (S5)."""
    return swapped(adopting, "lasts", lambda segment: False)


@tested(FLOORED + "test_floors_are_shared_out_anew_at_another_parallelism[1-2]")
def rows_of_others_stay_in_a_floor() -> AbstractContextManager[None]:
    """After rescaling up every subtask keeps everybody's rows for ever (R6, I13)."""
    return swapped(adopting, "_cut_off", lambda floor, groups, end: None)


@tested(FLOORED + "test_floors_are_shared_out_anew_at_another_parallelism[2-1]")
def rows_of_other_floors_are_left_out() -> AbstractContextManager[None]:
    """After rescaling down the state of all subtasks but one is lost (R6, I15)."""
    return swapped(adopting, "_put_in", lambda floor, files, context: None)


@tested(FLOORED + "test_floors_are_shared_out_anew_at_another_parallelism[1-2]")
def rows_are_counted_with_those_of_others() -> AbstractContextManager[None]:
    """After rescaling a state claims to have rows that it has not (R6)."""
    return swapped(adopting, "_is_within", lambda segment, groups: True)


@tested(FLOORED + "test_a_null_that_comes_back_is_a_null")
def nulls_that_come_back_are_not_noticed() -> AbstractContextManager[None]:
    """A sum that was null is what stands below it (S5, I2)."""
    return swapped(NullUntilSeen, "brought", lambda self, table, cells: None)


@tested(AGGREGATE + "test_a_sum_that_came_back_from_a_floor_is_watched_for_overflow")
def sums_that_come_back_are_not_watched() -> AbstractContextManager[None]:
    """A sum near the limit wraps around without a word (S5)."""
    return swapped(SumIntegers, "brought", NullUntilSeen.brought)


@tested(STATES)
def entries_are_added_before_those_that_come_back() -> AbstractContextManager[None]:
    """After a restart new entries of a list take the places of old ones (S1, S5)."""
    return swapped(ListState, "_brought", lambda self, cells: None)


@tested(FLOORED + "test_a_key_is_in_memory_with_all_its_states_or_with_none")
def keys_are_in_memory_with_some_of_their_states() -> AbstractContextManager[None]:
    """A state that is restored later is not there for keys that another has brought (S1, S5)."""
    return swapped(CachedSpace, "everybody", lambda self: np.empty(0, np.int64))


@tested(FLOORED + "test_a_row_that_is_fetched_into_a_used_cell_is_not_in_an_older_snapshot")
def rows_that_come_back_are_in_older_snapshots() -> AbstractContextManager[None]:
    """A row that is fetched into a used cell is taken for one of before the freeze (I2)."""
    original = Table.bring

    def bring(self: Table, cells: I64, values: Any) -> None:
        views, self._frozen = self._frozen, ()
        original(self, cells, values)
        self._frozen = views

    return swapped(Table, "bring", bring)


@tested(FLOORED + "test_a_moment_that_is_to_come_is_that_of_the_restore[floors]")
def moments_that_are_to_come_stay_as_they_are() -> AbstractContextManager[None]:
    """A row that another host wrote, whose clock was ahead, lives longer (S8, I21)."""
    return swapped(floored.Sweeper, "ahead", lambda self: iter(()))


@tested(FLOORED + "test_a_moment_that_is_to_come_is_that_of_the_restore[changelog over floors]")
def moments_are_held_back_in_memory_alone() -> AbstractContextManager[None]:
    """After one more restore, the row lives longer again (S8, I21)."""

    def hold_back(self: Table, cells: I64) -> None:
        if self.lifetimes is not None:
            self.lifetimes.touch(cells[self.lifetimes.ahead(cells)])

    return swapped(Table, "hold_back", hold_back)


@tested(FLOORED + "test_rows_that_are_over_leave_the_floor_though_nobody_asks_for_them")
def nobody_looks_for_what_is_over_below() -> AbstractContextManager[None]:
    """Rows that ended stay on disk, and in every checkpoint, for ever (S8)."""
    return swapped(floored.Sweeper, "found", lambda self, space, came: np.empty(0, np.int64))


@tested(FLOORED + "test_a_budget_that_one_batch_does_not_fit_into_is_refused_with_what_to_do")
def a_budget_is_a_wish() -> AbstractContextManager[None]:
    """Memory grows beyond what was given, without a word (I26)."""
    return swapped(Budget, "check", lambda self, left_bytes, label: None)


@tested(FLOORED + "test_keys_that_come_again_and_again_are_not_fetched_again")
def the_hottest_leave_first() -> AbstractContextManager[None]:
    """Every batch fetches what the last one has written down (S5)."""

    def idle(self: CachedSpace, most: int, batches: int) -> I64:
        cells = np.flatnonzero(self._live[: self.cells.end])
        cells = cells[np.argsort(self._used_at[cells])[::-1]][:most]
        self._live[cells] = False
        return cells

    return swapped(CachedSpace, "_idle", idle)


@tested(BYTES + "test_no_key_is_where_another_one_begins")
def keys_do_not_say_where_they_end() -> AbstractContextManager[None]:
    """What is below one key is found below another (S1)."""
    return swapped(row_bytes, "encode", _without_lengths)


def _without_lengths(columns: Any, lead: Any = None, *, ordered: bool = False) -> list[bytes]:
    rows: Iterable[Any] = zip(*(each.to_pylist() for each in columns), strict=True)
    return ["".join(map(str, row)).encode() for row in rows]


@tested(BYTES + "test_bytes_of_numbers_in_keys_sort_as_the_numbers_do")
def negative_numbers_sort_behind_the_others() -> AbstractContextManager[None]:
    """Lists come back in another order (S1)."""

    def key_bytes(column: Any, valid: Any) -> Any:
        return row_bytes._bytes(row_bytes.values_of(column))[:, ::-1].copy()

    return swapped(row_bytes, "_key_bytes", key_bytes)


@tested(FLOORED + "test_a_damaged_or_missing_file_is_found_before_anything_is_opened")
def files_of_floors_are_not_verified() -> AbstractContextManager[None]:
    """A damaged file is opened as it is (I24)."""

    def pieces(fetch: Any) -> Any:
        return lambda segment: (fetch(segment)(block) for block in segment.blocks)

    return swapped(floor_files, "with_fetch", pieces)


@tested(FLOORS + "test_the_folder_of_a_killed_worker_goes_when_the_next_one_comes")
def folders_of_dead_workers_stay() -> AbstractContextManager[None]:
    """Every kill leaves the state of a worker on its disk (I26)."""
    return swapped(floors_dir, "sweep", lambda parent: None)


@tested(FLOORS + "test_a_snapshot_that_is_still_kept_while_floors_close_leaves_nothing")
def folders_are_emptied_where_they_are() -> AbstractContextManager[None]:
    """Another thread puts links into a folder that is being emptied, and it stays (I26, bug-H4)."""
    return swapped(rocks, "remove_at_once", partial(shutil.rmtree, ignore_errors=True))


@tested(FLOORS + "test_files_that_last_have_names_that_never_come_again[rocksdb]")
def files_that_change_are_shared() -> AbstractContextManager[None]:
    """A later checkpoint refers to what a file was before it changed (bug-D16)."""
    return swapped(KeptFiles, "is_lasting", lambda self, member: True)
