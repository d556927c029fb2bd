"""Tests run in three lanes side by side: jobs on a Spark of the test's own process, one after the other; programs that
start a Spark of their own; and all the rest."""

from __future__ import annotations

import pytest

PROGRAMS = ("cli/", "bench/", "test_launch_programs", "test_jobs_drivers")
"""Most of their time is spent waiting for a Java process to come up."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_lane(item)))


def _lane(item: pytest.Item) -> str:
    if item.get_closest_marker("spark") is None:
        return "rest"
    return "programs" if any(name in item.nodeid for name in PROGRAMS) else "spark"
