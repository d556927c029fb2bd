"""A driver of its own, started by tests that kill it: prints the pids of its workers and waits.

One worker minds its messages; the other is stuck in user code: `python driver_program.py <scratch file>`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.ports.control import Joined
from penstock.shells.spark.session import local_session
from penstock.shells.spark.workers import SparkWorkers


def start(body: str, payload: str) -> SparkWorkers:
    spark = local_session(3, "killed")
    name = f"tests.spark.bodies:{body}"
    workers = SparkWorkers(spark, body, "killed", payload.encode(), 1, body=name)
    workers.launch(0, "worker 1 of 1")
    return workers


def main(scratch: str) -> None:
    both = [start("Obedient", ""), start("Stuck", scratch)]
    pids: list[int] = []
    while True:
        for workers in both:
            joined = [event.pid for event in workers.receive() if isinstance(event, Joined)]
            pids += joined
            if joined and len(pids) == 2:
                print("pids", *pids, flush=True)
            workers.wait(100)


if __name__ == "__main__":
    main(sys.argv[1])
