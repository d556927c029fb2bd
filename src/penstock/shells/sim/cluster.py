"""The simulated processes: drivers that come and go, workers that are launched, lost, orphaned and killed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.driver.manager import JobManager
from penstock.engine.spec import JobSpec, Mode
from penstock.engine.worker.worker import Worker
from penstock.plan.physical import PhysicalPlan, make_plan
from penstock.ports.control import DriverLost, Joined, LaunchEnded, Left
from penstock.protocol.ids import WorkerId
from penstock.protocol.phases import Outcome
from penstock.shells.sim.disk import SimStore
from penstock.shells.sim.keeping import Keeping
from penstock.shells.sim.ports import (
    Job,
    Link,
    SimBackground,
    SimDriver,
    SimHost,
    SimWorkers,
    ignore,
)

if TYPE_CHECKING:
    from penstock.shells.sim.world import World

DRIVERS_MAX = 6


@dataclass
class Process:
    """A simulated worker process."""

    name: str
    driver: int
    launch: int
    worker: Worker
    link: Link
    background: SimBackground
    weight: float
    """How often the scheduler prefers it to others."""
    alive: bool = True
    lost: bool = False
    """Its driver has given it up, or is gone."""
    dirty: bool = True
    wake_ms: float = inf
    arrival_ms: float = inf
    """When the next frame comes that it has looked for in vain."""
    paused_until_ms: float = 0.0


@dataclass
class DriverProcess:
    number: int
    plan: PhysicalPlan
    keeping: Keeping
    manager: JobManager
    workers: SimWorkers
    background: SimBackground
    alive: bool = True
    wake_ms: float = 0.0

    @property
    def name(self) -> str:
        return self.background.name


@dataclass
class PlannedLaunch:
    driver: int
    launch: int
    at_ms: float


@dataclass
class PlannedDriver:
    at_ms: float


class Cluster:
    def __init__(self, world: World) -> None:
        self._world = world
        self.drivers: list[DriverProcess] = []
        self.running: list[DriverProcess] = []
        """Drivers that are alive and whose job is not over."""
        self.processes: dict[str, Process] = {}
        self.alive: list[Process] = []
        """Those of the processes that have not ended."""
        self.planned: list[PlannedLaunch | PlannedDriver] = []

    # ---- drivers

    def start_driver(self) -> None:
        world, number = self._world, len(self.drivers)
        name = f"driver-{number}"
        parallelism = self._draw_parallelism()
        keeping = world.keeping if number == 0 else world.keeping_later
        plan = make_plan(world.scenario.graph, parallelism, world.scenario.max_parallelism)
        background = SimBackground(world, name)
        workers = SimWorkers(world, number)
        store = SimStore(world, world.disk, name)
        files = CheckpointFiles(store, "job", name, world.clock.wall_ms) if world.durable else None
        manager = JobManager(
            self._spec(name, plan, keeping),
            keeping.tuned(world.settings).manager(parallelism),
            workers,
            files,
            world.clock,
            background,
            world.scenario.sinks,
        )
        world.note("world", f"driver {number} starts, parallelism {parallelism}")
        driver = DriverProcess(number, plan, keeping, manager, workers, background)
        self.drivers.append(driver)
        self.running.append(driver)
        manager.begin()

    def _draw_parallelism(self) -> int:
        """A job that is started again may be started with another parallelism."""
        world = self._world
        if self.drivers and world.scenario.can_rescale and world.rng.random() < 0.5:
            return world.rng.choice(world.scenario.parallelisms)
        return world.scenario.parallelism

    def _spec(self, who: str, plan: PhysicalPlan, keeping: Keeping) -> JobSpec:
        world = self._world
        mode = Mode.EXACTLY_ONCE if world.exactly_once else Mode.AT_LEAST_ONCE
        spec = JobSpec(
            "job",
            plan,
            mode,
            world.settings.pace_ms,
            inline_bytes_max=world.settings.inline_bytes_max,
            inflight_bytes_max=world.settings.inflight_bytes_max,
        )
        if not world.durable:
            return spec
        return keeping.stored(spec, lambda: SimStore(world, world.disk, who), world.local_disk)

    def plan_driver(self, delay_ms: float) -> None:
        """Not for ever, as long as drivers are killed and jobs stopped: but the last one must be able to finish."""
        is_last = not self.running and not self.driver_is_planned
        if len(self.drivers) < DRIVERS_MAX or self._world.healed or is_last:
            self.planned.append(PlannedDriver(self._world.clock.now_ms + delay_ms))

    @property
    def driver_is_planned(self) -> bool:
        return any(isinstance(plan, PlannedDriver) for plan in self.planned)

    def step_driver(self, driver: DriverProcess) -> None:
        driver.manager.step()
        driver.wake_ms = driver.manager.wake_ms()
        self._world.checkers.after_driver(driver)
        if driver.manager.ended and driver in self.running:
            self._close_driver(driver)

    def _close_driver(self, driver: DriverProcess) -> None:
        """What the shell does when the job is over: whoever has not left is ended. A job that a person ended is
        started again after a while."""
        world = self._world
        self.running.remove(driver)
        world.note("world", f"driver {driver.number} ends: {driver.manager.outcome}")
        world.checkers.fates.on_closed(driver.number)
        for process in list(self.processes.values()):
            if process.driver == driver.number and process.alive and not process.link.cut:
                self.kill(process, "the job is over")
        if driver.manager.outcome in (Outcome.STOPPED, Outcome.CANCELLED) and world.durable:
            self.plan_driver(world.rng.random() * 300)
        if driver.manager.reason.startswith("JobFenced") and not self._owner_lives():
            self.plan_driver(world.rng.random() * 300)

    def _owner_lives(self) -> bool:
        """The claim of a driver that was killed may come late, and fence off the one that was started instead of it."""
        names = {each.name for each in self.running}
        return self.driver_is_planned or self._world.checkers.owner in names

    def crash_driver(self, driver: DriverProcess) -> None:
        self._world.note("world", f"driver {driver.number} is killed")
        driver.alive = driver.background.alive = False
        self.running.remove(driver)
        for process in self.processes.values():
            if process.driver == driver.number and process.alive:
                process.lost = True
                self.orphan(process)
        self.plan_driver(self._world.rng.random() * 500)

    # ---- workers

    def launch(self, driver: int, launch: int) -> None:
        delay_ms = self._world.rng.random() * 30 * self._world.settings.slow
        at_ms = self._world.clock.now_ms + delay_ms
        self.planned.append(PlannedLaunch(driver, launch, at_ms))

    def cancel(self, driver: int, launch: int) -> None:
        self.planned = [
            plan
            for plan in self.planned
            if isinstance(plan, PlannedDriver) or (plan.driver, plan.launch) != (driver, launch)
        ]
        for process in list(self.processes.values()):
            if process.alive and (process.driver, process.launch) == (driver, launch):
                self.kill(process, "cancelled")

    def start(self, plan: PlannedLaunch | PlannedDriver) -> None:
        self.planned.remove(plan)
        if isinstance(plan, PlannedDriver):
            self.start_driver()
        else:
            self._start_process(plan)

    def _start_process(self, plan: PlannedLaunch) -> None:
        world, driver = self._world, self.drivers[plan.driver]
        if not driver.alive:
            return
        if world.happens("launch_failure"):
            world.note("world", f"launch {plan.launch} fails")
            driver.workers.events.append(LaunchEnded(plan.launch, "simulated launch failure"))
            return
        name = f"w{len(self.processes)}"
        link = Link(WorkerId(name))
        background = SimBackground(world, name)
        plan_of_process = world.scenario.ship(driver.plan)
        worker = Worker(
            lambda: self._spec(name, plan_of_process, driver.keeping),
            SimDriver(world, link),
            SimHost(world, name),
            world.clock,
            background,
        )
        weight = world.rng.choice((0.1, 1.0, 1.0, 3.0))
        process = Process(name, plan.driver, plan.launch, worker, link, background, weight)
        self.processes[name] = process
        self.alive.append(process)
        driver.workers.links[link.worker] = link
        driver.workers.events.append(Joined(link.worker, plan.launch, "host", len(self.processes)))
        world.note(name, f"joins driver {plan.driver}, launch {plan.launch}")

    def step_process(self, process: Process) -> None:
        try:
            process.dirty, process.arrival_ms = False, inf
            moved = process.worker.step()
            process.dirty = process.dirty or moved
            process.wake_ms = _wake_ms(process)
            self._world.checkers.after_process(process)
        except DriverLost:
            self._world.note(process.name, "leaves: no driver")
            self._end_process(process)
            return
        if process.worker.leaving:
            self._world.note(process.name, "leaves: told to")
            self._end_process(process)

    def kill(self, process: Process, why: str) -> None:
        self._world.note(process.name, f"is killed: {why}")
        self._end_process(process)

    def _end_process(self, process: Process) -> None:
        """The process is gone: by itself, or killed. What it had not synced goes with it."""
        world = self._world
        process.alive = process.background.alive = False
        self.alive.remove(process)
        attempt = process.worker.attempt
        if attempt is not None:
            for lost in world.table.lose_unsynced(attempt.id, attempt.slot):
                world.note("table", f"{lost} was not synced and is lost")
        process.worker.close()
        self.tell_lost(process, "the process has ended")
        driver = self.drivers[process.driver]
        if not driver.alive:
            return
        if world.rng.random() < 0.5 and world.faults.crash:
            self.launch(process.driver, process.launch)
        else:
            driver.workers.events.append(LaunchEnded(process.launch, "the process has ended"))

    def tell_lost(self, process: Process, reason: str) -> None:
        if process.link.cut:
            return
        process.link.cut = process.lost = True
        driver = self.drivers[process.driver]
        if driver.alive:
            driver.workers.events.append(Left(process.link.worker, reason))

    def orphan(self, process: Process) -> None:
        """The worker goes on with a connection that nobody listens to, until it notices."""
        world, link = self._world, process.link
        self.drivers[process.driver].workers.links.pop(link.worker, None)
        notices_ms = world.clock.now_ms + world.rng.random() * 1_500

        def notice() -> None:
            link.cut = True
            process.dirty = True

        nobody = SimBackground(world, "world")
        world.jobs.append(Job(nobody, notice, ignore, ignore, notices_ms))


def _wake_ms(process: Process) -> float:
    """When a process that nothing happens to wants to be stepped; one that is dirty will be anyhow."""
    attempt = process.worker.attempt
    if process.dirty or attempt is None or not attempt.running:
        return inf
    wake_ms = attempt.wake_ms()
    return process.arrival_ms if wake_ms is None else min(wake_ms, process.arrival_ms)
