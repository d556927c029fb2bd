"""Runs seeds, and shows a failing one so that a person can follow it."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from penstock.shells.sim.trace import Trace
from penstock.shells.sim.world import Violation, World


@dataclass(frozen=True)
class Result:
    seed: int
    problem: str
    checkpoints: int
    attempts: int
    virtual_ms: float


def run_seed(seed: int, verbose: bool = False) -> tuple[Result, Trace]:
    world = World(seed, verbose)
    problem = ""
    try:
        world.run()
    except Violation as violation:
        problem = str(violation)
    except Exception as error:  # a bug in the engine is a finding, too
        problem = f"crash of the engine: {type(error).__name__}: {error}"
        if verbose:
            problem += "\n" + "".join(traceback.format_exception(error))
    attempts = sum(driver.manager.machine.attempts for driver in world.cluster.drivers)
    result = Result(
        seed,
        problem,
        world.checkers.completed,
        attempts,
        world.clock.now_ms,
    )
    return result, world.trace


def run_quietly(seeds: Iterable[int]) -> list[Result]:
    """Garbage waits until the end: looking for it all the time takes a fifth of a schedule. What was there before is
    none of it and need not be looked at."""
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        return [run_seed(seed)[0] for seed in seeds]
    finally:
        gc.collect()
        gc.unfreeze()
        if enabled:
            gc.enable()


@dataclass
class Summary:
    schedules: int
    checkpoints: int
    attempts: int
    seconds: float
    failures: list[Result]

    def line(self) -> str:
        rate = self.schedules / self.seconds if self.seconds else 0.0
        return (
            f"{self.schedules} schedules, {self.checkpoints} checkpoints, {self.attempts} attempts, "
            f"{len(self.failures)} violations, {self.seconds:.1f} s ({rate:.0f} schedules/s)"
        )


Told: TypeAlias = Callable[["Summary"], None]
"""Hears how far a long run has come."""


def run_many(first: int, count: int, processes: int = 2, tell: Told = lambda _: None) -> Summary:
    """Spreads seeds over processes; each seed is one whole schedule."""
    began = time.perf_counter()
    so_far = Summary(0, 0, 0, 0.0, [])
    for results in _parts(_chunks(first, count, processes), processes):
        so_far.schedules += len(results)
        so_far.checkpoints += sum(r.checkpoints for r in results)
        so_far.attempts += sum(r.attempts for r in results)
        so_far.seconds = time.perf_counter() - began
        so_far.failures += [r for r in results if r.problem]
        tell(so_far)
    return so_far


def _chunks(first: int, count: int, processes: int) -> list[range]:
    step = max(1, min(50, count // (processes * 2) or 1))
    end = first + count
    return [range(start, min(start + step, end)) for start in range(first, end, step)]


def _parts(chunks: list[range], processes: int) -> Iterator[list[Result]]:
    if processes == 1:
        yield from map(run_quietly, chunks)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run_quietly, chunks)
