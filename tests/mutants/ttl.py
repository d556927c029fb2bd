"""Bugs of values with a time to live: they live too long, go too soon, or never leave memory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from penstock.engine.operators.states.expiry import AfterTtl
from penstock.plan.keyhash import I64
from penstock.state import lifetime
from penstock.state.child import Child
from penstock.state.frozen_table import FrozenTable
from penstock.state.lifetime import Lifetimes
from penstock.state.table import Table
from tests.mutants.registry import swapped, tested

TTL = "tests/engine/test_ttl.py::"
MODEL = TTL + "test_states_answer_as_dictionaries_with_a_time_to_live_would"
MEMORY = TTL + "test_memory_of_keys_that_never_come_back_returns_a_little_with_every_batch"


@tested(MODEL)
def what_is_over_is_returned() -> AbstractContextManager[None]:
    """A value is found until the sweep comes by (S8, I21)."""
    return swapped(AfterTtl, "evict", lambda self, cells: False)


@tested(MEMORY)
def what_is_over_is_never_swept() -> AbstractContextManager[None]:
    """Keys that never come back stay for ever (S8, I26)."""
    return swapped(AfterTtl, "sweep", lambda self: None)


@tested(MEMORY)
def every_batch_looks_at_all_cells() -> AbstractContextManager[None]:
    """The sweep is a scan in the hot path (S8)."""
    return swapped(Lifetimes, "next_sweep", Lifetimes.whole_sweep)


@tested(TTL + "test_a_state_of_large_batches_does_not_outgrow_its_sweep")
def the_hand_follows_the_newest_cells() -> AbstractContextManager[None]:
    """While every batch makes cells the hand never begins another round (S8, I26)."""

    def next_sweep(self: Lifetimes, end: int) -> slice:
        limit, self._written = lifetime.SWEEP_CELLS + 2 * self._written, 0
        first = self._hand if self._hand < end else 0
        self._hand = min(first + limit, end)
        return slice(first, self._hand)

    return swapped(Lifetimes, "next_sweep", next_sweep)


@tested(TTL + "test_a_state_of_large_batches_does_not_outgrow_its_sweep")
def a_sweep_is_the_same_for_large_batches() -> AbstractContextManager[None]:
    """More rows come than are looked at, and memory grows for ever (S8, I26)."""
    return swapped(lifetime, "SWEEP_PER_ROW", 0)


@tested(MODEL)
def moments_are_not_restored() -> AbstractContextManager[None]:
    """After a restore every value has its whole time before it again (S8, I21)."""
    original = Lifetimes.restored

    def restored(self: Lifetimes, batch: Any) -> Any:
        return original(self, lifetime.without_moments(batch))

    return swapped(Lifetimes, "restored", restored)


@tested(TTL + "test_a_moment_that_is_to_come_counts_as_that_of_the_restore")
def moments_to_come_are_believed() -> AbstractContextManager[None]:
    """A value from a host whose clock was ahead stays for years (S8)."""

    def restored(self: Lifetimes, batch: Any) -> Any:
        return batch

    return swapped(Lifetimes, "restored", restored)


@tested(MODEL)
def a_list_goes_with_its_first_entry() -> AbstractContextManager[None]:
    """The ttl counts for the whole list or map instead of every entry (S8, I21)."""
    original = AfterTtl._drop

    def drop(self: AfterTtl, cells: I64) -> None:
        if isinstance(self._rows, Child) and len(cells):
            cells = self._rows.walk(np.unique(self._rows.owners(cells))).cells
        original(self, cells)

    return swapped(AfterTtl, "_drop", drop)


@tested(MODEL)
def a_read_does_not_prolong() -> AbstractContextManager[None]:
    """With ttl_on="read" a value that is read all the time goes (S8, I21)."""
    return swapped(Table, "prolong", lambda self, cells: None)


@tested(TTL + "test_a_row_that_is_read_again_and_again_changes_ten_times_in_its_life")
def every_read_is_a_change() -> AbstractContextManager[None]:
    """An increment has every row that was read (S8, S6)."""
    return swapped(Lifetimes, "fading", lambda self, cells: np.ones(len(cells), np.bool_))


@tested(TTL + "test_a_row_that_went_because_it_was_over_is_gone_in_the_next_increment")
def what_was_swept_has_no_tombstone() -> AbstractContextManager[None]:
    """It comes back from an earlier checkpoint when the ttl is taken away (S8, S6)."""
    original = AfterTtl._drop

    def drop(self: AfterTtl, cells: I64) -> None:
        table, changes = self._table, self._table.changes
        table.changes = None
        original(self, cells)
        table.changes = changes

    return swapped(AfterTtl, "_drop", drop)


@tested(TTL + "test_what_was_over_at_a_restore_is_gone_in_the_next_increment")
def what_was_over_at_a_restore_has_no_tombstone() -> AbstractContextManager[None]:
    """Every checkpoint that builds on the restored one has it on (S8, S6)."""
    original = AfterTtl.restored

    def restored(self: AfterTtl) -> None:
        original(self)
        if self._table.changes is not None:
            self._table.changes._removed = []

    return swapped(AfterTtl, "restored", restored)


@tested(TTL + "test_a_snapshot_of_all_rows_leaves_out_those_that_are_over")
def snapshots_have_what_is_over() -> AbstractContextManager[None]:
    """Rows that nobody can read any more are written again and again (S8)."""
    original = Table.freeze

    def freeze(self: Table, base: int = 0, checkpoint: int = 0) -> FrozenTable:
        view = original(self, base, checkpoint)
        view._over_ms = None
        return view

    return swapped(Table, "freeze", freeze)


@tested(TTL + "test_what_is_over_is_not_there_after_a_restore")
def what_is_over_is_restored() -> AbstractContextManager[None]:
    """An increment that is restored brings rows back into memory that nobody can read (S8)."""
    return swapped(AfterTtl, "restored", lambda self: None)


@tested(TTL + "test_time_stands_still_while_a_batch_is_processed")
def time_goes_on_within_a_batch() -> AbstractContextManager[None]:
    """A value is there at the first look of a function and gone at the second (S8)."""

    def over_ms(self: Lifetimes) -> int:
        self._now.tick()
        return self._now.ms - self.ttl.ms

    return swapped(Lifetimes, "over_ms", property(over_ms))


@tested(TTL + "test_entries_that_are_over_go_without_a_look_at_the_others_of_their_key")
def a_sweep_walks_along_the_lists() -> AbstractContextManager[None]:
    """To drop one entry all of its key are looked at (S8)."""
    original = Child.drop

    def drop(self: Child, cells: I64) -> None:
        self.walk(np.unique(self.owners(cells)))
        original(self, cells)

    return swapped(Child, "drop", drop)
