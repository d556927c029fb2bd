"""The dice of the simulated world: of all that could happen now, one thing happens next.

A schedule has hundreds of steps, and every one of them comes through here: the loops are plain on purpose.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TypeAlias

from penstock.shells.sim.cluster import (
    Cluster,
    DriverProcess,
    PlannedDriver,
    PlannedLaunch,
    Process,
)
from penstock.shells.sim.ports import Job

Happening: TypeAlias = (
    Process | DriverProcess | Job | PlannedLaunch | PlannedDriver | tuple[str, Process]
)
"""What can be picked; a tuple is a message that arrives."""


class Offers:
    """What could happen at one moment, and when more could."""

    def __init__(self, now_ms: float) -> None:
        self.ready: list[Happening] = []
        self.weights: list[float] = []
        self.later_ms = inf
        """The next moment at which something more could happen."""
        self._now_ms = now_ms

    def at(self, when_ms: float, what: Happening) -> None:
        if when_ms <= self._now_ms:
            self.ready.append(what)
            self.weights.append(1.0)
        elif when_ms < self.later_ms:
            self.later_ms = when_ms

    def process(self, process: Process) -> None:
        link, now = process.link, self._now_ms
        if not link.cut:
            if link.to_worker:
                self.at(link.to_worker[0][0], ("down", process))
            if link.to_driver:
                self.at(link.to_driver[0][0], ("up", process))
        if process.paused_until_ms > now:
            self.later_ms = min(self.later_ms, process.paused_until_ms)
        elif process.wake_ms <= now or _has_news(process):
            self.ready.append(process)
            self.weights.append(process.weight)
        elif process.wake_ms < self.later_ms:
            self.later_ms = process.wake_ms

    def driver(self, driver: DriverProcess) -> None:
        moved = driver.workers.events or driver.background.ended
        self.at(self._now_ms if moved else driver.wake_ms, driver)


def _has_news(process: Process) -> bool:
    link = process.link
    return bool(process.dirty or process.background.ended or link.delivered or link.cut)


def offers(cluster: Cluster, jobs: list[Job], now_ms: float) -> Offers:
    found = Offers(now_ms)
    for process in cluster.alive:
        found.process(process)
    for driver in cluster.running:
        found.driver(driver)
    for job in jobs:
        found.at(job.ready_ms, job)
    for plan in cluster.planned:
        found.at(plan.at_ms, plan)
    return found


def pick(found: Offers, rng: Random) -> Happening:
    if len(found.ready) == 1:
        return found.ready[0]
    dice = rng.random() * sum(found.weights)
    for what, weight in zip(found.ready, found.weights, strict=True):
        dice -= weight
        if dice <= 0:
            return what
    return found.ready[-1]
