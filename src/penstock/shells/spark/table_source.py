"""A table of the latest row per key as a Spark DataFrame: what `pen.UpsertFileSink` keeps, read in parallel.

The folder is looked at once, when an action is planned, and each task reads a range of key groups from the files that
were there. Files that have been merged into others stay for minutes; a task that comes later looks for itself. It then
shows its keys as they are at that moment, which is as right for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.connectors.location import absolute
from penstock.connectors.sinks.folder import open_folder
from penstock.connectors.tables.definition import MARKER
from penstock.connectors.tables.names import TableFile
from penstock.connectors.tables.reader import Table
from penstock.connectors.tables.rows import GROUPS
from penstock.errors import SchemaError

PARTITION_ROWS = 500_000
PARTITIONS_MAX = 200
"""Where nobody says how many: so many rows for each, and not more than these."""
BATCH_ROWS = 10_000


def is_table(path: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Whether an `UpsertFileSink` keeps a table in this folder."""
    return open_folder(absolute(path), storage_options or {}).size(MARKER) is not None


def table_schema(path: str, storage_options: Mapping[str, Any] | None = None) -> StructType:
    """The schema of the DataFrame."""
    return _spark_schema(Table(path, storage_options).schema)


class TablePartition(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    def __init__(self, start: int, end: int, files: Sequence[TableFile]) -> None:
        super().__init__((start, end))
        self.groups = range(start, end)
        self.files = tuple(files)


class TableReader(DataSourceReader):  # type: ignore[misc]
    """Made when an action is planned, and sent to the tasks."""

    def __init__(
        self,
        path: str,
        schema: StructType,
        storage_options: Mapping[str, Any] | None = None,
        partitions: int | None = None,
    ) -> None:
        self._path = absolute(path)
        self._schema = schema
        self._storage_options = dict(storage_options or {})
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        files = self._table().look()
        count = self._partitions or _usual(sum(file.rows for file in files))
        edges = [GROUPS * number // count for number in range(count + 1)]
        return [TablePartition(start, end, files) for start, end in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        table = self._table()
        wanted = table.selected(self._schema.names)
        rows = table.read(wanted, {}, partition.groups, partition.files)
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            yield _to_spark(batch, self._schema)

    def _table(self) -> Table:
        return Table(self._path, self._storage_options)


def _usual(rows: int) -> int:
    return max(1, min(PARTITIONS_MAX, -(-rows // PARTITION_ROWS)))


def _spark_schema(schema: pa.Schema) -> StructType:
    for field in schema:
        try:
            from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True)
        except Exception as error:  # each version of PySpark raises another one
            raise SchemaError(
                f"Spark has no type for column {field.name!r}, which is {field.type}; read the table with"
                " pen.read_table, or .cast(...) the column in front of the sink"
            ) from error
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _to_spark(batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """Times lose what is finer than a microsecond."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    columns = [
        column.cast(field.type, safe=not pa.types.is_temporal(column.type))
        for column, field in zip(batch.columns, wanted, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
