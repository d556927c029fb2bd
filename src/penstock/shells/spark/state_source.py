"""The state in a checkpoint as a Spark DataFrame: `spark.read.format("penstock")`.

Spark finds it by itself (`pyspark_penstock`), and runs what is here in three kinds of Python processes of its own. At
`load()` the checkpoint is chosen and leased: the DataFrame shows that one from then on. When an action is planned it is
cut into partitions, without a look at storage. A task reads one of those and renews the lease, so that the files stay
for a while after they were last read: nobody is told when a DataFrame is not needed any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.engine.reading.borrowing import Borrowed, borrow
from penstock.errors import ConfigError
from penstock.shells.borrower import this_process
from penstock.shells.spark.state_options import StateOptions, parse_options
from penstock.shells.spark.state_types import spark_schema, to_spark

PER_CORE = 2
ROWS_MAX = 1_000_000
"""A partition that is larger is cut further: how many cores the cluster has is not known where it is planned."""


class StateSource(DataSource):  # type: ignore[misc]
    """Its options are in docs/state.md."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return spark_schema(self._borrowed.table.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        wanted, found = (
            [(field.name, field.dataType) for field in each] for each in (schema, self.schema())
        )
        if wanted != found:
            raise ConfigError(
                f"the columns are {self.schema().simpleString()}, not {schema.simpleString()}: leave out .schema(...)"
            )
        return StateReader(self._options, self._borrowed, schema)

    @cached_property
    def _options(self) -> StateOptions:
        return parse_options(self.options)

    @cached_property
    def _borrowed(self) -> Borrowed:
        """Spark keeps this object, and this with it, for as long as it keeps the DataFrame."""
        options = self._options
        return borrow(options.open(), options.request, this_process(), options.lease_ms)


class StatePartition(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    def __init__(self, piece: Borrowed) -> None:
        super().__init__(piece)
        self.piece = piece


class StateReader(DataSourceReader):  # type: ignore[misc]
    """Made when an action is planned, sent to the tasks after that."""

    def __init__(self, options: StateOptions, borrowed: Borrowed, schema: StructType) -> None:
        self._options = options
        self._borrowed = borrowed
        self._schema = schema

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need: each has its own piece already."""
        return {"_options": self._options, "_schema": self._schema}

    def partitions(self) -> Sequence[InputPartition]:
        most = max(PER_CORE * (os.cpu_count() or 1), self._borrowed.table.rows // ROWS_MAX)
        return [StatePartition(piece) for piece in self._borrowed.pieces(most)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StatePartition)
        for batch in partition.piece.read(self._options.open(), this_process()):
            yield to_spark(batch, self._schema)
