"""A program that leaves everything to keys: no session, no option. Given to `spark-submit`, or to `python`.

keys_program.py submitted <folder>   one job by keys, one whose code says otherwise, and starts with keys that are wrong
keys_program.py plain <folder>       one job on a local Spark

Prints what it sees, one JSON object a line. Rows come until a file <folder>/fail is there: then the job fails.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S


class FailsWhenTold:
    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if Path(self.file).exists():
            raise ValueError("told to fail")
        return batch


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def pipeline(folder: Path) -> pen.Pipeline:
    stream = jobs.source(rows=None, rate=1_000).map_batches(FailsWhenTold(folder / "fail"))
    return jobs.count_up(stream).to(pen.BlackholeSink())


def tell_of(job: pen.Job, slots: int) -> None:
    """What a job is set to, as it shows from outside."""
    jobs.until_job(job, lambda: len(job.workers) >= slots and min(pauses_ms(job)) < 5_000)
    newest = next(info for info in job.checkpoints() if info.status == "completed")
    spark = SparkSession.builder.getOrCreate()
    tell(
        name=job.name,
        workers=len(job.workers),
        path=newest.path,
        pause_ms=min(pauses_ms(job)),
        master=spark.sparkContext.master,
    )


def pauses_ms(job: pen.Job) -> list[float]:
    """Between the starts of checkpoints: never shorter than `every`, which is 10 seconds if nobody says so."""
    begun = sorted(info.trigger_ms for info in job.checkpoints())
    return [later - earlier for earlier, later in pairwise(begun)] or [float("inf")]


def tell_end(job: pen.Job, folder: Path) -> None:
    (folder / "fail").touch()
    try:
        tell(ended=job.await_termination(PATIENCE_S))
    except pen.JobFailed as failed:
        tell(ended=failed.cause)
    (folder / "fail").unlink()


def tell_refused(folder: Path) -> None:
    try:
        pipeline(folder).start()
    except pen.ConfigError as error:
        tell(refused=str(error), has_spark=SparkContext._active_spark_context is not None)


def submitted(folder: Path) -> None:
    unknown = "spark.penstock.maxParallelism"
    SparkContext.setSystemProperty(unknown, "8")  # as spark-submit does with --conf
    tell_refused(folder)
    assert SparkContext._jvm is not None
    SparkContext._jvm.java.lang.System.clearProperty(unknown)

    job = pipeline(folder).start()
    tell_of(job, slots=3)
    tell_end(job, folder)

    job = pipeline(folder).start(
        name="by code",
        parallelism=1,
        checkpoint=pen.CheckpointConfig(folder / "of the code"),
        restart=pen.NoRestart(),
    )
    tell_of(job, slots=1)
    tell_end(job, folder)

    session = SparkSession.builder.getOrCreate()
    session.conf.set("spark.penstock.parallelism", "many")
    tell_refused(folder)
    session.conf.set("spark.penstock.parallelism", "9")
    try:
        pipeline(folder).start()
    except pen.LaunchError as error:
        tell(too_few=str(error))


def plain(folder: Path) -> None:
    job = pipeline(folder).start()
    tell_of(job, slots=3)
    job.stop()


if __name__ == "__main__":
    {"submitted": submitted, "plain": plain}[sys.argv[1]](Path(sys.argv[2]))
