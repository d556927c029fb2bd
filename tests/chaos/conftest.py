"""The same Spark as the other tests have, and how long and how to play."""

from __future__ import annotations

import os
import random

import pytest

from tests.spark.conftest import _sparks_end, spark

__all__ = ["_sparks_end", "spark"]


@pytest.fixture
def rounds() -> int:
    return int(os.environ.get("CHAOS_ROUNDS", "20"))


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """Another schedule every time; CHAOS_SEED plays one again, as far as real processes can be."""
    seed = int(os.environ.get("CHAOS_SEED", random.randrange(10**9)))
    print(f"CHAOS_SEED={seed}")
    return random.Random(seed)
