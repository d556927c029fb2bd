"""Three workers on three executors of two cores each (Spark's local-cluster), then a killed one.

Prints where they run: one line with the executors' pids, one with how the killed worker came back.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from penstock.protocol.messages import SnapshotOrder

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.ports.control import Joined, Received
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.messages import SnapshotKind, Status, Trigger
from penstock.shells.spark.workers import SparkWorkers
from tests.spark.clusters import local_cluster
from tests.spark.ends import Events

ASK = Trigger(AttemptId(1), SnapshotOrder(CheckpointId(1), SnapshotKind.CHECKPOINT))


def main() -> None:
    spark = local_cluster(3)
    workers = SparkWorkers(spark, "spread", "spread", b"", 3, body="tests.spark.bodies:Obedient")
    events = Events(workers)
    for launch in range(3):
        workers.launch(launch, f"worker {launch + 1} of 3")
    joined = [events.take(Joined, launch=launch) for launch in range(3)]
    parents = []
    for worker in joined:
        workers.send(worker.worker, ASK)
        told = events.take(Received, worker=worker.worker).message
        if isinstance(told, Status):
            parents.append(int(told.metrics["parent"]))
    print("daemons", *parents, flush=True)
    os.kill(joined[1].pid, signal.SIGKILL)
    again = events.take(Joined)
    print("again", again.launch, flush=True)
    workers.close()
    spark.stop()


if __name__ == "__main__":
    main()
