"""How rows that come from outside are brought to the schema that was promised."""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import SchemaError
from penstock.plan.schema import schema_differences


def as_declared(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """The batch with exactly this schema: names and types must be the same; metadata is dropped, and a column
    may be marked NOT NULL as long as it has no nulls."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    differences = schema_differences(batch.schema, schema)
    if differences:
        raise SchemaError(f"{where}: {'; '.join(differences)}")
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def require_no_nulls(batch: pa.RecordBatch, where: str) -> None:
    """Raises when a column that is NOT NULL has a null."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise SchemaError(f"{where}: column {field.name!r} is NOT NULL and has a null")


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that rows of an inferred schema get: microseconds for timestamps, plain strings and binaries."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def plain_schema(schema: pa.Schema, where: str) -> pa.Schema:
    """An inferred schema as it is promised to the pipeline; refuses columns of which nothing is known."""
    unknown = [field.name for field in schema if pa.types.is_null(field.type)]
    if unknown:
        raise SchemaError(
            f"{where}: the type of column {unknown[0]!r} cannot be inferred, it holds only nulls;"
            ' give the source a schema="..."'
        )
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])
