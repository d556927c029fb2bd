"""The pytest plugin: a fixture `penstock_simulate`, and options that say how much to try or what to try again.

    def test_my_pipeline(penstock_simulate):
        penstock_simulate(my_pipeline)

`pytest --penstock-seeds 5000` tries more, `@pytest.mark.penstock_seeds(5000)` does so for one test, and
`pytest --penstock-seed 17` plays one seed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing.report import Report

SEEDS = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock", "simulated pipelines")
    group.addoption(
        "--penstock-seeds",
        type=int,
        metavar="N",
        help=f"how many crash schedules penstock_simulate tries (default: {SEEDS})",
    )
    group.addoption(
        "--penstock-seed",
        type=int,
        metavar="SEED",
        help="the one schedule that penstock_simulate tries",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "penstock_seeds(n): how many crash schedules penstock_simulate tries in this test",
    )


@pytest.fixture
def penstock_simulate(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """`penstock.testing.simulate`, with the seeds that the command line or the marker asks for."""
    from penstock.testing.simulation import simulate

    seeds = _seeds(request)

    def run(pipeline: Any, **options: Any) -> Report:
        """A failing test says how to see it again."""
        __tracebackhide__ = True
        from penstock.errors import SimulationFailed

        given: Iterable[int] = options.pop("seeds", seeds)
        if request.config.getoption("penstock_seed") is not None:
            given = seeds
        try:
            return simulate(pipeline, seeds=given, **options)
        except SimulationFailed as failed:
            minimal = getattr(failed.report, "minimal", None)
            if minimal is not None:
                test = request.node.nodeid
                failed.add_note(f"Replay it with: pytest '{test}' --penstock-seed {minimal.seed}")
            raise

    return run


def _seeds(request: pytest.FixtureRequest) -> Iterable[int]:
    """One seed beats a number on the command line, which beats the marker."""
    one = request.config.getoption("penstock_seed")
    if one is not None:
        return [one]
    count = request.config.getoption("penstock_seeds")
    marker = request.node.get_closest_marker("penstock_seeds")
    if count is None and marker is not None:
        count = marker.args[0]
    return range(SEEDS if count is None else count)
