"""Parquet files, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.location import may_pass
from penstock.connectors.schemas import plain_schema, plain_type
from penstock.connectors.sources.chunks import Chunk, Mark
from penstock.connectors.sources.listing import Listing
from penstock.errors import DataError
from penstock.plan.schema import type_ddl
from penstock.redaction import redacted

BATCH_ROWS = 65_536
_WIDER = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.uint8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.uint16(): (pa.int32(), pa.int64()),
    pa.uint32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_UNITS = ("s", "ms", "us", "ns")


class ParquetFormat:
    """Columns are found by name; a narrower type is widened, any other one is refused."""

    def infer(self, listing: Listing, name: str) -> pa.Schema:
        with _opened(listing, name) as file:
            return plain_schema(_file_schema(file), listing.shown(name))

    def chunks(self, listing: Listing, name: str, schema: pa.Schema, at: Mark) -> Iterator[Chunk]:
        with _opened(listing, name) as file:
            where = listing.shown(name)
            require_compatible(_file_schema(file), schema, where)
            for group in range(at[0], file.num_row_groups):
                yield from _group(file, group, schema, where)


def rows_in(listing: Listing, name: str, schema: pa.Schema) -> int:
    """How many rows a file has. Raises `DataError` when they are not of this schema, or may have days of an old
    calendar: only Spark knows how to read those."""
    with _opened(listing, name) as file:
        if _is_of_old_spark(file.metadata.metadata or {}):
            raise DataError(f"{listing.shown(name)}: dates in it may be of the Julian calendar")
        require_compatible(_file_schema(file), schema, listing.shown(name))
        return int(file.metadata.num_rows)


def _is_of_old_spark(noted: Mapping[bytes, bytes]) -> bool:
    """Sparks before 3.1, and newer ones that are told to, count days before 1582 and instants before 1900 as Java once
    did. What Spark notes in a file says so."""
    if any(key in noted for key in _OLD_CALENDAR):
        return True
    version = noted.get(b"org.apache.spark.version", b"").decode(errors="replace").split(".")[:2]
    return bool(version[0]) and [int(part) for part in version if part.isdigit()] < [3, 1]


@contextmanager
def _opened(listing: Listing, name: str) -> Iterator[Any]:
    """The open file; whatever shows that it is not (whole) Parquet becomes a `DataError`."""
    where = listing.shown(name)
    try:
        with closing(listing.open_random(name)) as handle:
            yield pq.ParquetFile(
                handle,
                coerce_int96_timestamp_unit="us",
                pre_buffer=False,
                page_checksum_verification=True,
            )
    except (pa.ArrowException, OSError) as error:
        if may_pass(error):
            raise
        raise DataError(
            f"{where}: cannot be read as Parquet ({redacted(str(error))}); take the file out of the folder,"
            ' or give the source its real format="..."'
        ) from None


def _group(file: Any, group: int, schema: pa.Schema, where: str) -> Iterator[Chunk]:
    rows = file.metadata.row_group(group).num_rows
    is_last = group == file.num_row_groups - 1
    base = 0
    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=schema.names):
        yield Chunk(
            conform(batch, schema, where),
            (group, 0),
            base,
            is_last and base + batch.num_rows == rows,
        )
        base += batch.num_rows


def _file_schema(file: Any) -> pa.Schema:
    """The file's own schema; INT96, which Spark writes for TIMESTAMP, is an instant in UTC."""
    columns = (file.schema.column(i) for i in range(len(file.schema)))
    instants = {column.path for column in columns if column.physical_type == "INT96"}
    if not instants:
        return file.schema_arrow
    return pa.schema([_with_instants(field, field.name, instants) for field in file.schema_arrow])


def _with_instants(field: pa.Field, path: str, instants: set[str]) -> pa.Field:
    """`path` is how Parquet spells the way to it: with a `list.element` or `key_value.key` in between."""
    kind = field.type
    if path in instants:
        return field.with_type(pa.timestamp("us", "UTC"))
    if pa.types.is_struct(kind):
        inner = [_with_instants(each, f"{path}.{each.name}", instants) for each in kind.fields]
        return field.with_type(pa.struct(inner))
    if pa.types.is_list(kind):
        element = _with_instants(kind.value_field, f"{path}.list.element", instants)
        return field.with_type(pa.list_(element))
    if pa.types.is_map(kind):
        key = _with_instants(kind.key_field, f"{path}.key_value.key", instants)
        item = _with_instants(kind.item_field, f"{path}.key_value.value", instants)
        return field.with_type(pa.map_(key, item))
    return field


def require_compatible(have: pa.Schema, want: pa.Schema, where: str) -> None:
    """Raises when a column is missing or its values cannot be brought to the type without loss."""
    for field in want:
        if field.name not in have.names:
            raise DataError(
                f"{where}: there is no column {field.name!r}; the file has {', '.join(have.names)}"
            )
        kind = have.field(field.name).type
        if not widens(kind, field.type):
            raise DataError(
                f"{where}: column {field.name!r} is {type_ddl(kind)}, expected"
                f" {type_ddl(field.type)}; rewrite the file or change the schema of the source"
            )


def widens(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether every value of one type is also one of the other."""
    if have == want or plain_type(have) == want or want in _WIDER.get(have, ()):
        return True
    if pa.types.is_duration(want) and want.unit == "us":  # so Spark writes them
        return bool(pa.types.is_int64(have))
    if pa.types.is_timestamp(have) and pa.types.is_timestamp(want) and have.tz == want.tz:
        return _UNITS.index(have.unit) <= _UNITS.index(want.unit)
    return have.equals(want, check_metadata=False) or _widens_within(have, want)


def _widens_within(have: pa.DataType, want: pa.DataType) -> bool:
    """Nested types, part by part. Writers call the element of a list `item` or `element`, and say of more or fewer
    parts that they are never null; the fields of a struct have their names and their order."""
    if pa.types.is_list(have) and pa.types.is_list(want):
        return widens(have.value_type, want.value_type)
    if pa.types.is_map(have) and pa.types.is_map(want):
        return widens(have.key_type, want.key_type) and widens(have.item_type, want.item_type)
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        pairs = zip(have.fields, want.fields, strict=False)
        return have.num_fields == want.num_fields and all(
            mine.name == theirs.name and widens(mine.type, theirs.type) for mine, theirs in pairs
        )
    return False


def conform(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """The batch with the columns, order and types of the schema."""
    arrays = [_cast(batch.column(field.name), field, where) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, field: pa.Field, where: str) -> pa.Array:
    if not field.nullable and array.null_count:
        raise DataError(f"{where}: column {field.name!r} is NOT NULL and has a null")
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowInvalid as error:
        raise DataError(f"{where}: column {field.name!r}: {error}") from error
