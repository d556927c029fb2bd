"""Cells by position: the same answers as a dict, whatever the range does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state import index
from penstock.state import near as module
from penstock.state.keyspace import KeySpace
from penstock.state.near import (
    WIDTH_AGAIN,
    WIDTH_COPIED,
    WIDTH_FREE,
    WIDTH_MAX,
    WIDTH_PER_KEY,
    NearCells,
)

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


def test_a_wide_range_grows_on_both_sides_where_it_lies() -> None:
    """I26: an array of many megabytes is never copied into a larger one, and what is told of it is what keys take."""
    near = NearCells()
    near.remember(array(0, WIDTH_FREE), array(0, 1), WIDTH_FREE)
    lies = near._cells
    near.remember(array(-5 * WIDTH_FREE, 9 * WIDTH_FREE), array(2, 3), 4 * WIDTH_FREE)
    assert near._cells is lies
    assert found(near, -5 * WIDTH_FREE, 0, 1, WIDTH_FREE, 9 * WIDTH_FREE) == [2, 0, -1, 1, 3]
    assert near.nbytes == 14 * WIDTH_FREE * 4
    near.thin_out(10)
    assert near.nbytes < WIDTH_FREE
    assert found(near, 0) == [-1]


def test_where_no_memory_can_be_reserved_an_array_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(size: int, *, large: bool) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(module, "mapping", refuse)
    near = NearCells()
    keys = (0, WIDTH_COPIED, -WIDTH_COPIED, 5 * WIDTH_COPIED)
    for cell, key in enumerate(keys):
        near.remember(array(key), array(cell), WIDTH_FREE)
    assert found(near, *keys, 1) == [0, 1, 2, 3, -1]


def test_keys_that_come_in_any_order_are_remembered_when_there_are_enough() -> None:
    """The first few of many lie far from each other, and the range is given up; later it is not too wide any more."""
    near, width = NearCells(), 2 * WIDTH_FREE
    near.remember(array(0, width), array(0, 1), 2)
    assert near.find(array(0)) is None
    near.passed(array(5), width // WIDTH_AGAIN - 2)
    assert near.find(array(0)) is None
    near.passed(array(6), width // WIDTH_AGAIN + 1)
    assert found(near, 0, 5, 6, width) == [-1, -1, -1, -1]
    near.remember(array(0, width), array(0, 1), width // WIDTH_AGAIN + 1)
    assert found(near, 0, 5, width) == [0, -1, 1]
    near.remember(array(2 * WIDTH_MAX), array(4), width)
    near.passed(array(7), width)
    assert near.find(array(0)) is None, "it is known how far the others lie"


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["upsert", "upsert", "find", "remove"]),
            st.one_of(
                st.lists(st.integers(-16, 16), min_size=1, max_size=3),
                st.lists(st.integers(-16, 16), min_size=1, max_size=25),
            ),
        ),
        max_size=20,
    )
)
def test_ranges_that_are_given_up_and_come_back_answer_as_a_dict(
    steps: list[tuple[str, list[int]]],
) -> None:
    """S1: keys that were removed meanwhile, too. It begins with a range that is too wide for its keys."""
    limits = {"WIDTH_FREE": 4, "WIDTH_COPIED": 8, "WIDTH_PER_KEY": 3, "WIDTH_AGAIN": 2}
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in {**limits, "WIDTH_MAX": 64, "WIDTH_LEFT": 5}.items():
            patch.setattr(module, name, limit)
        space, cells = KeySpace(pa.schema([("k", pa.int64())]), 128), dict[int, int]()
        begin = [("upsert", [0, 1, 2, 3]), ("upsert", [16])]
        for what, keys in [*begin, *steps]:
            if what == "remove":
                gone = sorted(set(keys) & set(cells))
                space.remove(array(*(cells.pop(key) for key in gone)))
                space.cells.collect()
            elif what == "upsert":
                got = space.upsert([pa.array(keys, pa.int64())]).cells.tolist()
                for key, cell in zip(keys, got, strict=True):
                    assert cells.setdefault(key, cell) == cell
                assert len(set(cells.values())) == len(cells), "two keys share a cell"
            wanted = [cells.get(key, -1) for key in range(-20, 20)]
            assert space.find([pa.array(range(-20, 20), pa.int64())]).tolist() == wanted


# ---- keys of a snapshot, which come into the table later

close, anywhere = st.integers(-40, 40), st.sampled_from([LEAST, MOST, 1 << 40, -(1 << 40)])
steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["append", "upsert", "find", "remove"]),
            st.one_of(
                st.lists(close, min_size=1, max_size=12),
                st.lists(st.one_of(close, anywhere), min_size=1, max_size=3),
            ),
        ),
        st.just(("tidy", [])),
    ),
    max_size=14,
)


@settings(deadline=None, max_examples=300)
@given(st.lists(close, min_size=1, max_size=40), steps)
def test_keys_of_a_snapshot_are_there_before_the_table_knows_them(
    restored: list[int], steps: list[tuple[str, list[int]]]
) -> None:
    """S1, R4: whatever comes first, other keys, far ones, such as go, or a batch after which some are put in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "PAID_KEYS", 2)
        space, cells = KeySpace(pa.schema([("k", pa.int64())]), 128), dict[int, int]()
        for what, some in [("append", restored), *steps]:
            keys = array(*(some if what != "append" else dict.fromkeys(some)))
            if what == "tidy":
                space.tidy()
            elif what == "find":
                assert space.find([pa.array(keys)]).tolist() == [cells.get(k, -1) for k in some]
            elif what == "remove":
                gone = sorted(set(some) & set(cells))
                space.remove(array(*(cells.pop(key) for key in gone)))
                space.cells.collect()
            else:
                put = space.append if what == "append" else space.upsert
                got, new = put([pa.array(keys)])
                fresh = set(keys.tolist()) - set(cells)
                made = np.arange(new.start, new.stop) if isinstance(new, slice) else new
                for key, cell in zip(keys.tolist(), got.tolist(), strict=True):
                    assert cells.setdefault(key, cell) == cell
                assert {cells[key] for key in fresh} == set(made.tolist())
            assert len(set(cells.values())) == len(cells)
        every = [*range(-41, 42), LEAST, MOST, 1 << 40, -(1 << 40)]
        for _ in range(60):
            assert space.find([pa.array(array(*every))]).tolist() == [
                cells.get(k, -1) for k in every
            ]
            space.tidy()
        space.upsert([pa.array(array(LEAST // 2))])
        assert space.find([pa.array(array(*every))]).tolist() == [cells.get(k, -1) for k in every]


def test_a_key_that_a_snapshot_has_twice_is_noticed() -> None:
    """I14: within one block, and in two."""
    for blocks in ([[3, 4, 3]], [[3, 4], [5, 4]]):
        space, seen = KeySpace(pa.schema([("k", pa.int64())]), 128), list[int]()
        for block in blocks:
            seen += space.append([pa.array(array(*block))]).cells.tolist()
        assert len(set(seen)) == len({key for block in blocks for key in block}) < len(seen)


def test_a_restored_key_is_found_though_the_table_has_none_yet() -> None:
    """R4: that is what makes a restore quick."""
    space = KeySpace(pa.schema([("k", pa.int64())]), 128)
    keys = pa.array(np.arange(30_000))
    space.append([keys])
    owing: Any = space._index
    assert len(owing._table) == 0 and space.find([keys]).tolist() == list(range(30_000))
    for _ in range(4):
        space.tidy()
    assert len(owing._table) == 30_000 and not owing._owed
