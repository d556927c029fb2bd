"""The pytest plugin: a fixture `penstock_simulate`, and options that say how much to try or what to try again.

    def test_my_pipeline(penstock_simulate):
        penstock_simulate(my_pipeline)

`pytest --penstock-seeds 5000` tries more, `@pytest.mark.penstock_seeds(5000)` does so for one test, and
`pytest --penstock-seed 17` plays one seed again. A marker takes a number, or the seeds themselves: `[3, 4]`.

Where several say something: `--penstock-seed` counts before everything, also before a `seeds=` in the test. Then comes
`seeds=`. `--penstock-seeds` never takes away from a marker: it adds seeds until there are as many.
"""

from __future__ import annotations

import argparse
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
        type=_at_least(1),
        metavar="N",
        help=f"how many crash schedules penstock_simulate tries, at least (default: {SEEDS}); a test that gives seeds="
        " itself keeps them",
    )
    group.addoption(
        "--penstock-seed",
        type=_at_least(0),
        metavar="SEED",
        help="the one schedule that penstock_simulate tries, also where a marker or seeds= says something else",
    )


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return number


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "penstock_seeds(n): how many crash schedules penstock_simulate tries in this test, or which: [3, 4]",
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
    """One seed beats everything; a number on the command line adds to what the marker asks for."""
    one = request.config.getoption("penstock_seed")
    if one is not None:
        return [one]
    wanted = request.config.getoption("penstock_seeds")
    marker = request.node.get_closest_marker("penstock_seeds")
    if marker is None:
        return range(wanted or SEEDS)
    marked = _marked(marker)
    known = set(marked)
    more = [seed for seed in range(wanted or 0) if seed not in known]
    return [*marked, *more[: max(0, (wanted or 0) - len(marked))]]


def _marked(marker: pytest.Mark) -> list[int]:
    """What a marker asks for: so many schedules, or these."""
    from penstock.errors import ConfigError

    given: Any = marker.args[0] if len(marker.args) == 1 and not marker.kwargs else None
    if _is_number(given, 1):
        return list(range(given))
    if isinstance(given, range | list | tuple) and given and all(_is_number(s, 0) for s in given):
        return list(given)
    told = ", ".join([*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())])
    raise ConfigError(
        f"@pytest.mark.penstock_seeds({told}): write @pytest.mark.penstock_seeds(500) for so many schedules, or give"
        " the seeds, as in @pytest.mark.penstock_seeds([3, 4]) or penstock_seeds(range(500, 600))"
    )


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
