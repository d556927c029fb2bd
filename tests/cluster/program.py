"""The job that runs on the cluster, as a user would submit it: numbered rows per key, into files that all hosts share.

Prints what the job says of itself ten times a second, one JSON object a line. A file named `stop` in the shared folder
stops it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as pen

KEYS = 17


def numbers(start: int, n: int) -> pa.RecordBatch:
    rows = range(start, start + n)
    return pa.RecordBatch.from_pydict({"i": list(rows), "k": [i * 7919 % KEYS for i in rows]})


class Nth:
    """Numbers the rows of each key: state that is lost or applied twice shows in the output."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.value_state("seen", "n BIGINT")

    def process(self, key: Any, rows: Iterable[Any], ctx: Any) -> Iterator[tuple[int, int, int]]:
        n = (self.seen.get() or (0,))[0]
        for row in rows:
            n += 1
            yield (key.k, row.i, n)
        self.seen.update((n,))


def main(folder: str, options: dict[str, Any]) -> None:
    spark = SparkSession.builder.appName("cluster").getOrCreate()
    source = pen.GeneratorSource(
        numbers, "i BIGINT, k BIGINT", rows=options.get("rows"), rate=options.get("rate", 2_000)
    )
    stream = pen.from_source(source, "numbers").key_by("k")
    nth = stream.process(Nth(), "k BIGINT, i BIGINT, nth BIGINT").named("nth")
    pipeline = nth.to(pen.FileSink(f"{options.get('out', folder)}/out"), name="files")
    every = options.get("every", "500 ms")
    config = pen.CheckpointConfig(f"{options.get('checkpoints', folder)}/checkpoints", every=every)
    job = pipeline.start(
        spark, name="cluster", parallelism=options.get("parallelism", 2), checkpoint=config
    )
    wish = Path(folder, "stop")
    while not _ended(job):
        _tell(job)
        if wish.exists():
            wish.unlink()
            threading.Thread(target=job.stop, daemon=True).start()
    _tell(job)
    spark.stop()


def _ended(job: pen.Job) -> bool:
    try:
        return job.await_termination("100 ms")
    except pen.JobFailed:
        return True


def _tell(job: pen.Job) -> None:
    metrics = job.metrics()
    told = {
        "time": time.time(),
        "status": job.status,
        "rows": metrics.get('penstock_records_in_total{operator="files"}', 0),
        "restarts": metrics["penstock_restarts_total"],
        "checkpoints": metrics["penstock_checkpoints_completed_total"],
        "workers": [[each.slot, each.pid, each.host] for each in job.workers],
        "exceptions": [f"{each.error}: {each.message}" for each in job.exceptions],
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
