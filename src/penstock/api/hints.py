"""What somebody who knows Spark or pandas may have meant by a name that there is not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.plan.column_hints import BY_ARROW, NOT_THERE
from penstock.state.aggregates import FUNCTIONS

_TO_A_SINK = "use .to(pen.FileSink(...))"
_BY_KEY = "use .key_by(...)"
_PER_KEY = "aggregates are per key: .key_by(...).agg(...)"
_A_LOOK = "use .take(n) for its first rows; all rows go to a sink, as in .to(pen.CollectSink())"
_NO_JOIN = (
    "joins are not there yet; bring both streams to one schema, then .union(...) and"
    " .key_by(...).process(...) with a function that keeps the rows of either side as state"
)
_NO_WINDOW = (
    "windows, event time and watermarks are not there yet; aggregates run on: .key_by(...).agg(...), also per"
    ' minute: .key_by(minute=pen.col("second") // 60).agg(...)'
)
_ONCE = (
    "there is no such operator yet; keep what was seen as state:"
    " .key_by(...).process(...) with a function that yields the first row of a key only"
)
_NO_ORDER = "a stream has no end to sort at; sort what a sink has written"
_WITH_COLUMNS = 'use .with_columns(y=pen.col("x") * 2)'
_RENAME = 'use .select(..., new="old") with all columns that stay'
_PROCESS = "use .process(...) with a function that keeps its state in ctx.value_state(...)"
_KEYED_PROCESS = (
    "use .key_by(...).process(...) with a function that keeps its state in ctx.value_state(...)"
)
_OWN_SINK = (
    "a sink of your own is a pen.Sink, which gets Arrow batches and commits them exactly once: see"
    " docs/connectors.md"
)
_WITH_STATE = (
    *("applyInPandas", "applyInPandasWithState", "mapGroupsWithState", "flatMapGroupsWithState"),
    *("transformWithState", "transformWithStateInPandas"),
)
_WINDOWS = (
    *("window", "windowed", "session_window", "sessionWindow", "tumbling_window", "sliding_window"),
    *("withWatermark", "with_watermark", "watermark", "assign_timestamps_and_watermarks"),
)
_KEEP_SEEN = (
    "it is not there yet; a function of .key_by(...).process(...) can keep what it has seen"
)
_SOURCE_NOT_YET = (
    "it is not there yet; a source of your own is a pen.Source, see docs/connectors.md"
)
_SINK_NOT_YET = "it is not there yet; a sink of your own is a pen.Sink, see docs/connectors.md"

STREAM = {
    **dict.fromkeys(_WINDOWS, _NO_WINDOW),
    **dict.fromkeys(_WITH_STATE, _KEYED_PROCESS),
    **dict.fromkeys(("withColumn", "withColumns", "with_column"), _WITH_COLUMNS),
    **dict.fromkeys(("withColumnRenamed", "withColumnsRenamed", "rename"), _RENAME),
    **dict.fromkeys(("groupBy", "groupby", "group_by", "keyBy"), _BY_KEY),
    **dict.fromkeys(("agg", *FUNCTIONS, "mean"), _PER_KEY),
    **dict.fromkeys(("write", "writeStream", "writeTo", "sink"), _TO_A_SINK),
    **dict.fromkeys(("foreachBatch", "foreach_batch", "foreach", "foreachPartition"), _OWN_SINK),
    **dict.fromkeys(("collect", "toPandas", "to_pandas", "toArrow", "to_table"), _A_LOOK),
    **dict.fromkeys(("join", "crossJoin", "cogroup", "connect"), _NO_JOIN),
    **dict.fromkeys(("distinct", "dropDuplicates", "drop_duplicates"), _ONCE),
    **dict.fromkeys(("dropDuplicatesWithinWatermark",), _ONCE),
    **dict.fromkeys(("orderBy", "sort", "sort_by"), _NO_ORDER),
    **dict.fromkeys(("unionAll", "unionByName"), "use .union(...)"),
    **dict.fromkeys(("repartition", "shuffle"), "use .rebalance() or .key_by(...)"),
    **dict.fromkeys(("head", "first"), "use .take(n)"),
    **dict.fromkeys(("columns", "dtypes", "printSchema"), "use .schema, and .schema.names"),
    "start": "end it with .to(sink), and start that",
    "process": "a function with state is per key: .key_by(...).process(...)",
    "reduce": _KEYED_PROCESS,
    "drop": "use .select(...) with the columns that stay",
    "dropna": 'use .filter(pen.col("x").is_not_null())',
    "fillna": 'use .with_columns(x=pen.coalesce("x", pen.lit(0)))',
    "where": "use .filter(...)",
    "selectExpr": 'use .select(...) with pen.col: .select(y=pen.col("x") + 1)',
    "flatMap": "use .flat_map(...)",
    "explode": "use .flat_map(...)",
    "mapInArrow": "use .map_batches(...)",
    "mapPartitions": "use .map_batches(...)",
    "mapInPandas": "use .map_batches(...) with batch.to_pandas() inside",
    "limit": "use .take(n) for a first look; a stream has no end to count to",
    "checkpoint": "give .start(checkpoint=pen.CheckpointConfig(...))",
}

KEYED = {
    **dict.fromkeys(_WINDOWS, _NO_WINDOW),
    **dict.fromkeys((*_WITH_STATE, "reduce", "fold", "map_groups", "apply"), _PROCESS),
    **{name: f"use .agg({name}=pen.{name}(...))" for name in FUNCTIONS},
    **dict.fromkeys(("join", "cogroup", "connect"), _NO_JOIN),
    "count": "use .agg(n=pen.count())",
    "mean": "use .agg(mean=pen.avg(...))",
    "aggregate": "use .agg(...)",
    "distinct": _ONCE,
    "pivot": "it is not there; what the columns are must be known beforehand: .agg(...) over pen.when(...)",
}

PENSTOCK = {
    **dict.fromkeys(_WINDOWS, _NO_WINDOW),
    **dict.fromkeys(NOT_THERE, BY_ARROW),
    **dict.fromkeys(("mean", "average"), 'use pen.avg("column")'),
    **dict.fromkeys(("count_distinct", "countDistinct", "collect_list", "collect_set"), _KEEP_SEEN),
    **dict.fromkeys(("udf", "pandas_udf"), "use .map(...) for rows, .map_batches(...) for batches"),
    **dict.fromkeys(("read", "readStream"), "use pen.from_source(pen.FileSource(...))"),
    **dict.fromkeys(("KafkaSource",), _SOURCE_NOT_YET),
    **dict.fromkeys(("KafkaSink", "PostgresSink", "JdbcSink", "DeltaSink"), _SINK_NOT_YET),
    **{name: f'use pen.col("x").{name}()' for name in ("upper", "lower", "length")},
    "approx_count_distinct": "it is not there yet",
    "stddev": "it is not there yet; keep pen.count() and pen.sum() of x and of x * x, see .with_columns(xx=...)",
    "median": "it is not there yet",
    "expr": 'write it with pen.col: pen.col("a") + 1',
    "broadcast": "it is a method of a stream: stream.broadcast()",
    "current_timestamp": "a clock gives other rows after a restart; let the source give the time, as a column",
    "SparkSession": "it comes from pyspark.sql; without one a job gets a local Spark of its own",
}

PIPELINE = {
    **dict.fromkeys(("run", "execute", "awaitTermination"), "use .start(...).await_termination()"),
    **dict.fromkeys(("show", "take", "collect"), "look at the stream, before .to(sink)"),
    "union": "several pipelines are one job with pen.Pipeline(one, another)",
}

JOB = {
    **dict.fromkeys(("awaitTermination", "wait", "join", "result"), "use .await_termination()"),
    **dict.fromkeys(("isActive", "is_active"), 'use .status == "running"'),
    **dict.fromkeys(("lastProgress", "recentProgress"), "use .metrics() and .checkpoints()"),
    **dict.fromkeys(("exception", "error"), "use .exceptions"),
    "processAllAvailable": "a job whose input ends ends by itself: .await_termination(); else use .stop()",
    "savepoint": "savepoints are not there yet; .trigger_checkpoint() takes a checkpoint",
}


def missing(what: str, name: str, meant: Mapping[str, str]) -> AttributeError:
    """The error for a name that is not there, with what may have been meant."""
    hint = f": {meant[name]}" if name in meant else ""
    return AttributeError(f"{what} has no {name!r}{hint}")


def not_called(given: Any) -> str:
    """For `pen.count` where `pen.count()` was meant, and for Python's own `sum`; else empty."""
    name = getattr(given, "__name__", "")
    if not callable(given) or name not in FUNCTIONS:
        return ""
    call = "pen.count()" if name == "count" else f'pen.{name}("column")'
    return f"{name} is the function itself; forgot ()? Write {call}"
