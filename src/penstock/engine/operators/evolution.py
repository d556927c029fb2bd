"""A state's schema may change between a snapshot and its restore, in ways that lose nothing.

Allowed: added nullable columns (null for old rows) and widened numbers. Everything else is refused, with the
operator, the state and the column in the error.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.plan.schema import type_ddl

BEGIN_ANEW = (
    'give up the state: start with restore="fresh", or under another name=, which both begin at the start of the'
    " input (write to an empty folder then: what is committed already stays)"
)
"""The way out of state that does not fit any more. Nothing is ever dropped without being asked."""
_WIDER_INTEGERS = {8: (16, 32, 64), 16: (32, 64), 32: (64,), 64: ()}


def evolved(
    batch: pa.RecordBatch, wanted: pa.Schema, required: frozenset[str], label: str
) -> pa.RecordBatch:
    """Rows of a snapshot in the shape that the job wants now. `required` are columns without nulls."""
    if batch.schema.equals(wanted):
        return batch
    for name in batch.schema.names:
        if name not in wanted.names:
            raise SchemaError(
                f"{label}: column {_shown(name)!r} is in the checkpoint and no longer declared; declare it"
                f" again, or {BEGIN_ANEW}"
            )
    columns = [_column(batch, field, required, label) for field in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _column(
    batch: pa.RecordBatch, field: pa.Field, required: frozenset[str], label: str
) -> pa.Array:
    if field.name not in batch.schema.names:
        if field.name in required:
            raise SchemaError(
                f"{label}: column {_shown(field.name)!r} is new and NOT NULL, and the checkpoint"
                f" has no value for it; make it nullable, or {BEGIN_ANEW}"
            )
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    if column.type != field.type and not can_widen(column.type, field.type):
        raise SchemaError(
            f"{label}: column {_shown(field.name)!r} is {type_ddl(column.type)} in the checkpoint and"
            f" {type_ddl(field.type)} now; a number may become wider, nothing else may change. Keep the old"
            f" type, or {BEGIN_ANEW}"
        )
    if column.null_count and field.name in required:
        raise SchemaError(
            f"{label}: column {_shown(field.name)!r} is now NOT NULL and has nulls in the checkpoint; make it"
            f" nullable, or {BEGIN_ANEW}"
        )
    return column.cast(field.type)


def _shown(stored: str) -> str:
    """Stored columns are called "value.n": people know them as "n"."""
    return stored.partition(".")[2] or stored


def can_widen(old: pa.DataType, new: pa.DataType) -> bool:
    """True where every number of the old type is exactly one of the new."""
    types = pa.types
    if types.is_signed_integer(old) and types.is_signed_integer(new):
        return new.bit_width in _WIDER_INTEGERS[old.bit_width]
    if types.is_float32(old) and types.is_float64(new):
        return True
    if types.is_signed_integer(old) and types.is_float64(new):
        return bool(old.bit_width <= 32)
    if types.is_decimal128(old) and types.is_decimal128(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return False
