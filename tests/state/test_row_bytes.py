"""Rows as bytes and back: every type, nulls, and keys whose bytes sort and nest as floors need it."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.row_bytes import RowBytes, decode, encode
from penstock.state.table import row_schema

D = decimal.Decimal
KEYS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=20),
    pa.large_binary(): st.binary(max_size=5),
    pa.date32(): st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
    pa.decimal128(20, 2): st.integers(-(10**19), 10**19).map(lambda n: D(n).scaleb(-2)),
}
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = KEYS | {
    pa.float64(): st.floats(allow_nan=False),
    pa.timestamp("us", "UTC"): st.integers(0, 2**50).map(
        lambda us: dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=us)
    ),
    pa.list_(pa.string()): st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=3),
    pa.struct([("a", pa.int32()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.integers(-9, 9), "b": st.one_of(st.none(), st.text(max_size=3))}
    ),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(
        st.text(max_size=2), st.integers(-9, 9), max_size=2
    ).map(lambda d: list(d.items())),
}


@st.composite
def columns(
    draw: st.DrawFn, kinds: dict[pa.DataType, st.SearchStrategy[Any]], rows: int, least: int = 1
) -> list[pa.Array]:
    chosen = draw(st.lists(st.sampled_from(list(kinds)), min_size=least, max_size=3))
    return [
        pa.array(draw(st.lists(st.none() | kinds[k], min_size=rows, max_size=rows)), k)
        for k in chosen
    ]


@given(st.data(), st.integers(0, 5))
def test_rows_come_back_as_they_were(data: st.DataObject, rows: int) -> None:
    """S9, I23: any type, nested ones included."""
    owner, below = data.draw(columns(KEYS, rows)), data.draw(columns(KEYS, rows, 0))
    values = data.draw(columns(VALUES, rows, 0))
    parts = [
        pa.schema([(f"{name}{i}", each.type) for i, each in enumerate(part)])
        for name, part in (("k", owner), ("b", below), ("v", values))
    ]
    schema = row_schema("map", *parts)
    groups = pa.array(range(rows), pa.uint16())
    batch = pa.RecordBatch.from_arrays([groups, *owner, *below, *values], schema=schema)
    codec = RowBytes(schema)
    keys, kept = codec.of(batch)
    again = codec.batch(keys, kept)
    again.validate(full=True)
    assert again.equals(batch)
    owners = codec.keys(np.arange(rows, dtype=np.uint16), owner)
    assert all(key.startswith(mine) for key, mine in zip(keys, owners, strict=True))


@given(st.data(), st.integers(2, 6))
def test_no_key_is_where_another_one_begins(data: st.DataObject, rows: int) -> None:
    """What is below one key is never taken for what is below another."""
    owner = data.draw(columns(KEYS, rows))
    keys = encode(owner, ordered=True)
    plain = list(zip(*(each.to_pylist() for each in owner), strict=True))
    for i, mine in enumerate(keys):
        for j, other in enumerate(keys):
            assert other.startswith(mine) == (plain[i] == plain[j])


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_bytes_of_numbers_in_keys_sort_as_the_numbers_do(numbers: list[int]) -> None:
    """Entries of a list come back in their order."""
    rows = sorted(encode([pa.array(numbers, pa.int64())], ordered=True))
    assert decode(rows, [pa.int64()], ordered=True)[1][0].to_pylist() == sorted(numbers)


def test_what_stands_below_a_null_stays_there() -> None:
    """Aggregates begin with a value that is not zero where none has come yet."""
    below = np.array([7, 8], np.int64)
    column = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(below)])
    (again,) = decode(encode([column]), [pa.int64()])[1]
    assert again.to_pylist() == [7, None]
    assert np.frombuffer(again.buffers()[1], np.int64).tolist() == [7, 8]
