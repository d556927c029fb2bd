"""Bugs of restores by a job that was changed: state that is lost, mixed up or taken for something else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import pyarrow as pa

from penstock.engine.checkpoints import manifests
from penstock.engine.operators import evolution, folding, keyed
from penstock.protocol.snapshot import OperatorSnapshot, Segment
from penstock.state.changes import GONE_FIELD, Changes
from tests.mutants.registry import swapped, tested

TESTS = "tests/engine/test_evolution.py::"


@tested(TESTS + "test_an_added_aggregate_begins_empty_for_keys_that_were_there")
def an_added_aggregate_begins_at_zero() -> AbstractContextManager[None]:
    """A sum or the smallest number of nothing is 0 instead of null (S10)."""

    def nothing(field: pa.Field, rows: int) -> pa.Array:
        try:
            return pa.repeat(pa.scalar(0, field.type), rows)
        except (pa.ArrowException, TypeError):
            return pa.nulls(rows, field.type)

    return swapped(evolution, "_nothing", nothing)


@tested(
    TESTS + "test_another_aggregate_of_the_same_name_is_refused",
    TESTS + "test_a_count_of_rows_is_not_a_count_of_values",
    TESTS + "test_a_sum_of_decimals_keeps_its_scale",
)
def an_aggregate_goes_on_as_another_one() -> AbstractContextManager[None]:
    """What was a sum is a maximum from now on, where their columns look the same (S10)."""
    return swapped(folding, "_refuse_a_change", lambda name, old, new, label: None)


@tested(TESTS + "test_an_aggregate_that_is_gone_is_refused_until_it_is_let_go")
def an_aggregate_that_is_gone_goes_in_silence() -> AbstractContextManager[None]:
    """A typing error in the name of a result loses its state (S10, R8)."""
    original = folding._refuse_other_aggregates

    def lenient(stored: pa.Schema, wanted: pa.Schema, label: str, *, may_lose: bool) -> None:
        original(stored, wanted, label, may_lose=True)

    return swapped(folding, "_refuse_other_aggregates", lenient)


@tested(
    TESTS + "test_increments_begin_anew_after_a_change",
    TESTS + "test_a_wider_decimal_begins_increments_anew",
)
def increments_are_built_on_other_columns() -> AbstractContextManager[None]:
    """A checkpoint has rows of two shapes in one state, and nobody can read it (S6, S10)."""
    return swapped(keyed, "same_rows", lambda stored, schema: True)


@tested(
    TESTS + "test_another_key_is_refused",
    TESTS + "test_the_order_of_key_columns_is_part_of_the_key",
)
def any_key_will_do() -> AbstractContextManager[None]:
    """State by another key is taken for damage, or is found by nobody (S10, I15)."""
    return swapped(evolution, "_refuse_another_key", lambda stored, wanted, what, label: None)


@tested(TESTS + "test_a_column_that_is_not_null_now_must_have_no_nulls_in_the_checkpoint")
def nulls_in_a_delta_are_overlooked() -> AbstractContextManager[None]:
    """A column without nulls has some after a restore (S10)."""

    def none(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, 0) if GONE_FIELD.name in batch.schema.names else batch

    return swapped(evolution, "_without_gone", none)


@tested(TESTS + "test_a_key_that_has_lost_its_row_has_no_nulls_to_be_refused")
def a_key_without_a_row_is_taken_for_nulls() -> AbstractContextManager[None]:
    """A key that was removed keeps a job from going on (S10)."""
    return swapped(evolution, "_without_gone", lambda batch: batch)


@tested(TESTS + "test_a_chain_whose_first_rows_are_elsewhere_still_begins_with_all_rows")
def a_chain_begins_with_a_delta() -> AbstractContextManager[None]:
    """Readers do not know what the rows look like (S6)."""
    original = Changes.restored

    def restored(
        self: Changes, checkpoint: int, segments: Sequence[Segment], groups: range
    ) -> None:
        original(self, checkpoint, segments, groups)
        chain = self._chains[checkpoint]
        links = tuple(link for link in chain.links if link.segment.blocks)
        self._chains[checkpoint] = replace(chain, links=links)

    return swapped(Changes, "restored", restored)


@tested(
    "tests/engine/test_changed_jobs.py::"
    "test_state_without_its_operator_goes_when_that_is_asked_for_but_no_promise_does"
)
def promises_are_let_go_with_state() -> AbstractContextManager[None]:
    """Rows that a sink promised to commit are lost with it (I10, R8)."""

    def has_state(part: OperatorSnapshot, may_lose: bool) -> bool:
        return not may_lose and bool(part.segments or part.lanes or part.transactions)

    return swapped(manifests, "_has_state", has_state)
