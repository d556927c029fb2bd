"""Bugs of increments: changes that are left out, rows that come back, files that are not ours to refer to."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from penstock.engine.operators.process import ProcessContext
from penstock.plan.keyhash import I64
from penstock.state import changes
from penstock.state.changes import Changes, Plan
from penstock.state.table import Table
from tests.mutants.registry import simulated, swapped, tested

CHANGES = "tests/state/test_changes.py::"
STATES = "tests/engine/test_states.py::test_states_answer_as_dictionaries_would"


@tested(CHANGES + "test_a_checkpoint_writes_what_changed_since_its_base")
def removed_keys_come_back() -> AbstractContextManager[None]:
    """An increment does not say which keys are gone: after a restore they are there again (S6, I21)."""
    return swapped(changes, "gone_rows", lambda intervals, schema: iter(()))


@simulated
def changed_rows_are_not_noted() -> AbstractContextManager[None]:
    """An increment has only rows that are new (S6, I2)."""

    def touch(self: Table, cells: I64) -> None:
        noted, self.changes = self.changes, None
        original(self, cells)
        self.changes = noted

    original = Table.touch
    return swapped(Table, "touch", touch)


@tested(CHANGES + "test_a_base_that_is_not_the_last_one_has_all_that_came_after_it")
def an_increment_has_the_last_interval_only() -> AbstractContextManager[None]:
    """What changed before a snapshot that was given up is in no checkpoint (S6, C4, I2)."""
    original = Changes.plan

    def plan(self: Changes, base: int, checkpoint: int) -> Plan:
        made = original(self, base, checkpoint)
        return replace(made, intervals=made.intervals[-1:])

    return swapped(Changes, "plan", plan)


@tested(CHANGES + "test_a_chain_stays_short_and_its_rows_right")
def a_delta_takes_the_place_of_others_without_their_rows() -> AbstractContextManager[None]:
    """Several deltas go for one that only has what changed since the last of them (S6, I2)."""
    original = Changes.plan

    def plan(self: Changes, base: int, checkpoint: int) -> Plan:
        made = original(self, base, checkpoint)
        return replace(made, intervals=made.intervals[-1:]) if made.large else made

    return swapped(Changes, "plan", plan)


@tested(CHANGES + "test_a_chain_stays_short_and_its_rows_right")
def chains_grow_for_ever() -> AbstractContextManager[None]:
    """Every checkpoint adds a segment, and a restore reads all of them (S6)."""
    return swapped(changes, "SMALL_MAX", 1_000_000)


@tested(CHANGES + "test_what_nobody_may_refer_to_is_not_built_on")
def files_of_one_checkpoint_are_referred_to_by_others() -> AbstractContextManager[None]:
    """A checkpoint refers to a file that goes with another (T4, I12)."""
    return swapped(changes, "_can_be_shared", lambda segment: True)


@tested(CHANGES + "test_what_has_rows_of_others_is_not_built_on")
def all_of_a_segment_counts_for_everybody() -> AbstractContextManager[None]:
    """After a change of parallelism subtasks build on what has the rows of others (R6, I15)."""
    return swapped(changes, "_is_within", lambda segment, groups: True)


@tested(CHANGES + "test_memory_is_bounded_while_no_checkpoint_completes")
def intervals_are_kept_for_ever() -> AbstractContextManager[None]:
    """While storage is out every snapshot that fails costs memory (I26)."""
    return swapped(changes, "INTERVALS_MAX", 1_000_000)


@tested(STATES)
def keys_that_were_removed_stay_after_a_restore() -> AbstractContextManager[None]:
    """A key without any value is there for ever, if it went between two checkpoints (S1, I26)."""
    original = ProcessContext._finish_open

    def finish_open(self: ProcessContext) -> None:
        self._scope.keyed._left = []
        original(self)

    return swapped(ProcessContext, "_finish_open", finish_open)
