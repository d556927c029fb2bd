"""The test of the tests: put a known bug into the engine, and the simulator must find it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator

import pytest

from penstock.shells.sim.runner import Result, run_seed
from tests.mutants.known import MUTANTS

SEEDS_MAX = 1_000
HINTS = {
    "a_void_checkpoint_is_restored": 195,
    "damage_goes_unnoticed": 130,
    "a_lost_transaction_is_tolerated_for_ever": 45,
    "a_fenced_driver_goes_on": 36,
    "acks_are_counted": 33,
}
"""Where to begin for bugs that few seeds show; only a matter of speed."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


def seeds_for(name: str) -> Iterable[int]:
    hint = HINTS.get(name, 0)
    return itertools.chain(range(hint, hint + 20), range(SEEDS_MAX))


def first_violation(name: str) -> Result | None:
    with MUTANTS[name]():
        results = (run_seed(seed)[0] for seed in seeds_for(name))
        return next((result for result in results if result.problem), None)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_simulator_finds_a_known_bug(name: str) -> None:
    """B1-B4, B10, C2-C5, C7, E2, E3, R1: each rule is broken once on purpose; bug-B4, bug-E2, bug-E15."""
    found = first_violation(name)
    assert found is not None, f"{name}: {SEEDS_MAX} schedules and no violation"
    assert "crash of the engine" not in found.problem, found.problem


def test_a_mutant_is_gone_when_it_is_left() -> None:
    with MUTANTS["no_alignment"]():
        pass
    assert not run_seed(1)[0].problem
