"""Bugs of keyed state: keys that stay or go too soon, values of others, lists out of order."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from penstock.plan.keyhash import I64
from penstock.state.cell_table import CellTable
from penstock.state.cells import Cells
from penstock.state.child import Child
from penstock.state.columns import PiledColumn
from penstock.state.frozen_table import FrozenTable, Saved
from penstock.state.keyed import Keyed
from penstock.state.near import NearCells
from penstock.state.table import Table
from tests.mutants.registry import swapped, tested

STATES = "tests/engine/test_states.py::test_states_answer_as_dictionaries_would"
TABLE = "tests/state/test_cell_table.py::"


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

    def reused(self: Cells, most: int) -> I64:
        if self._back:
            self._free = self._back.pop()
        taken, self._free = self._free[:most], self._free[most:]
        return taken

    return swapped(Cells, "_reused", reused)


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
    original = FrozenTable.save

    def save(self: FrozenTable, saved: Saved) -> None:
        original(self, saved._replace(origins=self._origins))

    return swapped(FrozenTable, "save", save)


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
