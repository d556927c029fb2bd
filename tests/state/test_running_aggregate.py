"""The running aggregate against the plainest fold there is, with freezes and restores in between."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DataError
from penstock.plan.keyhash import key_groups, key_hashes
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.state import aggregates as pen
from penstock.state.aggregates import Aggregate
from tests.state.helpers import (
    opened,
    plain_fold,
    rows_of,
    same,
    segment_of,
    segments_of,
    snapshot_of,
)
from tests.state.ways import WAYS, Way

D = decimal.Decimal
KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-3, 3)),
    "int16": (pa.int16(), st.integers(-3, 3)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.sampled_from(["", "a", "a\0", "b", "é", "long " * 4, "long " * 40])),
    "binary": (pa.binary(), st.sampled_from([b"", b"\0", b"x" * 20])),
    "date": (pa.date32(), st.sampled_from([dt.date(2024, 1, d) for d in (1, 2, 3)])),
    "decimal": (
        pa.decimal128(22, 2),
        st.sampled_from([D("0.01"), D("-1.00"), D("99999999999999999999.99")]),
    ),
}
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], tuple[str, ...]]] = {
    "i": (pa.int32(), st.integers(-100, 100), pen.FUNCTIONS),
    "u": (pa.uint8(), st.integers(0, 255), pen.FUNCTIONS),
    "f": (
        pa.float64(),
        st.one_of(st.integers(-9, 9).map(float), st.just(float("nan"))),
        pen.FUNCTIONS,
    ),
    "d": (
        pa.decimal128(12, 2),
        st.integers(-(10**11), 10**11).map(lambda x: D(x).scaleb(-2)),
        pen.FUNCTIONS,
    ),
    "s": (pa.string(), st.text(max_size=3), ("count", "min", "max", "first", "last")),
    "b": (pa.bool_(), st.booleans(), ("count", "min", "max", "first", "last")),
    "t": (
        pa.timestamp("ms"),
        st.integers(0, 10**9).map(
            lambda s: dt.datetime.fromtimestamp(s, dt.UTC).replace(tzinfo=None)
        ),
        ("count", "min", "max", "first", "last"),
    ),
}
ALL: dict[str, Aggregate] = {"n": pen.count()} | {
    f"{function}_{column}": Aggregate(function, column)
    for column, (_, _, functions) in VALUES.items()
    for function in functions
}


@st.composite
def inputs(
    draw: st.DrawFn,
) -> tuple[pa.Schema, tuple[str, ...], dict[str, Aggregate], list[list[dict[str, Any]]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2))
    keys = tuple(f"k{i}" for i in range(len(kinds)))
    fields = {key: KEYS[kind] for key, kind in zip(keys, kinds, strict=True)}
    columns = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True))
    chosen = {n: a for n, a in ALL.items() if a.column is None or a.column in columns}
    schema = pa.schema(
        [(k, kind) for k, (kind, _) in fields.items()] + [(c, VALUES[c][0]) for c in columns]
    )
    row = {k: values for k, (_, values) in fields.items()} | {c: VALUES[c][1] for c in columns}
    maybe = {name: st.one_of(st.none(), values, values) for name, values in row.items()}
    batch = st.lists(st.fixed_dictionaries(maybe), min_size=1, max_size=8)
    return schema, keys, chosen, draw(st.lists(batch, min_size=1, max_size=5))


def grouped(
    rows: list[dict[str, Any]], keys: tuple[str, ...]
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def assert_rows_are(
    out: list[dict[str, Any]], model: dict[tuple[Any, ...], dict[str, Any]], keys: tuple[str, ...]
) -> None:
    assert len(out) == len(model)
    for row in out:
        expected = model[tuple(row[key] for key in keys)]
        for name, value in expected.items():
            assert same(row[name], value), (name, row, expected)


def folded(
    groups: dict[tuple[Any, ...], list[dict[str, Any]]], aggregates: dict[str, Aggregate]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {
        k: {n: plain_fold(a, rows) for n, a in aggregates.items()} for k, rows in groups.items()
    }


@given(inputs())
@settings(max_examples=60, deadline=None)
def test_each_batch_gives_the_updated_row_of_every_key_in_it(case) -> None:
    """I2: the state of a key is the fold of its rows, for every type of key and value, with nulls."""
    schema, keys, aggregates, batches = case
    operator = opened(keys, aggregates, schema)
    seen: list[dict[str, Any]] = []
    for rows in batches:
        seen += rows
        (out,) = operator.process(pa.RecordBatch.from_pylist(rows, schema), 0)
        out.validate(full=True)
        touched = set(grouped(rows, keys))
        model = {k: v for k, v in folded(grouped(seen, keys), aggregates).items() if k in touched}
        assert_rows_are(out.to_pylist(), model, keys)


@pytest.mark.parametrize("way", ["heap", "floors", "rocksdb"])
@given(inputs(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_freeze_is_the_state_of_its_moment_whenever_it_is_written(
    way: str, case, data: st.DataObject
) -> None:
    """S4, S5, I2: the stream goes on while snapshots wait; each is then restored at another parallelism and must
    hold exactly the rows before its freeze."""
    schema, keys, aggregates, batches = case
    operator = opened(keys, aggregates, schema, over=WAYS[way].over)
    seen: list[dict[str, Any]] = []
    waiting: list[tuple[Any, list[dict[str, Any]]]] = []
    done: list[tuple[Any, list[dict[str, Any]]]] = []
    for number, rows in enumerate(batches):
        if data.draw(st.booleans()):
            (view,) = operator.freeze(SnapshotOrder(CheckpointId(number))).tables
            waiting.append((view, list(seen)))
        operator.process(pa.RecordBatch.from_pylist(rows, schema), 0)
        seen += rows
        if waiting and data.draw(st.booleans()):
            view, covered = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            if data.draw(st.booleans()):
                done.append((segments_of(view), covered))
            view.release()
    done += [(segments_of(view), covered) for view, covered in waiting]
    parallelism = data.draw(st.sampled_from([1, 2, 3, 128]))
    for saved, covered in done:
        check_restored(saved, covered, schema, keys, aggregates, min(parallelism, 5), WAYS[way])


def check_restored(
    saved, covered, schema, keys, aggregates, parallelism: int, way: Way = WAYS["heap"]
) -> None:
    """Restores and sends the last row of every key through once more: what comes out shows the whole state."""
    model = folded({k: [*rows, rows[-1]] for k, rows in grouped(covered, keys).items()}, aggregates)
    out: list[dict[str, Any]] = []
    again = [rows[-1] for rows in grouped(covered, keys).values()]
    for index in range(parallelism):
        operator = opened(
            keys, aggregates, schema, [snapshot_of(*saved)], index, parallelism, over=way.over
        )
        mine = [row for row in again if owner(row, schema, keys, parallelism) == index]
        assert len(operator._table) == len(mine)
        if mine:
            (batch,) = operator.process(pa.RecordBatch.from_pylist(mine, schema), 0)
            out += batch.to_pylist()
    assert_rows_are(out, model, keys)


def owner(row: dict[str, Any], schema: pa.Schema, keys: tuple[str, ...], parallelism: int) -> int:
    columns = [pa.array([row[key]], schema.field(key).type) for key in keys]
    return int(key_groups(key_hashes(columns)[0], 128)[0]) * parallelism // 128


def numbers(keys: list[int | None], values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, kind)], ["k", "v"])


def test_every_key_is_restored_at_the_owner_of_its_key_group() -> None:
    """I15: the key groups partition the state; nothing is lost and nothing is there twice."""
    batch = numbers(list(range(5_000)), [1] * 5_000, pa.int64())
    operator = opened(["k"], {"n": pen.count()}, batch.schema)
    operator.process(batch, 0)
    saved = segment_of(operator.freeze(SnapshotOrder(CheckpointId(1))).tables[0])
    for parallelism in (1, 2, 7, 128):
        parts = [
            opened(["k"], {"n": pen.count()}, batch.schema, [snapshot_of(saved)], i, parallelism)
            for i in range(parallelism)
        ]
        assert sum(len(part._table) for part in parts) == 5_000
        merged = [
            snapshot_of(segment_of(part.freeze(SnapshotOrder(CheckpointId(2))).tables[0]))
            for part in parts
        ]
        whole = opened(["k"], {"n": pen.count()}, batch.schema, merged)
        assert len(whole._table) == 5_000


def test_a_key_that_was_always_null_starts_afresh_after_a_rescale() -> None:
    """What lies below a null in a snapshot must not leak into sums and minima."""
    batch = numbers([1, 2, 2, 3], [None, 5, None, None], pa.int64())
    aggregates = {"s": pen.sum("v"), "lo": pen.min("v"), "hi": pen.max("v")}
    operator = opened(["k"], aggregates, batch.schema)
    operator.process(batch, 0)
    saved = segment_of(operator.freeze(SnapshotOrder(CheckpointId(1))).tables[0])
    more = numbers([1, 2, 3], [-4, 9, 6], pa.int64())
    out: list[dict[str, Any]] = []
    for index in range(2):
        part = opened(["k"], aggregates, batch.schema, [snapshot_of(saved)], index, 2)
        mine = [r for r in more.to_pylist() if owner(r, batch.schema, ("k",), 2) == index]
        if mine:
            (result,) = part.process(pa.RecordBatch.from_pylist(mine, batch.schema), 0)
            out += result.to_pylist()
    assert sorted(out, key=lambda row: row["k"]) == [
        {"k": 1, "s": -4, "lo": -4, "hi": -4},
        {"k": 2, "s": 14, "lo": 5, "hi": 9},
        {"k": 3, "s": 6, "lo": 6, "hi": 6},
    ]


ONE_VALUE: dict[str, Any] = {
    "i": 7,
    "u": 7,
    "f": 7.0,
    "d": D("7.25"),
    "s": "seven",
    "b": True,
    "t": dt.datetime.fromtimestamp(7, dt.UTC).replace(tzinfo=None),
}


@pytest.mark.parametrize("column", sorted(VALUES))
def test_nothing_seen_is_null_and_something_seen_is_not_on_both_sides_of_a_restore(
    column: str,
) -> None:
    """I2: every order of nulls and values, one row per batch, restored behind each of them. What a fold has learned
    about its nulls is not in the snapshot: it has to be found in the rows again."""
    kind, value = VALUES[column][0], ONE_VALUE[column]
    aggregates = {function: Aggregate(function, "v") for function in VALUES[column][2]}
    schema = pa.schema([("k", pa.int64()), ("v", kind)])
    for values, cut in product(product([None, value], repeat=4), range(1, 4)):
        operator = opened(["k"], aggregates, schema)
        operator.process(numbers([2], [value], kind), 0)
        seen: dict[int, list[Any]] = {1: [], 2: [value]}
        for place, (key, each) in enumerate([*((1, each) for each in values), (2, None)]):
            if place == cut:
                saved = segment_of(operator.freeze(SnapshotOrder(CheckpointId(1))).tables[0])
                operator = opened(["k"], aggregates, schema, [snapshot_of(saved)])
            (out,) = operator.process(numbers([key], [each], kind), 0)
            seen[key].append(each)
            model = folded({(key,): [{"v": each} for each in seen[key]]}, aggregates)
            assert_rows_are(out.to_pylist(), model, ("k",))


def test_rows_come_in_the_order_of_each_keys_last_row() -> None:
    batch = numbers([1, 2, 1, 3, 2], [1, 1, 1, 1, 1], pa.int64())
    (out,) = opened(["k"], {"n": pen.count()}, batch.schema).process(batch, 0)
    assert out.to_pydict() == {"k": [1, 3, 2], "n": [2, 1, 2]}


def test_an_empty_batch_gives_nothing() -> None:
    batch = numbers([], [], pa.int64())
    assert list(opened(["k"], {"n": pen.count()}, batch.schema).process(batch, 0)) == []


def test_a_sliced_batch_is_read_from_its_own_rows() -> None:
    batch = numbers([1, 2, None, 4, 1], [10, None, 30, 40, 50], pa.int64()).slice(1, 3)
    (out,) = opened(["k"], {"s": pen.sum("v"), "z": pen.last("v")}, batch.schema).process(batch, 0)
    assert out.to_pydict() == {"k": [2, None, 4], "s": [None, 30, 40], "z": [None, 30, 40]}


BIG = 2**63 - 1


@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [
        (pa.int64(), [BIG, 1], None),
        (pa.int64(), [BIG, -1, 1], BIG),
        (pa.int64(), [BIG, 1, -1], BIG),
        (pa.int64(), [-BIG, -1], -(2**63)),
        (pa.int64(), [-BIG, -2], None),
        (pa.uint64(), [2**64 - 1], None),
        (pa.uint64(), [BIG], BIG),
        (pa.int64(), [2**62] * 3, None),
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_a_sum_of_integers_is_exact_or_an_error(
    kind: pa.DataType, values: list[int], total: int | None, cut: bool
) -> None:
    """An overflow of any batch is noticed before the state changes, also across batches and for unsigned input."""
    batch = numbers([1] * len(values), values, kind)
    operator = opened(["k"], {"s": pen.sum("v")}, batch.schema)
    pieces = [batch.slice(i, 1) for i in range(len(values))] if cut else [batch]

    def run() -> Any:
        for piece in pieces:
            (out,) = operator.process(piece, 0)
        return out.column("s")[0].as_py()

    running = np.cumsum(np.array(values, object))
    fits = all(-(2**63) <= x < 2**63 for x in (running if cut else running[-1:]))
    if total is None or not fits:
        with pytest.raises(
            DataError, match=r"s = sum\(v\) does not fit into a 64-bit integer.*cast 'v'"
        ):
            run()
    else:
        assert run() == total


def test_the_bound_of_an_integer_sum_is_taken_up_after_a_restore() -> None:
    batch = numbers([1], [BIG], pa.int64())
    operator = opened(["k"], {"s": pen.sum("v")}, batch.schema)
    operator.process(batch, 0)
    saved = segment_of(operator.freeze(SnapshotOrder(CheckpointId(1))).tables[0])
    restored = opened(["k"], {"s": pen.sum("v")}, batch.schema, [snapshot_of(saved)])
    with pytest.raises(DataError, match="64-bit"):
        restored.process(numbers([1], [1], pa.int64()), 0)


def test_a_sum_of_decimals_is_exact_to_the_last_digit_and_then_an_error() -> None:
    kind = pa.decimal128(38, 0)
    top = D("9" * 38)
    batch = pa.record_batch(
        [pa.array([1, 1]), pa.array([D("9" * 37 + "8"), D(1)], kind)], ["k", "v"]
    )
    operator = opened(["k"], {"s": pen.sum("v")}, batch.schema)
    (out,) = operator.process(batch, 0)
    assert out.column("s")[0].as_py() == top
    with pytest.raises(DataError, match=r"does not fit into decimal128\(38, 0\)"):
        operator.process(batch.slice(1, 1), 0)
    many = pa.record_batch([pa.array([2] * 9), pa.array([top] * 9, kind)], ["k", "v"])
    with pytest.raises(DataError, match="does not fit"):
        opened(["k"], {"s": pen.sum("v")}, batch.schema).process(many, 0)


def test_a_snapshot_names_its_columns_so_that_people_can_read_it() -> None:
    """S9: state is data with a schema."""
    batch = numbers([7], [3], pa.int64())
    operator = opened(["k"], {"n": pen.count(), "mean": pen.avg("v")}, batch.schema)
    operator.process(batch, 0)
    (row,) = rows_of(operator.freeze(SnapshotOrder(CheckpointId(1))).tables[0])
    assert row.pop("__kg") == key_groups(key_hashes([pa.array([7])])[0], 128)[0]
    assert row == {"key.k": 7, "value.n.count": 1, "value.mean.sum": 3.0, "value.mean.count": 1}


@pytest.mark.parametrize("function", [pen.min, pen.max, pen.first, pen.last])
def test_a_table_that_grows_has_nulls_where_nothing_came(
    function: Callable[[str], Aggregate],
) -> None:
    """S2: also in columns of objects, which begin with another value where memory is just cleared."""
    keys = list(range(1_000))
    operator = opened(["k"], {"x": function("v")}, numbers([], [], pa.string()).schema)
    for start in range(0, 1_000, 7):
        batch = numbers(keys[start : start + 7], [None] * len(keys[start : start + 7]), pa.string())
        (out,) = operator.process(batch, 0)
        assert out.column("x").null_count == batch.num_rows
    (out,) = operator.process(numbers(keys, ["a"] * 1_000, pa.string()), 0)
    expected = None if function is pen.first else "a"
    assert set(out.column("x").to_pylist()) == {expected}


@pytest.mark.parametrize("values", [["b", None, "a"], [None, None, None]])
@pytest.mark.parametrize("function", [pen.min, pen.max])
def test_text_extremes_pass_over_nulls(
    values: list[str | None], function: Callable[[str], Aggregate]
) -> None:
    batch = numbers([1, 1, 1], values, pa.string())
    (out,) = opened(["k"], {"x": function("v")}, batch.schema).process(batch, 0)
    given_values = [v for v in values if v is not None]
    best = min if function is pen.min else max
    assert out.column("x").to_pylist() == [best(given_values) if given_values else None]


def test_a_sum_that_came_back_from_a_floor_is_watched_for_overflow() -> None:
    """S5: how large sums have become is known of those in memory, and of those that come back."""
    large = 2**62
    schema = numbers([1], [1], pa.int64()).schema
    operator = opened(["k"], {"s": pen.sum("v")}, schema, over=WAYS["floors"].over)
    operator.process(numbers([1], [large], pa.int64()), 0)
    operator.process(numbers([2], [1], pa.int64()), 0)
    saved = segments_of(operator.freeze(SnapshotOrder(CheckpointId(1))).tables[0])
    again = opened(
        ["k"], {"s": pen.sum("v")}, schema, [snapshot_of(*saved)], over=WAYS["floors"].over
    )
    with pytest.raises(DataError, match="does not fit"):
        again.process(numbers([1], [large], pa.int64()), 0)
