"""The ports of the engine, simulated: clock, background work, control links and channels.

Nothing here decides when something happens: the world's scheduler does, with its seeded dice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.ports.background import one_by_one
from penstock.ports.channel import Barrier, ChannelLost, Frame
from penstock.ports.control import ControlEvent, DriverLost, Received
from penstock.protocol.ids import NO_CHECKPOINT, ChannelId, CheckpointId, WorkerId
from penstock.protocol.messages import FromWorker, Leave, ToWorker
from penstock.shells.sim.strands import Strand

if TYPE_CHECKING:
    from penstock.shells.sim.world import World


class SimClock:
    """Virtual time. The wall clock starts at an arbitrary moment, and may jump."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.jumped_ms = 0.0
        self.went_back = False
        """Whether the wall clock ever did."""

    def monotonic_ms(self) -> float:
        return self.now_ms

    def jump(self, by_ms: float) -> None:
        """The wall clock alone."""
        self.jumped_ms += by_ms
        self.went_back = self.went_back or by_ms < 0

    def wall_ms(self) -> float:
        return 1_700_000_000_000.0 + self.now_ms + self.jumped_ms


@dataclass
class Job:
    """A piece of background work under way."""

    owner: SimBackground
    work: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[BaseException], None]
    ready_ms: float
    strand: Strand | None = None
    """Set where the work may stand still in the middle."""


class SimBackground:
    """Work is carried out when the scheduler says so, whole or in pieces; a dead owner does not hear of it."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.alive = True
        self._world = world
        self.ended: deque[Callable[[], None]] = deque()

    def submit(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        ready_ms = self._world.clock.now_ms + self._world.background_delay_ms()
        self._world.jobs.append(Job(self, work, done, failed, ready_ms))

    def finish(self, job: Job, result: Any, error: Exception | None) -> None:
        """The work is over: its owner's loop hears of it next."""
        if error is None:
            self.ended.append(lambda: job.done(result))
        else:
            self.ended.append(lambda: job.failed(error))

    def each(self, works: Iterable[Callable[[], Any]]) -> Generator[Any]:
        return one_by_one(works)

    def poll(self) -> bool:
        moved = bool(self.ended)
        while self.ended:
            self.ended.popleft()()
        return moved

    def close(self) -> None:
        self.alive = False


def ignore(_: object) -> None:
    """Nobody waits for this."""


@dataclass
class Link:
    """The control connection of one worker process: two queues, messages in order, each delivered at its time."""

    worker: WorkerId
    to_worker: deque[tuple[float, ToWorker]] = field(default_factory=deque)
    to_driver: deque[tuple[float, FromWorker]] = field(default_factory=deque)
    delivered: deque[ToWorker] = field(default_factory=deque)
    cut: bool = False
    """The driver's side is gone: the worker hears of it at its next look, if at all."""


class SimDriver:
    """The worker's side of a link."""

    def __init__(self, world: World, link: Link) -> None:
        self._world = world
        self._link = link

    def receive(self) -> Sequence[ToWorker]:
        if self._link.cut and not self._link.delivered:
            raise DriverLost("the control connection is closed")
        messages = list(self._link.delivered)
        self._link.delivered.clear()
        return messages

    def send(self, message: FromWorker) -> None:
        link = self._link
        if not link.cut:
            for _ in range(self._world.copies(message)):
                link.to_driver.append((self._world.delivery_ms(), message))
            self._world.repeat_later(link, link.to_driver, message)


class SimWorkers:
    """The driver's side of all its links."""

    def __init__(self, world: World, driver: int) -> None:
        self._world = world
        self._driver = driver
        self.links: dict[WorkerId, Link] = {}
        self.events: deque[ControlEvent] = deque()
        self.open = True

    def launch(self, launch: int, description: str) -> None:
        self._world.cluster.launch(self._driver, launch)

    def cancel(self, launch: int) -> None:
        self._world.cluster.cancel(self._driver, launch)

    def receive(self) -> Sequence[ControlEvent]:
        events = list(self.events)
        self.events.clear()
        return events

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        link = self.links.get(worker)
        if link is None or link.cut:
            return
        self._world.checkers.on_sent(self._driver, message)
        for _ in range(1 if isinstance(message, Leave) else self._world.copies(message)):
            link.to_worker.append((self._world.delivery_ms(), message))
        self._world.repeat_later(link, link.to_worker, message)

    def capacity(self) -> str:
        return ""

    def spread(self) -> None:
        """One place is as good as another."""

    def close(self) -> None:
        self.open = False

    def deliver(self, worker: WorkerId, message: FromWorker) -> None:
        self.events.append(Received(worker, message))


class SimChannel:
    """A channel between two processes: bounded, in order, dead when either end is. A process is woken when it could
    be waiting for just this: a frame where there was none, room where there was none."""

    def __init__(
        self,
        world: World,
        id: ChannelId,
        frames_max: int,
        log: list[Frame],
        transit_ms: float = 0.0,
    ) -> None:
        """`transit_ms`: the longest that a frame is on its way. `log`: what was ever sent, for checkers."""
        self.id = id
        self._log = log
        self._transit_ms = transit_ms
        self._arrived_ms = 0.0
        self._confirmed = NO_CHECKPOINT
        self.reader = ""
        self.writer = ""
        self._world = world
        self._frames: deque[tuple[int, float, Frame]] = deque()
        """Numbered, each with the moment from which on it can be received."""
        self._frames_max = frames_max
        self._sent = 0
        self._received = 0
        self.closed = False

    def try_send(self, frame: Frame) -> bool:
        if self.closed:
            return True
        waiting = len(self._frames)
        if waiting >= self._frames_max:
            return False
        if isinstance(frame, Barrier):
            self._world.checkers.orders.on_met(frame.order)
        self._sent += 1
        self._log.append(frame)
        self._frames.append((self._sent, self._arrival_ms(), frame))
        if not waiting:
            self._world.touch(self.reader, self._arrived_ms)
        return True

    def _arrival_ms(self) -> float:
        world = self._world
        if self._transit_ms:
            due_ms = world.clock.now_ms + world.rng.random() * self._transit_ms
            self._arrived_ms = max(self._arrived_ms, due_ms)
        return self._arrived_ms

    def try_receive(self) -> Frame | None:
        if not self._frames:
            return None
        number, arrival_ms, frame = self._frames[0]
        if arrival_ms > self._world.clock.now_ms:
            self._world.touch(self.reader, arrival_ms)
            return None
        was_full = len(self._frames) == self._frames_max
        self._frames.popleft()
        if number != self._received + 1:
            raise ChannelLost(f"channel {self.id}: frame {number} after {self._received}")
        self._received = number
        if was_full:
            self._world.touch(self.writer)
        return frame

    def confirm(self, checkpoint: CheckpointId) -> None:
        self._confirmed = max(self._confirmed, checkpoint)
        self._world.touch(self.writer)

    def confirmed(self) -> CheckpointId:
        return self._confirmed

    def close(self) -> None:
        self.closed = True
        self._frames.clear()


class SimNetwork:
    """The data plane of one attempt in one process."""

    def __init__(self, world: World, process: str, attempt: int) -> None:
        self._world = world
        self._process = process
        self._attempt = attempt
        self._inputs: dict[ChannelId, SimChannel] = {}
        self._outputs: dict[ChannelId, SimChannel] = {}

    def bind(self, inputs: Sequence[tuple[ChannelId, object]]) -> dict[str, str]:
        endpoints = {}
        for channel, _ in inputs:
            endpoint, made = self._world.open_channel(self._attempt, channel)
            made.reader = self._process
            self._inputs[channel] = made
            endpoints[str(channel)] = endpoint
        return endpoints

    def connect(self, outputs: Sequence[tuple[ChannelId, str]]) -> None:
        for channel, endpoint in outputs:
            found = self._world.channels.get(endpoint)
            if found is None or found.id != channel:
                raise ChannelLost(f"nobody listens for channel {channel} at {endpoint}")
            found.writer = self._process
            self._outputs[channel] = found

    def unreached(self) -> Sequence[str]:
        return ()

    def settled(self) -> None:
        """Nothing is kept for those who might come."""

    def check(self) -> None:
        """A channel is lost when a process is, and the driver tells of that."""

    def input(self, channel: ChannelId) -> SimChannel:
        return self._inputs[channel]

    def output(self, channel: ChannelId) -> SimChannel:
        return self._outputs[channel]

    def close(self) -> None:
        for channel in (*self._inputs.values(), *self._outputs.values()):
            channel.close()
        self._world.forget_channels(self._inputs.values())


class SimHost:
    """What a simulated worker process lives in. It never waits: the scheduler steps it."""

    def __init__(self, world: World, process: str) -> None:
        self._world = world
        self._process = process

    def network(self, attempt: int) -> SimNetwork:
        return SimNetwork(self._world, self._process, attempt)

    def wait(
        self,
        timeout_ms: float,
        *,
        waiting_for_room: Sequence[ChannelId],
        reading: Sequence[ChannelId] | None = None,
    ) -> None:
        """Nothing: a simulated worker is only stepped when something has changed."""
