"""A whole cluster in one thread: drivers, worker processes, storage and an external table under a seeded scheduler.

The engine and the protocol are the real ones. The scheduler picks, at every step, one thing that could happen next:
a process takes a step, a message arrives, a write ends, a fault strikes. Time is virtual: it creeps while things
happen and jumps when nothing can. First comes a phase with faults, then a healed one, in which the job must finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TypeAlias

from penstock.plan.physical import make_plan
from penstock.protocol.ids import ChannelId
from penstock.protocol.messages import FromWorker, ToWorker
from penstock.shells.sim import faults
from penstock.shells.sim.checkers import Checkers
from penstock.shells.sim.cluster import (
    Cluster,
    DriverProcess,
    PlannedDriver,
    PlannedLaunch,
    Process,
)
from penstock.shells.sim.faults import Faults
from penstock.shells.sim.outside import Table
from penstock.shells.sim.ports import Job, SimChannel, SimClock
from penstock.shells.sim.scenario import Draw, draw_everything
from penstock.shells.sim.strikes import Strikes
from penstock.shells.sim.trace import Trace, brief
from penstock.storage.memory import MemoryStore

FAULTY_MS = 4_000.0
HEALED_MS = 60_000.0
STEPS_MAX = 40_000

Happening: TypeAlias = (
    Process | DriverProcess | Job | PlannedLaunch | PlannedDriver | tuple[str, Process]
)
"""What the scheduler can pick; a tuple is a message that arrives."""


class Violation(Exception):
    """An invariant does not hold."""


class World:
    def __init__(self, seed: int, verbose: bool = False, draw: Draw = draw_everything) -> None:
        self.rng = rng = Random(seed)
        self.clock = SimClock()
        self.trace = Trace(verbose)
        drawn = draw(self, rng)
        self.faults = drawn.faults
        self.scenario = drawn.scenario
        self.exactly_once = drawn.exactly_once
        self.durable = drawn.durable
        self.settings = drawn.settings
        self.disk = MemoryStore()
        self.table = Table()
        self.checkers = Checkers(self)
        self.cluster = Cluster(self)
        self.jobs: list[Job] = []
        self.channels: dict[str, SimChannel] = {}
        self.damaged: set[int] = set()
        """Checkpoints of which a bit has changed."""
        self.problem: str | None = None
        self._strikes = Strikes(self)
        self._next_channel = 0
        self._introduce()

    def _introduce(self) -> None:
        """The head of the trace: what this seed has drawn."""
        plan = make_plan(
            self.scenario.graph, self.scenario.parallelism, self.scenario.max_parallelism
        )
        mode = "exactly once" if self.exactly_once else "at least once"
        tasks = "; ".join(f"{task.number}: {task.name}" for task in plan.tasks)
        self.note("drawn", f"pipeline: {self.scenario.describe()}")
        self.note("drawn", f"tasks: {tasks}")
        self.note("drawn", f"{mode if self.durable else 'no checkpoints'}; {self.settings}")
        self.note("drawn", f"sinks idempotent: {self.scenario.idempotent}")
        self.note("drawn", f"faults: {faults.describe(self.faults)}")

    # ---- running

    def run(self) -> None:
        """Raises `Violation` when an invariant does not hold."""
        self.cluster.start_driver()
        steps = 0
        while not self._over():
            steps += 1
            if self.clock.now_ms > FAULTY_MS and self.faults != Faults():
                self._heal()
            if steps > STEPS_MAX or self.clock.now_ms > FAULTY_MS + HEALED_MS:
                raise Violation(f"I25: the job does not come to its end: {self._describe()}")
            self._strikes.strike()
            self._step()
            if self.problem is not None:
                raise Violation(self.problem)
        self._settle()
        self.checkers.at_end()
        if self.problem is not None:
            raise Violation(self.problem)

    def _over(self) -> bool:
        cluster = self.cluster
        return not cluster.driver_is_planned and not any(d.busy for d in cluster.drivers)

    def _heal(self) -> None:
        self.note("world", "healed: no more faults")
        self.faults = Faults()
        self._strikes.heal()
        for process in self.cluster.processes.values():
            process.paused_until_ms = 0.0
            process.dirty = True

    def _settle(self) -> None:
        """The job has ended: stragglers get the time to notice."""
        for _ in range(5_000):
            stragglers = [p for p in self.cluster.processes.values() if p.alive]
            if not stragglers and not self.jobs:
                break
            for process in stragglers:
                process.link.cut = True
            self._step()

    def _describe(self) -> str:
        busy = [driver.manager for driver in self.cluster.drivers if driver.busy]
        phases = [manager.machine.phase for manager in busy]
        pending = [sorted(manager.coordinator.unfinished) for manager in busy]
        workers = [
            f"{p.name}:{'paused' if p.paused_until_ms > self.clock.now_ms else 'on'}"
            for p in self.cluster.processes.values()
            if p.alive
        ]
        return f"phases {phases}, pending {pending}, processes {workers}, jobs {len(self.jobs)}"

    # ---- one step of the scheduler

    def _step(self) -> None:
        now = self.clock.now_ms
        ready: list[tuple[float, Happening]] = []
        times: list[float] = []
        for process in self.cluster.processes.values():
            if process.alive:
                self._offer_process(process, now, ready, times)
        for driver in self.cluster.drivers:
            if driver.busy:
                self._offer_driver(driver, now, ready, times)
        for job in self.jobs:
            ready.append((1.0, job)) if job.ready_ms <= now else times.append(job.ready_ms)
        for plan in self.cluster.planned:
            ready.append((1.0, plan)) if plan.at_ms <= now else times.append(plan.at_ms)
        if not ready:
            later = min((t for t in times if t > now), default=now + 10.0)
            self.clock.now_ms = later + self.rng.random() * 0.1
            return
        self.clock.now_ms = now + self.rng.random() * 0.5
        self._do(self._pick(ready))

    def _pick(self, ready: list[tuple[float, Happening]]) -> Happening:
        pick = self.rng.random() * sum(weight for weight, _ in ready)
        for weight, what in ready:
            pick -= weight
            if pick <= 0:
                return what
        return ready[-1][1]

    def _offer_process(
        self,
        process: Process,
        now: float,
        ready: list[tuple[float, Happening]],
        times: list[float],
    ) -> None:
        link = process.link
        if not link.cut:
            for queue, side in ((link.to_worker, "down"), (link.to_driver, "up")):
                if queue:
                    at = queue[0][0]
                    ready.append((1.0, (side, process))) if at <= now else times.append(at)
        if process.paused_until_ms > now:
            times.append(process.paused_until_ms)
            return
        wake = process.wake_ms
        due = wake is not None and wake <= now
        if process.dirty or due or process.background.has_results or link.delivered or link.cut:
            ready.append((process.weight, process))
        elif wake is not None:
            times.append(wake)

    def _offer_driver(
        self,
        driver: DriverProcess,
        now: float,
        ready: list[tuple[float, Happening]],
        times: list[float],
    ) -> None:
        if driver.workers.events or driver.background.has_results or driver.wake_ms <= now:
            ready.append((1.0, driver))
        else:
            times.append(driver.wake_ms)

    def _do(self, what: Happening) -> None:
        if isinstance(what, Process):
            self.cluster.step_process(what)
        elif isinstance(what, DriverProcess):
            self.cluster.step_driver(what)
        elif isinstance(what, Job):
            self.jobs.remove(what)
            self._finish(what)
        elif isinstance(what, tuple):
            self._deliver(*what)
        else:
            self.cluster.start(what)

    def _deliver(self, side: str, process: Process) -> None:
        link = process.link
        if side == "down":
            _, message = link.to_worker.popleft()
            self.note(process.name, f"<- {brief(message)}")
            link.delivered.append(message)
        else:
            _, answer = link.to_driver.popleft()
            self.note(process.name, f"-> {brief(answer)}")
            self.checkers.on_answer(answer)
            self.cluster.drivers[process.driver].workers.deliver(link.worker, answer)

    def _finish(self, job: Job) -> None:
        if job.owner.alive:
            job.owner.finish(job)
        elif self.happens("late_write"):
            self.note(job.owner.name, "work of a dead process is done all the same")
            job.owner.finish(job)

    # ---- asked by the ports and by what stands outside

    def happens(self, fault: str) -> bool:
        rate: float = getattr(self.faults, fault)
        return rate > 0 and self.rng.random() < rate

    def background_delay_ms(self) -> float:
        return self.rng.random() * self.settings.write_ms

    def delivery_ms(self) -> float:
        return self.clock.now_ms + self.rng.random() * 3 * self.settings.slow

    def copies(self, message: ToWorker | FromWorker) -> int:
        """How often a control message arrives."""
        if self.happens("drop_message"):
            self.note("network", f"loses {brief(message)}")
            return 0
        return 2 if self.happens("duplicate_message") else 1

    def touch(self, process: str) -> None:
        if process in self.cluster.processes:
            self.cluster.processes[process].dirty = True

    def open_channel(self, id: ChannelId) -> tuple[str, SimChannel]:
        endpoint = f"sim://{self._next_channel}"
        self._next_channel += 1
        self.channels[endpoint] = SimChannel(self, id, self.settings.frames_max)
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
