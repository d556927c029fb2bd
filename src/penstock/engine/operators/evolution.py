"""A state's schema may change between a snapshot and its restore, in ways that lose nothing.

Allowed: added nullable columns (null for old rows) and widened numbers, also in a key: a number has the same key group
in every type that is wide enough for it. Columns that are not declared any more go where the user has asked for it.
Everything else is refused, with the operator, the state, the column and both types in the error.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.plan.schema import type_ddl
from penstock.state.changes import GONE_FIELD
from penstock.state.table import BELOW_PREFIX, KEY_PREFIX, STATE_KIND

BEGIN_ANEW = (
    'give up the state: start with restore="fresh", or under another name=, which both begin at the start of the'
    " input (write to an empty folder then: what is committed already stays)"
)
"""The way out of state that does not fit any more. Nothing is ever dropped without being asked."""
LET_GO = "let it go: start with allow_non_restored_state=True"
"""The way out of state that is not wanted any more."""
_WIDER_INTEGERS = {8: (16, 32, 64), 16: (32, 64), 32: (64,), 64: ()}


def evolved(
    batch: pa.RecordBatch,
    wanted: pa.Schema,
    label: str,
    *,
    required: frozenset[str] = frozenset(),
    may_lose: bool = False,
) -> pa.RecordBatch:
    """Rows of a snapshot, or of a delta, in the shape that the job wants now. `required` are columns without nulls;
    `may_lose`: those that nobody wants go."""
    stored: pa.Schema = batch.schema
    _refuse_another_kind(stored, wanted, label)
    for prefix, what in ((KEY_PREFIX, "key"), (BELOW_PREFIX, "map key")):
        _refuse_another_key(_with(prefix, stored), _with(prefix, wanted), what, label)
    lost = [name for name in stored.names if name not in wanted.names and name != GONE_FIELD.name]
    if lost and not may_lose:
        raise SchemaError(
            f"{label}: column {shown(lost[0])!r} ({type_ddl(stored.field(lost[0]).type)}) is in the checkpoint and no"
            f" longer declared; declare it again, or {LET_GO}, or {BEGIN_ANEW}"
        )
    rows = _without_gone(batch) if required else batch
    for name in sorted(required):
        _refuse_nulls(rows, wanted.field(name), label)
    columns = [_column(batch, field, label) for field in wanted]
    made = pa.RecordBatch.from_arrays(columns, schema=wanted)
    if GONE_FIELD.name in stored.names:
        made = made.append_column(GONE_FIELD, batch.column(GONE_FIELD.name))
    return made


def _refuse_another_kind(stored: pa.Schema, wanted: pa.Schema, label: str) -> None:
    """A delta does not say what kind it is, but whether a key has many rows."""
    old, new = ((each.metadata or {}).get(STATE_KIND, b"").decode() for each in (stored, wanted))
    many, wants_many = (bool(_with(BELOW_PREFIX, each).names) for each in (stored, wanted))
    if (old and old != new) or (not old and many != wants_many):
        was = old or ("list or map" if many else "value, reducing or aggregating")
        raise SchemaError(
            f"{label}: it is a {was} state in the checkpoint and a {new} state now; give the new one another name, and"
            f" the old one back, or {LET_GO}, or {BEGIN_ANEW}"
        )


def _refuse_another_key(stored: pa.Schema, wanted: pa.Schema, what: str, label: str) -> None:
    """State is found by its key, and lies where the key's hash says."""
    fits = stored.names == wanted.names and all(
        _fits(old.type, new.type) for old, new in zip(stored, wanted, strict=True)
    )
    if not fits:
        raise SchemaError(
            f"{label}: the {what} is ({_columns(stored)}) in the checkpoint and ({_columns(wanted)}) now; a number may"
            f" become wider, nothing else of it may change. Keep the old {what}, or {BEGIN_ANEW}"
        )


def _refuse_nulls(rows: pa.RecordBatch, field: pa.Field, label: str) -> None:
    if field.name not in rows.schema.names:
        raise SchemaError(
            f"{label}: column {shown(field.name)!r} ({type_ddl(field.type)}) is new and NOT NULL, and the checkpoint"
            f" has no value for it; make it nullable, or {BEGIN_ANEW}"
        )
    if rows.column(field.name).null_count:
        raise SchemaError(
            f"{label}: column {shown(field.name)!r} ({type_ddl(field.type)}) is now NOT NULL and has nulls in the"
            f" checkpoint; make it nullable, or {BEGIN_ANEW}"
        )


def _column(batch: pa.RecordBatch, field: pa.Field, label: str) -> pa.Array:
    if field.name not in batch.schema.names:
        return _nothing(field, batch.num_rows)
    column = batch.column(field.name)
    if not _fits(column.type, field.type):
        raise SchemaError(
            f"{label}: column {shown(field.name)!r} is {type_ddl(column.type)} in the checkpoint and"
            f" {type_ddl(field.type)} now; a number may become wider, nothing else may change. Keep the old"
            f" type, or {BEGIN_ANEW}"
        )
    return column.cast(field.type)


def _nothing(field: pa.Field, rows: int) -> pa.Array:
    """What a column has where nothing came yet: null, or zero where it has no nulls."""
    if field.nullable:
        return pa.nulls(rows, field.type)
    return pa.repeat(pa.scalar(0, field.type), rows)


def _without_gone(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Of a delta only the rows: a key that has lost its row has nulls."""
    if GONE_FIELD.name not in batch.schema.names:
        return batch
    return batch.filter(pc.invert(batch.column(GONE_FIELD.name)))


def _with(prefix: str, schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name.startswith(prefix)])


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{shown(field.name)} {type_ddl(field.type)}" for field in schema)


def shown(stored: str) -> str:
    """Stored columns are called "value.n": people know them as "n"."""
    return stored.partition(".")[2] or stored


def _fits(old: pa.DataType, new: pa.DataType) -> bool:
    return bool(old == new) or can_widen(old, new)


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
