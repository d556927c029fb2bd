"""The worker's end of the control plane.

A thread of its own has the socket: it queues what comes, rings the loop's bell, and sends what the loop hands
it, in order. The connection is made once; when it breaks the driver is lost for this client. `rejoining` makes another.

The same thread is the watchdog. `Drop`, `Leave` and a lost driver are urgent: a loop that does not take them
within `TAKE_WITHIN_S`, or does not come back from acting on them within `ACT_WITHIN_S`, is stuck in user code,
and the process ends itself. What it held is Spark's to replace.
"""

from __future__ import annotations

import os
import socket as sockets_of_python
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import zmq

from penstock.errors import LaunchError
from penstock.ports.control import DriverLost
from penstock.protocol.messages import Drop, FromWorker, Leave, ToWorker
from penstock.shells.spark.invitation import GOODBYE, GOODBYE_CHARS_MAX, Invitation
from penstock.shells.spark.socket_dir import shares_host
from penstock.shells.spark.sockets import (
    FAR_TIMEOUT_MS,
    NEAR_TIMEOUT_MS,
    Watch,
    connect_encrypted,
    new_socket,
    set_control_options,
)
from penstock.shells.spark.standstill import numbering
from penstock.shells.spark.wakeup import WakeUp
from penstock.wire import control as wire

WELCOME_WITHIN_MS = 20_000
TAKE_WITHIN_S = 1.0
ACT_WITHIN_S = 1.0
WATCH_EVERY_MS = 50
STOOD_STILL_S = 0.5
"""A watchdog that was not asked for so long stood still itself."""
GOODBYE_MS = 500
WAITING_MAX = 100_000
EXIT_STUCK = 70


class Refused(LaunchError):
    """The driver does not want this process. It has said why to its own user already."""


def register(
    context: Any,
    invitation: Invitation,
    versions: Mapping[str, str],
    within_ms: int = WELCOME_WITHIN_MS,
    process: str = "",
) -> tuple[Any, Watch]:
    """Registers at the driver; the connection that this worker has from now on, and its watch. Who registers again says
    the same of `process`: then its earlier connection is over."""
    endpoint, near = endpoint_for(invitation)
    socket = new_socket(context, zmq.DEALER)
    watch = _connect(socket, endpoint, invitation, near)
    try:
        request = {**_about(invitation), "versions": dict(versions), "process": process}
        _send(socket, msgpack.packb(request), endpoint)
        answer = _await_answer(socket, watch, endpoint, within_ms)
        if "refused" in answer:
            raise Refused(answer["refused"])
    except BaseException:
        watch.close()
        raise
    return socket, watch


def endpoint_for(invitation: Invitation) -> tuple[str, bool]:
    """Where this process finds the driver, and whether that is on its own host."""
    near = bool(invitation.ipc) and shares_host(invitation.ipc, invitation.ipc_token)
    endpoint = invitation.ipc if near else invitation.tcp
    if not endpoint:
        raise LaunchError(
            "this worker is not on the driver's host, and the driver listens on its own host only"
        )
    return endpoint, near


def local_address(invitation: Invitation) -> str:
    """The address of this machine on the way to the driver: the one to give to other workers."""
    if not invitation.tcp:
        return "127.0.0.1"
    host, _, port = invitation.tcp.removeprefix("tcp://").rpartition(":")
    family = sockets_of_python.AF_INET6 if ":" in host else sockets_of_python.AF_INET
    with sockets_of_python.socket(family, sockets_of_python.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))  # sends nothing: only picks the route
        return str(probe.getsockname()[0])


def _connect(socket: Any, endpoint: str, invitation: Invitation, near: bool) -> Watch:
    set_control_options(socket, NEAR_TIMEOUT_MS if near else FAR_TIMEOUT_MS)
    if not near:
        connect_encrypted(socket, invitation.server_key)
    watch = Watch(socket)
    socket.connect(endpoint)
    return watch


def _about(invitation: Invitation) -> dict[str, Any]:
    return {
        "launch": invitation.launch,
        "token": invitation.token,
        "pid": os.getpid(),
        "numbering": numbering(),
        "host": sockets_of_python.gethostname(),
    }


def _await_answer(socket: Any, watch: Watch, endpoint: str, within_ms: int) -> dict[str, str]:
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(watch.monitor, zmq.POLLIN)
    end_s = time.monotonic() + within_ms / 1000
    while (left_s := end_s - time.monotonic()) > 0:
        ready = dict(poller.poll(left_s * 1000))
        if socket in ready:
            return {str(k): str(v) for k, v in msgpack.unpackb(socket.recv()).items()}
        if watch.look():
            break
    raise _unreachable(endpoint)


def _send(socket: Any, data: bytes, endpoint: str) -> None:
    """Never waits: a connection that was refused already takes nothing, and would be waited for without end."""
    try:
        socket.send(data, zmq.NOBLOCK)
    except zmq.Again:
        raise _unreachable(endpoint) from None


def _unreachable(endpoint: str) -> LaunchError:
    return LaunchError(
        f"a worker runs on {sockets_of_python.gethostname()} but cannot reach the driver at {endpoint}."
        " Open that port between executors and driver (spark.penstock.control.port), or set"
        " spark.driver.host to an address that executors can reach."
    )


class ControlClient:
    """`ports.control.Driver` over a registered socket. `wake` interrupts the loop's wait."""

    def __init__(
        self,
        socket: Any,
        watch: Watch,
        wake: Callable[[], None],
        end_process: Callable[[int], Any] = os._exit,
    ) -> None:
        self._socket = socket
        self._watch = watch
        self._wake = wake
        self._end_process = end_process
        self._bell = WakeUp()
        self._inbox: deque[ToWorker] = deque()
        self._outbox: deque[bytes] = deque()
        self._lost = ""
        self._closing = False
        self._watchdog = _Watchdog()
        self._thread = threading.Thread(target=self._run, name="penstock-control", daemon=True)
        self._thread.start()

    def receive(self) -> Sequence[ToWorker]:
        self._watchdog.loop_is_back()
        if not self._inbox and not self._lost:
            return ()
        taken: list[ToWorker] = []
        while self._inbox:
            taken.append(self._inbox.popleft())
        if not taken and self._lost:
            self._watchdog.loop_took(1)
            raise DriverLost(self._lost)
        self._watchdog.loop_took(sum(isinstance(each, Drop | Leave) for each in taken))
        return taken

    def send(self, message: FromWorker) -> None:
        self._outbox.append(wire.encode(message))
        self._bell.ring()

    def say_goodbye(self, reason: str) -> None:
        """The last words of a worker that fails: the driver tells them as the reason why it left."""
        self._outbox.append(GOODBYE + reason[:GOODBYE_CHARS_MAX].encode("utf-8", "replace"))

    def close(self) -> None:
        """Sends what is still waiting, for a moment, and frees everything. The watchdog ends with it."""
        self._closing = True
        self._bell.ring()
        self._thread.join()
        self._watch.close(0 if self._lost else GOODBYE_MS)
        self._bell.close()

    # ---- the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._bell.fileno(), zmq.POLLIN)
        for each in (self._socket, self._watch.monitor):
            poller.register(each, zmq.POLLIN)
        while not self._closing:
            poller.poll(self._pause_ms())
            self._bell.clear()
            if not self._lost and self._exchange():
                self._tell_lost()
                for each in (self._socket, self._watch.monitor):
                    poller.unregister(each)
            if not self._closing and self._watchdog.bites(time.monotonic()):
                self._end_process(EXIT_STUCK)
        if not self._lost:
            self._push()

    def _pause_ms(self) -> float | None:
        return WATCH_EVERY_MS if self._watchdog.armed or (self._outbox and not self._lost) else None

    def _exchange(self) -> bool:
        """Takes and sends what can be; True when the driver has just been lost."""
        broken = self._watch.look()
        self._pull()
        if not broken and not self._lost:
            self._push()
        if broken and not self._lost:
            self._lost = "the connection to the driver broke"
        return bool(self._lost)

    def _pull(self) -> None:
        while self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            try:
                message = wire.decode(self._socket.recv(zmq.NOBLOCK))
            except wire.WireError as error:
                self._lost = f"the driver sent what cannot be read: {error}"
                return
            if isinstance(message, Drop | Leave):
                self._watchdog.urgent(time.monotonic(), final=isinstance(message, Leave))
            self._inbox.append(message)
            self._wake()

    def _tell_lost(self) -> None:
        self._watchdog.urgent(time.monotonic(), final=True)
        self._wake()

    def _push(self) -> None:
        while self._outbox:
            try:
                self._socket.send(self._outbox[0], zmq.NOBLOCK)
            except zmq.Again:
                if len(self._outbox) > WAITING_MAX:
                    self._lost = f"{WAITING_MAX} messages wait for a driver that takes none"
                return
            self._outbox.popleft()


class _Watchdog:
    """Counts urgent messages: queued by the thread, taken by the loop, acted upon when the loop is back.

    After a last one (leave, or no driver any more) only the end of this client is good enough. Time in which the whole
    process stood still does not count against the loop. Each counter has one writer, so no lock is needed."""

    def __init__(self) -> None:
        self._queued = 0
        self._taken = 0
        self._done = 0
        self._seen_taken = 0
        self._due_s = 0.0
        self._looked_s = 0.0
        self._final = False

    @property
    def armed(self) -> bool:
        return self._final or self._done < self._queued

    def urgent(self, now_s: float, *, final: bool) -> None:
        if not self.armed:
            self._due_s = now_s + TAKE_WITHIN_S
            self._looked_s = now_s
        self._queued += 1
        self._final |= final

    def loop_took(self, urgent: int) -> None:
        self._taken = min(self._taken + urgent, self._queued)

    def loop_is_back(self) -> None:
        self._done = self._taken

    def bites(self, now_s: float) -> bool:
        """True when the loop is stuck. Asked every few milliseconds while it is armed."""
        if now_s - self._looked_s > STOOD_STILL_S:
            self._due_s += now_s - self._looked_s
        self._looked_s = now_s
        if self._taken != self._seen_taken:
            self._seen_taken = self._taken
            self._due_s = now_s + ACT_WITHIN_S
        return self.armed and now_s > self._due_s
