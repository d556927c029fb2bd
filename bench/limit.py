"""The limit of W1: the same work in a plain loop in one process, without Spark, channels or checkpoints.

Generates a batch, and folds it into the same aggregate operator: hash, slot table, sums, touched keys, rows out.
With the partition step each batch is cut in two by key first, as on the way to two subtasks.

Each run is a process of its own, with the same memory settings as a worker: `python -m bench.limit int 100000 3.0`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from bench.sizes import Sizes
from bench.workload import SCHEMAS, aggregates, rows_function
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import OperatorContext
from penstock.engine.worker.partition import make_partitioner
from penstock.plan.graph import Hash
from penstock.shells.spark.entry import tune_process

BATCH_ROWS = 65_536
GROUPS = 128


def rate(kind: str, sizes: Sizes, processes: int, partition: bool = False) -> float:
    """Rows per second of so many processes at once, added up."""
    flag = ["--partition"] if partition else []
    command = [sys.executable, "-m", "bench.limit", kind, str(sizes.keys), str(sizes.limit_s)]
    started = [
        subprocess.Popen(
            [*command, *flag], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )
        for _ in range(processes)
    ]
    return sum(_answer(process) for process in started)


def _answer(process: subprocess.Popen[str]) -> float:
    output, _ = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"the single-process loop ended with {process.returncode}")
    return float(json.loads(output)["rows_s"])


def new_aggregate(schema: pa.Schema) -> RunningAggregate:
    """The operator of W1 as it is in a job, opened for all keys."""
    operator = RunningAggregate(("key",), aggregates())
    operator.open(
        OperatorContext(
            job="limit",
            operator="totals",
            index=0,
            parallelism=1,
            max_parallelism=GROUPS,
            attempt=1,
            input_schemas=(schema,),
            now_ms=lambda: 0.0,
            wall_ms=lambda: 0.0,
            restored=(),
            read_segments=lambda segments, groups: (),
            to_driver=lambda item: None,
        )
    )
    return operator


def loop(kind: str, keys: int, seconds: float, partition: bool) -> float:
    """Rows per second, after all keys have come."""
    generate, process = rows_function(kind, keys), _processing(kind, partition)
    position = 0
    while position < 4 * keys:
        process(generate(position, BATCH_ROWS))
        position += BATCH_ROWS
    first, began_s = position, time.perf_counter()
    while (took_s := time.perf_counter() - began_s) < seconds:
        process(generate(position, BATCH_ROWS))
        position += BATCH_ROWS
    return (position - first) / took_s


def _processing(kind: str, partition: bool) -> Callable[[pa.RecordBatch], None]:
    operator = new_aggregate(SCHEMAS[kind])
    if not partition:
        return lambda batch: _drop(operator.process(batch, 0))
    cut = make_partitioner(Hash(("key",)), 2, GROUPS)

    def process(batch: pa.RecordBatch) -> None:
        for _, rows in cut(batch):
            _drop(operator.process(rows, 0))

    return process


def _drop(rows: object) -> None:
    """The sink."""


def main(arguments: list[str]) -> None:
    tune_process()
    kind, keys, seconds, *flags = arguments
    rows_s = loop(kind, int(keys), float(seconds), "--partition" in flags)
    print(json.dumps({"rows_s": rows_s}))


if __name__ == "__main__":
    main(sys.argv[1:])
