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
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.connectors.location import absolute
from penstock.connectors.sinks.folder import open_folder
from penstock.connectors.tables.definition import MARKER
from penstock.connectors.tables.names import TableFile
from penstock.connectors.tables.reader import Table
from penstock.connectors.tables.rows import GROUPS
from penstock.engine.reading.choosing import likeliest, told
from penstock.errors import ConfigError, PenstockError
from penstock.shells.spark.state_options import STORAGE, storage_options
from penstock.shells.spark.state_types import spark_schema, to_spark

PARTITION_ROWS = 500_000
PARTITIONS_MAX = 200
"""Where nobody says how many: so many rows for each, and not more than these."""
BATCH_ROWS = 10_000


def is_table(path: str, storage: Mapping[str, Any] | None = None) -> bool:
    """Whether an `UpsertFileSink` keeps a table in this folder."""
    return open_folder(absolute(path), storage or {}).size(MARKER) is not None


def table_schema(path: str, storage: Mapping[str, Any] | None = None) -> StructType:
    """The schema of the DataFrame."""
    return spark_schema(Table(path, storage).schema)


OPTIONS = ("path", "partitions")


def names_a_table(options: Mapping[str, str]) -> bool:
    """Whether these options of `spark.read.format("penstock")` lead to a table, and not to a job's checkpoints."""
    named = {name.lower(): value for name, value in options.items()}
    try:
        return "path" in named and is_table(named["path"], storage_options(named))
    except (OSError, PenstockError):  # who reads checkpoints tells what is wrong with the path
        return False


class TableSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("penstock").load(path)` of a table. `partitions`: how many tasks read it."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        named = self._named()
        return table_schema(named["path"], storage_options(named))

    def reader(self, schema: StructType) -> DataSourceReader:
        named = self._named()
        partitions = named.get("partitions")
        if partitions is not None and (not partitions.isdecimal() or not int(partitions) > 0):
            raise ConfigError(f"partitions: {partitions!r} is not a whole number of at least 1")
        count = None if partitions is None else int(partitions)
        return TableReader(named["path"], schema, storage_options(named), count)

    def _named(self) -> dict[str, str]:
        named = {name.lower(): value for name, value in self.options.items()}
        for name in named:
            if name not in OPTIONS and not name.startswith(STORAGE):
                known = [*OPTIONS, f"{STORAGE}<name>"]
                problem = f"there is no option {name!r} for a table{likeliest(name, known)}"
                raise ConfigError(f"{problem}; {told(known)}")
        return named


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
        storage: Mapping[str, Any] | None = None,
        partitions: int | None = None,
    ) -> None:
        self._path = absolute(path)
        self._schema = schema
        self._storage = dict(storage or {})
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
            yield to_spark(batch, self._schema)

    def _table(self) -> Table:
        return Table(self._path, self._storage)


def _usual(rows: int) -> int:
    return max(1, min(PARTITIONS_MAX, -(-rows // PARTITION_ROWS)))
