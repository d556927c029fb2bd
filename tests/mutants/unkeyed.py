"""Bugs of state without a key: entries that move, multiply, come back or are lost when the parallelism changes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.states import unkeyed
from penstock.engine.operators.states.unkeyed import FrozenEntries, SplitListState, UnionListState
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import Segment
from tests.mutants.registry import swapped, tested

TESTS = "tests/engine/test_unkeyed_states.py::"
LISTS = TESTS + "test_lists_without_a_key_are_shared_out_as_plain_lists_would_be"
OWN = TESTS + "test_at_the_same_parallelism_every_subtask_has_its_own_back_also_if_that_is_nothing"


@tested(LISTS, OWN, TESTS + "test_every_entry_is_somebodys_once")
def entries_move_although_nothing_was_rescaled() -> AbstractContextManager[None]:
    """They are dealt out anew at every restore (S2, bug-E9)."""

    def share(sizes: Sequence[int], index: int, parallelism: int) -> range:
        total = sum(sizes)
        return range(index * total // parallelism, (index + 1) * total // parallelism)

    return swapped(unkeyed, "share", share)


@tested(LISTS, OWN)
def a_subtask_without_entries_is_not_counted() -> AbstractContextManager[None]:
    """Where one had none, the job looks rescaled, and the others' entries move (S2, bug-E9)."""
    original = OperatorContext.parts_of

    def parts_of(self: OperatorContext, state: str) -> list[list[Segment]]:
        return [p for p in original(self, state) if any(each.blocks for each in p)]

    return swapped(OperatorContext, "parts_of", parts_of)


@tested(LISTS, TESTS + "test_a_union_list_neither_grows_nor_brings_back_what_was_forgotten")
def everybody_writes_the_whole_union() -> AbstractContextManager[None]:
    """A union list doubles with every restore, and entries come back that their owner forgot (S2, bug-E11)."""

    def take_back(self: UnionListState, segments: Sequence[Segment], mine: range) -> None:
        rows = sum(block.rows for segment in segments for block in segment.blocks)
        self._own.extend(self._entries(segments, range(rows)))

    return swapped(UnionListState, "_take_back", take_back)


@tested(LISTS)
def entries_of_others_stay_when_all_are_cleared() -> AbstractContextManager[None]:
    """A subtask that has decided what it keeps still sees the rest (S2)."""
    original = SplitListState.clear

    def clear(self: SplitListState) -> None:
        before, behind = self._before, self._behind
        original(self)
        self._before, self._behind = before, behind

    return swapped(SplitListState, "clear", clear)


@tested(LISTS)
def entries_are_read_by_key_groups() -> AbstractContextManager[None]:
    """Those of subtasks whose number is no key group of the reader's are lost (S2)."""
    return swapped(unkeyed, "ALL_GROUPS", (0, 2))


@tested(LISTS)
def a_snapshot_of_a_list_gets_what_is_added_later() -> AbstractContextManager[None]:
    """It has entries of rows behind the barrier (S2, I2)."""

    def freeze(self: SplitListState, order: SnapshotOrder) -> FrozenEntries:
        self._flush()
        batches: tuple[pa.RecordBatch, ...] = self._own  # type: ignore[assignment]
        return FrozenEntries(self._place.name, self._stored, batches, self._place.context.index)

    return swapped(SplitListState, "freeze", freeze)


@tested(TESTS + "test_many_entries_make_few_batches_and_blocks")
def every_entry_stays_a_batch_of_its_own() -> AbstractContextManager[None]:
    """A list of a million entries that came one by one needs a gigabyte (T6)."""
    return swapped(unkeyed._Batches, "add", lambda self, batch: self.append(batch))
