"""What every test of the simulator wants."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A simulated job fails all the time; nobody wants to read its warnings."""
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
