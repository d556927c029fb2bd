"""The cell table: always the right cell, whatever the keys."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvariantBroken
from penstock.plan.keyhash import mix
from penstock.state import cell_table as module
from penstock.state.cell_table import CellTable


def made(hash_of: Callable[[np.ndarray], np.ndarray]) -> CellTable:
    """Cells are numbered on."""
    numbers = count()
    return CellTable(hash_of, lambda n: np.array([next(numbers) for _ in range(n)], np.int64))


def one_home(keys: np.ndarray) -> np.ndarray:
    """The worst hash there is: everybody lives at the same place."""
    return np.zeros(len(keys), np.uint64)


def few_homes(keys: np.ndarray) -> np.ndarray:
    """Keys that meet in the high bits and in the low ones, in groups."""
    return (keys.view(np.uint64) % np.uint64(5)) << np.uint64(60)


def check_against_a_dict(table: CellTable, batches: list[np.ndarray], hash_of) -> dict[int, int]:
    model: dict[int, int] = {}
    for keys in batches:
        result = table.upsert(keys, hash_of(keys))
        before = len(model)
        for key, cell in zip(keys.tolist(), result.cells.tolist(), strict=True):
            assert model.setdefault(key, cell) == cell
        new = [int(keys[row]) for row in result.new_rows.tolist()]
        assert [model[key] for key in new] == list(range(before, len(model)))
        assert len(table) == len(model)
    assert sorted(model.values()) == list(range(len(model)))
    return model


int64s = st.one_of(st.integers(-5, 30), st.integers(-(2**63), 2**63 - 1))


@pytest.mark.parametrize("hash_of", [mix, one_home, few_homes])
@given(batches=st.lists(st.lists(int64s, min_size=1, max_size=120), max_size=8))
@settings(max_examples=40, deadline=None)
def test_every_key_keeps_one_cell_and_cells_are_dense(hash_of, batches: list[list[int]]) -> None:
    arrays = [np.array(batch, np.int64) for batch in batches]
    model = check_against_a_dict(made(hash_of), arrays, hash_of)
    table = made(hash_of)
    for array in arrays:
        table.upsert(array, hash_of(array))
    known = np.array([*model, 12345678901], np.int64)
    expected = [*model.values(), model.get(12345678901, -1)]
    assert table.lookup(known, hash_of(known)).tolist() == expected


def test_growing_through_many_splits_loses_nothing() -> None:
    rng = np.random.default_rng(3)
    batches = [rng.integers(0, 60_000, 9_000) * 977 for _ in range(12)]
    table = made(mix)
    model = check_against_a_dict(table, batches, mix)
    assert len(model) > 40_000
    assert table.overflowed == 0
    keys = np.array(list(model), np.int64)
    assert table.lookup(keys, mix(keys)).tolist() == list(model.values())


def test_keys_chosen_to_collide_overflow_into_the_dict_and_stay_right() -> None:
    """bug-like input: thousands of keys with one home must neither be lost nor grow the table without end."""
    keys = np.arange(3_000, dtype=np.int64)
    table = made(one_home)
    check_against_a_dict(table, [keys, keys[::-1].copy(), keys], one_home)
    assert table.overflowed > 2_000
    assert table.bytes_reserved <= 1 << 20


def test_a_key_without_a_place_that_repeats_in_its_batch_has_one_cell() -> None:
    keys = np.tile(np.arange(500, dtype=np.int64), 3)
    table = made(one_home)
    check_against_a_dict(table, [keys], one_home)
    assert len(table) == 500
    assert table.overflowed > 300


def test_crowded_segments_are_split_and_doubled_without_losing_keys() -> None:
    """A third of the keys meets at few places of its segment, the others spread."""

    def crowded(keys: np.ndarray) -> np.ndarray:
        hashes = mix(keys)
        hashes[keys % 3 == 0] &= np.uint64(0x03000000_0000FFFF)
        return hashes

    rng = np.random.default_rng(5)
    batches = [rng.permutation(20_000)[:3_000].astype(np.int64) for _ in range(12)]
    table = made(crowded)
    check_against_a_dict(table, batches, crowded)
    assert table.overflowed > 0


def test_a_hash_function_that_contradicts_the_hashes_is_noticed() -> None:
    table = made(one_home)
    keys = np.arange(3_000, dtype=np.int64)
    with pytest.raises(InvariantBroken, match="hash function"):
        for start in range(0, 3_000, 100):
            table.upsert(keys[start : start + 100], mix(keys[start : start + 100]))


def test_a_small_table_is_small() -> None:
    """A simulator makes thousands of them."""
    table = made(mix)
    keys = np.arange(20, dtype=np.int64)
    table.upsert(keys, mix(keys))
    assert table.bytes_reserved <= 4096


def test_few_distinct_keys_in_a_large_batch_keep_the_table_small() -> None:
    table = made(mix)
    keys = np.arange(65_536, dtype=np.int64) % 10
    table.upsert(keys, mix(keys))
    assert table.bytes_reserved <= 4096


def test_where_memory_cannot_be_extended_in_place_it_is_copied(monkeypatch) -> None:
    monkeypatch.setattr(CellTable, "_extend_in_place", lambda self, size: False)
    rng = np.random.default_rng(4)
    check_against_a_dict(made(mix), [rng.integers(0, 30_000, 8_000) for _ in range(6)], mix)


def test_one_batch_splits_only_what_its_new_keys_need() -> None:
    """Bounded pauses: adding few keys to a large table moves a few segments, not the table."""
    table = made(mix)
    keys = np.arange(100_000, dtype=np.int64)
    table.upsert(keys, mix(keys))
    moved = 0
    build = table._build

    def counting(live) -> None:
        nonlocal moved
        moved += len(live)
        build(live)

    table._build = counting  # type: ignore[method-assign]
    more = np.arange(100_000, 101_000, dtype=np.int64)
    table.upsert(more, mix(more))
    assert moved <= 2 * module.SPLITS_PER_STEP << module.SEGMENT_BITS


int_batches = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(-5, 40), min_size=1, max_size=60)), max_size=12
)


@pytest.mark.parametrize("hash_of", [mix, one_home, few_homes])
@given(steps=int_batches)
@settings(max_examples=60, deadline=None)
def test_removed_keys_are_gone_and_all_others_stay(
    hash_of, steps: list[tuple[bool, list[int]]]
) -> None:
    """S1: also keys that come back, and graves that others were probing over."""
    table, model = made(hash_of), dict[int, int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GRAVES_MIN", 4)
        for removes, numbers in steps:
            keys = np.array(numbers, np.int64)
            if removes:
                there = np.array(sorted(set(numbers) & set(model)), np.int64)
                table.remove(there, hash_of(there))
                for key in there.tolist():
                    del model[key]
            else:
                for key, cell in zip(
                    numbers, table.upsert(keys, hash_of(keys)).cells.tolist(), strict=True
                ):
                    assert model.setdefault(key, cell) == cell
            assert len(table) == len(model)
            everybody = np.arange(-6, 42)
            expected = [model.get(key, -1) for key in everybody.tolist()]
            assert table.lookup(everybody, hash_of(everybody)).tolist() == expected


def test_a_table_that_is_emptied_and_filled_again_does_not_grow() -> None:
    """Graves are cleared away, a few segments at a time."""
    table = made(mix)
    keys = np.arange(50_000, dtype=np.int64)
    table.upsert(keys, mix(keys))
    size = table.bytes_reserved
    for round_number in range(1, 20):
        table.remove(keys, mix(keys))
        keys = np.arange(50_000, dtype=np.int64) + 1_000_003 * round_number
        table.upsert(keys, mix(keys))
    assert len(table) == 50_000
    assert table.bytes_reserved <= 2 * size


@pytest.mark.parametrize("crowd", [1, 400], ids=["spread", "crowded"])
def test_a_table_that_loses_most_of_its_keys_becomes_small_again(crowd: int) -> None:
    """I26: segments are put together again; who finds no room there is found all the same."""

    def crowded(keys: np.ndarray) -> np.ndarray:
        """Many live at the same place in their segments: of two that become one, not all can stay there."""
        hashes = mix(keys)
        hashes[keys % crowd == 0] &= np.uint64(0x0000_FFFF)
        return hashes if crowd > 1 else mix(keys)

    table, keys = made(crowded), np.arange(200_000, dtype=np.int64)
    cells = np.concatenate(
        [table.upsert(part, crowded(part)).cells for part in np.split(keys, 100)]
    )
    peak, overflowed = table.bytes_reserved, table.overflowed
    stays = (keys % 400 == 0) | (keys % 100 == 1)
    for part in np.array_split(keys[~stays], 100):
        table.remove(part, crowded(part))
    for _ in range(100):
        table.tidy()
    assert table.bytes_reserved < peak // 8
    assert (table.overflowed > overflowed) == (crowd > 1)
    assert len(table) == stays.sum()
    assert np.array_equal(table.lookup(keys, crowded(keys)), np.where(stays, cells, -1))
    again = table.upsert(keys, crowded(keys)).cells
    assert np.array_equal(again[stays], cells[stays])
    assert len(table) == len(keys)


@pytest.mark.parametrize("hash_of", [mix, one_home, few_homes])
def test_keys_get_other_cells_and_cells_other_keys(hash_of) -> None:
    """S1: wherever the keys lie, also beside the table."""
    table, keys = made(hash_of), np.arange(500, dtype=np.int64)
    table.upsert(keys, hash_of(keys))
    table.relabel(keys[::3], hash_of(keys[::3]), keys[::3] + 7_000)
    expected = np.where(keys % 3 == 0, keys + 7_000, keys)
    assert np.array_equal(table.lookup(keys, hash_of(keys)), expected)
    table.remove(keys[::5], hash_of(keys[::5]))
    others = keys[::5] + 1_000
    table.adopt(others, hash_of(others), keys[::5] + 9_000)
    assert np.array_equal(table.lookup(others, hash_of(others)), keys[::5] + 9_000)
    assert np.array_equal(table.lookup(keys, hash_of(keys)), np.where(keys % 5 == 0, -1, expected))


@pytest.mark.parametrize("expected", [1, 100, 3_000, 70_000, 200_000])
@pytest.mark.parametrize("hash_of", [mix, few_homes])
def test_a_table_that_expects_keys_is_right_however_many_come(hash_of, expected: int) -> None:
    """S1, R4: less than that, as many, and more, so that it grows on from there; keys go, too."""
    for many in (0, expected // 3, expected, 2 * expected + 5):
        table = made(hash_of)
        table.expect(expected)
        reserved = table.bytes_reserved
        keys = np.arange(many, dtype=np.int64) * 7 - 3
        for start in range(0, many, 50_000):
            some = keys[start : start + 50_000]
            assert table.upsert(some, hash_of(some)).cells.tolist() == list(
                range(start, start + len(some))
            )
        assert len(table) == many
        if hash_of is mix and many <= expected:
            assert table.bytes_reserved == reserved, "it was large enough"
        table.remove(keys[::2], hash_of(keys[::2]))
        wanted = np.where(np.arange(many) % 2 == 0, -1, np.arange(many))
        assert table.lookup(keys, hash_of(keys)).tolist() == wanted.tolist()
    table = made(hash_of)
    some = np.arange(5)
    table.upsert(some, hash_of(some))
    table.expect(expected)
    assert table.lookup(some, hash_of(some)).tolist() == some.tolist()
