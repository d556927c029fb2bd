"""The worker's body on Spark: the engine's loop with a job that came with the task.

The payload was pickled by the driver and shipped by Spark itself, as any function of a PySpark program is; it is read
again for every attempt, so that no attempt sees objects of another. A first time it is read before there is any
attempt: a spare worker has then imported what the job needs when it has to take over (measured: 0.3 s less).
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import cast

from penstock.engine.spec import JobSpec
from penstock.engine.worker.worker import Worker
from penstock.ports.background import Background
from penstock.ports.clock import Clock
from penstock.ports.control import Driver, Host


def make_worker(
    payload: bytes, driver: Driver, host: Host, clock: Clock, background: Background
) -> Worker:
    def load() -> JobSpec:
        return cast("JobSpec", pickle.loads(payload))  # noqa: S301 (from the driver, through Spark)

    # What is wrong with it shows again, with a report, when it is deployed.
    with suppress(Exception):
        load()
    return Worker(load, driver, host, clock, background)
