"""The driver's end of the control plane.

A worker registers at one well-known ROUTER socket with its launch's secret and its versions. When those are
right it is given a socket of its own, watched by a monitor, so that a broken connection is the end of exactly
that worker:

    worker                            driver
      Register {launch, token, ...} ──► ROUTER          checks, binds a fresh PAIR
      ◄── Welcome {worker, endpoint}    (or Refused {reason})
      connects, hello ────────────────► PAIR            the first of its launch: Joined
      messages ◄──────────────────────► PAIR            a second of the same launch: parked, told nothing
      (gone)                            monitor         Left; a parked one takes over: Joined

Everything here belongs to one thread, the job manager's; `wake` alone may be called by any.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import zmq

from penstock.ports.control import ControlEvent, Joined, LaunchEnded, Left, Received
from penstock.protocol.ids import WorkerId
from penstock.protocol.messages import Leave, ToWorker
from penstock.shells.spark.invitation import GOODBYE, REGISTER_BYTES_MAX, Invitation
from penstock.shells.spark.socket_dir import SocketDir
from penstock.shells.spark.sockets import (
    Keys,
    Watch,
    bind_tcp,
    new_context,
    new_socket,
    serve_encrypted,
    set_control_options,
)
from penstock.shells.spark.standstill import Process, end_if_stopped, find
from penstock.shells.spark.versions import difference, versions
from penstock.shells.spark.wakeup import WakeUp
from penstock.wire import control as wire

HELLO_WITHIN_S = 10.0
GOODBYE_MS = 1000
"""How long a last message to a worker may take on its way out."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the driver listens. `bind` empty: only on this host, by `ipc://`."""

    bind: str = ""
    advertise: str = ""
    ports: range | None = None


@dataclass(slots=True, eq=False)
class _Connection:
    worker: WorkerId
    launch: int
    host: str
    pid: int
    socket: Any
    watch: Watch
    endpoint: str
    deadline_s: float
    process: Process | None
    """None when it cannot be seen from here: it runs on another machine, or in another container."""
    said_hello: bool = False
    announced: bool = False


@dataclass(slots=True)
class _Launch:
    token: str
    line: list[_Connection] = field(default_factory=list)
    """Its processes in the order of their registration: the first is the worker, the others wait."""


class ControlServer:
    def __init__(
        self, addresses: Addresses, expected_versions: Mapping[str, str] | None = None
    ) -> None:
        self._versions = dict(expected_versions or versions())
        self._addresses = addresses
        self._context = new_context()
        self._directory = SocketDir()
        self._keys = Keys.fresh()
        self._bell = WakeUp()
        self._poller = zmq.Poller()
        self._poller.register(self._bell.fileno(), zmq.POLLIN)
        self._routers: dict[Any, str] = {}
        self._launches: dict[int, _Launch] = {}
        self._connections: dict[WorkerId, _Connection] = {}
        self._by_socket: dict[Any, _Connection] = {}
        self._events: list[ControlEvent] = []
        self._count = 0
        self.ipc = self._listen("ipc") if self._directory.path else ""
        self.tcp = self._listen("tcp") if addresses.bind or not self.ipc else ""

    # ---- launches

    def expect(self, launch: int, body: str) -> Invitation:
        """From now on a process with this invitation is let in."""
        token = secrets.token_hex(16)
        self._launches[launch] = _Launch(token)
        return Invitation(
            launch=launch,
            token=token,
            ipc=self.ipc,
            ipc_token=self._directory.token,
            tcp=self.tcp,
            server_key=self._keys.public,
            body=body,
        )

    def forget(self, launch: int, reason: str) -> None:
        """The launch is over: its processes are asked to leave, cut off, and nobody new is let in."""
        over = self._launches.pop(launch, None)
        for connection in list(over.line) if over else []:
            self._say(connection, Leave())
            self._end(connection, reason, GOODBYE_MS)

    def processes(self, launch: int) -> int:
        known = self._launches.get(launch)
        return len(known.line) if known else 0

    # ---- the loop's side

    def receive(self) -> list[ControlEvent]:
        """All events so far. Does not wait."""
        for ready, _ in self._poller.poll(0):
            if ready in self._routers:
                self._take_registrations(ready)
            elif ready in self._by_socket:
                self._take(self._by_socket[ready])
            else:
                self._bell.clear()
        self._end_silent()
        events, self._events = self._events, []
        return events

    def wait(self, timeout_ms: float) -> None:
        """Sleeps until something happened that `receive` would tell, or somebody called `wake`."""
        if not self._events:
            self._poller.poll(max(0.0, timeout_ms))

    def wake(self) -> None:
        self._bell.ring()

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        connection = self._connections.get(worker)
        if connection is not None and not self._say(connection, message):
            self._end(connection, "it does not take its messages any more")

    def close(self) -> None:
        for launch in list(self._launches):
            self.forget(launch, "the job has ended")
        for router in self._routers:
            router.close(0)
        self._context.term()
        self._bell.close()
        self._directory.close()

    # ---- registration

    def _listen(self, by: str) -> str:
        router = new_socket(self._context, zmq.ROUTER)
        set_control_options(router)
        router.setsockopt(zmq.MAXMSGSIZE, REGISTER_BYTES_MAX)
        endpoint = self._bind(router, by)
        self._routers[router] = by
        self._poller.register(router, zmq.POLLIN)
        return endpoint

    def _bind(self, socket: Any, by: str) -> str:
        if by == "ipc":
            endpoint = self._directory.endpoint()
            socket.bind(endpoint)
            return endpoint
        serve_encrypted(socket, self._keys)
        port = bind_tcp(socket, self._addresses.bind or "127.0.0.1", self._addresses.ports)
        return f"tcp://{self._addresses.advertise or '127.0.0.1'}:{port}"

    def _take_registrations(self, router: Any) -> None:
        while router.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            parts = router.recv_multipart(zmq.NOBLOCK)
            answer = self._answer(parts[1], self._routers[router]) if len(parts) == 2 else None
            if answer is not None:
                self._reply(router, parts[0], answer)

    def _reply(self, router: Any, identity: bytes, answer: dict[str, str]) -> None:
        with contextlib.suppress(zmq.ZMQError):  # gone again: its promised socket times out
            router.send_multipart([identity, msgpack.packb(answer)], zmq.NOBLOCK)

    def _answer(self, data: bytes, by: str) -> dict[str, str] | None:
        """None for a stranger: who does not know the secret learns nothing."""
        try:
            request = msgpack.unpackb(data)
            launch, token = int(request["launch"]), str(request["token"])
            host, pid, theirs = str(request["host"]), int(request["pid"]), dict(request["versions"])
            numbered_by = str(request["numbering"])
        except Exception:  # bytes from anyone may be anything
            return None
        known = self._launches.get(launch)
        if known is None:
            return {"refused": f"launch {launch} is over"}
        if not hmac.compare_digest(known.token, token):
            return None
        problem = difference(self._versions, theirs, host)
        if problem:
            self._refuse(launch, problem)
            return {"refused": problem}
        connection = self._open(known, launch, host, pid, find(pid, numbered_by), by)
        return {"worker": connection.worker, "endpoint": connection.endpoint}

    def _refuse(self, launch: int, problem: str) -> None:
        self.forget(launch, problem)
        self._events.append(LaunchEnded(launch, problem, fatal=True))

    def _open(
        self, known: _Launch, launch: int, host: str, pid: int, process: Process | None, by: str
    ) -> _Connection:
        self._count += 1
        socket = new_socket(self._context, zmq.PAIR)
        set_control_options(socket)
        watch = Watch(socket, listens=True)
        connection = _Connection(
            worker=WorkerId(f"w{launch}-{self._count}"),
            launch=launch,
            host=host,
            pid=pid,
            socket=socket,
            watch=watch,
            endpoint=self._bind(socket, by),
            deadline_s=time.monotonic() + HELLO_WITHIN_S,
            process=process,
        )
        known.line.append(connection)
        self._connections[connection.worker] = connection
        for each in (socket, watch.monitor):
            self._by_socket[each] = connection
            self._poller.register(each, zmq.POLLIN)
        return connection

    # ---- workers

    def _take(self, connection: _Connection) -> None:
        broken = connection.watch.look()  # first: what came before the break is then all there
        socket = connection.socket
        while not socket.closed and socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._take_message(connection, socket.recv(zmq.NOBLOCK))
        if broken and connection.worker in self._connections:
            self._end(connection, f"its connection broke: {_whereabouts(connection)}")

    def _take_message(self, connection: _Connection, data: bytes) -> None:
        if not connection.said_hello:
            connection.said_hello = True
            self._announce_next(connection.launch)
        elif data.startswith(GOODBYE):
            self._end(connection, data.removeprefix(GOODBYE).decode("utf-8", "replace"))
        elif connection.announced:
            try:
                self._events.append(Received(connection.worker, wire.decode(data)))
            except wire.WireError as error:
                self._end(connection, f"it sent what cannot be read: {error}")

    def _announce_next(self, launch: int) -> None:
        """The first of the line that is connected becomes the launch's worker, unless there is one."""
        known = self._launches.get(launch)
        if known is None or any(each.announced for each in known.line):
            return
        for each in known.line:
            if each.said_hello:
                each.announced = True
                self._events.append(Joined(each.worker, launch, each.host, each.pid))
                return

    def _say(self, connection: _Connection, message: ToWorker) -> bool:
        """False when the worker cannot be told: its queue is full."""
        if not connection.said_hello:
            return True
        try:
            connection.socket.send(wire.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _end_silent(self) -> None:
        """Promised sockets to which nobody came."""
        now_s = time.monotonic()
        for connection in list(self._connections.values()):
            if not connection.said_hello and now_s > connection.deadline_s:
                self._end(connection, "it registered but never connected")

    def _end(self, connection: _Connection, reason: str, linger_ms: int = 0) -> None:
        if self._connections.pop(connection.worker, None) is None:
            return
        for each in (connection.socket, connection.watch.monitor):
            self._poller.unregister(each)
            del self._by_socket[each]
        connection.watch.close(linger_ms)
        if connection.announced:
            self._events.append(Left(connection.worker, reason))
        known = self._launches.get(connection.launch)
        if known is not None:
            known.line.remove(connection)
            self._announce_next(connection.launch)


def _whereabouts(connection: _Connection) -> str:
    """What is known of a process that is not heard of any more. One that was stopped is ended, for otherwise
    Spark would not notice and bring no other."""
    if connection.process is not None and end_if_stopped(connection.process):
        return "the process stood still, and was ended"
    return "the process is gone or stands still"
