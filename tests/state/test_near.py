"""Slots by position: the same answers as a dict, whatever the range does."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state.index import WordIndex
from penstock.state.near import WIDTH_FREE, WIDTH_MAX, WIDTH_PER_KEY, NearSlots

LEAST, MOST = -(1 << 63), (1 << 63) - 1


def array(*keys: int) -> np.ndarray:
    return np.array(keys, np.int64)


def found(near: NearSlots, *keys: int) -> list[int]:
    slots = near.find(array(*keys))
    assert slots is not None
    return slots.tolist()


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.lists(st.integers(-3 * WIDTH_FREE, 3 * WIDTH_FREE), min_size=1, max_size=5), max_size=8
    ),
    st.sampled_from([0, LEAST + 4 * WIDTH_FREE, MOST - 4 * WIDTH_FREE]),
)
def test_an_index_numbers_keys_as_a_dict_does(batches: list[list[int]], around: int) -> None:
    """S1: near, far and moving from one to the other; new keys are told once, in the order of their slots."""
    index, slots = WordIndex(pa.int64()), dict[int, int]()
    for batch in batches:
        keys = array(*batch) + around
        got, new_h1 = index.upsert([pa.array(keys)])
        fresh = set(keys.tolist()) - set(slots)
        assert len(new_h1) == len(fresh)
        for key, slot in zip(keys.tolist(), got.tolist(), strict=True):
            assert slots.setdefault(key, slot) == slot
    assert sorted(slots.values()) == list(range(len(slots)))
    if slots:
        (kept,) = (view() for view in index.views(len(slots)))
        assert {key: slot for slot, key in enumerate(kept.to_pylist())} == slots


@pytest.mark.parametrize("keys", [(5, 4, 3), (3, 4, 5), (LEAST, LEAST + 1), (MOST, MOST - 1)])
def test_it_grows_on_both_sides_up_to_the_ends_of_the_numbers(keys: tuple[int, ...]) -> None:
    near = NearSlots()
    for slot, key in enumerate(keys):
        assert found(near, key) == [-1]
        near.remember(array(key), array(slot), slot + 1)
    assert found(near, *keys) == list(range(len(keys)))
    assert found(near, 1_000, LEAST + 9, MOST - 9) == [-1, -1, -1]


def test_too_wide_a_range_is_given_up() -> None:
    """Few keys far apart, and many that are still too far apart."""
    few = NearSlots()
    few.remember(array(0, WIDTH_FREE), array(0, 1), 2)
    assert few.find(array(0)) is None
    few.remember(array(0), array(0), 2)
    assert few.find(array(0)) is None, "for good"
    many = NearSlots()
    count = WIDTH_FREE // WIDTH_PER_KEY + 1
    many.remember(array(0, WIDTH_FREE), array(0, 1), count)
    assert found(many, 0, 1, WIDTH_FREE) == [0, -1, 1]
    many.remember(array(WIDTH_MAX), array(2), WIDTH_MAX)
    assert many.find(array(0)) is None


def test_an_empty_batch_finds_nothing() -> None:
    near = NearSlots()
    assert found(near) == []
    near.remember(array(), array(), 0)
    near.remember(array(7), array(0), 1)
    assert found(near) == [] and found(near, 7, 8) == [0, -1]
