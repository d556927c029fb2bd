"""A whole cluster in one thread: drivers, worker processes, storage and an external table under a seeded scheduler.

The engine and the protocol are the real ones. The scheduler picks, at every step, one thing that could happen next:
a process takes a step, a message arrives, a write ends, a fault strikes. Time is virtual: it creeps while things
happen and jumps when nothing can. First comes a phase with faults, then a healed one, in which the job must finish.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from random import Random
from typing import Any

from penstock.plan.physical import make_plan
from penstock.protocol.ids import ChannelId
from penstock.protocol.messages import FromWorker, ToWorker
from penstock.shells.sim import faults, scheduler
from penstock.shells.sim.checkers import Checkers
from penstock.shells.sim.cluster import Cluster, DriverProcess, Process
from penstock.shells.sim.copies import CopiesDisk
from penstock.shells.sim.faults import Faults
from penstock.shells.sim.outside import Table
from penstock.shells.sim.ports import Job, Link, SimBackground, SimChannel, SimClock, ignore
from penstock.shells.sim.scenario import Draw, draw_everything
from penstock.shells.sim.strands import Strand
from penstock.shells.sim.strikes import Strikes
from penstock.shells.sim.trace import Trace
from penstock.storage.memory import MemoryStore

FAULTY_MS = 4_000.0
HEALED_MS = 60_000.0
STEPS_MAX = 40_000

REPEATED_MS = 1_500.0
"""How late the second copy of a message may come."""
IDLE_MS = 10.0
"""How far time jumps when nothing at all is to come."""


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
        self.keeping, self.keeping_later = drawn.keeping, drawn.keeping_later or drawn.keeping
        copies = self.keeping.copies or self.keeping_later.copies
        self.local_disk = CopiesDisk(Random(f"copies {seed}")) if copies else None
        self.table = Table()
        self.checkers = Checkers(self)
        self.cluster = Cluster(self)
        self.jobs: list[Job] = []
        self.channels: dict[str, SimChannel] = {}
        self.harmed: set[str] = set()
        """Files of checkpoints that are not what was written."""
        self.healed = False
        self.problem: str | None = None
        self._strikes = Strikes(self)
        self._at_work: Job | None = None
        """The background work whose strand is running."""
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
        kept, later = self.keeping.describe(), self.keeping_later.describe()
        self.note("drawn", kept if kept == later else f"{kept}; when started again {later}")
        self.note("drawn", f"sinks idempotent: {self.scenario.idempotent}")
        self.note("drawn", f"faults: {faults.describe(self.faults)}")

    # ---- running

    def run(self) -> None:
        """Raises `Violation` when an invariant does not hold."""
        try:
            self._run()
        finally:
            self.close()

    def _run(self) -> None:
        self.cluster.start_driver()
        steps = 0
        while not self._over():
            steps += 1
            if self.clock.now_ms > FAULTY_MS:
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
        return not self.cluster.running and not self.cluster.driver_is_planned

    def _heal(self) -> None:
        """The end of the phase with faults: from now on the job must come to its end (I25)."""
        if self.healed:
            return
        self.healed = True
        self.note("world", "healed: no more faults")
        self.faults = Faults()
        self._strikes.heal()
        for process in self.cluster.alive:
            process.paused_until_ms = 0.0
            process.dirty = True

    def _settle(self) -> None:
        """The job has ended: stragglers get the time to notice."""
        for _ in range(5_000):
            stragglers = self.cluster.alive
            if not stragglers and not self.jobs:
                break
            for process in stragglers:
                process.link.cut = True
            self._step()

    def _describe(self) -> str:
        busy = [driver.manager for driver in self.cluster.running]
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
        clock, rng = self.clock, self.rng
        now_ms = clock.now_ms
        found = scheduler.offers(self.cluster, self.jobs, now_ms)
        if found.ready:
            clock.now_ms = now_ms + rng.random() * 0.5
            self._do(scheduler.pick(found, rng))
        else:
            later_ms = now_ms + IDLE_MS if found.later_ms == inf else found.later_ms
            clock.now_ms = later_ms + rng.random() * 0.1

    def _do(self, what: scheduler.Happening) -> None:
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
            self.note(process.name, "<-", message)
            link.delivered.append(message)
        else:
            _, answer = link.to_driver.popleft()
            self.note(process.name, "->", answer)
            self.checkers.on_answer(process.driver, answer)
            self.cluster.drivers[process.driver].workers.deliver(link.worker, answer)

    # ---- background work

    def _finish(self, job: Job) -> None:
        owner = job.owner
        if not owner.alive:
            if not self.happens("late_write"):
                self._abandon(job)
                return
            self.note(owner.name, "work of a dead process is done all the same")
        if job.strand is not None or faults.interleaves(self.faults):
            self._work_in_pieces(job)
            return
        try:
            result = job.work()
        except Exception as error:
            owner.finish(job, None, error)
        else:
            owner.finish(job, result, None)

    def _work_in_pieces(self, job: Job) -> None:
        if job.strand is None:
            job.strand = Strand(job.work)
        self._at_work = job
        job.strand.resume()
        self._at_work = None
        if job.strand.done:
            job.owner.finish(job, job.strand.result, job.strand.error)
        else:
            self.jobs.append(job)

    def _abandon(self, job: Job) -> None:
        """The process died before it or in the middle of it: what is done stays done, also half a file."""
        if job.strand is not None:
            job.strand.abandon()

    def pause(self, how_long_ms: float) -> None:
        """Called in the middle of background work: other things happen first. Elsewhere it does nothing."""
        job = self._at_work
        if job is not None and job.strand is not None:
            job.ready_ms = self.clock.now_ms + how_long_ms
            self.note(job.owner.name, f"work stands still for {how_long_ms:.0f} ms")
            job.strand.pause()

    def close(self) -> None:
        """Nothing stays half done."""
        for job in self.jobs:
            self._abandon(job)
        self.jobs.clear()

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
            self.note("network", "loses", message)
            return 0
        return 2 if self.happens("duplicate_message") else 1

    def repeat_later(self, link: Link, queue: deque[tuple[float, Any]], message: Any) -> None:
        """A message may come once more when nobody expects it: after others, even after a restart."""
        if not self.happens("duplicate_message"):
            return

        def again() -> None:
            if not link.cut:
                self.note("network", "repeats", message)
                queue.appendleft((self.clock.now_ms, message))

        nobody = SimBackground(self, "world")
        at_ms = self.clock.now_ms + self.rng.random() * REPEATED_MS
        self.jobs.append(Job(nobody, again, ignore, ignore, at_ms))

    def touch(self, name: str, at_ms: float = 0.0) -> None:
        """A process has something to do, now or from a moment on."""
        process = self.cluster.processes.get(name)
        if process is None:
            return
        if at_ms <= self.clock.now_ms:
            process.dirty = True
        else:
            process.arrival_ms = min(process.arrival_ms, at_ms)
            process.wake_ms = min(process.wake_ms, at_ms)

    def open_channel(self, attempt: int, id: ChannelId) -> tuple[str, SimChannel]:
        endpoint = f"sim://{self._next_channel}"
        self._next_channel += 1
        transit_ms = self.settings.transit_ms if self.rng.random() < 0.5 else 0.0
        self.channels[endpoint] = SimChannel(
            self, id, self.settings.frames_max, self.checkers.cuts.log(attempt, id), transit_ms
        )
        return endpoint, self.channels[endpoint]

    def forget_channels(self, gone: Iterable[SimChannel]) -> None:
        dead = {id(channel) for channel in gone}
        self.channels = {e: c for e, c in self.channels.items() if id(c) not in dead}

    def is_stale(self, attempt: int) -> bool:
        """Whether a newer attempt has begun."""
        return attempt < self.checkers.newest_attempt

    def note(self, who: str, what: str, message: ToWorker | FromWorker | None = None) -> None:
        self.trace.note(self.clock.now_ms, who, what, message)

    def violation(self, invariant: str, what: str) -> None:
        if self.problem is None:
            self.problem = f"{invariant}: {what}"
            self.note("CHECKER", self.problem)
