"""The data plane of one attempt: one pair of sockets per channel between slots.

A frame on the wire is a header (kind, sequence number, checkpoint) and, for rows, a second part: the Arrow IPC
message of the batch without its schema, which both ends know. It is sent from Arrow's memory and read in
ZeroMQ's memory, not copied in Python. High-water marks of two frames at each end are the back pressure. Back comes
only the number of each barrier that was processed.

There are no heartbeats in a channel: one that is not read, because its subtask aligns, would not answer them. It only
notices that its own connection broke, or that a frame is missing, and is then lost for good. That a whole peer cannot
be reached any more is noticed by its pulse (`peers`).
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from socket import gethostname
from typing import Any

import pyarrow as pa
import zmq

from penstock.errors import SchemaError
from penstock.ports.channel import Barrier, Batch, ChannelLost, End, Frame
from penstock.protocol.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder
from penstock.shells.spark.peers import CONNECT_WITHIN_MS, Listener, Peer
from penstock.shells.spark.socket_dir import SocketDir, shares_host
from penstock.shells.spark.sockets import (
    HANDSHAKE_WITHIN_MS,
    Keys,
    Watch,
    bind_tcp,
    connect_encrypted,
    new_socket,
    serve_encrypted,
)

LOOK_EVERY_S = 0.2
"""How often it is looked whether a connection broke."""
FRAMES_MAX = 2
CONFIRMATIONS_MAX = 1_000
FRAME_BYTES_MAX = (1 << 31) - 1
ALIGNED_FROM_BYTES = 16 << 10
"""A frame above the 8 KiB read buffer of ZeroMQ gets aligned memory of its own; others start anywhere."""
_HEADER = struct.Struct("<BQ")
"""What a frame is, and its number; the order of a barrier follows."""
_ORDER = struct.Struct("<QQB?")
_CONFIRMATION = struct.Struct("<Q")
_BATCH, _BARRIER, _END = 0, 1, 2
_KINDS = (SnapshotKind.CHECKPOINT, SnapshotKind.FINAL, SnapshotKind.STOP)
_EVENTS, _POLLIN, _POLLOUT = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.POLLOUT)
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)


@dataclass(frozen=True, slots=True)
class TcpData:
    """How channels to other hosts are made: the address to give to peers, and the ports a firewall allows."""

    address: str
    ports: range | None = None
    only: bool = False
    """Use tcp even where both ends are on one host."""


class ZmqNetwork:
    """`ports.control.Network` with ZeroMQ. Everything it opened is closed with it."""

    def __init__(
        self,
        context: Any,
        tcp: TcpData | None = None,
        on_close: Callable[[ZmqNetwork], None] = lambda _: None,
    ) -> None:
        self._context = context
        self._directory = None if tcp and tcp.only else SocketDir()
        self._tcp = tcp
        self._keys = Keys.fresh()
        self._on_close = on_close
        self._inputs: dict[ChannelId, ZmqInput] = {}
        self._outputs: dict[ChannelId, ZmqOutput] = {}
        self._listener: Listener | None = None
        self._peers: dict[str, Peer] = {}
        self._unreached: dict[ChannelId, dict[str, str]] = {}
        """What other slots offered, where it leads to a peer that has not answered yet."""
        self._connecting = False
        self._looked_s = 0.0

    def bind(self, inputs: Sequence[tuple[ChannelId, object]]) -> dict[str, str]:
        return {str(channel): self._bind_one(channel, schema) for channel, schema in inputs}

    def connect(self, outputs: Sequence[tuple[ChannelId, str]]) -> None:
        for channel, endpoint in outputs:
            offer = json.loads(endpoint)
            if "ipc" in offer and shares_host(offer["ipc"], offer["token"]):
                self._outputs[channel] = self._connect_near(channel, offer["ipc"])
            elif "tcp" in offer:
                self._unreached[channel] = offer
                self._peers.setdefault(offer["pulse"], Peer(self._context, offer))
            else:
                raise ChannelLost(
                    f"channel {channel} leads to another host, which only listens on its own"
                )

    def unreached(self) -> list[str]:
        for channel, offer in list(self._unreached.items()):
            if self._peers[offer["pulse"]].reach():
                self._outputs[channel] = self._connect_far(channel, offer)
                del self._unreached[channel]
        silent = {self._peers[offer["pulse"]].name for offer in self._unreached.values()}
        silent |= {output.name for output in self._outputs.values() if not output.is_connected()}
        self._connecting = bool(silent)
        return sorted(silent)

    def settled(self) -> None:
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def check(self) -> None:
        now_s = time.monotonic()
        if now_s < self._looked_s + LOOK_EVERY_S:
            return
        self._looked_s = now_s
        lost = [peer.name for peer in self._peers.values() if peer.is_lost()]
        if lost:
            raise ChannelLost(
                f"{gethostname()} does not hear from {', '.join(lost)} any more: the network between them is cut, or"
                " that host is gone"
            )
        for output in self._outputs.values():
            output.check()

    def input(self, channel: ChannelId) -> ZmqInput:
        return self._inputs[channel]

    def output(self, channel: ChannelId) -> ZmqOutput:
        return self._outputs[channel]

    def close(self) -> None:
        self._on_close(self)
        for opened in self._inputs.values():
            opened.close()
        for made in self._outputs.values():
            made.close()
        self._inputs.clear()
        self._outputs.clear()
        for peer in self._peers.values():
            peer.close()
        if self._listener is not None:
            self._listener.close()
        self.settled()

    # ---- for the host's wait

    def readable(self, channels: Iterable[ChannelId] | None) -> list[Any]:
        """The sockets to poll for frames: those of `channels`, or all."""
        chosen = self._inputs if channels is None else channels
        sockets = [s for c in chosen if c in self._inputs for s in self._inputs[c].sockets]
        sockets += [self._outputs[c].socket for c in chosen if c in self._outputs]
        return sockets + (self._monitors() if self._connecting else [])

    def _monitors(self) -> list[Any]:
        """What tells that somebody who is waited for has answered."""
        waited = {offer["pulse"] for offer in self._unreached.values()}
        peers = [self._peers[pulse].monitor for pulse in sorted(waited)]
        opening = [each.monitor for each in self._outputs.values() if not each.connected]
        return [monitor for monitor in peers if monitor is not None] + opening

    def writable(self, channels: Iterable[ChannelId]) -> list[Any]:
        return [self._outputs[c].socket for c in channels if c in self._outputs]

    # ---- making channels

    def _bind_one(self, channel: ChannelId, schema: object) -> str:
        _refuse_dictionaries(channel, schema)
        offer: dict[str, str] = {}
        sockets = []
        if self._directory is not None and self._directory.path is not None:
            sockets.append(self._new(reads=True))
            offer["ipc"] = self._directory.endpoint()
            offer["token"] = self._directory.token
            sockets[-1].bind(offer["ipc"])
        if not sockets or self._tcp is not None:
            sockets.append(self._new(reads=True))
            offer |= self._bind_tcp(sockets[-1])
        self._inputs[channel] = ZmqInput(channel, schema, sockets)
        return json.dumps(offer)

    def _bind_tcp(self, socket: Any) -> dict[str, str]:
        tcp = self._tcp or TcpData("127.0.0.1")
        if self._listener is None:
            self._listener = Listener(self._context, tcp.address, tcp.ports, self._keys)
        serve_encrypted(socket, self._keys)
        port = bind_tcp(socket, tcp.address, tcp.ports)
        address = f"tcp://{tcp.address}:{port}"
        return {"tcp": address, "key": self._keys.public.decode("ascii"), **self._listener.offer}

    def _connect_near(self, channel: ChannelId, address: str) -> ZmqOutput:
        socket = self._new(reads=False)
        return self._connected(channel, socket, address, "this host")

    def _connect_far(self, channel: ChannelId, offer: dict[str, str]) -> ZmqOutput:
        socket = self._new(reads=False)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_WITHIN_MS)
        connect_encrypted(socket, offer["key"].encode("ascii"))
        where = self._peers[offer["pulse"]].name
        return self._connected(channel, socket, offer["tcp"], where)

    def _connected(self, channel: ChannelId, socket: Any, address: str, where: str) -> ZmqOutput:
        watch = Watch(socket)
        socket.connect(address)
        return ZmqOutput(channel, socket, watch, where)

    def _new(self, *, reads: bool) -> Any:
        socket = new_socket(self._context, zmq.DEALER)
        socket.setsockopt(zmq.RCVHWM, FRAMES_MAX if reads else CONFIRMATIONS_MAX)
        socket.setsockopt(zmq.SNDHWM, CONFIRMATIONS_MAX if reads else FRAMES_MAX)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_WITHIN_MS)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 2)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        return socket


class ZmqOutput:
    """The sending end of a channel. `where` says where its other end is, for people."""

    def __init__(self, channel: ChannelId, socket: Any, watch: Watch, where: str) -> None:
        self.socket = socket
        self.name = f"slot {channel.target} on {where}"
        self._channel = channel
        self._watch = watch
        self._sequence = 0
        self._ended = False
        self._confirmed = NO_CHECKPOINT

    def try_send(self, frame: Frame) -> bool:
        socket = self.socket
        if isinstance(frame, Barrier):
            self.confirmed()  # so that confirmations nobody waits for do not pile up
        if not socket.getsockopt(_EVENTS) & _POLLOUT:
            self._check()
            return False
        if isinstance(frame, Batch):
            self._send_batch(frame.data)
        elif isinstance(frame, Barrier):
            header = _HEADER.pack(_BARRIER, self._sequence)
            socket.send(header + _order_bytes(frame.order), _NOBLOCK)
        else:
            socket.send(_HEADER.pack(_END, self._sequence), _NOBLOCK)
            self._ended = True
        self._sequence += 1
        return True

    def confirmed(self) -> CheckpointId:
        while self.socket.getsockopt(_EVENTS) & _POLLIN:
            (checkpoint,) = _CONFIRMATION.unpack(self.socket.recv(_NOBLOCK))
            self._confirmed = max(self._confirmed, CheckpointId(checkpoint))
        self._check()
        return self._confirmed

    @property
    def monitor(self) -> Any:
        return self._watch.monitor

    @property
    def connected(self) -> bool:
        return self._watch.connected

    def is_connected(self) -> bool:
        self.check()
        return self._watch.connected

    def check(self) -> None:
        """Looks whether its other end is still there; raises when it is not."""
        self._watch.look()
        self._check()

    def _check(self) -> None:
        if self._watch.broken and not self._ended:
            raise ChannelLost(f"{self.name}, the receiver of channel {self._channel}, is gone")

    def close(self) -> None:
        self._watch.close()

    def _send_batch(self, batch: Any) -> None:
        body = batch.serialize()
        if body.size > FRAME_BYTES_MAX:
            raise SchemaError(
                f"a batch of {batch.num_rows} rows for channel {self._channel} has {body.size} bytes;"
                f" at most {FRAME_BYTES_MAX} can be sent: make smaller batches"
            )
        self.socket.send(_HEADER.pack(_BATCH, self._sequence), _NOBLOCK | _SNDMORE)
        self.socket.send(body, _NOBLOCK, copy=False)


class ZmqInput:
    """The receiving end. Offered under two addresses, it keeps the one that the first frame comes by."""

    def __init__(self, channel: ChannelId, schema: object, sockets: list[Any]) -> None:
        self.sockets = sockets
        self._channel = channel
        self._schema = schema
        self._sequence = 0
        self._to_confirm = NO_CHECKPOINT

    def confirm(self, checkpoint: CheckpointId) -> None:
        self._to_confirm = checkpoint
        self._say_confirmed()

    def _say_confirmed(self) -> None:
        """A newer confirmation stands for older ones, so one that finds no room just waits."""
        socket = self.sockets[0]
        if socket.getsockopt(_EVENTS) & _POLLOUT:
            socket.send(_CONFIRMATION.pack(self._to_confirm), _NOBLOCK)
            self._to_confirm = NO_CHECKPOINT

    def try_receive(self) -> Frame | None:
        if self._to_confirm:
            self._say_confirmed()
        for socket in self.sockets:
            if socket.getsockopt(_EVENTS) & _POLLIN:
                return self._take(socket)
        return None

    def close(self) -> None:
        for socket in self.sockets:
            socket.close(0)

    def _take(self, socket: Any) -> Frame:
        if len(self.sockets) > 1:
            self._keep(socket)
        head = socket.recv(_NOBLOCK)
        kind, sequence = _HEADER.unpack_from(head)
        if sequence != self._sequence:
            raise ChannelLost(
                f"channel {self._channel} lost frames: expected {self._sequence}, got {sequence}"
            )
        self._sequence = sequence + 1
        if kind == _BATCH:
            return Batch(_read(socket.recv(_NOBLOCK, copy=False), self._schema))
        if kind == _END:
            return End()
        return Barrier(_order_of(head[_HEADER.size :]))

    def _keep(self, socket: Any) -> None:
        for other in self.sockets:
            if other is not socket:
                other.close(0)
        self.sockets = [socket]


def _order_bytes(order: SnapshotOrder) -> bytes:
    return _ORDER.pack(order.id, order.base, _KINDS.index(order.kind), order.urgent)


def _order_of(data: bytes) -> SnapshotOrder:
    checkpoint, base, kind, urgent = _ORDER.unpack(data)
    return SnapshotOrder(CheckpointId(checkpoint), _KINDS[kind], urgent, CheckpointId(base))


def _read(frame: Any, schema: object) -> Any:
    buffer = frame.buffer
    data = bytes(buffer) if buffer.nbytes < ALIGNED_FROM_BYTES else buffer
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    batch.validate()
    return batch


def _refuse_dictionaries(channel: ChannelId, schema: Any) -> None:
    for column in schema:
        if "dictionary<" in str(column.type):
            raise SchemaError(
                f"column {column.name!r} on channel {channel} is dictionary encoded, and a dictionary cannot"
                " travel with every batch: cast the column to its plain type first"
            )
