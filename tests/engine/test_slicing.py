"""How many rows are worked on at a time follows from what they cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.engine.worker.slicing import ROWS_MAX, SLICE_MS, SLICES_HELD, Slicing


def worked(slicing: Slicing, took_ms: Callable[[int], float], slices: int) -> list[int]:
    """The rows of each slice, when as many are there as are asked for."""
    given = []
    for _ in range(slices):
        rows = slicing.rows
        slicing.took(rows, took_ms(rows))
        given.append(rows)
    return given


def test_rows_that_cost_little_are_worked_on_a_batch_at_a_time() -> None:
    assert set(worked(Slicing(), lambda rows: rows * 1e-4, 10)) == {ROWS_MAX}


@pytest.mark.parametrize("ms_per_row", [0.001, 0.01, 0.1, 1.0, 4.0])
def test_rows_that_cost_much_are_worked_on_in_slices_that_fit(ms_per_row: float) -> None:
    """All but the first take no longer than they should."""
    first, *others = worked(Slicing(), lambda rows: rows * ms_per_row, 50)
    assert first == ROWS_MAX
    assert others[-1] * ms_per_row >= SLICE_MS / 4
    assert all(rows * ms_per_row <= SLICE_MS for rows in others)


def test_one_row_is_the_least() -> None:
    assert worked(Slicing(), lambda rows: rows * 100.0, 3)[1:] == [1, 1]


def test_a_call_that_takes_its_time_however_few_rows_it_is_given_gets_whole_batches() -> None:
    """A slice in so many tries whether that is still so."""
    given = worked(Slicing(), lambda rows: 100.0, 10 * SLICES_HELD)
    small = [rows for rows in given if rows < ROWS_MAX]
    assert 0 < len(small) <= 50


def test_that_a_smaller_slice_takes_as_long_is_believed_when_several_do() -> None:
    """The price of a row shows only where they are few."""
    slicing = Slicing()
    worked(slicing, lambda rows: min(rows * 1.0, 300.0), 5)
    assert slicing.rows <= SLICE_MS


def test_when_rows_cost_less_again_slices_grow_again() -> None:
    slicing = Slicing()
    worked(slicing, lambda rows: rows * 1.0, 5)
    worked(slicing, lambda rows: rows * 1e-5, 60)
    assert slicing.rows == ROWS_MAX


def test_batches_that_are_small_anyway_say_nothing_about_larger_ones() -> None:
    slicing = Slicing()
    slicing.took(ROWS_MAX, 64.0)
    before = slicing.rows
    slicing.took(10, 0.1)
    assert slicing.rows == before < ROWS_MAX
