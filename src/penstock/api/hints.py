"""What somebody who knows Spark or pandas may have meant by a name that there is not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.state.aggregates import FUNCTIONS

_TO_A_SINK = "use .to(pen.FileSink(...))"
_BY_KEY = "use .key_by(...)"
_A_LOOK = "use .take(n) for its first rows; all rows go to a sink, as in .to(pen.CollectSink())"
_NO_JOIN = (
    "joins are not there yet; bring both streams to one schema, then .union(...) and"
    " .key_by(...).process(...) with a function that keeps the rows of either side as state"
)
_NO_WINDOW = "windows and event time are not there yet; aggregates run on: .key_by(...).agg(...)"
_ONCE = (
    "there is no such operator yet; keep what was seen as state:"
    " .key_by(...).process(...) with a function that yields the first row of a key only"
)
_NO_ORDER = "a stream has no end to sort at; sort what a sink has written"

STREAM = {
    "start": "end it with .to(sink), and start that",
    "groupBy": _BY_KEY,
    "groupby": _BY_KEY,
    "group_by": _BY_KEY,
    "keyBy": _BY_KEY,
    "agg": "aggregates are per key: .key_by(...).agg(...)",
    "count": "aggregates are per key: .key_by(...).agg(n=pen.count())",
    "process": "a function with state is per key: .key_by(...).process(...)",
    "withColumn": 'use .select(..., (pen.col("x") * 2).alias("y")) or .map_batches(...)',
    "drop": "use .select(...) with the columns that stay",
    "where": "use .filter(...)",
    "flatMap": "use .flat_map(...)",
    "mapInArrow": "use .map_batches(...)",
    "mapInPandas": "use .map_batches(...) with batch.to_pandas() inside",
    "write": _TO_A_SINK,
    "writeStream": _TO_A_SINK,
    "sink": _TO_A_SINK,
    "collect": _A_LOOK,
    "toPandas": _A_LOOK,
    "to_pandas": _A_LOOK,
    "head": "use .take(n)",
    "limit": "use .take(n) for a first look; a stream has no end to count to",
    "join": _NO_JOIN,
    "window": _NO_WINDOW,
    "withWatermark": _NO_WINDOW,
    "distinct": _ONCE,
    "dropDuplicates": _ONCE,
    "drop_duplicates": _ONCE,
    "orderBy": _NO_ORDER,
    "sort": _NO_ORDER,
}

KEYED = {
    **{name: f"use .agg({name}=pen.{name}(...))" for name in FUNCTIONS},
    "count": "use .agg(n=pen.count())",
    "mean": "use .agg(mean=pen.avg(...))",
    "join": _NO_JOIN,
    "window": _NO_WINDOW,
    "distinct": _ONCE,
    "reduce": "use .process(...) with a function that keeps the result so far as state",
    "applyInPandas": "use .process(...)",
    "transformWithState": "use .process(...)",
    "transformWithStateInPandas": "use .process(...)",
}

PENSTOCK = {
    "mean": 'use pen.avg("column")',
    "average": 'use pen.avg("column")',
    "count_distinct": "it is not there yet; a function of .key_by(...).process(...) can keep what it has seen",
    "countDistinct": "it is not there yet; a function of .key_by(...).process(...) can keep what it has seen",
    "approx_count_distinct": "it is not there yet",
    "stddev": 'it is not there yet; keep pen.count() and pen.sum() of x and of x * x, see .select("x", xx=...)',
    "median": "it is not there yet",
    "expr": 'write it with pen.col: pen.col("a") + 1',
    "window": _NO_WINDOW,
    "read": "use pen.from_source(pen.FileSource(...))",
    "readStream": "use pen.from_source(pen.FileSource(...))",
    "KafkaSource": "it is not there yet; a source of your own is a pen.Source, see docs/connectors.md",
    "KafkaSink": "it is not there yet; a sink of your own is a pen.Sink, see docs/connectors.md",
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
