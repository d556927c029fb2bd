"""Tests run in three lanes side by side: jobs on a Spark of the test's own process, one after the other; programs that
start a Spark of their own; and all the rest."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "a failure is wanted",
    settings.get_profile("any speed"),
    phases=[phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "any speed"))

PROGRAMS = (
    "cli/",
    "cluster/",
    "bench/",
    "test_launch_programs",
    "test_submitted_programs",
    "test_jobs_drivers",
    "test_drivers_are",
)
"""Most of their time is spent waiting for a Java process to come up."""


def pytest_configure(config: pytest.Config) -> None:
    """Each lane has a temporary folder of its own: what processes that another one killed leave in theirs is no
    finding here."""
    if hasattr(config, "workerinput"):
        made = tempfile.mkdtemp(prefix="lane-")
        os.environ["TMPDIR"] = tempfile.tempdir = made
        config.add_cleanup(lambda: shutil.rmtree(made, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before xdist looks at the groups."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_lane(item)))


def _lane(item: pytest.Item) -> str:
    if item.get_closest_marker("spark") is None:
        return "rest"
    return "programs" if any(name in item.nodeid for name in PROGRAMS) else "spark"
