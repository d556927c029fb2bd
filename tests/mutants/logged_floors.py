"""Bugs of a changelog over floors: rows that are in no delta because they left memory, or are of another time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from penstock.engine.operators import base
from penstock.plan.keyhash import I64
from penstock.state import floored
from penstock.state.changelog import Changelog
from penstock.state.intervals import Interval
from penstock.state.logged_floor import LoggedFloor, WholeFloor
from penstock.state.table import Table
from penstock.state.write_back import WriteBack, WriteDown
from tests.mutants.registry import swapped, tested

LOGGED = "tests/state/test_logged_floor.py::"
FLOORED = "tests/state/test_floored.py::"
STATES = (
    "tests/engine/test_states.py::test_states_answer_as_dictionaries_would[changelog over floors]"
)


@tested(LOGGED + "test_a_row_that_changed_and_left_memory_is_in_the_next_delta")
def what_left_memory_is_not_noted() -> AbstractContextManager[None]:
    """A row that changed and was evicted is in no delta (S7, I2)."""

    def write_down(self: LoggedFloor, cells: I64) -> None:
        self._down.dirty[cells[self.dirty.take(cells)]] = True
        self._down.write_down(cells)
        self.dirty[cells] = False

    return swapped(LoggedFloor, "write_down", write_down)


@tested(LOGGED + "test_a_row_that_was_written_down_with_all_rows_counts_on_until_those_are_used")
def only_what_the_floor_lacks_is_noted() -> AbstractContextManager[None]:
    """A row that a materialization wrote down is forgotten before that can be used (S7, I2)."""

    def write_down(self: LoggedFloor, cells: I64) -> None:
        dirty = self.dirty.take(cells)
        self._down.dirty[cells[dirty]] = True
        self._below += self.rows.of(self.table.stored(cells[self._down.dirty.take(cells)]))[0]
        self._down.write_down(cells)
        self.dirty[cells] = False

    return swapped(LoggedFloor, "write_down", write_down)


@tested(LOGGED + "test_a_delta_has_the_row_of_the_freeze_though_the_floor_has_a_later_one")
def a_delta_reads_the_floor_as_it_is_now() -> AbstractContextManager[None]:
    """A checkpoint has rows of after its barrier (S7, I2)."""
    original = LoggedFloor._lookup

    def lookup(self: LoggedFloor) -> Any:
        return lambda keys: original(self)(keys)

    return swapped(LoggedFloor, "_lookup", lookup)


@tested(LOGGED + "test_a_delta_has_the_row_of_the_freeze_though_the_floor_has_a_later_one")
def rows_that_leave_are_not_saved_for_views() -> AbstractContextManager[None]:
    """A row that leaves memory while a delta is written is not in it (S7, I2)."""
    original = Table.forget

    def forget(self: Table, cells: I64) -> None:
        views, self._frozen = self._frozen, ()
        original(self, cells)
        self._frozen = views

    return swapped(Table, "forget", forget)


@tested(LOGGED + "test_a_row_that_left_memory_and_was_removed_does_not_come_back")
def removed_rows_come_back_from_the_floor() -> AbstractContextManager[None]:
    """A key that was cleared is in the delta with the row that the floor still has (S7, I21)."""
    return swapped(WriteBack, "all_gone", lambda self: frozenset[bytes]())


@tested(LOGGED + "test_a_floor_that_nobody_can_build_on_is_taken_whole")
def a_floor_without_a_base_is_taken_for_an_empty_one() -> AbstractContextManager[None]:
    """A job that goes on from another's checkpoint loses all that lies in its floor (S7, I2)."""
    original = LoggedFloor.__init__

    def init(self: LoggedFloor, *given: Any, begun: bool) -> None:
        original(self, *given, begun=False)

    return swapped(LoggedFloor, "__init__", init)


@tested(LOGGED + "test_what_left_memory_before_checkpoints_that_were_given_up_is_in_the_next_delta")
def joined_intervals_forget_what_left_memory() -> AbstractContextManager[None]:
    """After many checkpoints that were aborted rows are lost (S7, C4)."""
    original = Interval.joined

    def joined(self: Interval, other: Interval) -> Interval:
        made = original(self, other)
        made.below = list(other.below)
        return made

    return swapped(Interval, "joined", joined)


@tested(LOGGED + "test_a_chain_begins_with_the_files_of_the_floor_once_they_are_durable")
def all_rows_are_written_from_memory() -> AbstractContextManager[None]:
    """A materialization has only what is in memory (S7, S5)."""
    return swapped(LoggedFloor, "materialize", Changelog.materialize)


@tested(LOGGED + "test_all_files_of_a_floor_lie_where_later_checkpoints_may_refer_to_them")
def some_files_of_a_floor_go_with_their_checkpoint() -> AbstractContextManager[None]:
    """A later checkpoint refers to files that are gone (T4, I12)."""
    return swapped(WholeFloor, "_is_shared", WriteDown._is_shared)


@tested(FLOORED + "test_files_of_a_snapshot_that_was_given_up_after_it_was_written_down_go")
def kept_files_of_given_up_snapshots_stay() -> AbstractContextManager[None]:
    """Every abort leaves links to all files on the worker's disk (I26)."""
    return swapped(WriteDown, "release", lambda self: None)


@tested(FLOORED + "test_what_is_over_below_is_never_more_than_a_few_times_what_came_lately")
def few_rows_below_are_looked_at_whatever_comes() -> AbstractContextManager[None]:
    """With a ttl a floor grows without bound (S8, I26)."""
    return swapped(floored, "SWEEP_PER_ROW", 0)


@tested(FLOORED + "test_a_block_of_a_snapshot_may_be_larger_than_memory")
def a_block_of_a_snapshot_is_one_batch() -> AbstractContextManager[None]:
    """A job cannot go on with RocksDB where it needs that most (S5, I23)."""

    def whole(batches: Sequence[Any]) -> Sequence[Any]:
        return batches

    return swapped(base, "in_slices", whole)
