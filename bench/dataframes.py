"""DataFrames as sources: staging beside Spark's own write, a whole job beside its parts, and the way of a row.

"The whole" is a batch DataFrame through `from_dataframe` and the running aggregate of W1, from `start` to the end. Its
parts are staging alone and the same job over rows that are generated where they are read. All in one session, in turns.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from bench.figures import Figure, middle
from bench.sizes import Sizes
from bench.waiting import wait_for
from bench.workload import INT_SCHEMA, int_rows
from penstock.shells.spark.dataframes import DataFrameSource
from penstock.shells.spark.session import local_session, release_session
from penstock.shells.spark.staging import place_for, settle

PARALLELISM = 2
DROP_EVERY_S = 0.2
WRITE, STAGE, JOB, WHOLE = "df.write.parquet", "staging", "W1, generated rows", "the whole"


def run(sizes: Sizes) -> list[Figure]:
    holder = "bench"
    spark = local_session(PARALLELISM + 2, holder)
    try:
        return [*_batch(spark, sizes), *_latency(spark, sizes)]
    finally:
        release_session(holder)


# ---- batches


def _batch(spark: Any, sizes: Sizes) -> list[Figure]:
    frame = spark.range(sizes.frame_rows).selectExpr(
        f"pmod(hash(id), {sizes.keys}) as key", "id * 0.001D as value", "id as ts"
    )
    ways: dict[str, Callable[[Path], None]] = {
        WRITE: lambda folder: frame.write.parquet(str(folder / "written")),
        STAGE: partial(_stage, frame),
        JOB: partial(_job, spark, pen.from_source(_generated(sizes))),
        WHOLE: lambda folder: _job(spark, pen.from_dataframe(frame), folder),
    }
    took: dict[str, list[float]] = {way: [] for way in ways}
    _timed(WHOLE, ways[WHOLE])  # the first one also starts processes
    for repetition in range(sizes.repetitions):
        for way in list(ways) if repetition % 2 == 0 else reversed(list(ways)):
            took[way].append(_timed(way, ways[way]))
    pairs = zip(took[STAGE], took[JOB], strict=True)
    parts = middle([staging + job for staging, job in pairs])
    whole, bench = middle(took[WHOLE]), f"DataFrame, {sizes.frame_rows:,} rows"
    return [
        Figure(bench, STAGE, middle(took[STAGE]), "s", WRITE, middle(took[WRITE]), at_most=1.0),
        Figure(bench, WHOLE, whole, "s", "staging + W1 of as many rows", parts, at_most=1.3),
    ]


def _timed(way: str, work: Callable[[Path], None]) -> float:
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        began_s = time.monotonic()
        work(folder)
        took_s = time.monotonic() - began_s
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"  {way}: {took_s:.2f} s", file=sys.stderr, flush=True)
    return took_s


def _stage(frame: Any, folder: Path) -> None:
    settle(
        DataFrameSource(frame), place_for("bench", "in", str(folder), {}), fresh=True, begun=False
    )


def _generated(sizes: Sizes) -> pen.GeneratorSource:
    return pen.GeneratorSource(partial(int_rows, sizes.keys), INT_SCHEMA, rows=sizes.frame_rows)


def _job(spark: Any, rows: pen.Stream, folder: Path) -> None:
    totals = rows.key_by("key").agg(n=pen.count(), total=pen.sum("value"))
    job = totals.to(pen.BlackholeSink()).start(
        spark,
        name="bench-frame",
        parallelism=PARALLELISM,
        checkpoint=pen.CheckpointConfig(folder / "chk", every="1 second"),
    )
    if not job.await_termination("10 minutes"):
        job.cancel()
        raise RuntimeError("the job did not end within 10 minutes")


# ---- the way of a row


def _latency(spark: Any, sizes: Sizes) -> list[Figure]:
    """From a file that appears in a folder to an operator of the job: through a micro-batch of Spark and staging."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        source, sink = folder / "in", pen.CollectSink()
        source.mkdir()
        frame = spark.readStream.schema("t DOUBLE").json(str(source))
        rows = pen.from_dataframe(frame).map_batches(_late_ms, "late_ms DOUBLE")
        config = pen.CheckpointConfig(folder / "chk", every="500 ms")
        job = rows.to(sink).start(name="bench-late", parallelism=PARALLELISM, checkpoint=config)
        dropped = _drop_files(source, sizes.latency_warm_s + sizes.latency_s, job)
        wait_for("every row", lambda: sink.to_table().num_rows == dropped, job, within_s=180)
        if not job.stop(timeout="2 minutes"):
            raise RuntimeError("the job did not stop within 2 minutes")
        warm = int(sizes.latency_warm_s / DROP_EVERY_S)
        late = np.sort(sink.to_table()["late_ms"].to_numpy()[warm:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    p50, p99 = (float(np.percentile(late, each)) for each in (50, 99))
    return [
        Figure("DataFrame, streaming", "file to operator, p50", p50, "ms", "p99", p99),
    ]


def _late_ms(batch: pa.RecordBatch) -> pa.RecordBatch:
    late = time.time() * 1000 - batch.column("t").to_numpy()
    return pa.RecordBatch.from_arrays([pa.array(late)], names=["late_ms"])


def _drop_files(folder: Path, seconds: float, job: pen.Job) -> int:
    """A file after the other, as long as that; how many there were."""
    count = int(seconds / DROP_EVERY_S)
    for number in range(count):
        hidden = folder / f".{number}.json"
        hidden.write_text(json.dumps({"t": time.time() * 1000}) + "\n")
        hidden.rename(folder / f"{number}.json")
        if job.await_termination(DROP_EVERY_S):
            raise RuntimeError("the job ended")
    return count
