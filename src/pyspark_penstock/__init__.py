"""Where Spark finds the data source "penstock" by itself: it looks for packages whose name begins with `pyspark_`.

It imports all of them at the first look-up of any data source, so nothing but PySpark is imported here. What the source
does is in `penstock.shells.spark`: the state in a checkpoint is read by `state_source`, a table by `table_source`.
"""

from __future__ import annotations

from functools import cached_property

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("penstock")`: the state in a checkpoint, or a table that `pen.UpsertFileSink` keeps."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source.reader(schema)

    @cached_property
    def _source(self) -> DataSource:
        from penstock.shells.spark.state_source import StateSource
        from penstock.shells.spark.table_source import TableSource, names_a_table

        return (TableSource if names_a_table(self.options) else StateSource)(self.options)
