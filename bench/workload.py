"""The rows of W1 and W1s: a key drawn from the row's number, a value, a time; and the pipelines over them.

The functions are cheap on purpose, a few nanoseconds a row, so that the rest of the pipeline is what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import penstock as pen

OPERATOR = "totals"
INT_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.float64()), ("ts", pa.int64())])
TEXT_SCHEMA = pa.schema([("key", pa.string()), ("value", pa.float64()), ("ts", pa.int64())])
SCHEMAS = {"int": INT_SCHEMA, "text": TEXT_SCHEMA}
TEXT_BYTES = 11
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SCATTER = np.uint64(0xD6E8FEB86659FD93)
_S32 = np.uint64(32)

RowsFunction = Callable[[int, int], pa.RecordBatch]


def keys_of(numbers: npt.NDArray[np.int64], keys: int) -> npt.NDArray[np.int64]:
    """Uniform keys 0 .. keys - 1 that look drawn at random. One product alone would lay neighbours out so evenly
    that a batch had hardly a key twice."""
    mixed = numbers.view(np.uint64) * _SPREAD
    mixed ^= mixed >> _S32
    mixed *= _SCATTER
    mixed >>= _S32
    mixed *= np.uint64(keys)
    mixed >>= _S32
    return mixed.view(np.int64)


def int_rows(keys: int, start: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(start, start + count, dtype=np.int64)
    return int_batch(keys_of(numbers, keys), numbers)


def int_batch(keys: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """The rows of these numbers, with these keys."""
    columns = [keys, numbers * 0.001, numbers]
    return pa.RecordBatch.from_arrays(
        [_flat(column, field.type) for column, field in zip(columns, INT_SCHEMA, strict=True)],
        schema=INT_SCHEMA,
    )


def text_rows(keys: int, start: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(start, start + count, dtype=np.int64)
    texts = _names(keys).take(keys_of(numbers, keys))
    ends = np.arange(0, (count + 1) * TEXT_BYTES, TEXT_BYTES, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(texts)]
    key = pa.Array.from_buffers(pa.string(), count, buffers)
    value, ts = _flat(numbers * 0.001, pa.float64()), _flat(numbers, pa.int64())
    return pa.RecordBatch.from_arrays([key, value, ts], schema=TEXT_SCHEMA)


def rows_function(kind: str, keys: int) -> RowsFunction:
    return partial({"int": int_rows, "text": text_rows}[kind], keys)


def aggregates() -> dict[str, pen.Aggregate]:
    return {"n": pen.count(), "total": pen.sum("value")}


def w1(kind: str, keys: int) -> pen.Pipeline:
    """Running count and sum per key, into nothing."""
    source = pen.GeneratorSource(rows_function(kind, keys), SCHEMAS[kind])
    rows = pen.from_source(source)
    return rows.key_by("key").agg(**aggregates()).named(OPERATOR).to(pen.BlackholeSink())


def _flat(values: npt.NDArray[np.generic], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


@lru_cache(maxsize=4)
def _names(keys: int) -> npt.NDArray[np.bytes_]:
    """`user-000000` and so on, all of one length."""
    return np.array([f"user-{i:06d}".encode("ascii") for i in range(keys)], f"S{TEXT_BYTES}")
