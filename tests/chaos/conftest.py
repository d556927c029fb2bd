"""The same Spark and the same dice as the other tests have, and how long to play."""

from __future__ import annotations

import os

import pytest

from tests.spark.conftest import _sparks_end, draw, spark

__all__ = ["_sparks_end", "draw", "spark"]


@pytest.fixture
def rounds() -> int:
    return int(os.environ.get("CHAOS_ROUNDS", "20"))
