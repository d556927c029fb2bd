"""A whole cluster in one thread: a driver, worker processes, storage and an external table under a seeded scheduler.

The engine and the protocol are the real ones. The scheduler picks, at every step, one thing that could happen next:
a process takes a step, a message arrives, a write ends, a fault strikes. Time is virtual: it creeps while things
happen and jumps when nothing can. First comes a phase with faults, then a healed one, in which the job must finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from penstock.engine.checkpoint_files import CheckpointFiles
from penstock.engine.manager import JobManager, ManagerConfig
from penstock.engine.spec import JobSpec, Mode
from penstock.engine.worker import Worker
from penstock.plan.physical import make_plan
from penstock.ports.control import DriverLost, Joined, LaunchEnded, Left
from penstock.protocol.coordinator import CoordinatorConfig
from penstock.protocol.ids import ChannelId, WorkerId
from penstock.protocol.lifecycle import LifecycleConfig
from penstock.protocol.messages import FromWorker, ToWorker
from penstock.protocol.restart import Exponential
from penstock.shells.sim import faults, scenario
from penstock.shells.sim.checkers import Checkers
from penstock.shells.sim.disk import SimStore
from penstock.shells.sim.faults import Faults
from penstock.shells.sim.outside import Table
from penstock.shells.sim.ports import (
    Job,
    Link,
    SimBackground,
    SimChannel,
    SimClock,
    SimDriver,
    SimHost,
    SimWorkers,
)
from penstock.shells.sim.trace import Trace
from penstock.storage.memory import MemoryStore

FAULTY_MS = 4_000.0
HEALED_MS = 120_000.0
STEPS_MAX = 60_000
DRIVERS_MAX = 4


class Violation(Exception):
    """An invariant does not hold."""


@dataclass
class Process:
    """A simulated worker process."""

    name: str
    driver: int
    launch: int
    worker: Worker
    link: Link
    background: SimBackground
    alive: bool = True
    lost: bool = False
    """Its driver has given it up, or is gone."""
    dirty: bool = True
    wake_ms: float | None = None
    paused_until_ms: float = 0.0


@dataclass
class DriverProcess:
    number: int
    manager: JobManager
    workers: SimWorkers
    background: SimBackground
    alive: bool = True
    wake_ms: float = 0.0


@dataclass
class PlannedLaunch:
    driver: int
    launch: int
    at_ms: float


class World:
    def __init__(self, seed: int, verbose: bool = False) -> None:
        self.rng = rng = Random(seed)
        self.clock = SimClock()
        self.trace = Trace(verbose)
        self.faults = faults.draw(rng)
        self.faults_touch_storage = bool(self.faults.storage_error or self.faults.storage_unknown)
        self.faults_touch_storage |= bool(self.faults.late_write)
        self.scenario = scenario.draw(self, rng)
        self.plan = make_plan(
            self.scenario.graph, self.scenario.parallelism, self.scenario.max_parallelism
        )
        self.exactly_once = rng.random() < 0.85
        self.disk = MemoryStore()
        self.table = Table()
        self.checkers = Checkers(self)
        self.jobs: list[Job] = []
        self.channels: dict[str, SimChannel] = {}
        self.drivers: list[DriverProcess] = []
        self.processes: dict[str, Process] = {}
        self.problem: str | None = None
        self._planned: list[PlannedLaunch] = []
        self._drivers_planned_ms: list[float] = []
        self._next_channel = 0
        self._frames_max = rng.choice((1, 2, 4))
        self._pace_ms = rng.choice((1.0, 5.0, 20.0))
        self._slow = rng.choice((1.0, 1.0, 20.0))
        self._write_ms = rng.choice((1.0, 20.0, 200.0))
        self._config = self._draw_config()
        self._weights: dict[str, float] = {}

    def _draw_config(self) -> ManagerConfig:
        rng = self.rng
        quick = self._slow == 1.0 and self._write_ms <= 20
        return ManagerConfig(
            LifecycleConfig(
                self.scenario.parallelism,
                spare_workers=rng.choice((0, 0, 1)),
                strategy=Exponential(initial_ms=20, max_ms=500),
                slot_timeout_ms=60_000,
            ),
            CoordinatorConfig(
                every_ms=rng.choice((3, 10, 30, 100)),
                timeout_ms=rng.choice((150, 2_000)) if quick else 2_000,
                min_pause_ms=rng.choice((0, 0, 50)),
                max_concurrent=rng.choice((1, 1, 2, 3)),
                tolerable_failures=rng.choice((0, 2, 1_000)),
                keep=rng.choice((1, 2, 3)),
            ),
        )

    # ---- running

    def run(self) -> None:
        """Raises `Violation` when an invariant does not hold."""
        self._start_driver()
        steps = 0
        while not self._over():
            steps += 1
            if self.clock.now_ms > FAULTY_MS and self.faults != Faults():
                self._heal()
            if steps > STEPS_MAX or self.clock.now_ms > FAULTY_MS + HEALED_MS:
                raise Violation(f"I25: the job does not come to its end: {self._describe()}")
            self._strike()
            self._step()
            if self.problem is not None:
                raise Violation(self.problem)
        self._settle()
        self.checkers.at_end()
        if self.problem is not None:
            raise Violation(self.problem)

    def _over(self) -> bool:
        if self._drivers_planned_ms:
            return False
        return all(driver.manager.ended for driver in self.drivers if driver.alive)

    def _heal(self) -> None:
        self.note("world", "healed: no more faults")
        self.faults = Faults()
        for process in self.processes.values():
            process.paused_until_ms = 0.0
            process.dirty = True

    def _settle(self) -> None:
        """The job has ended: stragglers get the time to notice."""
        for _ in range(5_000):
            stragglers = [p for p in self.processes.values() if p.alive]
            if not stragglers and not self.jobs:
                break
            for process in stragglers:
                process.link.cut = True
            self._step()

    def _describe(self) -> str:
        phases = [d.manager.machine.phase for d in self.drivers if d.alive]
        pending = [sorted(d.manager.coordinator.unfinished) for d in self.drivers if d.alive]
        workers = [
            f"{p.name}:{'paused' if p.paused_until_ms > self.clock.now_ms else 'on'}"
            for p in self.processes.values()
            if p.alive
        ]
        return f"phases {phases}, pending {pending}, processes {workers}, jobs {len(self.jobs)}"

    # ---- one step of the scheduler

    def _step(self) -> None:
        now = self.clock.now_ms
        ready: list[tuple[float, object]] = []
        times: list[float] = []
        for process in self.processes.values():
            if process.alive:
                self._offer_process(process, now, ready, times)
        for driver in self.drivers:
            if driver.alive:
                self._offer_driver(driver, now, ready, times)
        for job in self.jobs:
            ready.append((1.0, job)) if job.ready_ms <= now else times.append(job.ready_ms)
        for plan in self._planned:
            ready.append((1.0, plan)) if plan.at_ms <= now else times.append(plan.at_ms)
        for at in self._drivers_planned_ms:
            ready.append((1.0, at)) if at <= now else times.append(at)
        if not ready:
            later = min((t for t in times if t > now), default=now + 10.0)
            self.clock.now_ms = later + self.rng.random() * 0.1
            return
        self.clock.now_ms = now + self.rng.random() * 0.4
        total = sum(weight for weight, _ in ready)
        pick = self.rng.random() * total
        for weight, what in ready:
            pick -= weight
            if pick <= 0:
                break
        self._do(what)

    def _offer_process(
        self,
        process: Process,
        now: float,
        ready: list[tuple[float, object]],
        times: list[float],
    ) -> None:
        link = process.link
        for queue, side in ((link.to_worker, "down"), (link.to_driver, "up")):
            if queue and not link.cut:
                if queue[0][0] <= now:
                    ready.append((1.0, (side, process)))
                else:
                    times.append(queue[0][0])
        if process.paused_until_ms > now:
            times.append(process.paused_until_ms)
            return
        wake = process.wake_ms
        due = wake is not None and wake <= now
        if process.dirty or due or process.background.has_results or link.delivered or link.cut:
            ready.append((self._weights.setdefault(process.name, self._draw_weight()), process))
        elif wake is not None:
            times.append(wake)

    def _draw_weight(self) -> float:
        return self.rng.choice((0.1, 1.0, 1.0, 3.0))

    def _offer_driver(
        self,
        driver: DriverProcess,
        now: float,
        ready: list[tuple[float, object]],
        times: list[float],
    ) -> None:
        wake = driver.wake_ms
        if driver.workers.events or driver.background.has_results or wake <= now:
            if not driver.manager.ended:
                ready.append((1.0, driver))
        elif not driver.manager.ended:
            times.append(wake)

    def _do(self, what: object) -> None:
        if isinstance(what, Process):
            self._step_process(what)
        elif isinstance(what, DriverProcess):
            what.manager.step()
            what.wake_ms = what.manager.wake_ms()
            self.checkers.after_driver(what)
            if what.manager.ended:
                self._close_driver(what)
        elif isinstance(what, Job):
            self.jobs.remove(what)
            self._finish(what)
        elif isinstance(what, PlannedLaunch):
            self._planned.remove(what)
            self._start_process(what)
        elif isinstance(what, float):
            self._drivers_planned_ms.remove(what)
            self._start_driver()
        elif isinstance(what, tuple):
            self._deliver(*what)

    def _step_process(self, process: Process) -> None:
        try:
            process.dirty = process.worker.step()
            attempt = process.worker.attempt
            process.wake_ms = attempt.wake_ms() if attempt is not None and attempt.running else None
            self.checkers.after_process(process)
        except DriverLost:
            self.note(process.name, "leaves: no driver")
            self._end_process(process)
            return
        if process.worker.leaving:
            self.note(process.name, "leaves: told to")
            self._end_process(process)

    def _deliver(self, side: str, process: Process) -> None:
        link = process.link
        if side == "down":
            _, message = link.to_worker.popleft()
            self.note(process.name, f"<- {_brief(message)}")
            link.delivered.append(message)
        else:
            _, answer = link.to_driver.popleft()
            self.note(process.name, f"-> {_brief(answer)}")
            self.drivers[process.driver].workers.deliver(link.worker, answer)

    def _finish(self, job: Job) -> None:
        if job.owner.alive:
            job.owner.finish(job)
        elif self.happens("late_write"):
            self.note(job.owner.name, "work of a dead process is done all the same")
            job.owner.finish(job)

    # ---- processes and drivers

    def _start_driver(self) -> None:
        number = len(self.drivers)
        background = SimBackground(self, f"driver-{number}")
        workers = SimWorkers(self, number)
        store = SimStore(self, self.disk, f"driver-{number}")
        files = CheckpointFiles(store, "job", f"driver-{number}", self.clock.wall_ms)
        manager = JobManager(
            self._spec(f"driver-{number}"), self._config, workers, files, self.clock, background, {}
        )
        self.note("world", f"driver {number} starts")
        self.drivers.append(DriverProcess(number, manager, workers, background))
        manager.begin()

    def _spec(self, who: str) -> JobSpec:
        mode = Mode.EXACTLY_ONCE if self.exactly_once else Mode.AT_LEAST_ONCE
        return JobSpec(
            "job", self.plan, mode, self._pace_ms, open_store=lambda: SimStore(self, self.disk, who)
        )

    def launch(self, driver: int, launch: int) -> None:
        at_ms = self.clock.now_ms + self.rng.random() * 30 * self._slow
        self._planned.append(PlannedLaunch(driver, launch, at_ms))

    def cancel(self, driver: int, launch: int) -> None:
        self._planned = [p for p in self._planned if (p.driver, p.launch) != (driver, launch)]
        for process in list(self.processes.values()):
            if process.alive and (process.driver, process.launch) == (driver, launch):
                self._kill(process, "cancelled")

    def _start_process(self, plan: PlannedLaunch) -> None:
        driver = self.drivers[plan.driver]
        if not driver.alive:
            return
        if self.happens("launch_failure"):
            self.note("world", f"launch {plan.launch} fails")
            driver.workers.events.append(LaunchEnded(plan.launch, "simulated launch failure"))
            return
        name = f"w{len(self.processes)}"
        link = Link(WorkerId(name))
        background = SimBackground(self, name)
        worker = Worker(
            lambda: self._spec(name),
            SimDriver(self, link),
            SimHost(self, name),
            self.clock,
            background,
        )
        self.processes[name] = Process(name, plan.driver, plan.launch, worker, link, background)
        driver.workers.links[link.worker] = link
        driver.workers.events.append(Joined(link.worker, plan.launch, "host", len(self.processes)))
        self.note(name, f"joins driver {plan.driver}, launch {plan.launch}")

    def _end_process(self, process: Process) -> None:
        """The process is gone: by itself, or killed."""
        process.alive = process.background.alive = False
        process.worker.close()
        self._tell_lost(process, "the process has ended")
        driver = self.drivers[process.driver]
        if not driver.alive:
            return
        if self.rng.random() < 0.5 and self.faults.crash:
            self.launch(process.driver, process.launch)
        else:
            driver.workers.events.append(LaunchEnded(process.launch, "the process has ended"))

    def _kill(self, process: Process, why: str) -> None:
        self.note(process.name, f"is killed: {why}")
        self._end_process(process)

    def _tell_lost(self, process: Process, reason: str) -> None:
        if process.link.cut:
            return
        process.link.cut = process.lost = True
        driver = self.drivers[process.driver]
        if driver.alive:
            driver.workers.events.append(Left(process.link.worker, reason))

    def _close_driver(self, driver: DriverProcess) -> None:
        """What the shell does when the job is over: whoever has not left is ended."""
        for process in list(self.processes.values()):
            if process.driver == driver.number and process.alive and not process.link.cut:
                self._kill(process, "the job is over")

    # ---- faults

    def happens(self, fault: str) -> bool:
        rate: float = getattr(self.faults, fault)
        return rate > 0 and self.rng.random() < rate

    def _strike(self) -> None:
        if self.faults == Faults():
            return
        if self.happens("crash") and (process := self._any_process()):
            self._kill(process, "crash")
        if self.happens("partition") and (process := self._any_process()):
            self.note(process.name, "loses its driver and does not know")
            self._tell_lost(process, "heartbeats missing")
            process.link.cut = False
            process.link.to_worker.clear()
            process.link.to_driver.clear()
            self._orphan(process)
        if self.happens("pause") and (process := self._any_process()):
            process.paused_until_ms = self.clock.now_ms + self.rng.random() * 3_000
            self.note(process.name, f"stands still until {process.paused_until_ms:.0f}")
            if process.paused_until_ms > self.clock.now_ms + 1_000:
                self._tell_lost(process, "heartbeats missing")
        if self.happens("driver_crash") and not self._drivers_planned_ms:
            running = [d for d in self.drivers if d.alive and not d.manager.ended]
            if len(running) == 1:
                self._crash_driver(running[0])
        if self.happens("second_driver") and len(self.drivers) < DRIVERS_MAX:
            self._drivers_planned_ms.append(self.clock.now_ms)

    def _any_process(self) -> Process | None:
        candidates = [p for p in self.processes.values() if p.alive and not p.link.cut]
        return self.rng.choice(candidates) if candidates else None

    def _orphan(self, process: Process) -> None:
        """The worker goes on with a connection that nobody listens to, until it notices."""
        link = process.link
        self.drivers[process.driver].workers.links.pop(link.worker, None)
        notices_ms = self.clock.now_ms + self.rng.random() * 1_500

        def notice() -> None:
            link.cut = True
            process.dirty = True

        self.jobs.append(Job(_Nobody(self), notice, _ignore, _ignore, notices_ms))

    def _crash_driver(self, driver: DriverProcess) -> None:
        self.note("world", f"driver {driver.number} is killed")
        driver.alive = driver.background.alive = False
        for process in self.processes.values():
            if process.driver == driver.number and process.alive:
                process.lost = True
                self._orphan(process)
        self._drivers_planned_ms.append(self.clock.now_ms + self.rng.random() * 500)

    # ---- asked by the ports

    def background_delay_ms(self) -> float:
        return self.rng.random() * self._write_ms

    def delivery_ms(self) -> float:
        return self.clock.now_ms + self.rng.random() * 3 * self._slow

    def loses(self, message: ToWorker | FromWorker) -> bool:
        if self.happens("drop_message"):
            self.note("network", f"loses {_brief(message)}")
            return True
        return False

    def watch_sent(self, driver: int, worker: WorkerId, message: ToWorker) -> None:
        self.checkers.on_sent(driver, worker, message)

    def touch(self, process: str) -> None:
        if process in self.processes:
            self.processes[process].dirty = True

    def open_channel(self, id: ChannelId) -> tuple[str, SimChannel]:
        endpoint = f"sim://{self._next_channel}"
        self._next_channel += 1
        self.channels[endpoint] = SimChannel(self, id, self._frames_max)
        return endpoint, self.channels[endpoint]

    def forget_channels(self, gone: Iterable[SimChannel]) -> None:
        dead = {id(channel) for channel in gone}
        self.channels = {e: c for e, c in self.channels.items() if id(c) not in dead}

    def is_stale(self, attempt: int) -> bool:
        """Whether a newer attempt has begun."""
        return attempt < self.checkers.newest_attempt

    def note(self, who: str, what: str) -> None:
        self.trace.note(self.clock.now_ms, who, what)

    def violation(self, invariant: str, what: str) -> None:
        if self.problem is None:
            self.problem = f"{invariant}: {what}"
            self.note("CHECKER", self.problem)


class _Nobody(SimBackground):
    """Runs what the world itself has planned."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "world")


def _ignore(_: object) -> None:
    """Nobody waits for this."""


def _brief(message: object) -> str:
    text = repr(message)
    return text if len(text) <= 110 else text[:107] + "..."
