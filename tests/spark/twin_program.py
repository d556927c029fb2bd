"""Spark runs a second copy of a worker's task by itself (speculation), on a cluster of two hosts.

Prints what became of the twin, one line each:

    twin <processes> <joined again> <left>     the twin has registered; nobody was told
    answers <pid> <pid>                        who answers, and who is the worker
    took-over <launch>                         the worker was killed and the twin is the worker now
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from penstock.protocol.messages import SnapshotOrder

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.ports.control import Joined, Left, Received
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.messages import SnapshotKind, Trigger
from penstock.shells.spark.workers import SparkWorkers
from tests.spark.clusters import cluster_of_hosts
from tests.spark.ends import Events, until

ASK = Trigger(AttemptId(1), SnapshotOrder(CheckpointId(1), SnapshotKind.CHECKPOINT))
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "500ms",
}


def main(work: str) -> None:
    spark = cluster_of_hosts(["127.0.0.2", "127.0.0.3"], work, SPECULATION)
    workers = SparkWorkers(spark, "twins", "twins", b"", 1, body="tests.spark.bodies:Obedient")
    events = Events(workers)
    workers.launch(0, "worker 1 of 1")
    first = events.take(Joined)

    def both_are_there() -> bool:
        events.seen += workers.receive()
        return workers._server.processes(0) == 2

    until(both_are_there, tick=lambda: workers.wait(50))
    told = [type(event) for event in events.seen]
    print("twin", workers._server.processes(0), told.count(Joined), told.count(Left), flush=True)
    workers.send(first.worker, ASK)
    answer = events.take(Received)
    print("answers", int(answer.message.metrics["pid"]), first.pid, flush=True)
    os.kill(first.pid, signal.SIGKILL)
    second = events.take(Joined)
    print("took-over", second.launch, flush=True)
    workers.close()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
