"""Tests run in two lanes side by side: those that start a Spark, one after the other, and all the rest."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two Sparks at once on two cores would only make each other slow."""
    for item in items:
        lane = "spark" if item.get_closest_marker("spark") else "rest"
        item.add_marker(pytest.mark.xdist_group(lane))
