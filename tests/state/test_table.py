"""The keyed table: exact keys, and freezes that cost nothing when nobody copies."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CheckpointCorrupt
from penstock.plan import keyhash
from penstock.plan.keyhash import Hashes
from penstock.state.columns import PiledColumn
from penstock.state.folds import flat_column
from penstock.state.frozen_table import FrozenTable
from tests.state.helpers import Kept, rows_of, segment_of

VALUE = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def table_of(*kinds: pa.DataType, values: pa.Schema = VALUE) -> Kept:
    return Kept(pa.schema([(f"k{i}", kind) for i, kind in enumerate(kinds)]), values)


def add(kept: Kept, columns: list[pa.Array], amount: int = 1) -> list[int]:
    cells = kept.cells(columns)
    kept.table.touch(cells)
    np.add.at(flat_column(kept.table, 0).values, cells, amount)
    return cells.tolist()


def contents(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], int]:
    keys = sorted(name for name in rows[0] if name.startswith("key.")) if rows else []
    out = {tuple(row[key] for key in keys): row["value.n"] for row in rows}
    assert len(out) == len(rows)
    return out


def weak(h1: Callable[[int], int], h2: Callable[[int], int]) -> Callable[..., Hashes]:
    """A hash that makes keys meet on purpose."""

    def lanes(columns: list[pa.Array]) -> Hashes:
        real, check, _ = original(columns)
        return Hashes(
            np.array([h1(x) for x in real.tolist()], np.uint64),
            np.array([h2(x) for x in check.tolist()], np.uint64),
            False,
        )

    original = keyhash.hashes_of
    return lanes


TEXTS = ["", "a", "b", "a\0", "long text that is well beyond two words", "é" * 9]
keys_of_two = st.tuples(
    st.one_of(st.none(), st.sampled_from(TEXTS)), st.one_of(st.none(), st.integers(0, 2))
)


@pytest.mark.parametrize(
    "lanes",
    [
        weak(lambda x: 0, lambda x: 0),
        weak(lambda x: 0, lambda x: x),
        weak(lambda x: x % 3, lambda x: x % 2),
    ],
    ids=["all alike", "first lane alike", "few lanes"],
)
@given(batches=st.lists(st.lists(keys_of_two, min_size=1, max_size=9), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_keys_whose_lanes_collide_stay_different_keys(lanes, batches) -> None:
    """Whoever chooses keys cannot make two of them one: the stored key decides."""
    table = table_of(pa.string(), pa.int64())
    model: dict[tuple[Any, ...], int] = {}
    real = keyhash.hashes_of
    keyhash.hashes_of = lanes  # type: ignore[assignment]
    try:
        for batch in batches:
            add(
                table,
                [
                    pa.array([k[0] for k in batch], pa.string()),
                    pa.array([k[1] for k in batch], pa.int64()),
                ],
            )
            for key in batch:
                model[key] = model.get(key, 0) + 1
    finally:
        keyhash.hashes_of = real
    assert contents(rows_of(table.freeze())) == model
    assert len(table) == len(model)


@pytest.mark.parametrize("long_first", [False, True])
def test_a_key_beyond_the_exact_lanes_makes_all_keys_be_compared(
    monkeypatch, long_first: bool
) -> None:
    """Short text is told apart by its lanes alone; a long one with the same lanes must not be taken for it."""
    table = table_of(pa.string())
    short = keyhash.hashes_of([pa.array(["short"])])
    assert short.exact
    if not long_first:
        add(table, [pa.array(["short"])])
    monkeypatch.setattr(keyhash, "hashes_of", lambda columns: Hashes(short.h1, short.h2, False))
    add(table, [pa.array(["a long key that was made to collide"])])
    monkeypatch.undo()
    add(table, [pa.array(["short"])], 10)
    expected = {("short",): 10 if long_first else 11, ("a long key that was made to collide",): 1}
    assert contents(rows_of(table.freeze())) == expected


def test_exact_keys_that_share_the_first_lane_are_told_apart_by_the_second(monkeypatch) -> None:
    real = keyhash.hashes_of
    same_h1 = lambda columns: real(columns)._replace(h1=np.full(len(columns[0]), 9, np.uint64))
    monkeypatch.setattr(keyhash, "hashes_of", same_h1)
    table = table_of(pa.string())
    add(table, [pa.array(["a", "b", "a", "c"])])
    add(table, [pa.array(["c", "b"])])
    assert contents(rows_of(table.freeze())) == {("a",): 2, ("b",): 2, ("c",): 2}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-128, 127, 0]),
        (pa.uint64(), [0, 2**64 - 1, 2**63]),
        (pa.int64(), [-(2**63), 2**63 - 1, -1]),
        (pa.bool_(), [True, False]),
        (
            pa.decimal128(38, 3),
            [Decimal("0.001"), Decimal("-0.001"), Decimal("12345678901234567890123.456")],
        ),
        (pa.large_string(), ["", "x", "y" * 300]),
        (pa.binary(), [b"", b"\xff\xfe", b"\0" * 9]),
    ],
)
def test_keys_of_every_type_come_back_from_a_snapshot(kind: pa.DataType, values: list[Any]) -> None:
    """S9: also null, which is a key like any other, and in a later batch."""
    table = table_of(kind)
    first = add(table, [pa.array(values, kind)])
    assert add(table, [pa.array([None, *values, None], kind)]) == [len(values), *first, len(values)]
    rows = rows_of(table.freeze())
    assert contents(rows) == {(None,): 2} | {(value,): 2 for value in values}
    again = table_of(kind)
    again.load(pa.RecordBatch.from_pylist(rows, again.schema))
    assert contents(rows_of(again.freeze())) == contents(rows)
    assert len(add(again, [pa.array([*values, None], kind)])) == len(again)


def test_a_snapshot_with_a_key_twice_is_refused() -> None:
    table = table_of(pa.int64())
    add(table, [pa.array([1, 2])])
    rows = rows_of(table.freeze())
    twice = pa.RecordBatch.from_pylist([*rows, rows[0]], table.schema)
    with pytest.raises(CheckpointCorrupt, match="twice"):
        table_of(pa.int64()).load(twice)


def test_a_row_under_another_keys_group_is_refused() -> None:
    """I15: every key at its range owner."""
    table = table_of(pa.int64())
    add(table, [pa.array([1])])
    (row,) = rows_of(table.freeze())
    row["__kg"] = (row["__kg"] + 1) % 128
    with pytest.raises(CheckpointCorrupt, match="key group"):
        table_of(pa.int64()).load(pa.RecordBatch.from_pylist([row], table.schema))


def test_nothing_is_saved_once_the_copy_is_done() -> None:
    """The hot path pays for a snapshot only while it is being copied."""
    table = table_of(pa.int64())
    keys = [pa.array([1, 2, 3])]
    add(table, keys)
    view = table.freeze()
    add(table, keys)
    assert len(view._undo) == 1
    add(table, keys)
    assert len(view._undo) == 1, "a row is saved once per freeze"
    segment_of(view)
    add(table, keys)
    assert table.table._frozen == ()
    assert view._undo == []


def test_rows_made_after_a_freeze_are_not_saved_for_it() -> None:
    table = table_of(pa.int64())
    add(table, [pa.array([1])])
    view = table.freeze()
    add(table, [pa.array([2, 3])])
    add(table, [pa.array([2, 3])])
    assert view._undo == []


def test_a_released_view_is_forgotten() -> None:
    table = table_of(pa.int64())
    keys = [pa.array([1, 2, 3])]
    add(table, keys)
    view = table.freeze()
    view.release()
    add(table, keys)
    assert table.table._frozen == ()
    view.release()


@pytest.mark.parametrize("end", [FrozenTable.release, segment_of])
def test_a_view_that_is_over_lets_the_arrays_go_that_the_table_has_outgrown(
    end: Callable[[FrozenTable], object],
) -> None:
    """S4, I26: whoever still holds the view does not hold the state of long ago."""
    table = table_of(pa.int64())
    add(table, [pa.array(range(10))])
    view = table.freeze()
    outgrown = weakref.ref(flat_column(table.table, 0).values)
    add(table, [pa.array(range(1_000))])
    assert outgrown() is not None
    end(view)
    assert outgrown() is None


def test_freezing_does_not_look_at_the_rows() -> None:
    """S4: the synchronous part takes constant time: the arrays are handed over as they are."""
    table = table_of(pa.int64())
    add(table, [pa.array(range(1000))])
    view = table.freeze()
    assert view._raw[1] is flat_column(table.table, 0).values
    assert view._groups is table.space.cells.groups


class Interrupted:
    """A column that runs something in the middle of the writer's copy."""

    dtype = np.dtype(np.int64)

    def __init__(self, array: np.ndarray, interrupt: Callable[[], None]) -> None:
        self._array = array
        self._interrupt = interrupt

    def __getitem__(self, cells: slice) -> np.ndarray:
        half = (cells.start + cells.stop) // 2
        first = self._array[cells.start : half].copy()
        self._interrupt()
        return np.concatenate([first, self._array[half : cells.stop]])


def test_rows_that_change_in_the_middle_of_the_copy_are_undone() -> None:
    """S4, I2: half of a column is copied, then rows of both halves change, then the rest is copied."""
    table = table_of(pa.int64())
    keys = list(range(10))
    add(table, [pa.array(keys)], 5)
    view = table.freeze()
    add(table, [pa.array(keys[::3])], 100)

    def in_the_middle() -> None:
        add(table, [pa.array(keys[::2])], 1000)
        add(table, [pa.array(list(range(5, 300)))], 7)

    column: Any = Interrupted(view._raw[1], in_the_middle)
    view._raw = (view._raw[0], column)
    assert contents(rows_of(view)) == {(key,): 5 for key in keys}
    now = contents(rows_of(table.freeze()))
    assert now[(0,)] == 1105
    assert now[(9,)] == 112
    assert now[(299,)] == 7


def test_a_writer_thread_beside_a_busy_loop_sees_the_freeze_exactly() -> None:
    """S4, I2: real threads. Every key has the same count at each freeze, whatever the interleaving."""
    table = table_of(pa.int64())
    keys = [pa.array(np.random.default_rng(1).permutation(20_000))]
    for round_number in range(1, 6):
        add(table, keys)
        view = table.freeze()
        result: list[dict[tuple[Any, ...], int]] = []
        writer = threading.Thread(target=lambda v=view, r=result: r.append(contents(rows_of(v))))
        writer.start()
        while view.copying:
            add(table, [keys[0].slice(0, 7_000)])
            add(table, [keys[0].slice(0, 7_000)], -1)
        writer.join()
        assert set(result[0].values()) == {round_number}


def test_two_freezes_under_way_each_get_their_own_moment() -> None:
    """B6: several snapshots may be under way at once."""
    table = table_of(pa.int64())
    keys = [pa.array([1, 2])]
    add(table, keys)
    first = table.freeze()
    add(table, [pa.array([1])])
    second = table.freeze()
    add(table, [pa.array([1, 2, 3])])
    third = table.freeze()
    add(table, [pa.array([1, 2, 3])])
    assert contents(rows_of(second)) == {(1,): 2, (2,): 1}
    add(table, [pa.array([1, 2, 3])])
    assert contents(rows_of(third)) == {(1,): 3, (2,): 2, (3,): 1}
    assert contents(rows_of(first)) == {(1,): 1, (2,): 1}


def test_a_table_that_outgrows_its_arrays_leaves_the_old_ones_to_the_writer() -> None:
    """S4: growth while a snapshot waits."""
    table = table_of(pa.string())
    add(table, [pa.array(["a", "b"])])
    view = table.freeze()
    add(table, [pa.array([f"key {i}" for i in range(5_000)])])
    add(table, [pa.array(["a"])])
    assert contents(rows_of(view)) == {("a",): 1, ("b",): 1}


def test_nullable_values_and_text_are_undone_like_numbers() -> None:
    """S4: validity and text are part of the row."""
    values = pa.schema([("x", pa.float64()), ("t", pa.string())])
    table = table_of(pa.int64(), values=values)
    cells = table.cells([pa.array([1, 2])])
    before = pa.RecordBatch.from_pydict({"x": [1.5, None], "t": ["old", "old"]}, values)
    table.table.put(cells, before)
    view = table.freeze()
    after = pa.RecordBatch.from_pydict({"x": [None, 9.0], "t": [None, None]}, values)
    table.table.put(cells, after)
    rows = sorted(rows_of(view), key=lambda row: row["key.k0"])
    assert [(row["value.x"], row["value.t"]) for row in rows] == [(1.5, "old"), (None, "old")]


def test_an_empty_table_freezes_to_no_blocks() -> None:
    segment = segment_of(table_of(pa.int64()).freeze())
    assert segment.blocks == ()
    assert pa.ipc.open_stream(segment.inline).read_all().num_rows == 0


def test_text_that_changes_again_and_again_does_not_pile_up() -> None:
    """I26: what is no longer pointed at is let go."""
    values = pa.schema([("t", pa.string())])
    kept = table_of(pa.int64(), values=values)
    cells = kept.cells([pa.array(range(100))])
    for number in range(300):
        text = f"{number:>9}" * 200
        kept.table.put(cells, pa.RecordBatch.from_pydict({"t": [text] * 100}, values))
    column = kept.table.columns[0]
    assert isinstance(column, PiledColumn)
    assert column._pile.nbytes < 10_000_000, "and not 54 MB"
    assert kept.table.get(cells).column(0).to_pylist() == [text] * 100
