"""The control plane: how the job manager and its workers reach each other, and how workers come to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from penstock.ports.channel import InputChannel, OutputChannel
from penstock.protocol.ids import ChannelId, WorkerId
from penstock.protocol.messages import FromWorker, ToWorker


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker process has registered and passed the handshake. `launch` says which launch it came from."""

    worker: WorkerId
    launch: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Left:
    """The connection to a worker is gone; nothing of it will come any more."""

    worker: WorkerId
    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    worker: WorkerId
    message: FromWorker


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """A launch (a Spark job of one task) is over: it will bring no worker any more.

    `fatal` when launching again cannot help (another interpreter, a missing package, a stopped SparkContext).
    `cancelled` when somebody else had Spark cancel it (the kill link of Spark's pages, Ctrl-C in a notebook); it
    then comes before the Left of its worker."""

    launch: int
    reason: str
    fatal: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Crowded:
    """The workers of these launches share a place with others, and there is an emptier one."""

    launches: tuple[int, ...]


ControlEvent: TypeAlias = Joined | Left | Received | LaunchEnded | Crowded


class Workers(Protocol):
    """The driver's side: starts workers and talks to them."""

    def launch(self, launch: int, description: str) -> None:
        """Starts one worker; it shows up as Joined, or LaunchEnded tells why not. Does not wait."""
        ...

    def cancel(self, launch: int) -> None:
        """Makes sure that the process of this launch goes away, by force where needed. Does not wait."""
        ...

    def receive(self) -> Sequence[ControlEvent]:
        """All that has happened since, in order per worker. Does not wait."""
        ...

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        """Never blocks; a message to a worker that is gone is lost."""
        ...

    def capacity(self) -> str:
        """What is known about free slots, for error messages."""
        ...

    def spread(self) -> None:
        """Looks whether workers would be better elsewhere, and tells of them by Crowded. Does not wait."""
        ...

    def close(self) -> None:
        """Ends every worker and frees everything."""
        ...


class DriverLost(Exception):
    """The job manager is not heard of any more: the worker must drop its attempt."""


class Driver(Protocol):
    """The worker's side of the control plane."""

    def receive(self) -> Sequence[ToWorker]:
        """Does not wait; raises DriverLost when there is no driver any more."""
        ...

    def send(self, message: FromWorker) -> None: ...


class Network(Protocol):
    """The data plane of one attempt on one worker. Endpoints are fresh per attempt."""

    def bind(self, inputs: Sequence[tuple[ChannelId, object]]) -> dict[str, str]:
        """Opens channels from other slots (with the `pa.Schema` of their rows): channel as text -> endpoint."""
        ...

    def connect(self, outputs: Sequence[tuple[ChannelId, str]]) -> None:
        """Begins to connect channels to other slots, by the endpoints they gave. Does not wait."""
        ...

    def unreached(self) -> Sequence[str]:
        """Who has not answered yet, for people; tries again as often as it is asked. Nobody: every output is there."""
        ...

    def settled(self) -> None:
        """Every slot has connected its outputs: nobody new will come."""
        ...

    def check(self) -> None:
        """Raises ChannelLost when another slot cannot be reached any more. Called often: looks now and then."""
        ...

    def input(self, channel: ChannelId) -> InputChannel: ...

    def output(self, channel: ChannelId) -> OutputChannel: ...

    def close(self) -> None: ...


class Host(Protocol):
    """What a worker process lives in."""

    def network(self, attempt: int) -> Network: ...

    def wait(
        self,
        timeout_ms: float,
        *,
        waiting_for_room: Sequence[ChannelId],
        reading: Sequence[ChannelId] | None = None,
    ) -> None:
        """Sleeps until a control message, room in one of the channels waited for, a background result, or a
        frame in a channel of `reading` (None: any). Leave channels out that are blocked for alignment: their
        waiting frames would end every wait at once."""
        ...
