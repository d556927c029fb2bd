"""When the demo kills, and what it calls healed: with a job of paper and a clock by hand."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as pen
from penstock.cli.watching import Watch

ROWS = 'penstock_records_in_total{operator="entries"}'


class PaperJob:
    status = "running"

    def __init__(self) -> None:
        self.rows: float | None = None
        self.restarts = 0
        self.taken: list[pen.CheckpointInfo] = []
        self.workers = [pen.WorkerInfo(0, 100, "h"), pen.WorkerInfo(1, 101, "h")]
        self.workers.append(pen.WorkerInfo(None, 102, "h"))

    def metrics(self) -> dict[str, float]:
        rows = {} if self.rows is None else {ROWS: self.rows}
        return {**rows, "penstock_restarts_total": float(self.restarts)}

    def checkpoints(self) -> list[pen.CheckpointInfo]:
        return list(reversed(self.taken))

    def checkpoint(self, number: int, status: str = "completed") -> None:
        self.taken.append(pen.CheckpointInfo(number, "checkpoint", status, 0.0, 1.0))


class Notes:
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def checkpoint(self, info: pen.CheckpointInfo) -> None:
        self.told.append(("checkpoint", info.id))

    def killed(self, pid: int, slot: int) -> None:
        self.told.append(("killed", pid))

    def healed(self, seconds: float, checkpoint: int) -> None:
        self.told.append(("healed", round(seconds, 3), checkpoint))

    def progress(self, watch: Watch) -> None:
        """Not of interest here."""


class World:
    """A job, a clock, and the pids that were killed."""

    def __init__(self, kills: int = 2) -> None:
        self.job, self.notes, self.now_s = PaperJob(), Notes(), 0.0
        self.killed: list[int] = []
        self.watch = Watch(
            self.job,  # type: ignore[arg-type]
            self.notes,
            kills,
            every_s=2.0,
            now_s=lambda: self.now_s,
            kill=lambda pid, number: self.killed.append(pid),
        )

    def at(self, now_s: float, rows: float | None = None) -> None:
        self.now_s = now_s
        self.job.rows = rows
        self.watch.look()


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_killed_before_a_checkpoint_is_complete(world: World) -> None:
    world.at(0.0, 10)
    world.job.checkpoint(1, status="pending")
    world.at(9.0, 20)
    assert world.killed == []
    world.job.taken.clear()
    world.job.checkpoint(1)
    world.at(9.1, 30)
    assert world.killed == [100]


def test_an_attempt_runs_for_a_while_before_it_is_killed(world: World) -> None:
    world.job.checkpoint(1)
    world.at(5.0)
    world.at(6.0, 10)
    world.at(7.9, 20)
    assert world.killed == []
    world.at(8.0, 30)
    assert world.killed == [100]


def test_healed_is_when_the_next_attempt_has_processed_rows(world: World) -> None:
    world.job.checkpoint(1)
    world.at(0.0, 10)
    world.at(2.0, 90)
    world.at(2.1, 95)  # the numbers of the attempt that is dying
    world.job.restarts = 1
    world.at(2.4, 96)
    world.at(2.6, 96)
    assert world.watch.recovery_s == []
    world.at(2.75, 101)
    assert world.watch.recovery_s == [0.75]
    assert world.notes.told[-1] == ("healed", 0.75, 1)


def test_the_next_kill_needs_a_checkpoint_of_the_new_attempt_and_hits_another_worker(
    world: World,
) -> None:
    world.job.checkpoint(1)
    world.at(0.0, 10)
    world.at(2.0, 20)
    world.job.restarts = 1
    world.at(3.0, 20)
    world.at(3.1, 25)
    world.at(9.0, 29)
    assert world.killed == [100]
    world.job.checkpoint(101)
    world.at(9.1, 32)
    assert world.killed == [100, 101]


def test_no_more_are_killed_than_asked_for() -> None:
    world = World(kills=0)
    world.job.checkpoint(1)
    world.at(0.0, 10)
    world.at(50.0, 20)
    assert world.killed == []


def test_the_rate_is_that_of_the_last_moments(world: World) -> None:
    world.at(0.0, 100)
    world.at(1.0, 250)
    world.at(1.5, 250)
    world.at(2.0, 290)
    assert world.watch.rows_seen == 290
    assert world.watch.rows_per_second == 95.0
