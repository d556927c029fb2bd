"""The job manager: one loop in the driver that carries out what the protocol's machines decide.

`JobMachine` decides about workers and attempts, `Coordinator` about snapshots; this file brings them the events and
does what they say: sends messages, launches workers, has files written and deleted in the background.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from penstock.connectors.base import Sink
from penstock.engine.checkpoint_files import CheckpointFiles, RestorePoint, RestoreWish
from penstock.engine.history import History
from penstock.engine.manifests import make_manifest, operators_mismatch
from penstock.engine.metrics import summed
from penstock.engine.records import ExceptionInfo, WorkerInfo
from penstock.engine.serial import Serial
from penstock.engine.spec import JobSpec
from penstock.errors import InvariantBroken, StorageError
from penstock.ports.background import Background
from penstock.ports.clock import Clock
from penstock.ports.control import ControlEvent, Joined, LaunchEnded, Left, Received, Workers
from penstock.protocol import coordinator as snapshots
from penstock.protocol import lifecycle
from penstock.protocol.commit import CommitPermit
from penstock.protocol.coordinator import Coordinator, CoordinatorConfig, Persisting
from penstock.protocol.ids import (
    NO_CHECKPOINT,
    AttemptId,
    CheckpointId,
    SlotId,
    SubtaskId,
    WorkerId,
)
from penstock.protocol.lifecycle import JobMachine, LifecycleConfig, Outcome
from penstock.protocol.messages import (
    Abort,
    Ack,
    Collected,
    Committed,
    Decline,
    Deploy,
    Drop,
    Dropped,
    Failed,
    Finished,
    FromWorker,
    Leave,
    Notify,
    Ready,
    SnapshotKind,
    Start,
    Status,
    Sync,
    ToWorker,
    Trigger,
)
from penstock.wire import paths

SYNC_MS = 200.0
REPEAT_MS = 1_000.0
PERSIST_PAUSE_MS = 200.0
TIDY_TRIES_MAX = 10
"""How often the last clean-up is tried; what it leaves goes when the job of this name ends the next time."""

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
    ) -> None:
        self.history = History(spec.plan)
        self.machine = JobMachine(config.lifecycle)
        self.coordinator = Coordinator(config.coordinator)
        self.outcome: Outcome | None = None
        self.reason = ""
        self.metrics: Mapping[str, float] = {}
        self.workers: tuple[WorkerInfo, ...] = ()
        """Replaced whole, so that other threads can read it at any time."""
        self._processes: dict[WorkerId, tuple[int, str]] = {}
        self._spec = spec
        self._config = config
        self._wish = config.wish
        self._workers = workers
        self._files = files
        self._clock = clock
        self._sinks = sinks
        self._storage = Serial(background)
        self._cleaning = Serial(background)
        self._background = background
        self._point: RestorePoint | None = None
        self._claim_wanted = False
        self._damaged: dict[CheckpointId, str] = {}
        self._finished: frozenset[SubtaskId] = frozenset()
        self._committed: dict[SlotId, CheckpointId] = {}
        self._last: tuple[CheckpointId, Outcome] | None = None
        self._decline_traceback = ""
        self._capacity = ""
        """What holds the cores, asked when a job fails for want of them."""
        self._status: dict[SlotId, Status] = {}
        self._next_sync_ms = 0.0
        self._next_repeat_ms = 0.0
        self._retries: list[tuple[float, Callable[[], None]]] = []

    # ---- the loop

    def begin(self) -> None:
        self._obey(self.machine.begin(self._now()))

    def step(self) -> bool:
        """One round; False when nothing could move."""
        progressed = self._background.poll()
        for event in self._workers.receive():
            self._on_event(event)
            progressed = True
        self._on_time(self._now())
        return progressed

    @property
    def ended(self) -> bool:
        """The job is over and its last clean-up, too."""
        idle = self._storage.idle and self._cleaning.idle and not self._retries
        return self.outcome is not None and idle

    @property
    def status(self) -> str:
        match self.machine.phase:
            case lifecycle.Ended(outcome):
                return str(outcome)
            case lifecycle.Running() | lifecycle.Ending():
                return "running"
            case _:
                return "restarting" if self.machine.failures_ms else "starting"

    def wake_ms(self) -> float:
        """When the next step has something to do, if nothing happens before."""
        now_ms = self._now()
        times = [self.machine.wake_ms(now_ms), self.coordinator.wake_ms(now_ms)]
        times.append(self._next_sync_ms)
        times += [at for at, _ in self._retries]
        return min(time for time in times if time is not None)

    def request_checkpoint(self) -> None:
        self._coordinate(self.coordinator.request(self._now()))

    def request_stop(self) -> None:
        self._obey(self.machine.stop(self._now()))

    def request_cancel(self) -> None:
        self._obey(self.machine.cancel(self._now()))

    def _on_time(self, now_ms: float) -> None:
        due = [retry for at, retry in self._retries if at <= now_ms]
        self._retries = [(at, retry) for at, retry in self._retries if at > now_ms]
        for retry in due:
            retry()
        self._obey(self.machine.tick(now_ms))
        if self.machine.short_of_slots and not self._capacity:
            self._capacity = f"; {self._workers.capacity()}"
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
        self._tell_crew(attempt, table)

    # ---- what happened

    def _on_event(self, event: ControlEvent) -> None:
        now_ms = self._now()
        match event:
            case Joined(worker, launch, host, pid):
                self._processes[worker] = (pid, host)
                self._obey(self.machine.joined(worker, launch, now_ms))
                self._publish_workers()
            case Left(worker, reason):
                member = self.machine.members.get(worker)
                if member is not None and member.attempt is not None and not self._ending():
                    self._record_failure(f"WorkerLost: {reason}", member.attempt)
                self._processes.pop(worker, None)
                self._obey(self.machine.left(worker, reason, now_ms))
                self._publish_workers()
            case LaunchEnded(launch, reason, fatal):
                if fatal:
                    reason = f"{reason} {self._workers.capacity()}".strip()
                self._obey(self.machine.launch_ended(launch, reason, fatal, now_ms))
            case Received(worker, message):
                self._on_message(worker, message, now_ms)

    def _on_message(self, worker: WorkerId, message: FromWorker, now_ms: float) -> None:  # noqa: C901 (one line per case)
        coordinator, machine = self.coordinator, self.machine
        match message:
            case Ready(attempt, _, endpoints):
                self._obey(machine.ready(worker, attempt, endpoints, now_ms))
            case Dropped(attempt):
                self._obey(machine.dropped(worker, attempt, now_ms))
            case Failed():
                self._on_failed(message, now_ms)
            case Ack(attempt, checkpoint, parts):
                self._coordinate(coordinator.acked(attempt, checkpoint, parts, now_ms))
            case Decline(attempt, checkpoint, reason, where):
                self._decline_traceback = where
                self._coordinate(coordinator.declined(attempt, checkpoint, reason, now_ms))
            case Finished(attempt, subtasks):
                self._on_finished(attempt, subtasks, now_ms)
            case Committed(attempt, slot, checkpoint):
                self._on_committed(attempt, slot, checkpoint, now_ms)
            case Collected(_, operator, item):
                self._sinks[operator].receive(item)
            case Status(attempt, slot, finished, committed):
                self._on_finished(attempt, finished, now_ms)
                self._on_committed(attempt, slot, committed, now_ms)
                if attempt == self._running_attempt():
                    self._status[slot] = message
                    self.metrics = summed(s.metrics for s in self._status.values())

    def _on_failed(self, message: Failed, now_ms: float) -> None:
        if message.attempt != self._present_attempt():
            return
        where = f" in operator {message.operator!r}" if message.operator else ""
        reason = f"{message.error}{where}: {message.message}"
        self.history.failed(
            ExceptionInfo(
                self._clock.wall_ms(),
                message.attempt,
                message.error,
                message.message,
                message.operator,
                message.traceback,
                message.journal,
            )
        )
        if message.error == "CheckpointCorrupt" and self._point is not None:
            self._damaged[self._point.restored] = message.message
        if message.fatal:
            self._obey(self.machine.fail_for_good(reason, now_ms))
        else:
            self._fail_attempt(message.attempt, reason)

    def _on_finished(
        self, attempt: AttemptId, subtasks: Iterable[SubtaskId], now_ms: float
    ) -> None:
        if attempt != self._running_attempt():
            return
        self._finished |= frozenset(subtasks)
        if self._finished == frozenset(self._spec.plan.subtasks):
            self._coordinate(self.coordinator.request_last(SnapshotKind.FINAL, now_ms))

    def _on_committed(
        self, attempt: AttemptId, slot: SlotId, checkpoint: CheckpointId, now_ms: float
    ) -> None:
        if attempt != self._running_attempt():
            return
        self._committed[slot] = max(checkpoint, self._committed.get(slot, NO_CHECKPOINT))
        if self._last is None or len(self._committed) < self._spec.plan.parallelism:
            return
        last, outcome = self._last
        if min(self._committed.values()) >= last:
            self._obey(self.machine.completed(attempt, outcome, now_ms))

    # ---- what to do about workers and attempts

    def _obey(self, actions: Iterable[lifecycle.Action]) -> None:
        for action in actions:
            self._obey_one(action)

    def _obey_one(self, action: lifecycle.Action) -> None:  # noqa: C901 (one line per case)
        match action:
            case lifecycle.LaunchWorker(launch):
                self._workers.launch(launch, f"worker {launch + 1}")
            case lifecycle.CancelLaunch(launch):
                self._workers.cancel(launch)
            case lifecycle.ClaimAttempt():
                self._claim_wanted = True
                self._claim_if_settled()
            case lifecycle.SendDeploy(worker, slot, attempt):
                self._workers.send(worker, self._deploy(slot, attempt))
            case lifecycle.SendStart(worker, attempt, endpoints):
                self._workers.send(worker, Start(attempt, endpoints))
            case lifecycle.SendDrop(worker, attempt):
                self._workers.send(worker, Drop(attempt))
            case lifecycle.SendLeave(worker):
                self._workers.send(worker, Leave())
            case lifecycle.AttemptRuns(attempt, restored):
                self._attempt_runs(attempt, restored)
            case lifecycle.AttemptOver():
                self.metrics = {}
                self._coordinate(self.coordinator.attempt_ended(self._now()))
            case lifecycle.RequestStop():
                self._coordinate(self.coordinator.request_last(SnapshotKind.STOP, self._now()))
            case lifecycle.JobEnded(outcome, reason):
                self._job_ended(outcome, reason)

    def _attempt_runs(self, attempt: AttemptId, restored: CheckpointId) -> None:
        self._finished = frozenset()
        self._committed = {}
        self._status = {}
        self.metrics = {}
        self._last = None
        self._publish_workers()
        subtasks = self._spec.plan.subtasks
        self._coordinate(self.coordinator.attempt_started(attempt, subtasks, restored, self._now()))

    def _fail_attempt(self, attempt: AttemptId | None, reason: str) -> None:
        if attempt is not None and attempt == self._present_attempt():
            log.warning("job %s: attempt %s failed, %s", self._spec.job, attempt, reason)
        self._obey(self.machine.attempt_failed(attempt, reason, self._now()))

    def _record_failure(self, reason: str, attempt: AttemptId, traceback: str = "") -> None:
        log.warning("job %s: attempt %s: %s", self._spec.job, attempt, reason)
        error, _, message = reason.partition(": ")
        now_ms = self._clock.wall_ms()
        self.history.failed(ExceptionInfo(now_ms, attempt, error, message, traceback=traceback))

    def _deploy(self, slot: SlotId, attempt: AttemptId) -> Deploy:
        point = self._point
        if point is None or point.attempt != attempt:
            raise InvariantBroken(f"attempt {attempt} is deployed but was not claimed")
        parts = point.manifest.snapshots if point.manifest is not None else ()
        return Deploy(attempt, slot, point.restored, parts, point.origin)

    def _job_ended(self, outcome: Outcome, reason: str) -> None:
        self.outcome, self.reason = outcome, reason + self._capacity
        if self._files is not None and self._point is not None:
            self._clean_up_at_end(self._files, outcome, TIDY_TRIES_MAX)

    def _clean_up_at_end(self, files: CheckpointFiles, outcome: Outcome, tries: int) -> None:
        """Behind what is being persisted. A checkpoint whose metadata may exist keeps its files."""

        def work() -> None:
            if not self._retains(outcome):
                files.delete_everything()
                return
            unsettled = [n for n, p in self.coordinator.unfinished.items() if _is_persisting(p)]
            files.sweep([*self.coordinator.completed, *unsettled], self.coordinator.next_id)
            if unsettled:
                raise StorageError(f"nobody knows yet whether checkpoints {unsettled} exist")

        def failed(error: BaseException) -> None:
            log.info("job %s: clean-up: %s", self._spec.job, error)
            if type(error) is StorageError and tries > 1:
                again = partial(self._clean_up_at_end, files, outcome, tries - 1)
                self._retries.append((self._now() + PERSIST_PAUSE_MS, again))

        self._storage.submit(work, lambda _: None, failed)

    def _retains(self, outcome: Outcome) -> bool:
        retain = self._config.retain
        if outcome is Outcome.CANCELLED:
            return retain == "retain_on_cancel"
        return outcome is not Outcome.FAILED or retain != "never_retain"

    # ---- claiming an attempt

    def _claim_if_settled(self) -> None:
        """What is being persisted must be settled first: it may be the very checkpoint to restore."""
        unsettled = any(_is_persisting(p) for p in self.coordinator.unfinished.values())
        if not self._claim_wanted or unsettled or self._ending():
            return
        self._claim_wanted = False
        files = self._files
        if files is None:
            attempt = AttemptId(1 if self._point is None else self._point.attempt + 1)
            self._claimed(RestorePoint(attempt, NO_CHECKPOINT, self.coordinator.next_id, (), None))
            return
        wish, damaged = self._wish, dict(self._damaged)
        may_fall_back = all(sink.idempotent for sink in self._sinks.values())
        next_id = self.coordinator.next_id
        self._storage.submit(
            lambda: files.claim(
                wish,
                may_fall_back=may_fall_back,
                damaged=damaged,
                next_id=next_id,
                misfit=lambda manifest: operators_mismatch(manifest, self._spec.plan),
            ),
            self._claimed,
            self._claim_failed,
        )

    def _claimed(self, point: RestorePoint) -> None:
        for warning in point.warnings:
            log.warning("job %s: %s", self._spec.job, warning)
        if point.kind is SnapshotKind.FINAL and self._point is None:
            log.warning(
                "job %s: its input had ended, and checkpoint %s committed all of it: there is nothing left to "
                'do. To run it again start it with restore="fresh" or under another name.',
                self._spec.job,
                point.restored,
            )
        self._point = point
        if not point.origin:
            self._wish = RestoreWish()
        self.coordinator.next_id = max(self.coordinator.next_id, point.first_id)
        if self._files is not None:
            self.coordinator.ids_until = point.ids_until
        self.coordinator.completed = list(point.kept)
        self._obey(self.machine.claimed(point.attempt, point.restored, point.kind, self._now()))

    def _claim_failed(self, error: BaseException) -> None:
        fatal = not isinstance(error, StorageError) or type(error) is not StorageError
        reason = f"{type(error).__name__}: {error}"
        self.history.failed(
            ExceptionInfo(self._clock.wall_ms(), 0, type(error).__name__, str(error))
        )
        self._obey(self.machine.claim_failed(reason, fatal, self._now()))

    # ---- what to do about snapshots

    def _coordinate(self, actions: Iterable[snapshots.Action]) -> None:
        for action in actions:
            self._coordinate_one(action)

    def _coordinate_one(self, action: snapshots.Action) -> None:  # noqa: C901 (one line per case)
        match action:
            case snapshots.SendTrigger(checkpoint, kind):
                self.history.triggered(checkpoint, kind, self._clock.wall_ms())
                self._tell_running(lambda attempt: Trigger(attempt, checkpoint, kind))
            case snapshots.SendAbort(checkpoint):
                self._tell_running(lambda attempt: Abort(attempt, checkpoint))
            case snapshots.Persist():
                self._persist(action)
            case snapshots.Completed(permit):
                self._completed(action, permit)
            case snapshots.Aborted():
                self.history.aborted(action)
            case snapshots.Discard(checkpoint):
                if self._files is not None:
                    files = self._files
                    self._clean(lambda: files.discard(checkpoint))
            case snapshots.Subsume(checkpoints):
                for checkpoint in checkpoints:
                    self._delete(checkpoint)
            case snapshots.FailAttempt(reason):
                attempt = self._present_attempt()
                if attempt is not None:
                    where, self._decline_traceback = self._decline_traceback, ""
                    self._record_failure(f"CheckpointFailed: {reason}", attempt, where)
                self._obey(self.machine.attempt_failed(attempt, reason, self._now()))
            case snapshots.Ignored():
                pass

    def _persist(self, action: snapshots.Persist) -> None:
        attempt = self._present_attempt()
        if attempt is None:
            raise InvariantBroken(f"checkpoint {action.checkpoint} completes without an attempt")
        files = self._files
        if files is None:
            self._persisted(attempt, action.checkpoint, True)
            return
        manifest = make_manifest(self._spec, action, attempt, self._clock)

        def failed(error: BaseException) -> None:
            self._persist_unclear(error, lambda: submit())

        def submit() -> None:
            self._storage.submit(
                lambda: files.persist(manifest),
                lambda exists: self._persisted(attempt, action.checkpoint, exists),
                failed,
            )

        submit()

    def _persist_unclear(self, error: BaseException, again: Callable[[], None]) -> None:
        """Nobody knows whether the metadata is there. Ask until somebody does; only a new owner ends that."""
        if not isinstance(error, StorageError) or type(error) is not StorageError:
            self._obey(self.machine.fail_for_good(f"{type(error).__name__}: {error}", self._now()))
            return
        if self.outcome is None:
            self._retries.append((self._now() + PERSIST_PAUSE_MS, again))

    def _persisted(self, attempt: AttemptId, checkpoint: CheckpointId, exists: bool) -> None:
        if exists:
            self._coordinate(self.coordinator.persisted(attempt, checkpoint, self._now()))
        else:
            reason = "the store failed while its metadata was written"
            self._coordinate(self.coordinator.persist_failed(checkpoint, reason, self._now()))
        self._claim_if_settled()

    def _completed(self, action: snapshots.Completed, permit: CommitPermit) -> None:
        self.history.completed(action, self._path(permit.checkpoint))
        self._wish = RestoreWish()
        outcomes = {SnapshotKind.FINAL: Outcome.FINISHED, SnapshotKind.STOP: Outcome.STOPPED}
        if action.kind in outcomes:
            self._last = (permit.checkpoint, outcomes[action.kind])
        if permit.attempt == self._running_attempt():
            self._tell_crew(permit.attempt, Notify(permit.attempt, permit.checkpoint))

    def _delete(self, checkpoint: CheckpointId) -> None:
        files = self._files
        if files is not None:
            self._clean(lambda: files.delete_checkpoint(checkpoint))

    def _clean(self, work: Callable[[], None]) -> None:
        """Clean-up that fails holds nothing up: what stays is swept when the job ends or starts again."""
        self._cleaning.submit(work, lambda _: None, lambda error: log.info("clean-up: %s", error))

    # ---- small things

    def _publish_workers(self) -> None:
        found = [
            WorkerInfo(member.slot, *self._processes[worker])
            for worker, member in sorted(self.machine.members.items())
            if worker in self._processes
        ]
        self.workers = tuple(
            sorted(found, key=lambda info: (info.slot is None, info.slot, info.pid))
        )

    def _path(self, checkpoint: CheckpointId) -> str | None:
        root = self._spec.location
        return f"{root}/{paths.checkpoint_folder(checkpoint)}" if root else None

    def _tell_running(self, make: Callable[[AttemptId], ToWorker]) -> None:
        attempt = self._running_attempt()
        if attempt is not None:
            self._tell_crew(attempt, make(attempt))

    def _tell_crew(self, attempt: AttemptId, message: ToWorker) -> None:
        for worker, member in sorted(self.machine.members.items()):
            if member.attempt == attempt:
                self._workers.send(worker, message)

    def _running_attempt(self) -> AttemptId | None:
        phase = self.machine.phase
        return phase.attempt if isinstance(phase, lifecycle.Running) else None

    def _present_attempt(self) -> AttemptId | None:
        phase = self.machine.phase
        if isinstance(phase, lifecycle.Running | lifecycle.Deploying):
            return phase.attempt
        return None

    def _ending(self) -> bool:
        return isinstance(self.machine.phase, lifecycle.Ending | lifecycle.Ended)

    def _now(self) -> float:
        return self._clock.monotonic_ms()


def _is_persisting(snapshot: snapshots.Unfinished) -> bool:
    return isinstance(snapshot, Persisting)
