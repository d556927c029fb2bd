"""The test of the tests: put a known bug into the code, and it must be found.

Here every bug that the simulator must find is tried with the seed that showed it last, and a few of those that other
tests must find. `make mutants` searches for all of them from the first seed on.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.shells.sim.runner import run_seed
from tests.mutants.hunt import Finding, MutantBroken, from_the_last, judge, known_seeds, search
from tests.mutants.known import MUTANTS
from tests.mutants.registry import Mutant, swapped

ROOT = Path(__file__).parents[2]
SEEDS_MAX = 300
"""How far to look when the simulator draws otherwise than it did when a seed was written down."""
SIMULATED = sorted(name for name, mutant in MUTANTS.items() if not mutant.tests)
TESTED = sorted(name for name, mutant in MUTANTS.items() if mutant.tests)
SLOW = re.compile("tests/(spark|cli|cluster|bench|connectors)/")
"""What is broken there is often waited for, a minute and more."""
RULE = re.compile(r"\((?:.*, )?(?:[BCSTREPU]\d+|I\d+|bug-[A-I]\d+)\)")


@pytest.mark.parametrize("name", SIMULATED)
def test_the_simulator_finds_a_known_bug(name: str) -> None:
    """B1-B11, C2-C7, E2, E3, R1, R5, R6: each rule is broken once on purpose; bug-B4, bug-C1, bug-E15, bug-I8."""
    found = judge(name, from_the_last(name, SEEDS_MAX))
    assert found.by, f"{name}: {found.remark}"


def test_a_few_of_the_bugs_that_other_tests_find() -> None:
    """The rest take a process each: `make mutants` runs them all."""
    some = [name for name in TESTED if not SLOW.search(" ".join(MUTANTS[name].tests))][::40]
    run = subprocess.run(
        [sys.executable, "-m", "tests.mutants", *some],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(some)} of {len(some)} caught" in run.stdout


def test_survivors_are_listed_and_fail_the_run() -> None:
    """Without a schedule nothing is found."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "lost_notices_stay_lost", "--seeds", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "SURVIVED" in run.stdout
    assert "0 of 1 caught" in run.stdout


def test_there_are_many_mutants_and_each_says_which_rule_it_breaks() -> None:
    assert len(MUTANTS) >= 60
    assert [name for name, mutant in MUTANTS.items() if not RULE.search(mutant.bug)] == []


def test_every_test_that_a_mutant_relies_on_is_there() -> None:
    for name in TESTED:
        for test in MUTANTS[name].tests:
            path, _, function = test.partition("[")[0].partition("::")
            assert f"def {function}" in (ROOT / path).read_text(), f"{name}: {test}"


def test_every_seed_belongs_to_a_mutant() -> None:
    assert set(known_seeds()) <= set(SIMULATED)


def test_a_mutant_is_gone_when_it_is_left() -> None:
    with MUTANTS["no_alignment"].enter():
        pass
    assert not run_seed(1)[0].problem


def test_a_mutant_that_trips_over_its_own_feet_catches_nothing() -> None:
    """Code that cannot run fails every schedule and says nothing about the checkers."""
    from penstock.engine.worker.attempt import Attempt

    clumsy = Mutant("clumsy", lambda: swapped(Attempt, "step", lambda: None), "takes no self")
    with pytest.raises(MutantBroken, match="TypeError"):
        search(clumsy, range(5))


def test_a_seed_that_fails_anyhow_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.mutants import hunt

    monkeypatch.setattr(hunt, "run_schedule", lambda seed: "I1: always")
    harmless = Mutant("harmless", lambda: swapped(hunt, "SEEDS_MAX", 1), "changes nothing")
    found = search(harmless, range(3))
    assert found == Finding("harmless", "", 3, remark="3 schedules broke nothing")
