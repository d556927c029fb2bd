"""Tests run in four lanes side by side: in the first all jobs on a Spark of the test's own process, one after another;
in the second all programs that start a Spark of their own; in the others the rest, file by file. A lane that is through
with its own takes files, too."""

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
    """Before xdist looks at the groups, which it hands out in the order of their first tests."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_lane(item)))
    items.sort(key=_place)


def _lane(item: pytest.Item) -> str:
    if item.get_closest_marker("spark") is None:
        return item.nodeid.partition("::")[0]
    return "programs" if any(name in item.nodeid for name in PROGRAMS) else "spark"


def _place(item: pytest.Item) -> int:
    """What takes longest begins first: the lanes are to end at the same time."""
    lane = _lane(item)
    order = ("spark", "programs", "tests/sim/", "tests/engine/")
    return next((n for n, begin in enumerate(order) if lane.startswith(begin)), len(order))
