"""Values of any length: blocks that are emptied a little at a time, and views that do not notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan.keyhash import I64
from penstock.state import blocks, byte_pile, columns, piles
from penstock.state.byte_pile import BytePile
from penstock.state.columns import PiledColumn
from tests.state.helpers import Kept, rows_of

CELLS = 40
LISTS = pa.list_(pa.int64())


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few values fill a block, and a block is emptied in many steps."""
    monkeypatch.setattr(blocks, "GARBAGE_BYTES_MIN", 40)
    monkeypatch.setattr(byte_pile, "BLOCK_BYTES", 64)
    monkeypatch.setattr(byte_pile, "ALONE_BYTES", 40)
    monkeypatch.setattr(byte_pile, "FIRST_BYTES", 8)
    monkeypatch.setattr(piles, "CHUNK_BYTES_MAX", 200)
    monkeypatch.setattr(columns, "TIDY_CELLS", 5)
    monkeypatch.setattr(columns, "TIDY_PER_ROW", 1)
    monkeypatch.setattr(columns, "TIDY_BYTES", 16)
    monkeypatch.setattr(columns, "LOOK_CELLS", 3)


def column_of(kind: pa.DataType) -> PiledColumn:
    column = PiledColumn(kind, lambda cells: True)
    column.grow(0, CELLS)
    return column


texts = st.one_of(st.none(), st.just(""), st.text("ab", max_size=20), st.text("c", min_size=38))
lists = st.one_of(st.none(), st.just([]), st.lists(st.integers(0, 9), max_size=9))
cells_of = st.lists(st.integers(0, CELLS - 1), min_size=1, max_size=9, unique=True)


def puts(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    put = cells_of.flatmap(
        lambda cells: st.tuples(
            st.just(cells), st.lists(values, min_size=len(cells), max_size=len(cells))
        )
    )
    reset = st.tuples(cells_of, st.none())
    return st.lists(st.one_of(put, put, reset), max_size=40)


@pytest.mark.parametrize(
    ("kind", "values"),
    [(pa.string(), texts), (pa.large_binary(), texts), (LISTS, lists)],
    ids=["text", "binary", "lists"],
)
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_column_has_the_last_value_of_every_cell_and_views_those_of_their_moment(
    kind: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    """S1, S4, I2, I26: whatever is put and reset, in whatever blocks it lies, however often it is moved."""
    column, model = column_of(kind), {}
    every = np.arange(CELLS)
    views = []
    for step, (cells, given_values) in enumerate(data.draw(puts(values))):
        if given_values is None:
            column.reset(np.array(cells))
            model.update(dict.fromkeys(cells))
        else:
            array = pa.array(given_values, pa.string()) if kind != LISTS else pa.array(given_values)
            column.put(np.array(cells), array.cast(kind))
            model.update(zip(cells, array.cast(kind).to_pylist(), strict=True))
        if step % 4 == 0:
            views.append((column.reader(), column.raw[0].copy(), dict(model)))
        assert column.get(every).to_pylist() == [model.get(cell) for cell in range(CELLS)]
    for read, numbers, then in views:
        assert read([numbers]).to_pylist() == [then.get(cell) for cell in range(CELLS)]


def test_what_is_let_go_is_given_back_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """I25, I26: no step moves more than it may, and after some of them most of the memory is free."""
    monkeypatch.setattr(columns, "LOOK_CELLS", 4_000)
    monkeypatch.setattr(columns, "TIDY_PER_ROW", 100)
    column = column_of(pa.string())
    column.grow(CELLS, 4_000)
    column.put(np.arange(4_000), pa.array([f"{i:09}" for i in range(4_000)]))
    peak, moved = column.nbytes - column.raw[0].nbytes, []
    original = column._move_out
    column._move_out = lambda cells: (moved.append(len(cells)), original(cells))[1]  # type: ignore[method-assign]
    for gone in np.split(np.random.default_rng(1).permutation(4_000), 80):
        column.reset(gone[gone % 40 != 0])
        assert sum(moved) * 9 <= 16 + 9 + 50 * 9 // 4 * 5 // 4
        moved.clear()
    for _ in range(2_000):
        column.tidy()
    left = column.nbytes - column.raw[0].nbytes
    assert left < peak // 10
    assert column.get(np.arange(0, 4_000, 40)).to_pylist() == [
        f"{i:09}" for i in range(0, 4_000, 40)
    ]


def test_a_value_whose_row_moves_past_the_hand_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: while blocks are emptied, a row that nobody has looked at gets a cell that was looked at already."""
    monkeypatch.setattr(columns, "TIDY_BYTES", 10_000)
    monkeypatch.setattr(blocks, "NEARLY_EMPTY", 0.9)
    column = column_of(pa.string())
    texts = [f"{i:016}" for i in range(CELLS)]
    column.put(np.arange(CELLS), pa.array(texts))
    spared = np.arange(3, CELLS, 4)
    column.reset(np.setdiff1d(np.arange(CELLS), spared))
    assert 5 < column._hand < 30
    column.move(np.array([35]), np.array([0]))
    for _ in range(30):
        column.tidy()
        column.put(np.array([1]), pa.array(["x" * 16]))
    assert column.get(np.array([0, 35])).to_pylist() == [texts[35], None]


def test_a_value_that_is_moved_while_a_view_waits_is_read_where_it_was() -> None:
    """S4, I2: a row whose text gets another place is saved for the view, as if it had changed."""
    values = pa.schema([("t", pa.string())])
    kept = Kept(pa.schema([("k", pa.int64())]), values)
    cells = kept.cells([pa.array(range(300))])
    texts = [f"text {i}" for i in range(300)]
    kept.table.put(cells, pa.RecordBatch.from_pydict({"t": texts}, values))
    view = kept.freeze()
    for number in range(40):
        some = cells[number % 2 :: 3]
        new = pa.RecordBatch.from_pydict({"t": [f"other {number}"] * len(some)}, values)
        kept.table.put(some, new)
        kept.table.columns[0]._tidy(300, 9_000)  # type: ignore[union-attr]
    rows = sorted(rows_of(view), key=lambda row: row["key.k"])
    assert [row["value.t"] for row in rows] == texts


def test_keys_stay_where_they_are_while_a_view_waits() -> None:
    """S4, I2: a view reads keys from the place that they had, and nobody saves them for it."""
    kept = Kept(pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64())]))
    kept.cells([pa.array([f"key {i:03}" for i in range(200)])])
    kept.remove([pa.array([f"key {i:03}" for i in range(200) if i % 10])])
    kept.cells([pa.array([f"new {i:03}" for i in range(100)])])
    view = kept.freeze()
    (column,) = kept.space._columns
    assert isinstance(column, PiledColumn)
    before = column.raw[0].copy()
    for _ in range(500):
        column._tidy(50, 500)
    assert np.array_equal(column.raw[0], before)
    names = {row["key.k"] for row in rows_of(view)}
    assert names == {f"key {i:03}" for i in range(0, 200, 10)} | {f"new {i:03}" for i in range(100)}


def test_a_block_that_a_view_holds_is_not_written_anew() -> None:
    """S4, I2: only blocks that nobody reads any more are used again."""
    pile = BytePile(pa.string())
    numbers = pile.append(pa.array(["a" * 16] * 40))
    take = pile.view()
    empty(pile, numbers)
    assert not pile._spare
    pile.append(pa.array(["b" * 16] * 400))
    assert take(numbers).to_pylist() == ["a" * 16] * 40
    del take
    more = pile.append(pa.array(["c" * 16] * 400))
    empty(pile, more)
    assert pile._spare


def empty(pile: BytePile, numbers: I64) -> None:
    """Lets these go, and all blocks that have nothing else."""
    pile.let_go(numbers)
    while pile.condemn():
        assert pile._blocks._live[pile._blocks.leaving[:-1]].sum() == 0
        pile.left()


def test_a_value_longer_than_a_block_has_one_of_its_own() -> None:
    """S9: and it is given back with it."""
    column = column_of(pa.binary())
    long = [bytes([65 + i]) * (39 + i) for i in range(CELLS)]
    column.put(np.arange(CELLS), pa.array(long))
    assert column.get(np.arange(CELLS)[::-1]).to_pylist() == long[::-1]
    column.reset(np.arange(1, CELLS))
    for _ in range(100):
        column.tidy()
    assert column._pile.nbytes < 500
    assert column.get(np.array([0, 1])).to_pylist() == [long[0], None]
