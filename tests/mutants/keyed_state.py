"""Bugs of keyed state: keys that stay or go too soon, values of others, lists out of order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from penstock.plan.keyhash import I64
from penstock.state.cell_table import CellTable
from penstock.state.cells import Cells
from penstock.state.child import Child
from penstock.state.columns import PiledColumn
from penstock.state.index import WordIndex
from penstock.state.keyed import Keyed
from penstock.state.near import NearCells
from penstock.state.table import Table
from tests.mutants.registry import swapped, tested

STATES = "tests/engine/test_states.py::test_states_answer_as_dictionaries_would"
TABLE = "tests/state/test_cell_table.py::"
NEAR = "tests/state/test_near.py::"


@tested(STATES)
def keys_without_a_value_stay() -> AbstractContextManager[None]:
    """Whoever forgets a key keeps its cell for ever (S1)."""
    return swapped(Keyed, "vacate", lambda self, cells: None)


@tested(STATES)
def a_key_goes_with_the_first_state_that_forgets_it() -> AbstractContextManager[None]:
    """The other states of the key lose their rows (S1)."""
    return swapped(Keyed, "vacate", lambda self, cells: self.space.remove(cells))


@tested("tests/engine/test_states.py::test_states_of_many_keys_come_back_one_after_the_other")
def a_state_that_comes_late_has_rows_already() -> AbstractContextManager[None]:
    """A function with two states cannot be restored once it has more than a few keys (S1, I2)."""

    def admit(self: Cells, tenant: Any) -> None:
        tenant.grow(self.end, len(self.groups))
        self._tenants.append(tenant)

    return swapped(Cells, "admit", admit)


@tested(STATES)
def neighbours_of_what_is_removed_are_not_joined() -> AbstractContextManager[None]:
    """Where two entries in a row are removed, a list goes on with one that is gone (S1)."""
    return swapped(Child, "_skip", lambda self, links, cells: None)


@tested(STATES)
def cells_are_used_again_while_a_snapshot_is_written() -> AbstractContextManager[None]:
    """A snapshot has a key's old row under another key (S4, I2, bug-D19)."""
    return swapped(Cells, "copying", property(lambda self: False))


@tested(STATES)
def rows_that_go_are_not_saved_for_a_snapshot() -> AbstractContextManager[None]:
    """A snapshot lacks what was removed while it was written (S4, I2)."""
    original = Table.drop

    def drop(self: Table, cells: I64) -> None:
        frozen, self._frozen = self._frozen, ()
        original(self, cells)
        self._frozen = frozen

    return swapped(Table, "drop", drop)


@tested(STATES)
def a_snapshot_takes_numbers_of_another_pile() -> AbstractContextManager[None]:
    """After a pile was made anew a snapshot reads the wrong texts (S4, I2)."""
    original = PiledColumn.__init__

    def init(self: PiledColumn, kind: pa.DataType, may_move: Callable[[I64], bool]) -> None:
        original(self, kind, lambda cells: True)

    return swapped(PiledColumn, "__init__", init)


@tested(STATES)
def lists_come_back_in_any_order() -> AbstractContextManager[None]:
    """After a restore a list is in the order of its cells (S1, I20)."""
    return swapped(Child, "put_in_order", lambda self, ranks: None)


@tested(STATES)
def what_is_removed_stays_in_the_chain() -> AbstractContextManager[None]:
    """An entry of a list or map that was removed comes back with its cell's next owner (S1)."""

    def drop(self: Child, cells: I64) -> None:
        if len(cells):
            self.table.drop(cells)
            self.space.remove(cells)

    return swapped(Child, "drop", drop)


@tested("tests/state/test_near.py::test_what_is_forgotten_is_not_found")
def near_cells_remember_for_ever() -> AbstractContextManager[None]:
    """A key that comes back finds the cell of another (S1)."""
    return swapped(NearCells, "forget", lambda self, keys: None)


@tested(NEAR + "test_keys_that_come_in_any_order_are_remembered_when_there_are_enough")
def what_was_too_wide_once_is_for_ever() -> AbstractContextManager[None]:
    """Keys that come in any order are never found by position, however close together they lie (S1)."""
    return swapped(NearCells, "passed", lambda self, keys, count: None)


@tested(NEAR + "test_ranges_that_are_given_up_and_come_back_answer_as_a_dict")
def positions_of_a_range_that_comes_back_are_those_of_old() -> AbstractContextManager[None]:
    """Keys that were removed meanwhile lead to cells that others have by now (S1)."""
    original = NearCells.remember

    def remember(self: NearCells, keys: I64, cells: I64, count: int) -> None:
        before = self._cells, self._first
        original(self, keys, cells, count)
        if self._too_wide:
            self._cells, self._first = before

    return swapped(NearCells, "remember", remember)


@tested(TABLE + "test_removed_keys_are_gone_and_all_others_stay")
def a_grave_ends_the_search() -> AbstractContextManager[None]:
    """A key behind one that was removed is not found, and made twice (S1)."""
    original = CellTable.remove

    def remove(self: CellTable, keys: I64, hashes: Any) -> None:
        places = self._places(keys, hashes) if not self._overflow else None
        original(self, keys, hashes)
        if places is not None and self._graves:
            self._cells[places] = 0

    return swapped(CellTable, "remove", remove)


@tested(TABLE + "test_a_table_that_is_emptied_and_filled_again_does_not_grow")
def graves_stay() -> AbstractContextManager[None]:
    """A table whose keys come and go grows for ever (S1, I26)."""
    original = CellTable._sweep

    def sweep(self: CellTable) -> None:
        entries = self._entries
        original(self)
        self._entries, self._graves = entries, 0

    return swapped(CellTable, "_sweep", sweep)


@tested("tests/state/test_table.py::test_text_that_changes_again_and_again_does_not_pile_up")
def piles_are_never_tidied() -> AbstractContextManager[None]:
    """Text that changes keeps all that it ever was (I26)."""
    return swapped(PiledColumn, "_tidy", lambda self, rows, size: None)


@tested(NEAR + "test_keys_of_a_snapshot_are_there_before_the_table_knows_them")
def keys_of_a_snapshot_never_come_into_the_table() -> AbstractContextManager[None]:
    """Once a key comes that lies far away, none of the others is found any more (S1, R4)."""

    def pay(self: WordIndex, count: int) -> None:
        self._owed = self._owed[count:]

    return swapped(WordIndex, "_pay", pay)


@tested(NEAR + "test_keys_of_a_snapshot_are_there_before_the_table_knows_them")
def nobody_minds_whether_a_far_key_fits() -> AbstractContextManager[None]:
    """What is remembered by position is forgotten before the table knows it (S1, R4)."""

    def remember(self: WordIndex, words: I64, cells: I64) -> None:
        self._near.remember(words, cells, len(self))

    return swapped(WordIndex, "_remember", remember)


@tested(NEAR + "test_a_key_that_a_snapshot_has_twice_is_noticed")
def a_key_that_comes_twice_has_two_cells() -> AbstractContextManager[None]:
    """A damaged snapshot is read as if nothing were wrong with it (I14)."""
    original = WordIndex.append

    def append(self: WordIndex, keys: Any) -> Any:
        found = original(self, keys)
        return found and found._replace(cells=found.new)

    return swapped(WordIndex, "append", append)


@tested(NEAR + "test_keys_of_a_snapshot_are_there_before_the_table_knows_them")
def keys_that_went_before_the_table_knew_them_come_into_it() -> AbstractContextManager[None]:
    """A key that was removed soon after a restore is there again, or another's cell is its own (S1, R4)."""
    return swapped(WordIndex, "_leave", lambda self, cells: None)
