"""One local Spark for all tests that need one, and what they check afterwards."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.shells.spark.executors import slots_of
from penstock.shells.spark.session import local_session, release_session
from penstock.shells.spark.workers import SparkWorkers

SLOTS = 6


@pytest.fixture(scope="session")
def _sparks_end() -> Iterator[None]:
    """Ends the Spark of this program, whichever test started it."""
    yield
    _stop_spark()


@pytest.fixture
def spark(_sparks_end: None) -> Iterator[Any]:
    """Six slots: enough for a few workers and for Spark's own work beside them. Started once for all files."""
    session = local_session(SLOTS, "tests")
    if slots_of(session.sparkContext) != SLOTS:
        _stop_spark()
        session = local_session(SLOTS, "tests")
    yield session
    release_session("tests")


@pytest.fixture
def draw() -> random.Random:
    """Another schedule every time, told where a test fails; CHAOS_SEED plays one again, as far as real processes can
    be made to."""
    seed = int(os.environ.get("CHAOS_SEED", random.randrange(10**9)))
    print(f"CHAOS_SEED={seed}")
    return random.Random(seed)


def _stop_spark() -> None:
    from pyspark.sql import SparkSession

    release_session("tests")
    session = SparkSession.getActiveSession()
    if session is not None:
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
