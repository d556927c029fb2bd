"""Arrays that grow and shrink in place, and the cells that are free in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state import free_cells, stretch
from penstock.state.free_cells import FreeCells
from penstock.state.stretch import Stretch


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretch, "MAPPED_BYTES_MIN", 4_096)


lengths = st.lists(st.tuples(st.integers(1, 9_000), st.booleans()), max_size=12)


@pytest.mark.parametrize(("dtype", "fill"), [(np.int64, -1), (np.uint16, 0), (np.bool_, 0)])
@given(lengths=lengths)
@settings(max_examples=60, deadline=None)
def test_rows_stay_and_new_ones_are_as_new(dtype: Any, fill: Any, lengths: Any) -> None:
    """S1: however often the array becomes longer and shorter, and whoever still holds an older one."""
    rows = Stretch(dtype, 32, fill)
    model = np.full(32, fill, dtype)
    held = []
    for number, (length, holds) in enumerate(lengths):
        if length > len(model):
            rows.grow(len(model), length)
            model = np.append(model, np.full(length - len(model), fill, dtype))
        elif not held:
            rows.shrink(length)
            model = model[:length].copy()
        assert len(rows.array) == len(model)
        assert np.array_equal(rows.array, model)
        rows.array[::7] = model[::7] = number + 1
        held = [*held, rows.array] if holds else []
        for older in held:
            assert len(older.copy()) == len(older)


def test_an_array_that_is_held_can_still_be_read_when_its_mapping_is_outgrown() -> None:
    """S4: a mapping cannot be moved below whoever reads it; then rows are copied."""
    rows = Stretch(np.int64, 32)
    rows.grow(32, 1_000)
    rows.array[:] = np.arange(1_000)
    held = rows.array
    rows.grow(1_000, 100_000)
    rows.array[:] = 7
    assert np.array_equal(held, np.arange(1_000))


def test_an_array_that_nobody_holds_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """I25: growing takes the kernel's time, not that of a copy."""
    rows = Stretch(np.int64, 32)
    rows.grow(32, 1_000)
    rows.array[:] = np.arange(1_000)
    monkeypatch.setattr(Stretch, "_copy", lambda *_: pytest.fail("rows were copied"))
    for length in range(2_000, 400_000, 1_000):
        rows.grow(length - 1_000, length)
    assert np.array_equal(rows.array[:1_000], np.arange(1_000))
    assert not rows.array[1_000:].any()


def test_long_arrays_lie_in_whole_large_pages() -> None:
    """Those that begin anywhere, or end anywhere, the kernel cuts up when it moves them."""
    rows = Stretch(np.int64, 32)
    for length in (1 << 10, 1 << 18, 1 << 20, 3 << 20):
        rows.grow(len(rows.array), length)
        assert rows._memory is not None
        size = len(rows._memory)
        assert size % stretch.LARGE_PAGE == 0 or size < stretch.LARGE_PAGE


steps = st.lists(
    st.tuples(st.sampled_from(["add", "take", "cut"]), st.lists(st.integers(0, 99), max_size=30)),
    max_size=20,
)


@given(steps=steps)
@settings(max_examples=100, deadline=None)
def test_free_cells_are_known_from_both_ends(steps: Any) -> None:
    """I26: the lowest free ones, and the highest that are in use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(free_cells, "PAGE_BITS", 3)
        patch.setattr(free_cells, "PAGE", 8)
        free, end, model = FreeCells(), 100, set[int]()
        free.grow(0, 128)
        for what, numbers in steps:
            inside = {number for number in numbers if number < end}
            if what == "add":
                free.add(np.array(sorted(inside - model), np.int64))
                model |= inside
            elif what == "take":
                free.take(np.array(sorted(inside & model), np.int64))
                model -= inside
            else:
                before, end = end, max(set(range(end)) - model, default=-1) + 1
                free.cut(end, before)
                model = {cell for cell in model if cell < end}
            assert free.count == len(model)
            used = sorted(set(range(end)) - model, reverse=True)
            for most in (0, 1, 9, 200):
                assert free.lowest(most).tolist() == sorted(model)[:most]
                assert free.highest_used(most, end).tolist() == used[:most]
