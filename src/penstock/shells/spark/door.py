"""A socket that listens for workers: one address for all of them, and one connection each.

ZeroMQ hides connections behind names. Its monitor tells when one breaks, by the number of its file; every message tells
the same number. That is how the end of a connection becomes the end of exactly one worker.

Anybody may knock. Who does not know the key fails the handshake and loses its own connection only; who stays silent is
closed by ZeroMQ after a while; and when too many are about who have not said who they are, the oldest are closed.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from penstock.shells.spark.sockets import monitor_of, new_socket, set_control_options

STRANGERS_MAX = 256
"""So many connections at once may be without a name."""
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class Door:
    """`bind` binds the socket and returns its address. Connections are known by the numbers of their files."""

    def __init__(self, context: Any, timeout_ms: int, bind: Callable[[Any], str]) -> None:
        self.socket = new_socket(context, zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.BACKLOG, 1024)
        set_control_options(self.socket, timeout_ms)
        self.monitor = monitor_of(self.socket, _WATCHED)
        self.address = bind(self.socket)
        self._strangers: dict[int, None] = {}
        """In the order in which they came."""
        self._known: set[int] = set()

    def look(self) -> list[int]:
        """The known connections that have broken since."""
        broken = []
        while self.monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            told = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
            number = told["value"]
            if told["event"] == zmq.EVENT_ACCEPTED:
                self._strangers[number] = None
            else:
                self._strangers.pop(number, None)
                if number in self._known:
                    self._known.discard(number)
                    broken.append(number)
        self._send_away()
        return broken

    def receive(self) -> tuple[bytes, int, bytes] | None:
        """The next message: the name of its connection, the number of its file, and what it says."""
        while self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            if len(parts) == 2:
                number = int(parts[1].get(zmq.SRCFD))
                return bytes(parts[0].buffer), number, bytes(parts[1].buffer)
        return None

    def send(self, name: bytes, data: bytes) -> bool:
        """False when the connection takes no more, or is gone."""
        try:
            self.socket.send_multipart([name, data], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def admit(self, number: int) -> bool:
        """It has said who it is. False when it is gone again. Call `look` right before."""
        if number not in self._strangers:
            return False
        del self._strangers[number]
        self._known.add(number)
        return True

    def mistaken(self, number: int) -> None:
        """Who was admitted had gone: this number is somebody else's, who has not said who he is."""
        self._known.discard(number)
        self._strangers[number] = None

    def cut(self, number: int) -> None:
        """Ends a known connection; `look` does not tell of it."""
        if number in self._known:
            self._known.discard(number)
            self._shut(number)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)

    def _send_away(self) -> None:
        while len(self._strangers) > STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            self._shut(oldest)

    def _shut(self, number: int) -> None:
        """From outside, as ZeroMQ has no way to close one connection: it finds this one closed by its peer."""
        with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(number)) as connection:
            if self._is_ours(connection):
                connection.shutdown(sockets.SHUT_RDWR)

    def _is_ours(self, connection: Any) -> bool:
        """Numbers are used again: what does not end at this door is left alone."""
        name = connection.getsockname()
        if isinstance(name, tuple):
            return self.address.endswith(f":{name[1]}")
        return self.address == f"ipc://{name}"
