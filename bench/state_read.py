"""Reading state back as a DataFrame: a checkpoint of many keys, beside Spark's own state store with the same keys.

Both were written by a running count and sum per key over the same rows, and both are read on the same Spark: all rows
with a count and a sum over them, and the row of one key.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from bench.figures import Figure, middle
from bench.sizes import Sizes
from penstock.shells.spark.session import local_session, release_session

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.float64())])
SLOTS = 4
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The one for much state: the other keeps all of it on Java's heap."""
RUN_WITHIN_S = 1_800.0
HOLDER = "bench-state-read"

Read = Callable[[], tuple[Any, ...]]


def run(sizes: Sizes) -> list[Figure]:
    keys = sizes.large_keys
    spark = local_session(SLOTS, HOLDER)
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            write_with_penstock(spark, folder, keys)
            write_with_spark(spark, folder, keys)
            return measure(spark, folder, keys, sizes.repetitions)
    finally:
        release_session(HOLDER)


def measure(spark: Any, folder: str, keys: int, repetitions: int) -> list[Figure]:
    key = keys // 2
    cases: dict[str, tuple[Read, Read]] = {
        "all rows, count and sum": (
            partial(all_of_penstock, spark, folder),
            partial(all_of_spark, spark, folder),
        ),
        "the row of one key": (
            partial(one_of_penstock, spark, folder, key),
            partial(one_of_spark, spark, folder, key),
        ),
    }
    name = f"reading the state of {keys:,} keys"
    figures = []
    for what, (ours, theirs) in cases.items():
        ours_s, theirs_s = alternately(ours, theirs, repetitions)
        reference = ("Spark's statestore", middle(theirs_s))
        figures.append(Figure(name, what, middle(ours_s), "s", *reference, samples=tuple(ours_s)))
    return figures


def alternately(ours: Read, theirs: Read, repetitions: int) -> tuple[list[float], list[float]]:
    """Seconds of each, after one round that does not count. Both must say the same."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(repetitions + 1):
        answers = {}
        for which in (0, 1) if number % 2 else (1, 0):
            began_s = time.perf_counter()
            answers[which] = (ours, theirs)[which]()
            if number:
                taken[which].append(time.perf_counter() - began_s)
        if answers[0] != answers[1]:
            raise RuntimeError(f"Penstock reads {answers[0]}, Spark {answers[1]}")
    return taken


# ---- writing, once


def rows(start: int, count: int) -> pa.RecordBatch:
    """Every key once. Sums of halves are exact in any order."""
    number = np.arange(start, start + count, dtype=np.int64)
    return pa.RecordBatch.from_arrays([pa.array(number), pa.array(number * 0.5)], schema=SCHEMA)


def write_with_penstock(spark: Any, folder: str, keys: int) -> None:
    source = pen.from_source(pen.GeneratorSource(rows, SCHEMA, rows=keys))
    totals = source.key_by("key").agg(n=pen.count(), total=pen.sum("value")).named("totals")
    job = totals.to(pen.BlackholeSink()).start(
        spark,
        name="totals",
        parallelism=2,
        checkpoint=pen.CheckpointConfig(f"{folder}/penstock", every="1 hour"),
    )
    if not job.await_termination(RUN_WITHIN_S):
        job.cancel(timeout=30)
        raise TimeoutError(f"the job that writes {keys:,} keys took longer than {RUN_WITHIN_S:g} s")


def write_with_spark(spark: Any, folder: str, keys: int) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", SLOTS)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark.range(keys).selectExpr("id AS key", "id * 0.5D AS value").write.parquet(f"{folder}/rows")
    stream = spark.readStream.schema("key BIGINT, value DOUBLE").parquet(f"{folder}/rows")
    query = (
        stream.groupBy("key")
        .agg({"*": "count", "value": "sum"})
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", f"{folder}/spark")
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(RUN_WITHIN_S):
        query.stop()
        raise TimeoutError(
            f"the query that writes {keys:,} keys took longer than {RUN_WITHIN_S:g} s"
        )


# ---- reading


def all_of_penstock(spark: Any, folder: str) -> tuple[Any, ...]:
    return tuple(_penstock(spark, folder).selectExpr("count(*)", "sum(n)", "sum(total)").first())


def all_of_spark(spark: Any, folder: str) -> tuple[Any, ...]:
    store, n, total = _statestore(spark, folder)
    return tuple(store.selectExpr("count(*)", f"sum({n})", f"sum({total})").first())


def one_of_penstock(spark: Any, folder: str, key: int) -> tuple[Any, ...]:
    found = _penstock(spark, folder, **{"where.key": str(key)})
    return tuple(found.select("key", "n", "total").first())


def one_of_spark(spark: Any, folder: str, key: int) -> tuple[Any, ...]:
    store, n, total = _statestore(spark, folder)
    return tuple(store.filter(f"key.key = {key}").selectExpr("key.key", n, total).first())


def _penstock(spark: Any, folder: str, **options: str) -> Any:
    return spark.read.format("penstock").options(**options).load(f"{folder}/penstock/totals")


def _statestore(spark: Any, folder: str) -> tuple[Any, str, str]:
    """With the columns of the count and of the sum, whatever Spark calls them."""
    store = spark.read.format("statestore").load(f"{folder}/spark")
    names = store.select("value.*").columns
    (n,) = (name for name in names if "count" in name)
    (total,) = (name for name in names if "sum" in name)
    return store, f"value.`{n}`", f"value.`{total}`"
