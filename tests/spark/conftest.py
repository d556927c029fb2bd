"""One local Spark for all tests that need one, and what they check afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.shells.spark.session import local_session, release_session
from penstock.shells.spark.workers import SparkWorkers


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Six slots: enough for a few workers and for Spark's own work beside them."""
    session = local_session(6, "tests")
    yield session
    release_session("tests")
    session.stop()


@pytest.fixture
def start(spark: Any) -> Iterator[Callable[..., SparkWorkers]]:
    """Makes workers that are closed at the end, whatever happens."""
    made: list[SparkWorkers] = []

    def make(body: str = "Obedient", payload: bytes = b"", **options: Any) -> SparkWorkers:
        name = f"tests.spark.bodies:{body}"
        made.append(SparkWorkers(spark, "test", "test job", payload, 3, body=name, **options))
        return made[-1]

    yield make
    for workers in made:
        if not workers._server._context.closed:
            workers.close()
