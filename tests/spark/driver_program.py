"""A driver of its own, started by tests that kill it: prints the pids of its workers and waits.

python driver_program.py <body> <payload> <slots>
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.ports.control import Joined
from penstock.shells.spark.session import local_session
from penstock.shells.spark.workers import SparkWorkers


def main(body: str, payload: str) -> None:
    spark = local_session(3, "killed")
    workers = SparkWorkers(
        spark, "killed", "killed", payload.encode(), 2, body=f"tests.spark.bodies:{body}"
    )
    pids: list[int] = []
    for launch in (0, 1):
        workers.launch(launch, f"worker {launch + 1} of 2")
    while len(pids) < 2:
        pids += [event.pid for event in workers.receive() if isinstance(event, Joined)]
        workers.wait(100)
    print("pids", *pids, flush=True)
    while True:
        workers.receive()
        workers.wait(1000)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
