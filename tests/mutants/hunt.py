"""Finds out whether a known bug is caught: by schedules of the simulator, or by the tests that its mutant names.

Nothing counts that proves nothing: a schedule that fails without the bug, too, a test that fails without it, a mutant
that only trips over its own feet (`TypeError` and the like).
"""

from __future__ import annotations

import gc
import io
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvariantBroken
from penstock.shells.sim.ports import Job, SimBackground
from penstock.shells.sim.world import Violation, World
from tests.mutants.known import MUTANTS, Mutant
from tests.mutants.registry import swapped

SEEDS_MAX = 3_000
SEEDS = Path(__file__).with_name("seeds.txt")
SLIPS = ("TypeError", "AttributeError", "NameError", "UnboundLocalError", "ImportError")
"""Errors of a mutant that does not fit the code any more."""


class MutantBroken(Exception):
    """The mutant itself does not work: it proves nothing."""


@dataclass(frozen=True)
class Finding:
    """What became of one mutant. `by` is the invariant or the test that caught it; empty: it survived."""

    mutant: str
    by: str
    tries: int = 0
    """How many seeds were run; 0 where tests were."""
    seed: int = 0
    seconds: float = 0.0
    remark: str = ""


def judge(name: str, seeds: Iterable[int]) -> Finding:
    """Whether this mutant is caught. `seeds` is where the simulator looks, in this order."""
    began = time.perf_counter()
    mutant = MUTANTS[name]
    try:
        found = run_tests(mutant) if mutant.tests else search(mutant, seeds)
    except MutantBroken as error:
        found = Finding(name, "", remark=f"the mutant does not work: {error}")
    seconds = time.perf_counter() - began
    return Finding(name, found.by, found.tries, found.seed, seconds, found.remark)


# ---- the simulator


def search(mutant: Mutant, seeds: Iterable[int]) -> Finding:
    """The first schedule that breaks with the bug and not without it."""
    tries = 0
    with _quiet():
        for seed in seeds:
            tries += 1
            with mutant.enter():
                problem = run_schedule(seed)
            if problem and not run_schedule(seed):
                invariant = problem.partition(":")[0]
                return Finding(mutant.name, invariant, tries, seed, remark=problem[:200])
    return Finding(mutant.name, "", tries, remark=f"{tries} schedules broke nothing")


def run_schedule(seed: int) -> str:
    """What the simulator says about one seed; empty when all is well."""
    world = World(seed)
    slips: list[str] = []
    try:
        with swapped(SimBackground, "finish", _noting(slips)):
            world.run()
    except Violation as violation:
        _check_for_slips(world, slips)
        return str(violation)
    except InvariantBroken as broken:
        return f"check of the engine: {broken}"
    except Exception as error:
        raise MutantBroken(f"seed {seed}: {type(error).__name__}: {error}") from error
    return ""


def _noting(slips: list[str]) -> Callable[..., None]:
    """Work in the background is tried again when it fails, so its slips would go unseen."""
    original = SimBackground.finish

    def finish(self: SimBackground, job: Job, result: Any, error: Exception | None) -> None:
        if type(error).__name__ in SLIPS:
            slips.append(f"{type(error).__name__}: {error}")
        original(self, job, result, error)

    return finish


def _check_for_slips(world: World, slips: list[str]) -> None:
    for driver in world.cluster.drivers:
        failures = driver.manager.history.exceptions
        slips += [f"{f.error}: {f.message}\n{f.traceback}" for f in failures if f.error in SLIPS]
    if slips:
        raise MutantBroken(slips[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Simulated jobs fail all the time, and make much garbage."""
    log, enabled = logging.getLogger("penstock"), gc.isenabled()
    level = log.level
    log.setLevel(logging.CRITICAL)
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
        log.setLevel(level)


# ---- tests


class _Failures:
    """A pytest plugin that notes which tests failed, and of what."""

    def __init__(self) -> None:
        self.tests: list[str] = []
        self.slips: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[None]:
        report = yield
        if call.excinfo is not None and report.outcome == "failed":
            self.tests.append(item.name.partition("[")[0])
            if call.excinfo.typename in SLIPS:
                self.slips.append(f"{item.name}: {call.excinfo.typename}: {call.excinfo.value}")
        return report


def run_tests(mutant: Mutant) -> Finding:
    """Runs the tests with the bug in place: one of them must fail. Only in a process that has not imported them yet:
    what they import must be what has the bug."""
    failures = _Failures()
    code = _pytest(mutant.tests, failures, mutant)
    if failures.slips:
        raise MutantBroken("; ".join(failures.slips))
    if code == pytest.ExitCode.OK:
        return Finding(mutant.name, "", remark=f"passes: {', '.join(mutant.tests)}")
    if code != pytest.ExitCode.TESTS_FAILED:
        raise MutantBroken(f"pytest ends with {code!r}: are {', '.join(mutant.tests)} still there?")
    caught = [
        name for name in failures.tests if not any(s.startswith(name) for s in failures.slips)
    ]
    return Finding(mutant.name, caught[0], remark=f"{len(failures.tests)} tests fail")


def failing_without_any_bug(tests: Iterable[str]) -> list[str]:
    """Tests that could catch nothing, because they fail anyhow."""
    failures = _Failures()
    code = _pytest(sorted(set(tests)), failures, None)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return [f"pytest ends with {code!r}"]
    return failures.tests


def _pytest(tests: Iterable[str], failures: _Failures, mutant: Mutant | None) -> int:
    options = ["-q", "-p", "no:cacheprovider", "--timeout", "180", "--exitfirst"]
    options += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    bug = nullcontext() if mutant is None else mutant.enter()
    silence = io.StringIO()
    os.environ["HYPOTHESIS_PROFILE"] = "a failure is wanted"
    with bug, redirect_stdout(silence), redirect_stderr(silence):
        return pytest.main([*options, *tests], plugins=[failures])


# ---- where to begin


def known_seeds() -> dict[str, int]:
    """Per mutant the seed that showed it last."""
    lines = SEEDS.read_text().splitlines() if SEEDS.exists() else []
    pairs = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: int(seed) for name, seed in pairs}


def remember(findings: Iterable[Finding]) -> None:
    """Writes down which seeds showed what, for the next time."""
    seeds = {name: seed for name, seed in known_seeds().items() if name in MUTANTS}
    seeds |= {f.mutant: f.seed for f in findings if f.by and not MUTANTS[f.mutant].tests}
    head = "# The seed that showed each mutant last: where `make test` begins to look. Written by --remember."
    lines = [f"{name} {seed}" for name, seed in sorted(seeds.items())]
    SEEDS.write_text("\n".join([head, *lines]) + "\n")


def from_the_beginning(seeds_max: int = SEEDS_MAX) -> Iterable[int]:
    return range(seeds_max)


def from_the_last(name: str, seeds_max: int = SEEDS_MAX) -> Iterable[int]:
    """The seed that showed it last first, then those behind it: a simulator that draws otherwise than it did then
    shows it with another one."""
    last = known_seeds().get(name, 0)
    return range(last, last + seeds_max)
