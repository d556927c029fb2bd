"""What every test of the simulator wants."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from penstock.shells.sim.world import World
from tests.sim.kit import finished_world


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A simulated job fails all the time; nobody wants to read its warnings."""
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@pytest.fixture
def after() -> World:
    """A finished run, nothing wrong with it."""
    found = finished_world()
    found.checkers.at_end()
    assert found.problem is None
    return found
