"""A DataFrame as a stream."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.api.stream import Stream, from_source
from penstock.errors import ConfigError
from penstock.plan.duration import parse_duration_ms


def from_dataframe(
    df: Any,
    name: str | None = None,
    *,
    processingTime: str | None = None,  # noqa: N803 (Spark's own name)
) -> Stream:
    """The rows of any DataFrame of PySpark, batch or streaming.

    Spark runs the query with all that it can do; its rows are staged as Parquet beside the job's checkpoints and can be
    read again from any row, so each counts once whatever fails. A streaming DataFrame is in append mode;
    `processingTime` is how often Spark looks for new rows, as in `DataStreamWriter.trigger`; as often as it can where
    it is left out.
    """
    if processingTime is not None:
        if not isinstance(processingTime, str):
            raise ConfigError(
                f'from_dataframe: processingTime={processingTime!r} is not a text such as "1 second"'
            )
        parse_duration_ms(processingTime, "processingTime")
    shell = importlib.import_module("penstock.shells.spark.dataframes")
    return from_source(shell.DataFrameSource(df, interval=processingTime), name)
