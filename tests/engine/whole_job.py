"""A whole job in one thread, stepped by hand: the job manager, real workers, storage in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.restore_points import RestoreWish
from penstock.engine.driver.manager import JobManager, ManagerConfig
from penstock.engine.operators.base import Operator
from penstock.engine.spec import Changelogs, InDriver, JobSpec, Mode
from penstock.engine.worker.worker import Worker
from penstock.plan.physical import make_plan
from penstock.ports.control import ControlEvent, Joined, Left, Received
from penstock.protocol import restart
from penstock.protocol.coordinator import CoordinatorConfig
from penstock.protocol.ids import WorkerId
from penstock.protocol.lifecycle import LifecycleConfig
from penstock.protocol.messages import FromWorker, ToWorker
from penstock.protocol.phases import Outcome
from penstock.storage.local_copies import LocalCopies
from penstock.storage.memory import MemoryStore
from penstock.wire import paths
from tests.engine.kit import (
    Do,
    HeldBackground,
    ListDriver,
    ListSink,
    ManualClock,
    NoHost,
    NumberSource,
    pipeline,
)

COORDINATOR: dict[str, Any] = {"timeout_ms": 1_000, "tolerable_failures": 1, "keep": 2}
FIXED, NO_WISH = restart.Fixed(3, 5), RestoreWish()


class OneThread:
    """The job manager's side of the control plane: every launch brings a worker at once."""

    def __init__(self, make: Callable[[ListDriver], Worker]) -> None:
        self.make = make
        self.workers: dict[WorkerId, tuple[Worker, ListDriver]] = {}
        self.events: deque[ControlEvent] = deque()
        self.sent: list[ToWorker] = []
        self.lose: type | None = None
        self.miss: type | None = None
        """Answers of this kind do not reach the driver: they are `missed`."""
        self.missed: list[Received] = []
        self.launches = True
        self.edited: Callable[[FromWorker], FromWorker] = lambda message: message
        """What an answer becomes on its way."""

    def launch(self, launch: int, description: str) -> None:
        if not self.launches:
            return
        name, driver = WorkerId(f"w{len(self.workers)}"), ListDriver()
        self.workers[name] = (self.make(driver), driver)
        self.events.append(Joined(name, launch, "host", 4_000 + launch))

    def cancel(self, launch: int) -> None:
        """Workers here have no process to end."""

    def receive(self) -> Sequence[ControlEvent]:
        taken = list(self.events)
        self.events.clear()
        return taken

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        self.sent.append(message)
        if worker in self.workers and not isinstance(message, self.lose or ()):
            self.workers[worker][1].inbox.append(message)

    def spread(self) -> None:
        """There is one place only."""

    def capacity(self) -> str:
        return "Spark has no free core."

    def close(self) -> None:
        """Nothing to end."""

    def step(self) -> None:
        for name, (worker, driver) in list(self.workers.items()):
            worker.step()
            while driver.sent:
                answer = Received(name, self.edited(driver.sent.pop(0)))
                arrives = not isinstance(answer.message, self.miss or ())
                (self.events if arrives else self.missed).append(answer)
            if worker.leaving:
                self.kill(name)

    def kill(self, name: WorkerId) -> None:
        worker, _ = self.workers.pop(name)
        worker.close()
        self.events.append(Left(name, "killed"))


class Job:
    """Everything that a job is, stepped by hand. Another one with the same store is another driver of the job."""

    def __init__(
        self,
        source: NumberSource,
        sink: ListSink,
        *,
        operator: Callable[[], Operator] = Do,
        store: MemoryStore | None = None,
        origin: MemoryStore | None = None,
        driver: str = "driver-a",
        strategy: restart.Strategy = FIXED,
        wish: RestoreWish = NO_WISH,
        retain: str = "retain_on_cancel",
        durable: bool = True,
        slot_timeout_ms: int = 1_000,
        every_ms: int | None = 10,
        background: HeldBackground | None = None,
        mode: Mode = Mode.EXACTLY_ONCE,
        deploy_timeout_ms: int = 600_000,
        in_driver: InDriver | None = None,
        copies: LocalCopies | None = None,
        inline_bytes_max: int = 16_384,
        changelog: Changelogs | None = None,
        **coordinator: Any,
    ) -> None:
        self.clock, self.background = ManualClock(), background or HeldBackground()
        self.store, self.sink = store or MemoryStore(), sink
        plan = make_plan(pipeline(source, sink, operator), 1, 8)
        opened = (lambda: self.store) if durable and in_driver is None else None
        self.origin = origin or self.store
        opens: dict[str, Any] = {"open_origin": lambda root: self.origin, "in_driver": in_driver}
        opens["open_copies"] = None if copies is None else lambda: copies
        opens["inline_bytes_max"] = inline_bytes_max
        opens |= {"changelog": changelog, "incremental": coordinator.get("incremental", False)}
        spec = JobSpec("job", plan, mode, buffer_timeout_ms=0.0, open_store=opened, **opens)
        self.workers = OneThread(
            lambda link: Worker(lambda: spec, link, NoHost(), self.clock, self.background)
        )
        stored = (self.store, "job", driver, self.clock.wall_ms, lambda root: self.origin)
        files = CheckpointFiles(*stored) if durable else None
        config = ManagerConfig(
            LifecycleConfig(
                1,
                strategy=strategy,
                slot_timeout_ms=slot_timeout_ms,
                deploy_timeout_ms=deploy_timeout_ms,
            ),
            CoordinatorConfig(**{**COORDINATOR, "every_ms": every_ms, **coordinator}),
            wish,
            retain,
        )
        self.manager = JobManager(
            spec, config, self.workers, files, self.clock, self.background, {"out": sink}
        )
        self.manager.begin()

    def step(self) -> None:
        self.clock.now_ms += 1
        self.workers.step()
        self.manager.step()

    def until(self, condition: Callable[[], bool], steps: int = 5_000) -> None:
        for _ in range(steps):
            if condition():
                return
            self.step()
        raise AssertionError(f"never came: {self.manager.status} {self.manager.reason}")

    def run(self) -> Outcome:
        self.until(lambda: self.manager.ended)
        assert self.manager.outcome is not None
        return self.manager.outcome

    def completed(self, count: int) -> Callable[[], bool]:
        return lambda: self.manager.history.completed_total >= count

    @property
    def errors(self) -> list[str]:
        return [info.error for info in self.manager.history.exceptions]


def metadata(store: MemoryStore) -> list[int]:
    return [n for name in store.list() if (n := paths.metadata_of(name)) is not None]
