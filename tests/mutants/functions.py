"""Bugs of functions with state that only show when a job fails and goes on: what is restored, what an increment says,
what lives on, and where it was kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.engine.operators.states.lists import ListState
from penstock.engine.worker import snapshots
from penstock.engine.worker.snapshots import WriteWork
from penstock.errors import StorageError
from penstock.plan.keyhash import I64
from penstock.state import changes, lifetime
from penstock.state.changes import GONE_FIELD
from penstock.state.child import Child
from penstock.state.lifetime import Lifetimes
from penstock.state.table import BELOW_PREFIX, Table
from penstock.storage.local_copies import LocalCopies
from tests.mutants.registry import simulated, swapped, together

# ---- lists and maps


@simulated
def lists_are_restored_backwards() -> AbstractContextManager[None]:
    """After a failure the newest entry of a list comes first (S1, I2)."""
    original = Child.put_in_order

    def put_in_order(self: Child, ranks: I64) -> None:
        original(self, -ranks)

    return swapped(Child, "put_in_order", put_in_order)


@simulated
def positions_of_a_list_begin_again() -> AbstractContextManager[None]:
    """After a restore what is added to a list takes the place of its first entries (S1, I2)."""
    original = ListState._restore

    def restore(self: ListState, required: frozenset[str]) -> None:
        original(self, required)
        self._next = 0

    return swapped(ListState, "_restore", restore)


@simulated
def a_list_is_cleared_after_what_was_added_to_it() -> AbstractContextManager[None]:
    """A list that is replaced is empty (S1)."""
    original = ListState._drop

    def end_batch(self: ListState) -> None:
        if self._added:
            rows = self._to_batch.batch([row for _, row in self._added])
            self._add(self._scope.made([at for at, _ in self._added]), rows)
        if self._replaced:
            original(self, self._scope.cells.take(np.array(list(self._replaced), np.int64)))
        self._lists, self._added, self._replaced = None, [], {}

    return swapped(ListState, "end_batch", end_batch)


# ---- increments


def _silent_about(which: Callable[[pa.Schema], bool]) -> AbstractContextManager[None]:
    """Increments do not say what is gone from these states."""
    original = changes.gone_rows

    def gone_rows(intervals: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return iter(()) if which(schema) else original(intervals, schema)

    return swapped(changes, "gone_rows", gone_rows)


def _is_below(schema: pa.Schema) -> bool:
    return any(name.startswith(BELOW_PREFIX) for name in schema.names)


@simulated
def entries_that_were_removed_are_not_in_an_increment() -> AbstractContextManager[None]:
    """After a restore a map has entries again that a function removed (S6, I2)."""
    return _silent_about(_is_below)


@simulated
def values_that_were_cleared_are_not_in_an_increment() -> AbstractContextManager[None]:
    """After a restore a value is there again that a function cleared (S6, I2)."""
    return _silent_about(lambda schema: not _is_below(schema))


@simulated
def increments_build_on_files_of_full_checkpoints() -> AbstractContextManager[None]:
    """A job that goes on with increments refers to files that go with the checkpoint they belong to (S6, T4, I12)."""
    return swapped(changes, "_can_be_shared", lambda segment: True)


# ---- lives


@simulated
def moments_of_increments_are_not_restored() -> AbstractContextManager[None]:
    """What changed since the last full snapshot has its whole time before it again (S8, I21)."""
    original = Lifetimes.restored

    def restored(self: Lifetimes, batch: pa.RecordBatch) -> pa.RecordBatch:
        is_delta = GONE_FIELD.name in batch.schema.names
        return original(self, lifetime.without_moments(batch) if is_delta else batch)

    return swapped(Lifetimes, "restored", restored)


@simulated
def what_was_read_is_not_in_an_increment() -> AbstractContextManager[None]:
    """After a restore a value that is read all the time goes too soon (S8, S6, I21)."""
    original = Table.prolong

    def prolong(self: Table, cells: I64) -> None:
        noted, self.changes = self.changes, None
        original(self, cells)
        self.changes = noted

    return swapped(Table, "prolong", prolong)


@simulated
def a_value_lives_a_millisecond_too_long() -> AbstractContextManager[None]:
    """It is still there when just its time has passed (S8, I21)."""
    original = Lifetimes.over

    def over(self: Lifetimes, cells: Any) -> Any:
        return original(self, cells) & (self.touched.values[cells] < self.over_ms)

    return swapped(Lifetimes, "over", over)


@simulated
def a_second_write_does_not_prolong() -> AbstractContextManager[None]:
    """A value that is written all the time goes as if it had been written once (S8, I21)."""
    original = Lifetimes.touch

    def touch(self: Lifetimes, cells: I64) -> None:
        alive = self.touched.values[cells] > self.over_ms
        before = self.touched.values[cells]
        original(self, cells)
        self.touched.values[cells] = np.where(alive, before, self.touched.values[cells])

    return swapped(Lifetimes, "touch", touch)


# ---- where it is kept


@simulated
def a_copy_of_another_checkpoint_is_used() -> AbstractContextManager[None]:
    """Copies on a worker's own disk are found by the slot alone, and believed (R4, I23, bug-E8)."""
    begin = LocalCopies.begin

    def place(name: str) -> str:
        return re.sub(
            r"\d+-(\d+)-\d+", r"1-\1-1", re.sub(r"chk-\d+/(\d+)-\d+", r"chk-1/\1-1", name)
        )

    def read(self: LocalCopies, name: str, offset: int, length: int, _: Any) -> bytes | None:
        try:
            return self._disk.read(place(name), offset, length)
        except StorageError:
            return None

    def begun(self: LocalCopies, name: str) -> Any:
        return begin(self, place(name))

    return together(swapped(LocalCopies, "begin", begun), swapped(LocalCopies, "read", read))


@simulated
def state_in_the_drivers_memory_has_the_room_of_metadata() -> AbstractContextManager[None]:
    """State that is too large for the metadata is to go into a file, and there is no place for one (T1, I25)."""

    class Small:
        maxsize = 0

    return swapped(snapshots, "sys", Small)


@simulated
def the_drivers_memory_has_the_first_state_of_an_operator() -> AbstractContextManager[None]:
    """A function with two states loses one of them (T1, I2)."""
    original = WriteWork.__call__

    def first_only(self: WriteWork) -> Any:
        made = original(self)
        if self.in_driver is None:
            return made
        return tuple(
            replace(
                snapshot,
                operators={
                    name: replace(part, segments=part.segments[:1])
                    for name, part in snapshot.operators.items()
                },
            )
            for snapshot in made
        )

    return swapped(WriteWork, "__call__", first_only)
