"""The body of a worker on Spark, without Spark."""

from __future__ import annotations

import pickle
from typing import Any

from penstock.shells.spark.body import make_worker

opened: list[str] = []


def _open(name: str) -> str:
    opened.append(name)
    return name


class Job:
    """Tells when it is unpickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self.name,)


def worker_of(payload: bytes) -> Any:
    unused: Any = None
    return make_worker(payload, unused, unused, unused, unused)


def test_a_worker_has_imported_its_job_before_it_is_told_to_deploy_it() -> None:
    """A spare worker that takes over must not lose time with imports."""
    opened.clear()
    worker_of(pickle.dumps(Job("orders")))
    assert opened == ["orders"]


def test_a_job_that_cannot_be_read_is_reported_by_its_deployment_and_not_before() -> None:
    assert worker_of(b"no pickle at all") is not None
