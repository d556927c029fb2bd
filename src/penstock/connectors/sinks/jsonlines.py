"""A batch as JSON lines, column by column: Arrow joins the texts, no row is touched in Python.

Dates and times are ISO 8601 texts. NaN and the infinities, which JSON has no numbers for, are the texts that
Spark writes: "NaN", "Infinity", "-Infinity". Lists, structs and maps go through Python.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError

_TO_ESCAPE = r'[\x00-\x1f"\\]'


def to_json_lines(batch: pa.RecordBatch) -> bytes:
    """One object per line, nulls included."""
    parts: list[Any] = []
    for number, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        key = json.dumps(field.name, ensure_ascii=False)
        parts.append(pa.scalar(f"{', ' if number else '{'}{key}: ", pa.large_string()))
        parts.append(pc.fill_null(json_texts(column).cast(pa.large_string()), "null"))
    parts.append(pa.scalar("}\n", pa.large_string()))
    lines = pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string()))
    return _bytes(lines)


def _bytes(lines: Any) -> bytes:
    """The texts of an array one after the other: they lie like that in memory."""
    if isinstance(lines, pa.ChunkedArray):
        return b"".join(_bytes(chunk) for chunk in lines.chunks)
    if not len(lines):
        return b""
    _, offsets, data = lines.buffers()
    view = memoryview(offsets).cast("q")
    return bytes(memoryview(data)[view[lines.offset] : view[lines.offset + len(lines)]])


def json_texts(column: Any) -> Any:
    """The values as JSON texts; nulls stay nulls."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return json_texts(column.cast(kind.value_type))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _strings(column.cast(pa.large_string()))
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_timestamp(kind):
        return _quoted(pc.replace_substring(column.cast(pa.large_string()), " ", "T"))
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return _quoted(column.cast(pa.large_string()))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.large_string())
    return _through_python(column)


def _quoted(texts: Any) -> Any:
    quote = pa.scalar('"', pa.large_string())
    return pc.binary_join_element_wise(quote, texts, quote, pa.scalar("", pa.large_string()))


def _strings(column: Any) -> Any:
    """Quotes texts; only those with characters that JSON escapes go through Python."""
    quoted = _quoted(column)
    special = pc.fill_null(pc.match_substring_regex(column, _TO_ESCAPE), False)
    if not pc.any(special).as_py():
        return quoted
    texts = column.filter(special).to_pylist()
    escaped = pa.array([json.dumps(text, ensure_ascii=False) for text in texts], pa.large_string())
    return pc.replace_with_mask(quoted, special, escaped)


def _floats(column: Any) -> Any:
    texts = column.cast(pa.large_string())
    unusual = pc.fill_null(pc.invert(pc.is_finite(column)), False)
    if not pc.any(unusual).as_py():
        return texts
    names = [json.dumps(_plain(value)) for value in column.filter(unusual).to_pylist()]
    return pc.replace_with_mask(texts, unusual, pa.array(names, pa.large_string()))


def _through_python(column: Any) -> Any:
    _require_nestable(column.type)
    texts = [
        None if value is None else json.dumps(_plain(value), ensure_ascii=False)
        for value in column.to_pylist(maps_as_pydicts="strict")
    ]
    return pa.array(texts, pa.large_string())


def _require_nestable(kind: pa.DataType) -> None:
    if pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            _require_nestable(kind.field(number).type)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise SchemaError("JSON has no bytes: turn them into text, such as base64, first")
    elif pa.types.is_duration(kind) or pa.types.is_interval(kind) or pa.types.is_union(kind):
        raise SchemaError(f"JSON has no {kind}")


def _plain(value: Any) -> Any:
    """A Python value as JSON can say it."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
