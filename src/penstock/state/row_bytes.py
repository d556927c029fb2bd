"""Rows as bytes, one value per row, for a floor that knows nothing of Arrow; whole columns at a time.

Every column says first whether there is a value (a byte), then comes the value: as many bytes as its type has, or how
many there are and then those. So the bytes of a key end where they end, and those of a longer key that begins with the
same columns begin with them. Numbers of keys are written so that bytes sort as they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.keyhash import I64, is_text, text_offsets
from penstock.state.cells import Groups
from penstock.state.flat import dtype_of, to_arrow, valid_of, values_of
from penstock.state.segments import GROUP_COLUMN
from penstock.state.table import BELOW_PREFIX, KEY_PREFIX

Bytes = npt.NDArray[np.uint8]
GROUP_BYTES = 2
_LENGTH_BYTES = 4


class RowBytes:
    """Of rows with the schema of a table in a snapshot."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        fields = [field for field in schema if field.name != GROUP_COLUMN]
        self._owner = [f.type for f in fields if f.name.startswith(KEY_PREFIX)]
        self._below = [f.type for f in fields if f.name.startswith(BELOW_PREFIX)]
        self._values = [f.type for f in fields[len(self._owner) + len(self._below) :]]

    @property
    def owner_width(self) -> int:
        """How many columns the operator's key has."""
        return len(self._owner)

    def keys(self, groups: Groups, columns: Sequence[pa.Array]) -> list[bytes]:
        """Of the operator's key, and of what is below it if that is given."""
        kinds = [*self._owner, *self._below]
        fit = [
            c if c.type == kind else c.cast(kind) for c, kind in zip(columns, kinds, strict=False)
        ]
        return encode(fit, group_bytes(groups), ordered=True)

    def values(self, columns: Sequence[pa.Array]) -> list[bytes]:
        kinds = self._values
        fit = [
            c if c.type == kind else c.cast(kind) for c, kind in zip(columns, kinds, strict=True)
        ]
        return encode(fit)

    def of(self, batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
        """The keys and the values of stored rows."""
        groups, *columns = batch.columns
        width = len(self._owner) + len(self._below)
        keys = self.keys(values_of(groups), columns[:width])
        return keys, self.values(columns[width:]) if self._values else [b""] * len(keys)

    def columns(self, values: Sequence[bytes]) -> list[pa.Array]:
        return decode(values, self._values)[1]

    def key_columns(self, keys: Sequence[bytes]) -> list[pa.Array]:
        """Those of the operator's key, and those below it."""
        return decode(keys, [*self._owner, *self._below], GROUP_BYTES, ordered=True)[1]

    def batch(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        """Stored rows, as they were."""
        groups, found = decode(keys, [*self._owner, *self._below], GROUP_BYTES, ordered=True)
        numbers = groups.view(">u2").ravel().astype(np.uint16)
        columns = [to_arrow(numbers, pa.uint16()), *found, *self.columns(values)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def group_bytes(groups: Groups) -> Bytes:
    """They come first in a key, so that a range of key groups is a range of keys."""
    return groups.astype(">u2").view(np.uint8).reshape(-1, GROUP_BYTES)


def group_start(group: int) -> bytes:
    """No key of this key group comes before it, and none of those before it comes behind."""
    return group.to_bytes(GROUP_BYTES, "big")


def encode(
    columns: Sequence[pa.Array], lead: Bytes | None = None, *, ordered: bool = False
) -> list[bytes]:
    """`ordered`: as keys are written. What stands below a null is kept in values, and is zero in keys."""
    fixed: list[Bytes] = [] if lead is None else [lead]
    parts: list[pa.Array] = []
    for column in columns:
        valid = valid_of(column)
        there = np.ones(len(column), np.uint8) if valid is None else valid.view(np.uint8)
        fixed.append(there.reshape(-1, 1))
        if dtype_of(column.type) is not None:
            fixed.append(_key_bytes(column, valid) if ordered else _bytes(values_of(column)))
            continue
        text = _as_text(column)
        lengths = np.diff(text_offsets(text)).astype("<u4")
        fixed.append(lengths.view(np.uint8).reshape(-1, _LENGTH_BYTES))
        parts += [_as_binary(np.hstack(fixed)), text]
        fixed = []
    if not parts:
        return _rows(np.hstack(fixed))
    if fixed:
        parts.append(_as_binary(np.hstack(fixed)))
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    rows: list[bytes] = joined.to_pylist()
    return rows


def decode(
    rows: Sequence[bytes], kinds: Sequence[pa.DataType], lead: int = 0, *, ordered: bool = False
) -> tuple[Bytes, list[pa.Array]]:
    """The first bytes of each row, and its columns."""
    blob: Bytes = np.frombuffer(b"".join(rows), np.uint8)
    count = len(rows)
    sizes = np.fromiter(map(len, rows), np.int64, count)
    at = np.cumsum(sizes) - sizes
    first = _gather(blob, at, lead)
    at = at + lead
    columns = []
    for kind in kinds:
        valid = blob.take(at) != 0 if count else np.zeros(0, np.bool_)
        at = at + 1
        dtype = dtype_of(kind)
        if dtype is not None:
            raw = _gather(blob, at, dtype.itemsize)
            values = _from_key_bytes(raw, dtype) if ordered else raw.reshape(-1).view(dtype)
            columns.append(to_arrow(values, kind, valid))
            at = at + dtype.itemsize
            continue
        lengths = _gather(blob, at, _LENGTH_BYTES).reshape(-1).view("<u4").astype(np.int64)
        at = at + _LENGTH_BYTES
        columns.append(_from_text(_cut(blob, at, lengths), kind, valid))
        at = at + lengths
    return first, columns


def _gather(blob: Bytes, at: I64, width: int) -> Bytes:
    """So many bytes from each of these places."""
    if not width or not len(at):
        return np.zeros((len(at), width), np.uint8)
    return blob.take(at[:, None] + np.arange(width))


def _cut(blob: Bytes, at: I64, lengths: I64) -> pa.Array:
    """The bytes from each of these places on. They lie between others in one array, of which every second is taken."""
    count = len(at)
    offsets = np.empty(2 * count, np.int64)
    offsets[0::2], offsets[1::2] = at, at + lengths
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(blob)]
    every = pa.Array.from_buffers(pa.large_binary(), max(2 * count - 1, 0), buffers)
    return every.take(pa.array(np.arange(0, 2 * count, 2)))


def _rows(matrix: Bytes) -> list[bytes]:
    if not len(matrix):
        return []
    whole = np.ascontiguousarray(matrix)
    rows: list[bytes] = whole.view(f"V{whole.shape[1]}").ravel().tolist()
    return rows


def _as_binary(matrix: Bytes) -> pa.Array:
    count, width = matrix.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    data = pa.py_buffer(np.ascontiguousarray(matrix))
    return pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), data])


def _bytes(values: npt.NDArray[Any]) -> Bytes:
    width = values.dtype.itemsize
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)


def _key_bytes(column: pa.Array, valid: npt.NDArray[np.bool_] | None) -> Bytes:
    values = values_of(column)
    if valid is not None:
        values = np.where(valid, values, np.zeros(1, values.dtype))
    raw = _bytes(values)[:, ::-1].copy()
    if values.dtype.kind == "i":
        raw[:, 0] ^= 0x80
    return raw


def _from_key_bytes(raw: Bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    raw = raw.copy()
    if dtype.kind == "i" and len(raw):
        raw[:, 0] ^= 0x80
    return np.ascontiguousarray(raw[:, ::-1]).reshape(-1).view(dtype)


def _as_text(column: pa.Array) -> pa.Array:
    text = column if is_text(column.type) else _packed(column)
    return pc.fill_null(text.cast(pa.large_binary()), b"")


def _from_text(text: pa.Array, kind: pa.DataType, valid: npt.NDArray[np.bool_]) -> pa.Array:
    if not is_text(kind):
        return _unpacked(text, kind, valid)
    if not valid.all():
        text = pc.if_else(pa.array(valid), text, pa.scalar(None, text.type))
    text_kind = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return text.cast(pa.large_string()).cast(kind) if text_kind else text.cast(kind)


def _packed(column: pa.Array) -> pa.Array:
    """Lists, structs and the like, each as a message of Arrow's own: slow, and right for every type."""
    batch = pa.RecordBatch.from_arrays([column], names=["value"])
    messages = (batch.slice(row, 1).serialize().to_pybytes() for row in range(len(column)))
    return pa.array(messages, pa.large_binary())


def _unpacked(messages: pa.Array, kind: pa.DataType, valid: npt.NDArray[np.bool_]) -> pa.Array:
    schema = pa.schema([pa.field("value", kind)])
    none = pa.nulls(1, kind)
    found = [
        pa.ipc.read_record_batch(pa.py_buffer(message), schema).column(0) if there else none
        for message, there in zip(messages.to_pylist(), valid.tolist(), strict=True)
    ]
    return pa.concat_arrays(found) if found else pa.nulls(0, kind)
