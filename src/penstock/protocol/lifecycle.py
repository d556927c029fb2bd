"""The life of a job: workers come and go, attempts are deployed and fail, until the job ends.

Theory of operation. A job needs one worker per slot. Workers outlive attempts: when an attempt fails, for whatever
reason, every worker drops it, lost workers are replaced, and the next attempt is deployed to whoever is there.

    Gathering -> Claiming -> Deploying -> Connecting -> Running -> Ending -> Ended
        ^------------+-----------+------------+------------+   (failure)

*Gathering* waits for three things: a clean worker for every slot, old attempts dropped everywhere, and the delay that
the restart strategy asks for. *Claiming* takes the next attempt number and finds what to restore: storage decides.
Nothing runs before every worker of the plan has said Ready; an attempt that somebody keeps waiting too long fails.
*Connecting* waits until every worker has reached all others. A network that is cut is waited for, and that is no
failure: an attempt that has not begun has nothing to lose. Only a job that has never run ends when it stays cut.
A job that never ran fails when slots stay without workers for too long. One that has run waits for them as long as it
takes, and says so: a cluster that is short of cores for a while must not end it.

Somebody who cancels the Spark job of a worker from outside makes no failure of the job: the worker is replaced at once,
everybody goes back to the newest checkpoint, and the restart strategy does not hear of it.

The machine is told what happened and says what to do. It reads no clock and sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.protocol import restart
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, WorkerId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.phases import (
    Action,
    AttemptOver,
    AttemptRuns,
    CancelLaunch,
    CannotConnect,
    ClaimAttempt,
    Claiming,
    Connecting,
    Deploying,
    Ended,
    Ending,
    Gathering,
    JobEnded,
    LaunchWorker,
    NotReady,
    Outcome,
    Phase,
    RequestStop,
    Running,
    SendDeploy,
    SendDrop,
    SendLeave,
    SendStart,
    SlotsMissing,
)

DROP_PATIENCE_MS = 1_500
"""How long a worker may take to drop an attempt; its own watchdog ends it earlier."""
REJOIN_PATIENCE_MS = 5_000
"""How long Spark's own retry may take to bring a lost worker back before a new one is launched."""
SILENT_PATIENCE_MS = 15_000
"""How long a launch of a job that has run may bring no worker, the first time."""
CONNECT_PATIENCE_MS = 3_000
"""How long workers may take to reach each other before anybody is told."""
LEAVE_PATIENCE_MS = 2_000
LAUNCH_FAILURES_MAX = 10
RAN_WELL_MS = 60_000
"""An attempt that completed a checkpoint and ran so long got past the rows that earlier ones failed at."""


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    slots: int
    spare_workers: int = 0
    strategy: restart.Strategy = restart.Exponential()
    slot_timeout_ms: int = 30_000
    """How long workers may be missing before the job fails, or, once it has run, before that is told."""
    deploy_timeout_ms: int = 600_000
    """How long workers may take to open and restore what they were given."""
    goes_on: bool = True
    """False without checkpoints: there is nothing to go on from, so every lost worker ends the job."""


@dataclass(frozen=True, slots=True)
class Member:
    """A registered worker. `attempt` is what it was last told to run and has not dropped."""

    launch: int
    host: str = ""
    slot: SlotId | None = None
    attempt: AttemptId | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """A Spark job that is to bring a worker. `waiting_since_ms` is None while its worker is registered."""

    waiting_since_ms: float | None
    was_here: bool = False


class JobMachine:
    def __init__(self, config: LifecycleConfig) -> None:
        self.config = config
        self.phase: Phase = Gathering(0.0, 0.0, 0.0)
        self.members: dict[WorkerId, Member] = {}
        self.launches: dict[int, Launch] = {}
        self.failures_ms: list[float] = []
        """What the restart strategy counts."""
        self.began_again = False
        """An attempt has failed or lost a worker, whether that counts or not."""
        self.repeats = restart.Repeats()
        self.has_run = False
        """Every subtask of some attempt ran: there was room for the job."""
        self.stop_wanted = False
        self.attempts = 0
        self._runs_since_ms = 0.0
        self._homes: dict[SlotId, str] = {}
        """The host that each slot was on last."""
        self._next_launch = 0
        self._launch_failures = 0
        self._silent_launches = 0
        self._relaunch_ms: list[float] = []

    # ---- beginning and ending

    def begin(self, now_ms: float) -> list[Action]:
        self.phase = Gathering(now_ms, now_ms, now_ms)
        count = self.config.slots + self.config.spare_workers
        return [self._launch(now_ms) for _ in range(count)]

    def cancel(self, now_ms: float) -> list[Action]:
        return self._end(Outcome.CANCELLED, "cancelled by the user", now_ms)

    def stop(self, now_ms: float) -> list[Action]:
        """Stops behind a last snapshot; one that is not running yet stops as soon as it is."""
        if self.stop_wanted or isinstance(self.phase, Ending | Ended):
            return []
        self.stop_wanted = True
        return [RequestStop()] if isinstance(self.phase, Running) else []

    def completed(self, attempt: AttemptId, outcome: Outcome, now_ms: float) -> list[Action]:
        """The last snapshot is committed everywhere."""
        match self.phase:
            case Running(current) if current == attempt:
                return self._end(outcome, "", now_ms)
            case _:
                return []

    def fail_for_good(self, reason: str, now_ms: float) -> list[Action]:
        return self._end(Outcome.FAILED, reason, now_ms)

    # ---- workers

    def joined(self, worker: WorkerId, launch: int, now_ms: float, host: str = "") -> list[Action]:
        if isinstance(self.phase, Ending | Ended):
            return [SendLeave(worker)]
        if launch not in self.launches:
            return [SendLeave(worker), CancelLaunch(launch)]
        self.launches[launch] = Launch(None, was_here=True)
        self.members[worker] = Member(launch, host)
        self._launch_failures = self._silent_launches = 0
        return self._advance(now_ms)

    def left(self, worker: WorkerId, reason: str, now_ms: float) -> list[Action]:
        member = self.members.pop(worker, None)
        if member is None:
            return []
        if member.launch in self.launches:
            self.launches[member.launch] = Launch(now_ms, was_here=True)
        if self._works_in_present_attempt(member):
            return self.attempt_failed(self._present_attempt(), f"worker lost: {reason}", now_ms)
        return self._advance(now_ms)

    def launch_ended(self, launch: int, reason: str, fatal: bool, now_ms: float) -> list[Action]:
        known = self.launches.pop(launch, None)
        if known is None or isinstance(self.phase, Ending | Ended):
            return []
        if fatal:
            return self.fail_for_good(reason, now_ms)
        if known.was_here:
            return [self._launch(now_ms), *self._advance(now_ms)]
        self._launch_failures += 1
        if self._launch_failures > LAUNCH_FAILURES_MAX:
            return self.fail_for_good(
                f"no worker could be started, {self._launch_failures} times in a row: {reason}",
                now_ms,
            )
        self._relaunch_ms.append(now_ms + 100 * 2**self._launch_failures)
        return self._advance(now_ms)

    def launch_cancelled(self, launch: int, reason: str, now_ms: float) -> list[Action]:
        """Somebody cancelled its Spark job, which is not the job's fault: its worker counts as gone from now on,
        another is launched without a pause, and the restart strategy is not asked."""
        known = self.launches.pop(launch, None)
        if known is None or isinstance(self.phase, Ending | Ended):
            return []
        lost = [worker for worker, member in self.members.items() if member.launch == launch]
        gone = [self.members.pop(worker) for worker in lost]
        if not any(self._works_in_present_attempt(member) for member in gone):
            return [self._launch(now_ms), *self._advance(now_ms)]
        if not self.config.goes_on:
            return self._failed(f"worker lost: {reason}", now_ms)
        return [self._launch(now_ms), *self._begin_again(0, now_ms, counts=False)]

    def crowded(self, launches: Sequence[int], now_ms: float) -> list[Action]:
        """These would be better elsewhere. Nobody is moved while the job runs: between two attempts it costs a moment
        only."""
        if not isinstance(self.phase, Gathering):
            return []
        actions: list[Action] = []
        for launch in launches:
            if self.launches.pop(launch, None) is not None:
                gone = [w for w, member in self.members.items() if member.launch == launch]
                for worker in gone:
                    del self.members[worker]
                actions += [CancelLaunch(launch), self._launch(now_ms)]
        return actions

    def dropped(self, worker: WorkerId, attempt: AttemptId, now_ms: float) -> list[Action]:
        member = self.members.get(worker)
        if member is not None and member.attempt is not None and member.attempt <= attempt:
            self.members[worker] = replace(member, attempt=None)
        return self._advance(now_ms)

    def ready(
        self, worker: WorkerId, attempt: AttemptId, endpoints: Mapping[str, str], now_ms: float
    ) -> list[Action]:
        match self.phase:
            case Deploying(current) if current == attempt and worker in self.phase.owed:
                known = dict(self.phase.endpoints)
                if (slot := self.members[worker].slot) is not None:
                    known[slot] = endpoints
                self.phase = replace(self.phase, owed=self.phase.owed - {worker}, endpoints=known)
                return self._advance(now_ms)
            case Running(current) | Connecting(current) if current == attempt:
                return [SendStart(worker, attempt, self.phase.endpoints)]
            case _:
                return []

    def connected(self, worker: WorkerId, attempt: AttemptId, now_ms: float) -> list[Action]:
        match self.phase:
            case Connecting(current) if current == attempt:
                self.phase = replace(self.phase, owed=self.phase.owed - {worker})
                return self._advance(now_ms)
            case _:
                return []

    def unreached(
        self, worker: WorkerId, attempt: AttemptId, peers: tuple[str, ...], now_ms: float
    ) -> list[Action]:
        """A worker waits for others. Told when it is news and not over in a moment."""
        phase = self.phase
        if not isinstance(phase, Connecting) or phase.attempt != attempt:
            return []
        if now_ms < phase.since_ms + CONNECT_PATIENCE_MS or phase.unreached.get(worker) == peers:
            return []
        self.phase = replace(phase, unreached={**phase.unreached, worker: peers})
        return [CannotConnect(attempt, worker, peers)]

    # ---- attempts

    def claimed(
        self,
        attempt: AttemptId,
        restored: CheckpointId,
        kind: SnapshotKind | None,
        now_ms: float,
    ) -> list[Action]:
        if not isinstance(self.phase, Claiming):
            return []
        crew = self._crew()
        if crew is None:
            self.phase = Gathering(now_ms, now_ms, now_ms)
            return self._advance(now_ms)
        self.attempts += 1
        for worker, slot in crew.items():
            self.members[worker] = replace(self.members[worker], slot=slot, attempt=attempt)
            self._homes[slot] = self.members[worker].host
        until_ms = now_ms + self.config.deploy_timeout_ms
        self.phase = Deploying(attempt, restored, kind, frozenset(crew), {}, until_ms)
        return [SendDeploy(worker, slot, attempt) for worker, slot in crew.items()]

    def claim_failed(self, reason: str, fatal: bool, now_ms: float) -> list[Action]:
        if not isinstance(self.phase, Claiming):
            return []
        if fatal:
            return self.fail_for_good(reason, now_ms)
        return self._failed(reason, now_ms)

    def attempt_failed(
        self,
        attempt: AttemptId | None,
        reason: str,
        now_ms: float,
        *,
        what: str = "",
        progressed: bool = False,
    ) -> list[Action]:
        """Two failures of one attempt are one: the second finds another phase or attempt. `what` is told of a failure
        about rows, see `restart.Repeats`; `progressed` when a checkpoint of the attempt had completed."""
        if attempt is None or attempt != self._present_attempt():
            return []
        ran_well = progressed and now_ms - self._runs_since_ms >= RAN_WELL_MS
        return self._failed(reason, now_ms, what, ran_well)

    def _failed(
        self, reason: str, now_ms: float, what: str = "", ran_well: bool = False
    ) -> list[Action]:
        self.failures_ms.append(now_ms)
        self.repeats = self.repeats.after(what, ran_well=ran_well)
        match restart.decide(self.config.strategy, self.failures_ms, self.repeats):
            case restart.GiveUp(why):
                return self._end(Outcome.FAILED, f"{reason} ({why})", now_ms)
            case restart.RestartAfter(delay_ms):
                return self._begin_again(delay_ms, now_ms)

    def _begin_again(self, delay_ms: int, now_ms: float, *, counts: bool = True) -> list[Action]:
        attempt = self._present_attempt()
        over: list[Action] = [] if attempt is None else [AttemptOver(attempt, counts)]
        self.began_again = True
        self.phase = Gathering(now_ms, now_ms + delay_ms, now_ms + DROP_PATIENCE_MS)
        return over + self._drops() + self._advance(now_ms)

    # ---- time

    def tick(self, now_ms: float) -> list[Action]:
        actions: list[Action] = []
        if isinstance(self.phase, Ending):
            return self._finish_ending(now_ms)
        if isinstance(self.phase, Ended):
            return []
        for launch, state in sorted(self.launches.items()):
            due_ms = self._give_up_ms(state)
            if due_ms is not None and now_ms >= due_ms:
                del self.launches[launch]
                self._silent_launches += not state.was_here
                actions += [CancelLaunch(launch), self._launch(now_ms)]
        due = [at for at in self._relaunch_ms if at <= now_ms]
        self._relaunch_ms = [at for at in self._relaunch_ms if at > now_ms]
        actions += [self._launch(now_ms) for _ in due]
        return actions + self._advance(now_ms)

    def wake_ms(self, now_ms: float) -> float | None:
        """When `tick` has something to do next, if nothing else happens: always later than now."""
        times = list(self._relaunch_ms)
        due = [self._give_up_ms(state) for state in self.launches.values()]
        times += [time for time in due if time is not None]
        match self.phase:
            case Gathering(not_before_ms=not_before, drop_until_ms=drop_until):
                times += [not_before, drop_until, self._slots_by_ms(self.phase)]
            case Deploying(until_ms=until) | Ending(until_ms=until):
                times.append(until)
            case Connecting(since_ms=since) if not self.has_run:
                times.append(since + self.config.slot_timeout_ms)
            case _:
                pass
        return min((time for time in times if time > now_ms), default=None)

    def repeat(self) -> list[Action]:
        """What someone still owes an answer to, said again: nothing relies on one message arriving."""
        match self.phase:
            case Gathering():
                return self._drops()
            case Deploying(attempt, owed=owed):
                members = self.members
                return [
                    SendDeploy(worker, slot, attempt)
                    for worker in sorted(owed)
                    if worker in members and (slot := members[worker].slot) is not None
                ]
            case Connecting(attempt, owed=owed, endpoints=endpoints):
                return [SendStart(worker, attempt, endpoints) for worker in sorted(owed)]
            case Running(attempt):
                return [
                    SendDrop(worker, member.attempt)
                    for worker, member in sorted(self.members.items())
                    if member.attempt is not None and member.attempt != attempt
                ]
            case Ending():
                return [SendLeave(worker) for worker in sorted(self.members)]
            case _:
                return []

    # ---- inside

    def _give_up_ms(self, launch: Launch) -> float | None:
        """When a launch is given up and another made in its place; None: not while it is as it is. One that never
        brought a worker may have gone where nobody is any more, or may just be slow: patience grows."""
        if launch.waiting_since_ms is None:
            return None
        if launch.was_here:
            return launch.waiting_since_ms + REJOIN_PATIENCE_MS
        if not self.has_run:
            return None
        return launch.waiting_since_ms + (SILENT_PATIENCE_MS << min(self._silent_launches, 6))

    def _advance(self, now_ms: float) -> list[Action]:
        match self.phase:
            case Gathering():
                return self._try_claim(self.phase, now_ms)
            case Deploying(attempt, restored, kind, owed, endpoints) if not owed:
                return self._all_ready(attempt, restored, kind, endpoints, now_ms)
            case Deploying(until_ms=until) if now_ms >= until:
                return self._not_ready(self.phase, now_ms)
            case Connecting(owed=owed) if not owed:
                return self._all_connected(self.phase, now_ms)
            case Connecting(since_ms=since) if (
                not self.has_run and now_ms >= since + self.config.slot_timeout_ms
            ):
                return self.fail_for_good(self._cut_off(self.phase), now_ms)
            case Ending():
                return self._finish_ending(now_ms)
            case _:
                return []

    def _slots_by_ms(self, phase: Gathering) -> float:
        """A worker that is lost while the restart strategy makes everybody wait has time to be replaced, too. What
        has been told is told again when twice the time has passed."""
        patience_ms = self.config.slot_timeout_ms << phase.told
        return max(phase.since_ms, phase.not_before_ms) + patience_ms

    def _try_claim(self, phase: Gathering, now_ms: float) -> list[Action]:
        if self._crew() is None:
            return self._too_few(phase, now_ms) if now_ms >= self._slots_by_ms(phase) else []
        dropping = any(member.attempt is not None for member in self.members.values())
        if now_ms < phase.not_before_ms or (dropping and now_ms < phase.drop_until_ms):
            return []
        self.phase = Claiming()
        return [ClaimAttempt()]

    def _all_ready(
        self,
        attempt: AttemptId,
        restored: CheckpointId,
        kind: SnapshotKind | None,
        endpoints: Mapping[int, Mapping[str, str]],
        now_ms: float,
    ) -> list[Action]:
        """What was restored may be a job's end already: then its commits were repeated, and that is all."""
        if kind is SnapshotKind.FINAL:
            return self._end(Outcome.FINISHED, "", now_ms)
        if kind is SnapshotKind.STOP and self.stop_wanted:
            return self._end(Outcome.STOPPED, "", now_ms)
        crew = [w for w, member in sorted(self.members.items()) if member.attempt == attempt]
        self.phase = Connecting(attempt, restored, frozenset(crew), endpoints, now_ms, {})
        return [SendStart(worker, attempt, endpoints) for worker in crew]

    def _all_connected(self, phase: Connecting, now_ms: float) -> list[Action]:
        self.has_run = True
        self._runs_since_ms = now_ms
        self.phase = Running(phase.attempt, phase.endpoints)
        actions: list[Action] = [AttemptRuns(phase.attempt, phase.restored)]
        if self.stop_wanted:
            actions.append(RequestStop())
        return actions

    def _cut_off(self, phase: Connecting) -> str:
        """A job that never ran may be on a network where it never can."""
        told = [", ".join(peers) for _, peers in sorted(phase.unreached.items())]
        return (
            f"the workers could not reach each other within {self.config.slot_timeout_ms / 1000:g} s: no answer "
            f"from {'; '.join(told) or 'some of them'}. Executors must reach each other: open the ports between "
            "them (spark.penstock.data.ports), or raise slot_timeout"
        )

    def _not_ready(self, phase: Deploying, now_ms: float) -> list[Action]:
        late = tuple(sorted(phase.owed))
        slots = sorted(self.members[worker].slot or 0 for worker in late if worker in self.members)
        who = "the worker of slot" if len(slots) == 1 else "the workers of slots"
        reason = (
            f"not ready within {self.config.deploy_timeout_ms / 1000:g} s: {who} "
            f"{', '.join(map(str, slots))}. What hangs is an open() of a source, an operator or a sink, or "
            "the reading of the checkpoint"
        )
        return [NotReady(phase.attempt, late, reason), *self._failed(reason, now_ms)]

    def _crew(self) -> dict[WorkerId, SlotId] | None:
        """A clean worker for every slot, each in the slot it had; to others a worker on the host where they were, which
        may have copies of their state. None when there are too few."""
        clean = {w: m for w, m in sorted(self.members.items()) if m.attempt is None}
        crew: dict[WorkerId, SlotId] = {}
        free = {SlotId(i) for i in range(self.config.slots)}
        for worker, member in clean.items():
            if member.slot in free and member.slot is not None:
                crew[worker] = member.slot
                free.discard(member.slot)
        idle = [worker for worker in clean if worker not in crew]
        if len(idle) < len(free):
            return None
        for slot in sorted(free):
            near = [w for w in idle if clean[w].host == self._homes.get(slot)]
            if near:
                crew[near[0]] = slot
                idle.remove(near[0])
                free.discard(slot)
        crew.update(zip(idle, sorted(free), strict=False))
        return crew

    def _present_attempt(self) -> AttemptId | None:
        match self.phase:
            case Running(attempt) | Connecting(attempt) | Deploying(attempt):
                return attempt
            case _:
                return None

    def _works_in_present_attempt(self, member: Member) -> bool:
        return member.attempt is not None and member.attempt == self._present_attempt()

    def _drops(self) -> list[Action]:
        return [
            SendDrop(worker, member.attempt)
            for worker, member in sorted(self.members.items())
            if member.attempt is not None
        ]

    def _launch(self, now_ms: float) -> LaunchWorker:
        launch = self._next_launch
        self._next_launch += 1
        self.launches[launch] = Launch(now_ms)
        return LaunchWorker(launch)

    def _too_few(self, phase: Gathering, now_ms: float) -> list[Action]:
        needs = f"the job needs {self.config.slots} workers (one free core each) and only "
        if self.has_run:
            waited_s = round((now_ms - max(phase.since_ms, phase.not_before_ms)) / 1000)
            there = f"{len(self.members)} are there after {waited_s} s"
            self.phase = replace(phase, told=phase.told + 1)
            return [SlotsMissing(f"{needs}{there}; it goes on as soon as the others come", True)]
        timeout_s = self.config.slot_timeout_ms / 1000
        reason = (
            f"{needs}{len(self.members)} registered within {timeout_s:g} s; free some cores, lower parallelism, "
            "or let it wait longer with start(..., slot_timeout=...)"
        )
        return [SlotsMissing(reason, False), *self.fail_for_good(reason, now_ms)]

    def _end(self, outcome: Outcome, reason: str, now_ms: float) -> list[Action]:
        if isinstance(self.phase, Ending | Ended):
            return []
        attempt = self._present_attempt()
        over: list[Action] = [] if attempt is None else [AttemptOver(attempt)]
        ran = isinstance(self.phase, Running)
        self.phase = Ending(outcome, reason, now_ms + LEAVE_PATIENCE_MS, ran)
        leaves: list[Action] = [SendLeave(worker) for worker in sorted(self.members)]
        return over + leaves + self._finish_ending(now_ms)

    def _finish_ending(self, now_ms: float) -> list[Action]:
        phase = self.phase
        if not isinstance(phase, Ending) or (self.members and now_ms < phase.until_ms):
            return []
        self.phase = Ended(phase.outcome, phase.reason)
        cancels: list[Action] = [CancelLaunch(launch) for launch in sorted(self.launches)]
        return [*cancels, JobEnded(phase.outcome, phase.reason)]
