"""The driver's end of the control plane.

A worker connects to a door of the driver (`ipc://` on its own host, encrypted tcp for all others), registers with its
launch's secret and its versions, and when those are right the same connection is its control plane from then on. A
broken connection is the end of exactly that worker:

    worker                            driver
      Register {launch, token, ...} ──► Door            checks
      ◄── Welcome {worker}              (or Refused {reason}, or nothing for a stranger)
                                                        the first of its launch: Joined
      messages ◄──────────────────────► Door            a second of the same launch: parked, told nothing
      (gone)                                            Left; a parked one takes over: Joined

A worker that has lost the driver for a while registers again, by a new connection; its old one is over then.

Everything here belongs to one thread, the job manager's; `wake` alone may be called by any.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgpack
import zmq

from penstock.ports.control import ControlEvent, Joined, LaunchEnded, Left, Received
from penstock.protocol.ids import WorkerId
from penstock.protocol.messages import Leave, ToWorker
from penstock.shells.spark.door import Door
from penstock.shells.spark.invitation import GOODBYE, REGISTER_BYTES_MAX, Invitation
from penstock.shells.spark.socket_dir import SocketDir
from penstock.shells.spark.sockets import (
    FAR_TIMEOUT_MS,
    NEAR_TIMEOUT_MS,
    Keys,
    bind_tcp,
    new_context,
    serve_encrypted,
)
from penstock.shells.spark.standstill import Process, end_if_stopped, find
from penstock.shells.spark.versions import difference, versions
from penstock.shells.spark.wakeup import WakeUp
from penstock.wire import control as wire

GOODBYE_S = 1.0
"""How long a worker that was told to leave may stay connected."""


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
    door: Door
    name: bytes
    number: int
    incarnation: str
    """What the process calls itself; empty when it does not."""
    process: Process | None
    """None when it cannot be seen from here: it runs on another machine, or in another container."""
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
        self._doors: list[Door] = []
        self._launches: dict[int, _Launch] = {}
        self._connections: dict[WorkerId, _Connection] = {}
        self._by_name: dict[tuple[Door, bytes], _Connection] = {}
        self._by_number: dict[tuple[Door, int], _Connection] = {}
        self._leaving: dict[tuple[Door, int], float] = {}
        """Connections that are over for us: until when they have time to hear that."""
        self._broken: list[_Connection] = []
        self._events: list[ControlEvent] = []
        self._count = 0
        self.ipc = self.tcp = ""
        if self._directory.path:
            self.ipc = self._open(NEAR_TIMEOUT_MS, self._bind_ipc)
        if addresses.bind or not self.ipc:
            self.tcp = self._open(FAR_TIMEOUT_MS, self._bind_tcp)

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
            self._end(connection, reason, GOODBYE_S)

    def processes(self, launch: int) -> int:
        known = self._launches.get(launch)
        return len(known.line) if known else 0

    # ---- the loop's side

    def receive(self) -> list[ControlEvent]:
        """All events so far. Does not wait."""
        self._bell.clear()
        for door in self._doors:
            self._look(door)  # first: what came before a break is then all there
            while (told := door.receive()) is not None:
                self._take(door, *told)
        broken, self._broken = self._broken, []
        for connection in broken:
            self._end(connection, f"its connection broke: {_whereabouts(connection)}")
        self._cut_leaving()
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
        for door in self._doors:
            door.close()
        self._context.term()
        self._bell.close()
        self._directory.close()

    # ---- doors

    def _open(self, timeout_ms: int, bind: Any) -> str:
        door = Door(self._context, timeout_ms, bind)
        self._doors.append(door)
        for each in (door.socket, door.monitor):
            self._poller.register(each, zmq.POLLIN)
        return door.address

    def _bind_ipc(self, socket: Any) -> str:
        endpoint = self._directory.endpoint()
        socket.bind(endpoint)
        return endpoint

    def _bind_tcp(self, socket: Any) -> str:
        serve_encrypted(socket, self._keys)
        port = bind_tcp(socket, self._addresses.bind or "127.0.0.1", self._addresses.ports)
        return f"tcp://{self._addresses.advertise or '127.0.0.1'}:{port}"

    def _look(self, door: Door) -> None:
        for number in door.look():
            self._leaving.pop((door, number), None)
            connection = self._by_number.pop((door, number), None)
            if connection is not None:
                self._broken.append(connection)

    # ---- registration

    def _take(self, door: Door, name: bytes, number: int, data: bytes) -> None:
        connection = self._by_name.get((door, name))
        if connection is not None:
            self._take_message(connection, data)
            return
        answer = self._answer(partial(self._admit, door, name, number), data)
        if answer is None or door.send(name, msgpack.packb(answer)):
            return
        ghost = self._by_name.get((door, name))
        if ghost is not None:  # gone before it was heard; the number is another connection's by now
            del self._by_number[door, ghost.number]
            door.mistaken(ghost.number)
            self._end(ghost, "it went away as it came")

    def _answer(self, admit: Any, data: bytes) -> dict[str, str] | None:
        """None for a stranger: who does not know the secret learns nothing."""
        if len(data) > REGISTER_BYTES_MAX:
            return None
        try:
            request = msgpack.unpackb(data)
            launch, token = int(request["launch"]), str(request["token"])
            host, pid, theirs = str(request["host"]), int(request["pid"]), dict(request["versions"])
            numbered_by, incarnation = str(request["numbering"]), str(request["process"])
        except Exception:  # bytes from anyone may be anything
            return None
        known = self._launches.get(launch)
        if known is None:
            return {"refused": f"launch {launch} is over"}
        if not hmac.compare_digest(known.token.encode(), token.encode("utf-8", "replace")):
            return None
        problem = difference(self._versions, theirs, host)
        if problem:
            self._refuse(launch, problem)
            return {"refused": problem}
        worker = admit(known, launch, host, pid, incarnation, find(pid, numbered_by))
        return {"worker": worker} if worker is not None else None

    def _refuse(self, launch: int, problem: str) -> None:
        self.forget(launch, problem)
        self._events.append(LaunchEnded(launch, problem, fatal=True))

    def _admit(
        self,
        door: Door,
        name: bytes,
        number: int,
        known: _Launch,
        launch: int,
        host: str,
        pid: int,
        incarnation: str,
        process: Process | None,
    ) -> WorkerId | None:
        self._look(door)  # the number may have been another connection's until a moment ago
        if not door.admit(number):
            return None
        self._count += 1
        worker = WorkerId(f"w{launch}-{self._count}")
        made = _Connection(worker, launch, host, pid, door, name, number, incarnation, process)
        self._connections[worker] = self._by_name[door, name] = made
        self._by_number[door, number] = made
        for old in [each for each in known.line if incarnation == each.incarnation != ""]:
            self._end(old, "it lost its connection, and came back by another")
        known.line.append(made)
        self._announce_next(launch)
        return worker

    # ---- workers

    def _take_message(self, connection: _Connection, data: bytes) -> None:
        if data.startswith(GOODBYE):
            self._end(connection, data.removeprefix(GOODBYE).decode("utf-8", "replace"))
        elif connection.announced:
            try:
                self._events.append(Received(connection.worker, wire.decode(data)))
            except wire.WireError as error:
                self._end(connection, f"it sent what cannot be read: {error}")

    def _announce_next(self, launch: int) -> None:
        """The first of the line becomes the launch's worker, unless there is one."""
        known = self._launches.get(launch)
        if known is None or not known.line or any(each.announced for each in known.line):
            return
        first = known.line[0]
        first.announced = True
        self._events.append(Joined(first.worker, launch, first.host, first.pid))

    def _say(self, connection: _Connection, message: ToWorker) -> bool:
        """False when the worker cannot be told: its queue is full, or it has just gone."""
        return connection.door.send(connection.name, wire.encode(message))

    def _end(self, connection: _Connection, reason: str, linger_s: float = 0.0) -> None:
        if self._connections.pop(connection.worker, None) is None:
            return
        door, number = connection.door, connection.number
        self._look(door)  # the number may be another connection's by now
        del self._by_name[door, connection.name]
        if self._by_number.get((door, number)) is connection:
            del self._by_number[door, number]
            self._leaving[door, number] = time.monotonic() + linger_s
            self._cut_leaving()
        if connection.announced:
            self._events.append(Left(connection.worker, reason))
        known = self._launches.get(connection.launch)
        if known is not None:
            known.line.remove(connection)
            self._announce_next(connection.launch)

    def _cut_leaving(self) -> None:
        now_s = time.monotonic()
        for (door, number), until_s in list(self._leaving.items()):
            if now_s >= until_s:
                del self._leaving[door, number]
                door.cut(number)


def _whereabouts(connection: _Connection) -> str:
    """What is known of a process that is not heard of any more. One that was stopped is ended, for otherwise
    Spark would not notice and bring no other."""
    if connection.process is not None and end_if_stopped(connection.process):
        return "the process stood still, and was ended"
    return "the process is gone or stands still"
