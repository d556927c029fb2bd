"""The job manager: one loop in the driver that carries out what the protocol's machines decide.

`JobMachine` decides about workers and attempts, `Coordinator` about snapshots; this file brings them the events and
does what they say: sends messages and launches workers. What takes longer has files of its own and happens in the
background: `claiming` finds what an attempt goes on from, `durable` makes checkpoints exist, deletes them, and keeps
the job's history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.connectors.base import Sink
from penstock.engine.checkpoints.claiming import Claims, may_pass
from penstock.engine.checkpoints.durable import Durable
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.manifests import make_manifest
from penstock.engine.checkpoints.persisting import unsettled
from penstock.engine.checkpoints.restore_points import RestorePoint, RestoreWish
from penstock.engine.driver.crew import Crew
from penstock.engine.driver.feeding import Feeding
from penstock.engine.driver.numbers import Numbers
from penstock.engine.driver.progress import Progress
from penstock.engine.driver.restarting import restart_line
from penstock.engine.driver.restores import Restores
from penstock.engine.driver.troubles import Troubles
from penstock.engine.history.history import History
from penstock.engine.history.infos import mode_of
from penstock.engine.history.records import WorkerInfo
from penstock.engine.later import Later
from penstock.engine.serial import Serial
from penstock.engine.spec import JobSpec
from penstock.errors import InvariantBroken
from penstock.ports.background import Background
from penstock.ports.clock import Clock
from penstock.ports.control import (
    ControlEvent,
    Crowded,
    Joined,
    LaunchEnded,
    Left,
    Received,
    Workers,
)
from penstock.ports.feed import Feed, Trouble
from penstock.protocol import coordinator as snapshots
from penstock.protocol import phases
from penstock.protocol.commit import CommitPermit
from penstock.protocol.coordinator import Coordinator, CoordinatorConfig
from penstock.protocol.ids import AttemptId, CheckpointId, RequestId, SlotId, SubtaskId, WorkerId
from penstock.protocol.lifecycle import JobMachine, LifecycleConfig
from penstock.protocol.messages import (
    Abort,
    Ack,
    Collected,
    Committed,
    Connected,
    Decline,
    Drop,
    Dropped,
    Failed,
    Finished,
    FromWorker,
    Leave,
    Notify,
    Ready,
    Restoring,
    SnapshotKind,
    Start,
    Status,
    Sync,
    ToWorker,
    Trigger,
    Unreached,
)
from penstock.protocol.phases import Outcome
from penstock.wire import paths

SYNC_MS = 200.0
REPEAT_MS = 1_000.0
END_PATIENCE_MS = 60_000.0
"""How long the end of a job waits for a store that does not answer, before it leaves the clean-up undone."""

log = logging.getLogger("penstock")


@dataclass(frozen=True)
class ManagerConfig:
    lifecycle: LifecycleConfig
    coordinator: CoordinatorConfig
    wish: RestoreWish = RestoreWish()
    retain: str = "retain_on_cancel"


class JobManager:
    def __init__(
        self,
        spec: JobSpec,
        config: ManagerConfig,
        workers: Workers,
        files: CheckpointFiles | None,
        clock: Clock,
        background: Background,
        sinks: Mapping[str, Sink],
        feeds: Mapping[str, Feed] | None = None,
    ) -> None:
        self.history = History(spec.plan)
        self.machine = JobMachine(config.lifecycle)
        self.coordinator = Coordinator(config.coordinator)
        self.outcome: Outcome | None = None
        self.reason = ""
        self._spec = spec
        self._config = config
        self._workers = workers
        self._clock = clock
        self._sinks = sinks
        self._background = background
        self._storage = Serial(background)
        self._later = Later()
        self._troubles = Troubles(spec.job, self.history, clock)
        self._restores = Restores(spec.job, clock)
        self._crew = Crew(self.machine, workers)
        self._progress = Progress(spec.plan)
        self._feeding = Feeding(feeds or {})
        names = (link.node.name for task in spec.plan.tasks for link in task.links)
        self._numbers = Numbers(names)
        self._ids_reserved = config.coordinator.ids_reserved
        self._claims = Claims(
            spec, config.wish, files, self._storage, sinks.values(), self._ids_reserved
        )
        self._durable = self._open(files) if files is not None else None
        self._decline_traceback = ""
        """Of the refusal that is being handled: a later failure has nothing to do with it."""
        self._capacity = ""
        """What holds the cores, of a job that fails for want of them."""
        self._asked: dict[RequestId, Callable[[CheckpointId], None]] = {}
        """Who waits to hear which checkpoint is theirs."""
        self._next_request = RequestId(1)
        self._next_sync_ms = 0.0
        self._next_repeat_ms = 0.0
        self._give_up_ms = float("inf")

    def _open(self, files: CheckpointFiles) -> Durable:
        return Durable(
            self._spec,
            self._config.retain,
            files,
            self.history,
            self._storage,
            self._background,
            self._later,
            self._clock,
            self._troubles.note,
        )

    # ---- the loop

    def begin(self) -> None:
        if self._durable is not None:
            self._durable.begin()
        self._obey(self.machine.begin(self._now()))

    def step(self) -> bool:
        """One round; False when nothing could move."""
        progressed = self._background.poll()
        if progressed and self.outcome is not None:
            self._give_up_ms = self._now() + END_PATIENCE_MS
        for event in self._workers.receive():
            self._on_event(event)
            progressed = True
        self._feeding.step(self._on_trouble)
        self._on_time(self._now())
        return progressed

    @property
    def ended(self) -> bool:
        """The job is over and its last clean-up, too; unless the store hangs."""
        idle = self._storage.idle and self._later.idle
        if self._durable is not None:
            idle = idle and self._durable.idle
        return self.outcome is not None and (idle or self._now() >= self._give_up_ms)

    @property
    def status(self) -> str:
        match self.machine.phase:
            case phases.Ended(outcome):
                return str(outcome)
            case phases.Running() | phases.Ending(ran=True):
                return "running"
            case _:
                return "restarting" if self.machine.began_again else "starting"

    @property
    def details(self) -> str:
        """What the job is busy with while it does not run yet, if that is known."""
        phase = self.machine.phase
        if isinstance(phase, phases.Deploying) and phase.attempt == self._restores.attempt:
            return self._restores.text
        return ""

    @property
    def metrics(self) -> Mapping[str, float]:
        return self._numbers.values

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        return self._crew.infos

    def wake_ms(self) -> float:
        """When the next step has something to do, if nothing happens before."""
        now_ms = self._now()
        times = [self.machine.wake_ms(now_ms), self.coordinator.wake_ms(now_ms)]
        times.append(self._next_sync_ms)
        times += self._later.times_ms
        return min(time for time in times if time is not None)

    def request_checkpoint(self, answer: Callable[[CheckpointId], None] = lambda _: None) -> None:
        """`answer` is told which checkpoint it is, when that is triggered. Where no attempt runs it is taken as soon as
        one does."""
        request = self._next_request
        self._next_request = RequestId(request + 1)
        self._asked[request] = answer
        self._coordinate(self.coordinator.request(request, self._now()))

    def request_stop(self) -> None:
        self._obey(self.machine.stop(self._now()))

    def request_cancel(self) -> None:
        self._obey(self.machine.cancel(self._now()))

    def _on_time(self, now_ms: float) -> None:
        self._later.run_due(now_ms)
        if self._durable is not None:
            self._durable.tick(now_ms)
        self._obey(self.machine.tick(now_ms))
        self._coordinate(self.coordinator.tick(now_ms))
        if now_ms >= self._next_repeat_ms:
            self._next_repeat_ms = now_ms + REPEAT_MS
            self._obey(self.machine.repeat())
        if now_ms >= self._next_sync_ms:
            self._next_sync_ms = now_ms + SYNC_MS
            self._sync()

    def _sync(self) -> None:
        attempt = self._running_attempt()
        if attempt is None:
            return
        table = Sync(
            attempt,
            self.coordinator.live(),
            CheckpointId(self.coordinator.next_id - 1),
            self.coordinator.newest_completed,
        )
        self._crew.tell(attempt, table)

    # ---- what happened

    def _on_event(self, event: ControlEvent) -> None:
        now_ms = self._now()
        match event:
            case Joined(worker, launch, host, pid):
                self._crew.joined(worker, pid, host)
                self._obey(self.machine.joined(worker, launch, now_ms, host))
                self._crew.publish()
            case Left(worker, reason):
                self._on_left(worker, reason, now_ms)
            case LaunchEnded(launch, reason, cancelled=True):
                self._on_cancelled(launch, reason, now_ms)
            case LaunchEnded(launch, reason, fatal):
                if fatal:
                    reason = f"{reason} {self._workers.capacity()}".strip()
                self._obey(self.machine.launch_ended(launch, reason, fatal, now_ms))
            case Crowded(launches):
                self._obey(self.machine.crowded(launches, now_ms))
            case Received(worker, message):
                self._on_message(worker, message, now_ms)

    def _on_trouble(self, trouble: Trouble) -> None:
        """Of a source's feed, which takes care of itself unless it is fatal."""
        if self._ending():
            return
        point = self._claims.point
        if point is not None:
            self._troubles.note(trouble.reason, point.attempt)
        if trouble.fatal:
            self._obey(self.machine.fail_for_good(trouble.reason, self._now()))

    def _on_left(self, worker: WorkerId, reason: str, now_ms: float) -> None:
        member = self.machine.members.get(worker)
        told = f"{self._crew.name(worker)}: {reason}"
        if member is not None and member.attempt is not None and not self._ending():
            self._troubles.note(f"WorkerLost: {told}", member.attempt)
        self._crew.left(worker)
        self._obey(self.machine.left(worker, told, now_ms))
        self._crew.publish()

    def _on_cancelled(self, launch: int, reason: str, now_ms: float) -> None:
        """Somebody else had Spark cancel the job of a worker."""
        crew = [member for member in self.machine.members.values() if member.launch == launch]
        told = f"WorkerCancelled: {reason} from outside; no restart is counted for it"
        for member in crew:
            if member.attempt is not None and not self._ending():
                self._troubles.note(told, member.attempt)
        self._obey(self.machine.launch_cancelled(launch, reason, now_ms))
        self._crew.publish()

    def _on_message(self, worker: WorkerId, message: FromWorker, now_ms: float) -> None:  # noqa: C901, PLR0912 (one line per case)
        coordinator, machine = self.coordinator, self.machine
        match message:
            case Restoring():
                self._restores.heard(message)
            case Ready(attempt, slot, endpoints):
                self._restores.ready(attempt, slot)
                self._obey(machine.ready(worker, attempt, endpoints, now_ms))
            case Connected(attempt, restored_bytes, local_bytes):
                self._restores.read_back(worker, attempt, restored_bytes, local_bytes)
                self._obey(machine.connected(worker, attempt, now_ms))
            case Unreached(attempt, peers):
                self._obey(machine.unreached(worker, attempt, peers, now_ms))
            case Dropped(attempt):
                self._obey(machine.dropped(worker, attempt, now_ms))
            case Failed():
                self._on_failed(message, now_ms)
            case Ack():
                self._on_ack(message, now_ms)
            case Decline(attempt, checkpoint, reason, where, overflow):
                self._decline_traceback = where
                actions = coordinator.declined(attempt, checkpoint, reason, now_ms, overflow)
                self._coordinate(actions)
                self._decline_traceback = ""
            case Finished(attempt, subtasks):
                self._on_finished(attempt, subtasks, now_ms)
            case Committed(attempt, slot, checkpoint):
                self._on_committed(attempt, slot, checkpoint, now_ms)
            case Collected(_, operator, item):
                self._sinks[operator].receive(item)
            case Status(attempt, slot, finished, committed, metrics):
                if attempt == self._running_attempt():
                    self._numbers.status(slot, metrics)
                self._on_finished(attempt, finished, now_ms)
                self._on_committed(attempt, slot, committed, now_ms)

    def _on_ack(self, ack: Ack, now_ms: float) -> None:
        if self._durable is not None:
            self._durable.acknowledged(ack.checkpoint, ack.snapshots)
        actions = self.coordinator.acked(ack.attempt, ack.checkpoint, ack.snapshots, now_ms)
        pending = self.coordinator.unfinished.get(ack.checkpoint)
        if pending is not None:
            self.history.acked(ack.checkpoint, pending.acks, now_ms - pending.triggered_ms)
        self._coordinate(actions)

    def _on_failed(self, message: Failed, now_ms: float) -> None:
        if message.attempt != self._present_attempt():
            return
        reason = self._troubles.in_worker(message)
        if message.error == "CheckpointCorrupt":
            self._claims.point_is_damaged(message.message)
        if message.fatal:
            self._obey(self.machine.fail_for_good(reason, now_ms))
        else:
            self._fail_attempt(message.attempt, reason, message.about_rows)

    def _on_finished(
        self, attempt: AttemptId, subtasks: Iterable[SubtaskId], now_ms: float
    ) -> None:
        if attempt == self._running_attempt() and self._progress.finished(subtasks):
            self._coordinate(self.coordinator.request_last(SnapshotKind.FINAL, now_ms))

    def _on_committed(
        self, attempt: AttemptId, slot: SlotId, checkpoint: CheckpointId, now_ms: float
    ) -> None:
        if attempt != self._running_attempt():
            return
        outcome = self._progress.committed(slot, checkpoint)
        if outcome is not None:
            self._obey(self.machine.completed(attempt, outcome, now_ms))

    # ---- what to do about workers and attempts

    def _obey(self, actions: Iterable[phases.Action]) -> None:
        for action in actions:
            self._obey_one(action)

    def _obey_one(self, action: phases.Action) -> None:  # noqa: C901, PLR0912 (one line per case)
        match action:
            case phases.LaunchWorker(launch):
                self._workers.launch(launch, f"worker {launch + 1}")
            case phases.CancelLaunch(launch):
                self._workers.cancel(launch)
            case phases.ClaimAttempt():
                self._claims.wanted = True
                self._claim_if_settled()
            case phases.SendDeploy(worker, slot, attempt):
                self._workers.send(worker, self._claims.deployment(slot, attempt))
            case phases.SendStart(worker, attempt, endpoints):
                self._workers.send(worker, Start(attempt, endpoints))
            case phases.SendDrop(worker, attempt):
                self._workers.send(worker, Drop(attempt))
            case phases.SendLeave(worker):
                self._workers.send(worker, Leave())
            case phases.AttemptRuns(attempt, restored):
                self._attempt_runs(attempt, restored)
            case phases.AttemptOver(_, counts):
                if not self._ending():
                    self._numbers.attempt_over()
                    line = restart_line(self.machine, self._durable is not None, counts)
                    log.warning("job %s: %s", self._spec.job, line)
                    self._workers.spread()
                self._coordinate(self.coordinator.attempt_ended(self._now()))
            case phases.NotReady(attempt, workers, reason):
                late = ", ".join(self._crew.name(worker) for worker in workers)
                self._troubles.note(f"DeployTimeout: {reason}. Late: {late}", attempt)
            case phases.CannotConnect(attempt, worker, peers):
                told = f"{self._crew.name(worker)} gets no answer from {', '.join(peers)}"
                waits = "the job goes on as soon as they reach each other"
                self._troubles.note(f"NetworkCut: {told}; {waits}", attempt)
            case phases.SlotsMissing(reason, waits):
                self._slots_missing(reason, waits)
            case phases.RequestStop():
                self._coordinate(self.coordinator.request_last(SnapshotKind.STOP, self._now()))
            case phases.JobEnded(outcome, reason):
                self._job_ended(outcome, reason)

    def _attempt_runs(self, attempt: AttemptId, restored: CheckpointId) -> None:
        self._progress = Progress(self._spec.plan)
        self._crew.publish()
        if self._claims.point is not None and not self._claims.point.origin:
            self.history.read_back(restored, *self._restores.sizes)
        subtasks = self._spec.plan.subtasks
        self._coordinate(self.coordinator.attempt_started(attempt, subtasks, restored, self._now()))

    def _fail_attempt(self, attempt: AttemptId, reason: str, what: str) -> None:
        log.warning("job %s: attempt %s failed, %s", self._spec.job, attempt, reason)
        point = self._claims.point
        progressed = point is not None and self.coordinator.newest_completed > point.restored
        self._obey(
            self.machine.attempt_failed(
                attempt, reason, self._now(), what=what, progressed=progressed
            )
        )

    def _slots_missing(self, reason: str, waits: bool) -> None:
        capacity = f"; {self._workers.capacity()}"
        if not waits:
            self._capacity = capacity
        elif self._claims.point is not None:
            told = f"SlotsMissing: {reason}{capacity}"
            self._troubles.note(told, self._claims.point.attempt)

    def _job_ended(self, outcome: Outcome, reason: str) -> None:
        self.outcome, self.reason = outcome, reason + self._capacity
        self._give_up_ms = self._now() + END_PATIENCE_MS
        if self._durable is not None:
            point = self._claims.point
            restored = point.restored if point is not None else None
            self._durable.job_ended(outcome, self.coordinator, restored)

    # ---- claiming an attempt

    def _claim_if_settled(self) -> None:
        """What is being persisted must be settled first: it may be the very checkpoint to restore."""
        if self._claims.wanted and not unsettled(self.coordinator) and not self._ending():
            going = self._durable.spare() if self._durable is not None else frozenset()
            self._claims.take(self.coordinator.next_id, going, self._claimed, self._claim_failed)

    def _claimed(self, point: RestorePoint) -> None:
        for warning in point.warnings:
            self._troubles.note(f"CheckpointCorrupt: {warning}", point.attempt)
        self._claims.accept(point)
        self.coordinator.next_id = max(self.coordinator.next_id, point.first_id)
        if self._durable is not None:
            self._durable.claimed(point)
            self.coordinator.ids_until = point.ids_until
        self.coordinator.completed = list(point.kept)
        self._numbers.checkpointed(point.manifest.snapshots if point.manifest is not None else ())
        self._feeding.claimed(point)
        self._obey(self.machine.claimed(point.attempt, point.restored, point.kind, self._now()))

    def _claim_failed(self, error: BaseException) -> None:
        reason = self._troubles.at_claim(error)
        self._obey(self.machine.claim_failed(reason, not may_pass(error), self._now()))

    # ---- what to do about snapshots

    def _coordinate(self, actions: Iterable[snapshots.Action]) -> None:
        for action in actions:
            self._coordinate_one(action)

    def _coordinate_one(self, action: snapshots.Action) -> None:  # noqa: C901, PLR0912 (one line per case)
        match action:
            case snapshots.SendTrigger(order):
                how = mode_of(self._spec.mode, order.urgent)
                if self._durable is not None:
                    self._durable.triggered(order.id, order.base)
                self.history.triggered(order.id, order.kind, self._clock.wall_ms(), how)
                self._tell_running(lambda attempt: Trigger(attempt, order))
            case snapshots.Expedite(order):
                self.history.expedited(order.id)
                self._tell_running(lambda attempt: Trigger(attempt, order))
            case snapshots.Answer(request, checkpoint):
                self._asked.pop(request)(checkpoint)
            case snapshots.SendAbort(checkpoint):
                self._tell_running(lambda attempt: Abort(attempt, checkpoint))
            case snapshots.Persist():
                self._persist(action)
            case snapshots.Completed(permit):
                self._completed(action, permit)
            case snapshots.Aborted():
                self.history.aborted(action)
            case snapshots.Discard(checkpoint):
                if self._durable is not None:
                    self._durable.discard(checkpoint)
            case snapshots.Subsume(checkpoints):
                if self._durable is not None:
                    self._durable.delete(checkpoints, self._feeding.deleted)
            case snapshots.FailAttempt(reason):
                attempt = self._present_attempt()
                if attempt is not None:
                    told = f"CheckpointFailed: {reason}"
                    self._troubles.note(told, attempt, self._decline_traceback)
                self._obey(self.machine.attempt_failed(attempt, reason, self._now()))
            case snapshots.Ignored():
                pass

    def _persist(self, action: snapshots.Persist) -> None:
        attempt = self._present_attempt()
        if attempt is None:
            raise InvariantBroken(f"checkpoint {action.checkpoint} completes without an attempt")
        if self._durable is None:
            self._persisted(attempt, action.checkpoint, True)
            return
        self._durable.persist(
            make_manifest(self._spec, action, attempt, self._clock, self._ids_reserved),
            lambda exists: self._persisted(attempt, action.checkpoint, exists),
            self._may_not_persist,
        )

    def _may_not_persist(self, error: BaseException) -> None:
        self._obey(self.machine.fail_for_good(f"{type(error).__name__}: {error}", self._now()))

    def _persisted(self, attempt: AttemptId, checkpoint: CheckpointId, exists: bool) -> None:
        if exists:
            self._coordinate(self.coordinator.persisted(attempt, checkpoint, self._now()))
        else:
            reason = self._durable.not_written if self._durable is not None else ""
            self._coordinate(self.coordinator.persist_failed(checkpoint, reason, self._now()))
        self._claim_if_settled()

    def _completed(self, action: snapshots.Completed, permit: CommitPermit) -> None:
        if self._durable is not None:
            self._durable.completed(permit.checkpoint, action.acks.values())
        self.history.completed(action, self._path(permit.checkpoint))
        self._numbers.checkpointed(action.acks.values())
        self._feeding.completed(permit.checkpoint, action.acks.values())
        self._claims.forget_wish()
        self._progress.completed(permit.checkpoint, action.kind)
        if permit.attempt == self._running_attempt():
            self._crew.tell(permit.attempt, Notify(permit.attempt, permit.checkpoint))

    # ---- small things

    def _path(self, checkpoint: CheckpointId) -> str | None:
        root = self._spec.location
        return f"{root}/{paths.checkpoint_folder(checkpoint)}" if root else None

    def _tell_running(self, make: Callable[[AttemptId], ToWorker]) -> None:
        attempt = self._running_attempt()
        if attempt is not None:
            self._crew.tell(attempt, make(attempt))

    def _running_attempt(self) -> AttemptId | None:
        phase = self.machine.phase
        return phase.attempt if isinstance(phase, phases.Running) else None

    def _present_attempt(self) -> AttemptId | None:
        phase = self.machine.phase
        if isinstance(phase, phases.Running | phases.Connecting | phases.Deploying):
            return phase.attempt
        return None

    def _ending(self) -> bool:
        return isinstance(self.machine.phase, phases.Ending | phases.Ended)

    def _now(self) -> float:
        return self._clock.monotonic_ms()
