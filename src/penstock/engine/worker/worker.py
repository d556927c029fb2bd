"""The worker: one process, one loop, one slot. It outlives attempts.

The loop takes control messages, lets the present attempt work, and sleeps when nothing can move. It decides nothing:
what it is told to deploy it deploys, what it is told to drop it throws away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from penstock.engine.journal import Journal
from penstock.engine.spec import JobSpec
from penstock.engine.tracebacks import user_traceback
from penstock.engine.worker.attempt import Attempt
from penstock.errors import (
    CheckpointCorrupt,
    CommitError,
    ConfigError,
    DataError,
    PenstockError,
    PlanError,
)
from penstock.ports.background import Background
from penstock.ports.channel import ChannelLost
from penstock.ports.clock import Clock
from penstock.ports.control import Driver, DriverLost, Host
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId
from penstock.protocol.messages import (
    Abort,
    Deploy,
    Drop,
    Dropped,
    Failed,
    Leave,
    Notify,
    Ready,
    Start,
    Sync,
    ToWorker,
    Trigger,
    Unreached,
)
from penstock.redaction import redacted
from penstock.storage.local_copies import LocalCopies

IDLE_MS = 100.0
"""The longest sleep: nothing is lost if a wake-up is."""
_FOR_GOOD = (PlanError, DataError, ConfigError)
"""Errors that a restart would meet again."""
_ABOUT_VALUES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""Errors that rows cause, and not the outside world: see `protocol.restart`."""
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")


class Worker:
    """`load` gives the job, with operators that no earlier attempt has used."""

    def __init__(
        self,
        load: Callable[[], JobSpec],
        driver: Driver,
        host: Host,
        clock: Clock,
        background: Background,
    ) -> None:
        self._load = load
        self._driver = driver
        self._host = host
        self._clock = clock
        self._background = background
        self._journal = Journal()
        self._newest = AttemptId(0)
        self._ready: Ready | None = None
        self._failed: Failed | None = None
        self._copies: LocalCopies | None = None
        """They outlive attempts."""
        self.attempt: Attempt | None = None
        self.leaving = False

    def run(self) -> None:
        """Until told to leave. Raises DriverLost when the driver is not heard of any more."""
        try:
            while not self.leaving:
                if not self.step():
                    self._sleep()
        finally:
            self.close()

    def step(self) -> bool:
        """One round of the loop; False when nothing could move."""
        progressed = bool(self._guarded(self._background.poll))
        for message in self._driver.receive():
            self._guarded(lambda message=message: self._handle(message))  # type: ignore[misc]
            progressed = True
        attempt = self.attempt
        if attempt is not None and attempt.running:
            progressed |= bool(self._guarded(attempt.step))
        elif attempt is not None and attempt.connecting:
            progressed |= bool(self._guarded(self._connect))
        return progressed

    def close(self) -> None:
        self._drop_attempt()
        if self._copies is not None:
            self._copies.close(over=self.leaving)
            self._copies = None

    def _sleep(self) -> None:
        attempt = self.attempt
        timeout_ms = IDLE_MS
        if attempt is None or not attempt.running:
            self._host.wait(timeout_ms, reading=(), waiting_for_room=())
            return
        wake_ms = attempt.wake_ms()
        if wake_ms is not None:
            timeout_ms = min(timeout_ms, max(0.0, wake_ms - self._clock.monotonic_ms()))
        self._host.wait(
            timeout_ms, reading=attempt.reading(), waiting_for_room=attempt.wanting_room()
        )

    # ---- control messages

    def _handle(self, message: ToWorker) -> None:  # noqa: C901 (one line per case)
        match message:
            case Leave():
                self.leaving = True
            case Deploy():
                self._on_deploy(message)
            case Drop(attempt):
                self._on_drop(attempt)
            case Start(attempt, endpoints):
                self._on_start(attempt, endpoints)
            case Trigger(attempt, order):
                if (mine := self._mine(attempt)) is not None:
                    self._note(f"trigger {order}")
                    mine.trigger(order)
            case Abort(attempt, checkpoint):
                if (mine := self._mine(attempt)) is not None:
                    self._note(f"abort {checkpoint}")
                    mine.abort(checkpoint)
            case Notify(attempt, checkpoint):
                if (mine := self._mine(attempt)) is not None:
                    self._note(f"complete {checkpoint}")
                    mine.completed(checkpoint)
            case Sync(attempt):
                self._on_sync(message, self._mine(attempt))

    def _on_deploy(self, message: Deploy) -> None:
        if message.attempt < self._newest:
            return
        if message.attempt == self._newest:
            self._answer_again(message.attempt)
            return
        self._drop_attempt()
        self._newest = message.attempt
        self._failed = None
        self._note(f"deploy attempt {message.attempt} in slot {message.slot}")
        spec = self._load()
        if spec.check_host is not None and message.restored == NO_CHECKPOINT:
            spec.check_host()  # a job that has come further has shown that it works
        store = spec.open_store() if spec.open_store is not None else None
        self.attempt = Attempt(
            spec,
            message,
            self._host.network(message.attempt),
            (store, _origin(spec, message.origin, store)),
            self._clock,
            self._background,
            self._driver.send,
            self._open_copies(spec),
        )
        endpoints = self.attempt.prepare()
        self._ready = Ready(message.attempt, message.slot, endpoints)
        self._driver.send(self._ready)

    def _open_copies(self, spec: JobSpec) -> LocalCopies | None:
        if self._copies is None and spec.open_copies is not None:
            self._copies = spec.open_copies()
        return self._copies

    def _on_start(self, attempt: AttemptId, endpoints: Mapping[int, Mapping[str, str]]) -> None:
        """Said again, it asks how far the worker has come."""
        mine = self._mine(attempt)
        if mine is None:
            self._answer_again(attempt)
        elif mine.running:
            self._driver.send(mine.connected())
        elif mine.connecting:
            self._driver.send(Unreached(mine.id, mine.unreached))
        else:
            mine.connect(endpoints)
            self._connect()

    def _connect(self) -> bool:
        """Runs as soon as all others have answered."""
        mine = self.attempt
        if mine is None or not mine.start():
            return False
        self._note(f"attempt {mine.id} runs")
        self._driver.send(mine.connected())
        return True

    def _on_sync(self, message: Sync, mine: Attempt | None) -> None:
        if mine is None or not mine.running:
            self._answer_again(message.attempt)
            return
        mine.sync(message)
        self._driver.send(mine.status())

    def _answer_again(self, attempt: AttemptId) -> None:
        """The job manager still waits for what it was told already: the first answer was lost."""
        answer = self._failed or self._ready
        if answer is not None and answer.attempt == attempt:
            self._driver.send(answer)

    def _on_drop(self, attempt: AttemptId) -> None:
        if self.attempt is not None and self.attempt.id <= attempt:
            self._drop_attempt()
        self._newest = max(self._newest, attempt)
        self._note(f"dropped attempt {attempt}")
        self._driver.send(Dropped(attempt))

    def _drop_attempt(self) -> None:
        attempt, self.attempt, self._ready = self.attempt, None, None
        if attempt is not None:
            attempt.close()

    def _mine(self, attempt: AttemptId) -> Attempt | None:
        """The present attempt, if the message is about that one."""
        if self.attempt is not None and self.attempt.id == attempt:
            return self.attempt
        return None

    # ---- failures

    def _guarded(self, work: Callable[[], bool | None]) -> bool | None:
        """Runs a piece of the attempt; whatever goes wrong in it ends the attempt, not the worker."""
        try:
            return work()
        except DriverLost:
            raise
        except Exception as error:
            self._fail(error)
            return True

    def _fail(self, error: Exception) -> None:
        attempt = self.attempt
        if attempt is None or isinstance(error, ChannelLost):
            where, position = "", ""
        elif isinstance(error, CommitError) and error.operator:
            where, position = error.operator, ""
        else:
            where, position = attempt.current_operator, attempt.current_position
        message = _without_operator(_with_hints(error), where) + _shown(position, error)
        self._note(f"failed: {type(error).__name__}: {redacted(str(error))}")
        self._failed = Failed(
            self._newest,
            type(error).__name__,
            redacted(message),
            operator=where,
            traceback=redacted(user_traceback(error)),
            journal=self._journal.last(),
            fatal=any(isinstance(each, _FOR_GOOD) for each in (error, error.__cause__)),
            about_rows=_about_rows(error, where),
        )
        # Before the others see their channels break, and say that instead.
        self._driver.send(self._failed)
        self._drop_attempt()

    def _note(self, line: str) -> None:
        self._journal.note(self._clock.monotonic_ms(), line)


def _about_rows(error: Exception, operator: str) -> str:
    """What is the same whenever the same row fails: operator, error, text and place. Objects move in memory."""
    if not isinstance(error, _ABOUT_VALUES) or isinstance(error, OSError):
        return ""
    return redacted(_ADDRESS.sub("0x", f"{operator}: {user_traceback(error)}{error!r}"))


def _origin(spec: JobSpec, origin: str, own: CheckpointStore | None) -> CheckpointStore | None:
    if not origin:
        return own
    if spec.open_origin is None:
        raise CheckpointCorrupt(f"this job cannot read checkpoints from {redacted(origin)}")
    return spec.open_origin(origin)


def _with_hints(error: Exception) -> str:
    """With the notes that were added to an error of user code: they say what may be meant."""
    notes = () if isinstance(error, PenstockError) else getattr(error, "__notes__", ())
    return "; ".join((str(error), *notes))


def _shown(position: str, error: Exception) -> str:
    """Where the source stands; nothing where the error names a place in that very file itself."""
    file = position.partition(", ")[0]
    if not position or (isinstance(error, DataError) and file in str(error)):
        return ""
    return f" (at {position})"


def _without_operator(message: str, operator: str) -> str:
    """The operator is told beside the message: once is enough."""
    return message.removeprefix(f"{operator}: ").removeprefix(f"{operator}, ")
