"""Memory is given back when most keys are gone, and nobody notices but who counts bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan.keyhash import I64
from penstock.protocol.snapshot import Segment
from penstock.state import blocks, byte_pile, cell_table, child, columns, moving
from penstock.state.frozen_table import FrozenTable
from penstock.state.keyed import Keyed
from tests.state.helpers import MAX_PARALLELISM, read_segment, segments_of

VALUES = pa.schema([("text", pa.string()), pa.field("n", pa.int64(), nullable=False)])
BELOW = pa.schema([("page", pa.int64())])
COUNTS = pa.schema([("count", pa.int64())])


class Shop:
    """A state with a row per key, and one with many. A model in dictionaries."""

    def __init__(self, kind: pa.DataType, *, incremental: bool = True) -> None:
        self.kind = kind
        self.keyed = Keyed(pa.schema([("k", kind)]), MAX_PARALLELISM, incremental=incremental)
        self.rows = self.keyed.table("value", "rows", VALUES)
        self.pages = self.keyed.child("map", "pages", BELOW, COUNTS)
        self.checkpoint = 0

    def put(self, keys: Sequence[int], n: int) -> None:
        cells = self.keyed.space.upsert([self._keys(keys)]).cells
        texts = [f"{key}:{n}" for key in keys]
        self.rows.put(
            cells, pa.RecordBatch.from_pydict({"text": texts, "n": [n] * len(keys)}, VALUES)
        )

    def put_pages(self, keys: Sequence[int], page: int, n: int) -> None:
        cells = self.keyed.space.upsert([self._keys(keys)]).cells
        counts = pa.RecordBatch.from_pydict({"count": [n] * len(keys)}, COUNTS)
        self.pages.put(cells, [pa.array([page] * len(keys))], counts)

    def remove(self, keys: Sequence[int]) -> None:
        cells = self._there(keys)
        self.rows.drop(cells[self.rows.holds(cells)])
        self.pages.drop(self.pages.walk(cells).cells)
        self.keyed.leave(cells)

    def remove_page(self, keys: Sequence[int], page: int) -> None:
        owners = self._there(keys)
        cells = self.pages.find(owners, [pa.array([page] * len(owners), pa.int64())])
        self.pages.drop(cells[cells >= 0])
        self.keyed.leave(owners)

    def freeze(self, base: int) -> list[FrozenTable]:
        self.checkpoint += 1
        tables = (self.rows, self.pages.table)
        return [table.freeze(base, self.checkpoint) for table in tables]

    def restored(self, segments: Sequence[Segment]) -> Shop:
        shop = Shop(self.kind, incremental=False)
        for segment in segments:
            for batch in read_segment(segment, range(MAX_PARALLELISM)):
                if segment.state == "rows":
                    shop.keyed.load(shop.rows, batch)
                else:
                    shop.keyed.load_child(shop.pages, batch)
        shop.keyed.settle()
        return shop

    def contents(self, keys: Sequence[int]) -> dict[int, Any]:
        """Of these keys, by looking each up: its row, and its pages in their order."""
        cells = self.keyed.space.find([self._keys(keys)])
        found: dict[int, Any] = {}
        for key, cell in zip(keys, cells.tolist(), strict=True):
            if cell < 0:
                continue
            at = np.array([cell])
            row = self.rows.get(at).to_pylist()[0] if self.rows.holds(at)[0] else None
            pages = self.pages.walk(at).cells
            (numbers,) = self.pages.keys_of(pages)
            counts = self.pages.table.get(pages).column(0).to_pylist()
            by_key = [
                self.pages.table.get(self.pages.find(at, [pa.array([p])])).column(0)[0].as_py()
                for p in numbers.to_pylist()
            ]
            assert by_key == counts
            found[key] = (row and (row["text"], row["n"]), list(zip(numbers.to_pylist(), counts)))
        return found

    def _keys(self, keys: Sequence[int]) -> pa.Array:
        if pa.types.is_string(self.kind):
            return pa.array([f"key {key}" for key in keys], pa.string())
        return pa.array([None if key == 0 else key * 7919 for key in keys], pa.int64())

    def _there(self, keys: Sequence[int]) -> I64:
        cells = self.keyed.space.find([self._keys(keys)])
        return np.unique(cells[cells >= 0])


class Model:
    def __init__(self) -> None:
        self.rows: dict[int, tuple[str, int]] = {}
        self.pages: dict[int, dict[int, int]] = {}

    def contents(self, *, in_order: bool = True) -> dict[int, Any]:
        keys = self.rows.keys() | {key for key, pages in self.pages.items() if pages}
        order = list if in_order else sorted
        return {k: (self.rows.get(k), order(self.pages.get(k, {}).items())) for k in keys}

    def copy(self) -> Model:
        other = Model()
        other.rows = dict(self.rows)
        other.pages = {key: dict(pages) for key, pages in self.pages.items()}
        return other


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "CELLS_MIN", 8)
    monkeypatch.setattr(moving, "USED_SHARE", 2)
    monkeypatch.setattr(moving, "MOVE_CELLS", 5)
    monkeypatch.setattr(moving, "SHRINK_CELLS", 16)
    monkeypatch.setattr(child, "WALK_MOST", 4)
    monkeypatch.setattr(child, "ROWS_MOST", 9)
    monkeypatch.setattr(cell_table, "GRAVES_MIN", 1)
    monkeypatch.setattr(blocks, "GARBAGE_BYTES_MIN", 20)
    monkeypatch.setattr(byte_pile, "BLOCK_BYTES", 48)
    monkeypatch.setattr(byte_pile, "ALONE_BYTES", 40)
    monkeypatch.setattr(byte_pile, "FIRST_BYTES", 8)
    monkeypatch.setattr(columns, "TIDY_CELLS", 7)
    monkeypatch.setattr(columns, "TIDY_BYTES", 9)
    monkeypatch.setattr(columns, "TIDY_PER_ROW", 0)


KEYS = 60
END = [("rest", 5), ("write", None), ("freeze", None), ("write", None)]
some_keys = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=30, unique=True)
most_keys = st.builds(
    lambda spared: [k for k in range(KEYS) if k not in spared], st.sets(st.integers(0, KEYS - 1))
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), some_keys),
        st.tuples(st.just("pages"), st.tuples(some_keys, st.integers(0, 6))),
        st.tuples(st.just("remove"), st.one_of(some_keys, most_keys)),
        st.tuples(st.just("unpage"), st.tuples(some_keys, st.integers(0, 6))),
        st.tuples(st.just("freeze"), st.none()),
        st.tuples(st.just("write"), st.none()),
        st.tuples(st.just("rest"), st.integers(1, 9)),
    ),
    max_size=40,
)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=["numbers", "text"])
@given(steps=steps)
@settings(max_examples=70, deadline=None)
def test_rows_that_move_are_those_that_a_dictionary_has(kind: pa.DataType, steps: Any) -> None:
    """S1, S4, S6, I2, I20, I26: whatever comes and goes, with views that are written later and increments."""
    shop, model = Shop(kind), Model()
    frozen: list[tuple[list[FrozenTable], Model, int]] = []
    completed = 0
    begin = [("put", range(KEYS)), ("pages", (range(0, KEYS, 3), 1)), ("freeze", None)]
    for number, (what, how) in enumerate([*begin, *steps, *END]):
        match what:
            case "put":
                shop.put(how, number)
                model.rows.update({key: (f"{key}:{number}", number) for key in how})
            case "pages":
                shop.put_pages(how[0], how[1], number)
                for key in how[0]:
                    model.pages.setdefault(key, {})[how[1]] = number
            case "remove":
                shop.remove(how)
                for key in how:
                    model.rows.pop(key, None)
                    model.pages.pop(key, None)
            case "unpage":
                shop.remove_page(*how)
                for key in how[0]:
                    model.pages.get(key, {}).pop(how[1], None)
            case "freeze":
                frozen.append((shop.freeze(completed), model.copy(), shop.checkpoint))
            case "write" if frozen:
                views, then, completed = frozen.pop(0)
                segments = [segment for view in views for segment in segments_of(view)]
                restored = shop.restored(segments).contents(range(KEYS))
                unordered = {key: (row, sorted(pages)) for key, (row, pages) in restored.items()}
                assert unordered == then.contents(in_order=False)
            case "rest":
                for _ in range(how):
                    shop.keyed.settle()
        shop.keyed.settle()
        assert shop.contents(range(KEYS)) == model.contents()
    for views, *_ in frozen:
        for view in views:
            view.release()


@pytest.mark.usefixtures("small_limits")
def test_a_row_that_changed_and_then_moved_is_in_the_next_increment() -> None:
    """S6, I20: its change was noted for the cell that it has left."""
    shop = Shop(pa.int64())
    shop.put(range(200), 1)
    shop.remove([key for key in range(200) if key % 5 != 4])
    views = shop.freeze(0)
    shop.keyed.settle()
    for view in views:
        segments_of(view)
    shop.put([199], 2)
    before = shop.keyed.space.cells.end
    shop.keyed.settle()
    assert shop.keyed.space.cells.end < before
    rows, _ = (segments_of(view) for view in shop.freeze(1))
    assert rows[-1].delta
    restored = shop.restored(rows)
    expected = {key: (f"{key}:1", 1) for key in range(4, 199, 5)} | {199: ("199:2", 2)}
    assert {key: row for key, (row, _) in restored.contents(range(200)).items()} == expected


MANY = 1_000_000
BATCH = 65_536


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=["numbers", "text"])
def test_of_a_million_keys_that_went_no_memory_is_left(kind: pa.DataType) -> None:
    """S4, S6, R4, I26: with snapshots before, while and after rows move, of which each is right."""
    keyed = Keyed(pa.schema([("k", kind)]), MAX_PARALLELISM, incremental=True)
    table = keyed.table("value", "rows", VALUES)

    def key_of(numbers: I64) -> pa.Array:
        return pa.array(numbers * 7919).cast(kind)

    for start in range(0, MANY, BATCH):
        numbers = np.arange(start, min(start + BATCH, MANY))
        values = [pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 40), pa.array(numbers)]
        cells = keyed.space.upsert([key_of(numbers)]).cells
        table.put(cells, pa.RecordBatch.from_arrays(values, schema=VALUES))
    peak = keyed.nbytes
    first = segments_of(table.freeze(0, 1))
    for start in range(0, MANY, BATCH):
        numbers = np.arange(start, min(start + BATCH, MANY))
        cells = keyed.space.find([key_of(numbers[numbers % 100 != 0])])
        table.drop(cells)
        keyed.leave(cells)
        keyed.settle()
    during = table.freeze(1, 2)
    end = keyed.space.cells.end
    keyed.settle()
    assert keyed.space.cells.end == end, "nothing moves while a view waits"
    second = segments_of(during)
    for _ in range(200):
        keyed.settle()
    assert keyed.nbytes < peak * 0.08
    assert keyed.space.cells.end < MANY // 20
    third = segments_of(table.freeze(2, 3))
    left = np.arange(0, MANY, 100)
    cells = keyed.space.find([key_of(left[:100])])
    table.put(cells, table.get(cells))
    fourth = segments_of(table.freeze(3, 4))
    assert fourth[-1].delta
    for segments in (second, third, fourth):
        restored = loaded(kind, segments)
        assert len(restored.rows) == len(left)
        cells = restored.keyed.space.find([key_of(left)])
        assert restored.rows.get(cells).column(1).to_numpy().tolist() == left.tolist()
    assert sum(block.rows for block in first[0].blocks) == MANY


def loaded(kind: pa.DataType, segments: Sequence[Segment]) -> Shop:
    return Shop(kind).restored(segments)


def test_a_key_with_too_many_rows_stays_and_is_not_tried_again_and_again(
    small_limits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I26: what cannot be moved at a bounded price is left alone until many others have gone."""
    shop = Shop(pa.int64())
    shop.put(range(1, 100), 1)
    for page in range(9):
        shop.put_pages([99], page, 1)
    shop.remove(range(1, 99))
    shop.keyed.settle()
    tried: list[int] = []
    original = type(shop.pages).movable

    def movable(self: Any, cells: I64, to: I64) -> Any:
        tried.append(len(cells))
        return original(self, cells, to)

    monkeypatch.setattr(type(shop.pages), "movable", movable)
    for _ in range(20):
        shop.keyed.settle()
    assert len(tried) <= 1
    assert shop.contents([99]) == {99: (("99:1", 1), [(page, 1) for page in range(9)])}
