"""Bugs of memory that is given back: rows that are lost on the way, views that are pulled away, what stays for ever."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from penstock.plan.keyhash import I64
from penstock.state import blocks, child, keyed, moving, stretch
from penstock.state.blocks import Blocks
from penstock.state.byte_pile import BytePile
from penstock.state.cell_table import CellTable
from penstock.state.cells import Cells
from penstock.state.columns import PiledColumn
from penstock.state.free_cells import FreeCells
from penstock.state.index import HashIndex
from penstock.state.keyspace import KeySpace
from penstock.state.near import NearCells
from penstock.state.stretch import Stretch
from penstock.state.table import Table
from tests.mutants.registry import swapped, tested

PILES = "tests/state/test_piles.py::"
MOVING = "tests/state/test_moving.py::"
STRETCH = "tests/state/test_stretch.py::"
CELL_TABLE = "tests/state/test_cell_table.py::"
MODEL = MOVING + "test_rows_that_move_are_those_that_a_dictionary_has"
MILLION = MOVING + "test_of_a_million_keys_that_went_no_memory_is_left"

# ---- values in piles


@tested(PILES + "test_a_value_that_is_moved_while_a_view_waits_is_read_where_it_was")
def text_moves_below_a_view() -> AbstractContextManager[None]:
    """A snapshot reads text of another row, or of none (S4, I2)."""
    original = PiledColumn._tidy

    def tidy(self: PiledColumn, rows: int, size: int) -> None:
        self._may_move = lambda cells: True
        original(self, rows, size)

    return swapped(PiledColumn, "_tidy", tidy)


@tested(PILES + "test_keys_stay_where_they_are_while_a_view_waits")
def keys_move_below_a_view() -> AbstractContextManager[None]:
    """A snapshot reads keys where they are not any more (S4, I2)."""
    return swapped(KeySpace, "_may_move", lambda self, cells: True)


@tested(PILES + "test_a_block_that_a_view_holds_is_not_written_anew")
def blocks_are_written_anew_below_a_view() -> AbstractContextManager[None]:
    """A snapshot has text that came after it (S4, I2)."""
    original = BytePile.left

    def left(self: BytePile) -> None:
        self._views.clear()
        original(self)

    return swapped(BytePile, "left", left)


@tested(PILES + "test_what_is_let_go_is_given_back_a_little_at_a_time")
def a_pile_is_emptied_in_one_go() -> AbstractContextManager[None]:
    """The stream stands still while millions of values are copied (I25)."""
    return swapped(PiledColumn, "_some", lambda self, cells, room: cells)


@tested(PILES + "test_what_is_let_go_is_given_back_a_little_at_a_time")
def blocks_that_are_empty_stay() -> AbstractContextManager[None]:
    """Text that is gone takes memory for ever (I26)."""

    def gone(self: Blocks) -> list[int]:
        self.leaving[:] = False
        self.any_leaving = False
        return []

    return swapped(Blocks, "gone", gone)


@tested(PILES + "test_a_column_has_the_last_value_of_every_cell_and_views_those_of_their_moment")
def blocks_go_before_all_cells_were_looked_at() -> AbstractContextManager[None]:
    """Values are lost that nobody moved out in time (S1)."""
    original = PiledColumn._tidy

    def tidy(self: PiledColumn, rows: int, size: int) -> None:
        original(self, rows, size)
        if self._hand > 20:
            self._pile.left()
            self._hand = 0

    return swapped(PiledColumn, "_tidy", tidy)


@tested(PILES + "test_a_value_whose_row_moves_past_the_hand_is_kept")
def who_moves_past_the_hand_is_overlooked() -> AbstractContextManager[None]:
    """A row that moves while blocks are emptied loses its text with them (S1)."""
    original = PiledColumn.move

    def move(self: PiledColumn, cells: I64, to: I64) -> None:
        hand = self._hand
        original(self, cells, to)
        self._hand = hand

    return swapped(PiledColumn, "move", move)


# ---- rows that move


@tested(MOVING + "test_a_row_that_changed_and_then_moved_is_in_the_next_increment")
def rows_that_moved_are_in_no_increment() -> AbstractContextManager[None]:
    """A row that changed, and then moved, is as it was before in the next checkpoint (S6, I20)."""
    original = Table.move

    def move(self: Table, cells: I64, to: I64) -> None:
        before = self.changes.dirty.copy() if self.changes is not None else None
        original(self, cells, to)
        if self.changes is not None and before is not None:
            self.changes.dirty[:] = before

    return swapped(Table, "move", move)


@tested(MODEL)
def rows_move_below_a_view() -> AbstractContextManager[None]:
    """A snapshot has rows twice and others not at all (S4, I2)."""
    original = keyed.tidy

    def tidy(cells: Cells) -> None:
        with swapped(Cells, "copying", property(lambda self: False)):
            original(cells)

    return swapped(keyed, "tidy", tidy)


@tested(MODEL)
def key_groups_stay_behind() -> AbstractContextManager[None]:
    """A row is written under another key's group, and its new owner refuses it (S4, R6)."""

    def move(self: Cells, cells: I64, to: I64) -> None:
        for tenant in self.tenants:
            tenant.move(cells, to)
        self._free.take(to)
        self._free.add(cells)

    return swapped(Cells, "move", move)


@tested(MODEL)
def neighbours_lead_to_where_a_row_was() -> AbstractContextManager[None]:
    """A list loses all that comes behind a row that moved (S1)."""
    return swapped(
        *(child, "_renamed"), lambda links, cells, to: np.where(np.isin(links, cells), -1, links)
    )


@tested(MODEL)
def rows_of_a_key_that_moved_are_not_found() -> AbstractContextManager[None]:
    """A map forgets its entries when its key gets another cell (S1)."""
    return swapped(KeySpace, "rekey", lambda self, cells, owners: None)


@tested(MODEL)
def what_told_long_keys_apart_stays_behind() -> AbstractContextManager[None]:
    """A key that moved is taken for another, and made twice (S1)."""
    original = HashIndex.move

    def move(self: HashIndex, cells: I64, to: I64) -> None:
        before = self._checks.array.take(to)
        original(self, cells, to)
        self._checks.array[to] = before

    return swapped(HashIndex, "move", move)


@tested(MODEL)
def near_cells_remember_where_a_key_was() -> AbstractContextManager[None]:
    """A key that moved finds the row of whoever comes after it (S1)."""
    original = keyed.tidy

    def tidy(cells: Cells) -> None:
        with swapped(NearCells, "remember", lambda self, keys, cells, count: None):
            original(cells)

    return swapped(keyed, "tidy", tidy)


@tested(MOVING + "test_a_key_with_too_many_rows_stays_and_is_not_tried_again_and_again")
def what_cannot_move_is_tried_after_every_batch() -> AbstractContextManager[None]:
    """One key with a long list costs every batch a walk along it (I25)."""
    original = moving._is_sparse

    def is_sparse(cells: Cells) -> bool:
        cells.stuck_at = 1 << 60
        return original(cells)

    return swapped(moving, "_is_sparse", is_sparse)


# ---- what stays


@tested(MILLION)
def nothing_ever_moves() -> AbstractContextManager[None]:
    """One key at the end keeps memory for a million (I26)."""
    return swapped(moving, "_move", lambda cells: None)


@tested(MILLION)
def arrays_stay_long() -> AbstractContextManager[None]:
    """A job that had many keys once has their memory for ever (I26)."""
    return swapped(moving, "_shrink", lambda cells: None)


@tested(MILLION)
def the_cell_table_stays_large() -> AbstractContextManager[None]:
    """So has its index (I26)."""
    return swapped(CellTable, "_merge_segments", lambda self: None)


@tested(MILLION)
def keys_that_went_stay_in_their_pile() -> AbstractContextManager[None]:
    """Text of keys is kept until somebody else gets their cell (I26)."""
    return swapped(KeySpace, "reset", lambda self, cells: None)


@tested(CELL_TABLE + "test_a_table_that_loses_most_of_its_keys_becomes_small_again")
def who_finds_no_room_is_forgotten() -> AbstractContextManager[None]:
    """A key whose segment is put together with another is gone, and made anew (S1)."""
    original = CellTable._fitting

    def fitting(self: CellTable, live: Any) -> Any:
        before = dict(self._overflow)
        kept = original(self, live)
        self._overflow = before
        return kept

    return swapped(CellTable, "_fitting", fitting)


@tested(STRETCH + "test_free_cells_are_known_from_both_ends")
def any_free_cell_will_do() -> AbstractContextManager[None]:
    """New keys keep the end of the arrays in use (I26)."""
    original = FreeCells.lowest
    return swapped(FreeCells, "lowest", lambda self, most: original(self, 1 << 40)[::-1][:most])


@tested(STRETCH + "test_rows_stay_and_new_ones_are_as_new")
def what_was_cut_off_comes_back() -> AbstractContextManager[None]:
    """A new key begins with the values of one that is gone (S1)."""
    original = Stretch.shrink

    def shrink(self: Stretch, rows: int) -> None:
        if self._memory is None or rows >= len(self.array):
            original(self, rows)
        else:
            self.array = np.frombuffer(self._memory, self.array.dtype, rows)

    return swapped(Stretch, "shrink", shrink)


@tested(STRETCH + "test_an_array_that_nobody_holds_is_not_copied")
def long_arrays_are_copied_when_they_grow() -> AbstractContextManager[None]:
    """The stream stands still while millions of rows are copied (I25)."""
    return swapped(stretch, "resized", lambda memory, size: False)


@tested(PILES + "test_what_is_let_go_is_given_back_a_little_at_a_time")
def nearly_empty_blocks_wait_their_turn() -> AbstractContextManager[None]:
    """Giving back what most keys had takes as many rounds as there are blocks (I26)."""
    return swapped(blocks, "NEARLY_EMPTY", 0.0)
