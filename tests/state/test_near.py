"""Cells by position: the same answers as a dict, whatever the range does."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state.keyspace import KeySpace
from penstock.state.near import WIDTH_FREE, WIDTH_MAX, WIDTH_PER_KEY, NearCells

LEAST, MOST = -(1 << 63), (1 << 63) - 1


def array(*keys: int) -> np.ndarray:
    return np.array(keys, np.int64)


def found(near: NearCells, *keys: int) -> list[int]:
    cells = near.find(array(*keys))
    assert cells is not None
    return cells.tolist()


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.lists(st.integers(-3 * WIDTH_FREE, 3 * WIDTH_FREE), min_size=1, max_size=5), max_size=8
    ),
    st.sampled_from([0, LEAST + 4 * WIDTH_FREE, MOST - 4 * WIDTH_FREE]),
)
def test_an_index_numbers_keys_as_a_dict_does(batches: list[list[int]], around: int) -> None:
    """S1: near, far and moving from one to the other; new keys are told once, in the order of their cells."""
    space, cells = KeySpace(pa.schema([("k", pa.int64())]), 128), dict[int, int]()
    for batch in batches:
        keys = array(*batch) + around
        got, new = space.upsert([pa.array(keys)])
        fresh = set(keys.tolist()) - set(cells)
        assert len(np.arange(new.start, new.stop) if isinstance(new, slice) else new) == len(fresh)
        for key, cell in zip(keys.tolist(), got.tolist(), strict=True):
            assert cells.setdefault(key, cell) == cell
    assert sorted(cells.values()) == list(range(len(cells)))
    if cells:
        (kept,) = space.keys()(np.arange(len(cells)))
        assert {key: cell for cell, key in enumerate(kept.to_pylist())} == cells


@pytest.mark.parametrize("keys", [(5, 4, 3), (3, 4, 5), (LEAST, LEAST + 1), (MOST, MOST - 1)])
def test_it_grows_on_both_sides_up_to_the_ends_of_the_numbers(keys: tuple[int, ...]) -> None:
    near = NearCells()
    for cell, key in enumerate(keys):
        assert found(near, key) == [-1]
        near.remember(array(key), array(cell), cell + 1)
    assert found(near, *keys) == list(range(len(keys)))
    assert found(near, 1_000, LEAST + 9, MOST - 9) == [-1, -1, -1]


def test_too_wide_a_range_is_given_up() -> None:
    """Few keys far apart, and many that are still too far apart."""
    few = NearCells()
    few.remember(array(0, WIDTH_FREE), array(0, 1), 2)
    assert few.find(array(0)) is None
    few.remember(array(0), array(0), 2)
    assert few.find(array(0)) is None, "for good"
    many = NearCells()
    count = WIDTH_FREE // WIDTH_PER_KEY + 1
    many.remember(array(0, WIDTH_FREE), array(0, 1), count)
    assert found(many, 0, 1, WIDTH_FREE) == [0, -1, 1]
    many.remember(array(WIDTH_MAX), array(2), WIDTH_MAX)
    assert many.find(array(0)) is None


def test_an_empty_batch_finds_nothing() -> None:
    near = NearCells()
    assert found(near) == []
    near.remember(array(), array(), 0)
    near.remember(array(7), array(0), 1)
    assert found(near) == [] and found(near, 7, 8) == [0, -1]


def test_what_is_forgotten_is_not_found() -> None:
    """S1: keys that were removed; those beside them and far away stay as they are."""
    near = NearCells()
    near.remember(array(1, 2, 3), array(0, 1, 2), 3)
    near.forget(array(2, 1_000_000, LEAST))
    assert found(near, 1, 2, 3) == [0, -1, 2]
