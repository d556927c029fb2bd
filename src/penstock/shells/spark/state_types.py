"""Arrow types that Spark has no name for become the nearest that it has: numbers wider, the rest text."""

from __future__ import annotations

from inspect import signature

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

DECIMAL_DIGITS_MAX = 38
_IN_UTC = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""Older versions of PySpark 4 have times in UTC without being told."""
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def spark_schema(schema: pa.Schema) -> StructType:
    """The schema of a DataFrame with these columns."""
    fields = [pa.field(field.name, _fitting(field.type), field.nullable) for field in schema]
    return from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)


def to_spark(batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """The batch as Spark wants it for that schema. Times lose what is finer than a microsecond."""
    wanted = to_arrow_schema(schema, **_IN_UTC)
    columns = [
        column.cast(field.type, safe=not pa.types.is_temporal(column.type))
        for column, field in zip(batch.columns, wanted, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _fitting(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if kind in _WIDER:
        return _WIDER[kind]
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if types.is_decimal(kind) and kind.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_time(kind) or types.is_decimal(kind):
        return pa.string()  # not in every Spark 4, or not that long
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_fitting(kind.value_type))
    if types.is_map(kind):
        return pa.map_(_fitting(kind.key_type), _fitting(kind.item_type))
    if types.is_struct(kind):
        inner = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, _fitting(f.type), f.nullable) for f in inner])
    return kind if _has_name(kind) else pa.string()


def _has_name(kind: pa.DataType) -> bool:
    try:
        from_arrow_type(kind)
    except Exception:  # each version of PySpark raises another one
        return False
    return True
