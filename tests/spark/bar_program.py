"""A program whose Spark shows its progress bar, as in a REPL: a job runs, then a query of the user's own.

Says on stderr, between the bars, where it is. The query runs until the file that it is given is there.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as pen


def main(folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "true").getOrCreate()
    numbers = pen.from_source(pen.GeneratorSource(count, "n BIGINT", rate=100))
    jobs = [
        numbers.to(pen.BlackholeSink()).start(
            spark,
            name=name,
            parallelism=1,
            checkpoint=pen.CheckpointConfig(f"{folder}/chk", every="500 ms"),
        )
        for name in ("one", "two")
    ]
    for job in jobs:
        wait_for(lambda job=job: checkpoints(job) >= 4)
        tell(f"{job.name} has run")
        assert job.stop(timeout=60)
    tell("a query")
    seen = f"{folder}/seen"
    spark.sparkContext.parallelize(range(2), 2).foreach(
        lambda _: wait_for(lambda: Path(seen).exists())
    )
    tell("the end")
    spark.stop()


def count(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(start, start + rows)})


def checkpoints(job: pen.Job) -> int:
    assert not job.await_termination(0), "the job has ended"
    return sum(each.status == "completed" for each in job.checkpoints())


def wait_for(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not there():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def tell(what: str) -> None:
    print(f"\n<{what}>", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
