"""ZeroMQ sockets as Penstock uses them: never reconnecting, never lingering, watched.

A broken connection is final: ZeroMQ would reconnect silently and lose what was under way, so reconnecting is
off and a monitor tells of the break at once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

HEARTBEAT_EVERY_MS = 300
NEAR_TIMEOUT_MS = 1000
FAR_TIMEOUT_MS = 3000
"""Who is not heard of for so long is lost. Networks lose packets for a second or two; a host does not."""
HANDSHAKE_WITHIN_MS = 5000
CONTROL_MESSAGES_MAX = 20_000
CONTROL_BYTES_MAX = 512 << 20
_WATCHED = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_monitors = itertools.count()


@dataclass(frozen=True, slots=True)
class Keys:
    """A CURVE key pair. Who does not know the public half of a server cannot even say hello to it, so that
    half is given only to those who may connect."""

    public: bytes
    secret: bytes

    @staticmethod
    def fresh() -> Keys:
        return Keys(*zmq.curve_keypair())


def new_context() -> Any:
    context = zmq.Context(io_threads=1)
    context.set(zmq.MAX_SOCKETS, 16_384)
    return context


def new_socket(context: Any, kind: int) -> Any:
    socket = context.socket(kind)
    socket.linger = 0
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    return socket


def set_heartbeats(socket: Any, timeout_ms: int) -> None:
    """They run in ZeroMQ's own thread: they go on while Python is busy, and stop with the process."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_EVERY_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, timeout_ms)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_WITHIN_MS)


def set_control_options(socket: Any, timeout_ms: int) -> None:
    set_heartbeats(socket, timeout_ms)
    socket.setsockopt(zmq.MAXMSGSIZE, CONTROL_BYTES_MAX)
    socket.set_hwm(CONTROL_MESSAGES_MAX)


def serve_encrypted(socket: Any, keys: Keys) -> None:
    socket.curve_server = True
    socket.curve_secretkey = keys.secret
    socket.curve_publickey = keys.public


def connect_encrypted(socket: Any, server_key: bytes) -> None:
    own = Keys.fresh()
    socket.curve_serverkey = server_key
    socket.curve_publickey = own.public
    socket.curve_secretkey = own.secret


def bind_tcp(socket: Any, host: str, ports: range | None) -> int:
    """Binds to a free port (of `ports`, where a firewall leaves only some open) and returns it."""
    if ports is None:
        return int(socket.bind_to_random_port(f"tcp://{host}"))
    for port in ports:
        try:
            socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
        else:
            return port
    raise OSError(f"no free port on {host} among {ports.start}-{ports.stop - 1}")


def monitor_of(socket: Any, events: int) -> Any:
    """A socket that tells of these events. It holds as many as there are: ZeroMQ's own thread would wait for room."""
    address = f"inproc://monitor-{id(socket)}-{next(_monitors)}"
    socket.monitor(address, events)
    monitor = socket.context.socket(zmq.PAIR)
    monitor.rcvhwm = 0
    monitor.linger = 0
    monitor.connect(address)
    return monitor


class Watch:
    """Knows when the one connection that a socket makes is there or has broken: the first thing that goes wrong is
    the end of it."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.monitor = monitor_of(socket, _WATCHED)
        self.connected = False
        self.broken = False

    def look(self) -> bool:
        """True when the connection is broken."""
        while self.monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            told = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
            self._heed(told["event"])
        return self.broken

    def close(self, linger_ms: int = 0) -> None:
        """Closes the socket, too. A second time changes nothing: a channel and its network both close it."""
        if self._socket.closed:
            return
        self._socket.disable_monitor()
        self.monitor.close(0)
        self._socket.close(linger_ms)

    def _heed(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connected = True
        elif event != zmq.EVENT_CONNECTED:
            self.broken = True
