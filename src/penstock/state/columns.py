"""Arrow arrays as flat NumPy arrays, and back: what state keeps is NumPy, what it writes is Arrow.

Numbers, booleans, dates and timestamps are flat arrays of their own width; decimals and text are arrays of
Python objects, with None for null.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.keyhash import I64, Flags

Values = npt.NDArray[Any]
Rows = TypeVar("Rows", pa.Array, pa.RecordBatch)

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_FLOATS = {2: np.float16, 4: np.float32, 8: np.float64}


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The NumPy type that values of this Arrow type are kept in."""
    types = pa.types
    if types.is_boolean(kind):
        return np.dtype(np.bool_)
    if not types.is_primitive(kind):
        return np.dtype(object)
    width = kind.bit_width // 8
    if types.is_floating(kind):
        return np.dtype(_FLOATS[width])
    table: dict[int, Any] = _UNSIGNED if types.is_unsigned_integer(kind) else _SIGNED
    return np.dtype(table[width]) if width in table else np.dtype(object)


def is_flat(kind: pa.DataType) -> bool:
    """True when values of this type are numbers in a NumPy array, not Python objects."""
    return dtype_of(kind) != np.dtype(object)


def values_of(column: pa.Array) -> Values:
    """The values as NumPy, without a copy where possible. Where a flat column is null, anything may stand."""
    dtype = dtype_of(column.type)
    if dtype == np.dtype(object):
        objects = np.empty(len(column), object)
        objects[:] = column.to_pylist()
        return objects
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
    if values.dtype == np.dtype(object):
        return pa.array(values.tolist(), kind)
    bitmap, nulls = None, 0
    if valid is not None:
        nulls = len(valid) - int(np.count_nonzero(valid))
        bitmap = _bits(valid) if nulls else None
    data = _bits(values) if values.dtype == np.dtype(np.bool_) else pa.py_buffer(values)
    return pa.Array.from_buffers(kind, len(values), [bitmap, data], nulls)


def int64_array(values: I64) -> pa.Array:
    """Over the same memory."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def take_rows(data: Rows, rows: pa.Array) -> Rows:
    """These rows of an array or a batch. Every number must be one of a row: Arrow does not look."""
    taken: Rows = pc.call_function("take", [data, rows], _UNCHECKED)
    return taken


_UNCHECKED = pc.TakeOptions(boundscheck=False)


def _bits(flags: Flags) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
