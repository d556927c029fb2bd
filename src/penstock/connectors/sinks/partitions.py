"""Rows by the values of some columns: one folder each, named as Hive and Spark do, such as `day=2026-01-31/country=NO`.

The columns are in the names of the folders and not in the files. A null and an empty text are
`__HIVE_DEFAULT_PARTITION__`, as in Spark, and read back as null. Characters that paths cannot hold, or that mean
something in them, are written like `%2F`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, DataError, SchemaError
from penstock.plan.schema import require_columns, type_ddl

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_NAME_BYTES_MAX = 255
_ESCAPED = frozenset((*map(chr, range(32)), "\x7f", *"\"#%'*/:=?\\{[]^"))
"""As in Spark's `ExternalCatalogUtils`, and the character 0, which no file name can hold."""


def checked_columns(given: object) -> tuple[str, ...]:
    """What `partition_by` was given: names, or one name."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f'FileSink: partition_by={given!r} is no list of columns; write partition_by=["day"]'
        )
    for name in names:
        if not name or name.startswith(("_", ".")):
            raise ConfigError(
                f"FileSink: partition_by={given!r}: readers pass over folders that start with _ or ., so {name!r}"
                " cannot be one; rename the column"
            )
        if names.count(name) > 1:
            raise ConfigError(f"FileSink: partition_by={given!r} has {name!r} twice")
    return tuple(names)


def check_partition_columns(columns: Sequence[str], schema: pa.Schema) -> None:
    """Raises `SchemaError` where rows of this schema cannot be in folders by these columns."""
    require_columns(columns, schema, "FileSink: partition_by")
    for name in columns:
        kind = schema.field(name).type
        if not _has_one_text(kind):
            raise SchemaError(
                f"FileSink: partition_by has {name!r}, which is {type_ddl(kind)}; the name of a folder is made of"
                ' texts, whole numbers, booleans and dates: .with_columns(day=pen.col("time").cast("DATE")), or'
                ' .cast("STRING")'
            )
    if len(columns) == len(schema):
        raise SchemaError(
            "FileSink: partition_by has all columns, so that there is nothing left to write"
        )


def _has_one_text(kind: pa.DataType) -> bool:
    """Whether everybody writes its values the same way."""
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer)
    return any(check(kind) for check in (*checks, pa.types.is_boolean, pa.types.is_date))


class Partitions:
    """Divides batches by partition."""

    def __init__(self, columns: Sequence[str], schema: pa.Schema) -> None:
        self.columns = tuple(columns)
        self.schema = pa.schema([field for field in schema if field.name not in columns])
        """Of the rows in the files."""

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The folder and the rows of each partition that the batch has rows of."""
        if not self.columns:
            yield "", batch
            return
        texts = [pc.fill_null(batch.column(c).cast(pa.large_string()), "") for c in self.columns]
        rows = batch.select(self.schema.names)
        for positions in _equal_rows(texts):
            values = [column[int(positions[0])].as_py() for column in texts]
            whole = len(positions) == batch.num_rows
            yield self._folder(values), rows if whole else rows.take(pa.array(positions))

    def _folder(self, values: Sequence[str]) -> str:
        return "/".join(map(partition_name, self.columns, values))


def _equal_rows(texts: Sequence[pa.Array]) -> list[np.ndarray]:
    """The positions of rows that have the same texts; in the order of the rows."""
    code = np.zeros(len(texts[0]), np.int64)
    for column in texts:
        encoded = column.dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False)
        pairs = code * len(encoded.dictionary) + numbers
        code = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    order = np.argsort(code, kind="stable")
    ends = np.flatnonzero(np.diff(code[order])) + 1
    return np.split(order, ends)


def partition_name(column: str, value: str) -> str:
    """`column=value`, as the name of a folder."""
    name = f"{escaped(column)}={escaped(value) or NO_VALUE}"
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise DataError(
            f"FileSink: partition_by {column!r}: {value[:40]!r}... has {len(value)} characters, and no folder can have"
            " so long a name; partition by another column, or shorten it"
        )
    return name


def escaped(text: str) -> str:
    return "".join(f"%{ord(each):02X}" if each in _ESCAPED else each for each in text)
