"""The slot table: always the right slot, whatever the keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvariantBroken
from penstock.plan.keyhash import mix
from penstock.state import slots as module
from penstock.state.slots import SlotTable


def one_home(keys: np.ndarray) -> np.ndarray:
    """The worst hash there is: everybody lives at the same place."""
    return np.zeros(len(keys), np.uint64)


def few_homes(keys: np.ndarray) -> np.ndarray:
    """Keys that meet in the high bits and in the low ones, in groups."""
    return (keys.view(np.uint64) % np.uint64(5)) << np.uint64(60)


def check_against_a_dict(table: SlotTable, batches: list[np.ndarray], hash_of) -> dict[int, int]:
    model: dict[int, int] = {}
    for keys in batches:
        result = table.upsert(keys, hash_of(keys))
        before = len(model)
        for key, slot in zip(keys.tolist(), result.slots.tolist(), strict=True):
            assert model.setdefault(key, slot) == slot
        new = [int(keys[row]) for row in result.new_rows.tolist()]
        assert [model[key] for key in new] == list(range(before, len(model)))
        assert len(table) == len(model)
    assert sorted(model.values()) == list(range(len(model)))
    return model


int64s = st.one_of(st.integers(-5, 30), st.integers(-(2**63), 2**63 - 1))


@pytest.mark.parametrize("hash_of", [mix, one_home, few_homes])
@given(batches=st.lists(st.lists(int64s, min_size=1, max_size=120), max_size=8))
@settings(max_examples=40, deadline=None)
def test_every_key_keeps_one_slot_and_slots_are_dense(hash_of, batches: list[list[int]]) -> None:
    arrays = [np.array(batch, np.int64) for batch in batches]
    model = check_against_a_dict(SlotTable(hash_of), arrays, hash_of)
    table = SlotTable(hash_of)
    for array in arrays:
        table.upsert(array, hash_of(array))
    known = np.array([*model, 12345678901], np.int64)
    expected = [*model.values(), model.get(12345678901, -1)]
    assert table.lookup(known, hash_of(known)).tolist() == expected


def test_growing_through_many_splits_loses_nothing() -> None:
    rng = np.random.default_rng(3)
    batches = [rng.integers(0, 60_000, 9_000) * 977 for _ in range(12)]
    table = SlotTable(mix)
    model = check_against_a_dict(table, batches, mix)
    assert len(model) > 40_000
    assert table.overflowed == 0
    keys = np.array(list(model), np.int64)
    assert table.lookup(keys, mix(keys)).tolist() == list(model.values())


def test_keys_chosen_to_collide_overflow_into_the_dict_and_stay_right() -> None:
    """bug-like input: thousands of keys with one home must neither be lost nor grow the table without end."""
    keys = np.arange(3_000, dtype=np.int64)
    table = SlotTable(one_home)
    check_against_a_dict(table, [keys, keys[::-1].copy(), keys], one_home)
    assert table.overflowed > 2_000
    assert table.bytes_reserved <= 1 << 20


def test_a_key_without_a_place_that_repeats_in_its_batch_has_one_slot() -> None:
    keys = np.tile(np.arange(500, dtype=np.int64), 3)
    table = SlotTable(one_home)
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
    table = SlotTable(crowded)
    check_against_a_dict(table, batches, crowded)
    assert table.overflowed > 0


def test_a_hash_function_that_contradicts_the_hashes_is_noticed() -> None:
    table = SlotTable(one_home)
    keys = np.arange(3_000, dtype=np.int64)
    with pytest.raises(InvariantBroken, match="hash function"):
        for start in range(0, 3_000, 100):
            table.upsert(keys[start : start + 100], mix(keys[start : start + 100]))


def test_a_small_table_is_small() -> None:
    """A simulator makes thousands of them."""
    table = SlotTable(mix)
    keys = np.arange(20, dtype=np.int64)
    table.upsert(keys, mix(keys))
    assert table.bytes_reserved <= 4096


def test_few_distinct_keys_in_a_large_batch_keep_the_table_small() -> None:
    table = SlotTable(mix)
    keys = np.arange(65_536, dtype=np.int64) % 10
    table.upsert(keys, mix(keys))
    assert table.bytes_reserved <= 4096


def test_where_memory_cannot_be_extended_in_place_it_is_copied(monkeypatch) -> None:
    monkeypatch.setattr(SlotTable, "_extend_in_place", lambda self, size: False)
    rng = np.random.default_rng(4)
    check_against_a_dict(SlotTable(mix), [rng.integers(0, 30_000, 8_000) for _ in range(6)], mix)


def test_one_batch_splits_only_what_its_new_keys_need() -> None:
    """Bounded pauses: adding few keys to a large table moves a few segments, not the table."""
    table = SlotTable(mix)
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


def test_a_slot_without_a_key_is_numbered_like_the_others() -> None:
    table = SlotTable(mix)
    one, two = np.array([7], np.int64), np.array([8], np.int64)
    assert table.upsert(one, mix(one)).slots.tolist() == [0]
    assert table.take_slot() == 1
    assert table.upsert(two, mix(two)).slots.tolist() == [2]
    assert len(table) == 3
