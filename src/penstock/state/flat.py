"""Arrow arrays as flat NumPy arrays, and back: what state keeps is NumPy, what it writes is Arrow."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.keyhash import I64, Flags

Values = npt.NDArray[Any]
Rows = TypeVar("Rows", pa.Array, pa.RecordBatch)

FIRST_ROWS = 32

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_FLOATS = {2: np.float16, 4: np.float32, 8: np.float64}
PAIR = np.dtype(np.complex128)
"""Sixteen bytes that NumPy moves as one item."""


def dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """The NumPy type that values of this Arrow type are kept in; None for values of any length."""
    types = pa.types
    if types.is_boolean(kind):
        return np.dtype(np.bool_)
    if types.is_decimal128(kind):
        return PAIR
    if not types.is_primitive(kind):
        return None
    width = kind.bit_width // 8
    if types.is_floating(kind):
        return np.dtype(_FLOATS[width])
    table: dict[int, Any] = _UNSIGNED if types.is_unsigned_integer(kind) else _SIGNED
    return np.dtype(table[width]) if width in table else None


def is_number(kind: pa.DataType) -> bool:
    """Whether NumPy can compare and add values of this type as they are kept."""
    dtype = dtype_of(kind)
    return dtype is not None and dtype != PAIR


def values_of(column: pa.Array) -> Values:
    """The values as NumPy, without a copy where possible. Where the column is null, anything may stand."""
    dtype = dtype_of(column.type)
    if dtype is None:
        raise TypeError(f"values of type {column.type} have no fixed width")
    if len(column) == 0:
        return np.empty(0, dtype)
    if dtype == np.dtype(np.bool_):
        column = column.cast(pa.uint8())
        start = column.offset
        flags: Values = np.frombuffer(column.buffers()[1], np.uint8, len(column), start) != 0
        return flags
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def valid_of(column: pa.Array) -> Flags | None:
    """True per row that is not null; None when no row is."""
    if not column.null_count:
        return None
    valid: Flags = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def to_arrow(values: Values, kind: pa.DataType, valid: Flags | None = None) -> pa.Array:
    """An Arrow array over these values; rows that are not valid are null."""
    bitmap, nulls = None, 0
    if valid is not None:
        nulls = len(valid) - int(np.count_nonzero(valid))
        bitmap = _bits(valid) if nulls else None
    data = _bits(values) if values.dtype == np.dtype(np.bool_) else pa.py_buffer(values)
    return pa.Array.from_buffers(kind, len(values), [bitmap, data], nulls)


def rows_of(array: Values, cells: I64 | slice) -> Values:
    """A copy of these rows."""
    return array[cells].copy() if isinstance(cells, slice) else array.take(cells)


def int64_array(values: I64) -> pa.Array:
    """Over the same memory."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def take_rows(data: Rows, rows: pa.Array) -> Rows:
    """These rows of an array or a batch. Every number must be one of a row: Arrow does not look."""
    taken: Rows = pc.call_function("take", [data, rows], _UNCHECKED)
    return taken


def with_nulls(values: pa.Array, valid: Flags) -> pa.Array:
    """Text or binary that begins at the first of its offsets, null where it is not valid."""
    _, offsets, data = values.buffers()
    nulls = len(valid) - int(np.count_nonzero(valid))
    return pa.Array.from_buffers(values.type, len(valid), [_bits(valid), offsets, data], nulls)


_UNCHECKED = pc.TakeOptions(boundscheck=False)


def _bits(flags: Flags) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def grown(array: Values, count: int, needed: int, fill: Any = 0) -> Values:
    """The array, or a longer one with its first `count` rows and `fill` behind them."""
    if needed <= len(array):
        return array
    size = max(needed, len(array) * 3 // 2, FIRST_ROWS)
    longer: Values = np.zeros(size, array.dtype) if not fill else np.full(size, fill, array.dtype)
    longer[:count] = array[:count]
    return longer
