"""Other workers that channels lead to over a network: reached before anything is sent, and watched from then on.

A channel cannot tell a reader that is busy from a network that is cut: in both cases nothing moves. So every pair of
workers has a connection of its own, the *pulse*, by which ZeroMQ's threads ask each other whether they are there. It
carries nothing else, so nothing in it can wait for anything.
"""

from __future__ import annotations

import socket as sockets
import time
from typing import Any

import zmq

from penstock.shells.spark.sockets import (
    Keys,
    Watch,
    bind_tcp,
    connect_encrypted,
    new_socket,
    serve_encrypted,
    set_heartbeats,
)

SILENT_MS = 5_000
"""A peer that is not heard of for so long is lost."""
CONNECT_WITHIN_MS = 2_000
KNOCK_EVERY_S = 0.3


class Listener:
    """This worker's end of all pulses that others have to it."""

    def __init__(self, context: Any, address: str, ports: range | None, keys: Keys) -> None:
        self._socket = new_socket(context, zmq.ROUTER)
        set_heartbeats(self._socket, SILENT_MS)
        serve_encrypted(self._socket, keys)
        port = bind_tcp(self._socket, address, ports)
        self.offer = {"pulse": f"tcp://{address}:{port}", "host": sockets.gethostname()}

    def close(self) -> None:
        self._socket.close(0)


class Peer:
    """Another worker, by the address of its pulse."""

    def __init__(self, context: Any, offer: dict[str, str]) -> None:
        self.name = f"{offer['host']} ({offer['pulse'].removeprefix('tcp://')})"
        self._context = context
        self._address = offer["pulse"]
        self._key = offer["key"].encode("ascii")
        self._knock_s = 0.0
        self._watch: Watch | None = None

    def reach(self) -> bool:
        """True as soon as it has answered. Does not wait: tries again and again while it is asked."""
        if self._watch is not None:
            self._watch.look()
            if self._watch.connected:
                return True
            if not self._watch.broken:
                return False
            self.close()
        if time.monotonic() >= self._knock_s:
            self._knock_s = time.monotonic() + KNOCK_EVERY_S
            self._watch = self._knock()
        return False

    @property
    def monitor(self) -> Any:
        """Tells when there is news; None between two tries."""
        return None if self._watch is None else self._watch.monitor

    def is_lost(self) -> bool:
        """It was reached once, and is not heard of any more."""
        return self._watch is not None and self._watch.look()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _knock(self) -> Watch:
        socket = new_socket(self._context, zmq.DEALER)
        set_heartbeats(socket, SILENT_MS)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_WITHIN_MS)
        socket.setsockopt(zmq.HANDSHAKE_IVL, CONNECT_WITHIN_MS)
        connect_encrypted(socket, self._key)
        watch = Watch(socket)
        socket.connect(self._address)
        return watch
