"""The data plane of one attempt: one pair of sockets per channel between slots.

A frame on the wire is a header (kind, sequence number, checkpoint) and, for rows, a second part: the Arrow IPC
message of the batch without its schema, which both ends know. It is sent from Arrow's memory and read in
ZeroMQ's memory, not copied in Python. High-water marks of two frames at each end are the back pressure. Back comes
only the number of each barrier that was processed.

There are no heartbeats here: a channel that is not read, because its subtask aligns, would not answer them.
The control plane knows who is alive; a channel only notices that its own connection broke, or that a frame is
missing, and is then lost for good.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import zmq

from penstock.errors import SchemaError
from penstock.ports.channel import Barrier, Batch, ChannelLost, End, Frame
from penstock.protocol.ids import NO_CHECKPOINT, ChannelId, CheckpointId
from penstock.shells.spark.socket_dir import SocketDir, shares_host
from penstock.shells.spark.sockets import (
    Keys,
    Watch,
    bind_tcp,
    connect_encrypted,
    new_socket,
    serve_encrypted,
)

FRAMES_MAX = 2
CONFIRMATIONS_MAX = 1_000
FRAME_BYTES_MAX = (1 << 31) - 1
ALIGNED_FROM_BYTES = 16 << 10
"""A frame above the 8 KiB read buffer of ZeroMQ gets aligned memory of its own; others start anywhere."""
_HEADER = struct.Struct("<BQQ")
_CONFIRMATION = struct.Struct("<Q")
_BATCH, _BARRIER, _END, _URGENT_BARRIER = 0, 1, 2, 3
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
        directory: SocketDir,
        tcp: TcpData | None = None,
        on_close: Callable[[ZmqNetwork], None] = lambda _: None,
    ) -> None:
        self._context = context
        self._directory = directory
        self._tcp = tcp
        self._keys = Keys.fresh() if tcp else None
        self._on_close = on_close
        self._inputs: dict[ChannelId, ZmqInput] = {}
        self._outputs: dict[ChannelId, ZmqOutput] = {}

    def bind(self, inputs: Sequence[tuple[ChannelId, object]]) -> dict[str, str]:
        return {str(channel): self._bind_one(channel, schema) for channel, schema in inputs}

    def connect(self, outputs: Sequence[tuple[ChannelId, str]]) -> None:
        for channel, endpoint in outputs:
            self._outputs[channel] = self._connect_one(channel, json.loads(endpoint))

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

    # ---- for the host's wait

    def readable(self, channels: Iterable[ChannelId] | None) -> list[Any]:
        """The sockets to poll for frames: those of `channels`, or all."""
        chosen = self._inputs if channels is None else channels
        sockets = [s for c in chosen if c in self._inputs for s in self._inputs[c].sockets]
        return sockets + [self._outputs[c].socket for c in chosen if c in self._outputs]

    def writable(self, channels: Iterable[ChannelId]) -> list[Any]:
        return [self._outputs[c].socket for c in channels if c in self._outputs]

    def find_broken(self) -> bool:
        """True when a channel is lost: its next `try_send` raises."""
        return any(output.look() for output in self._outputs.values())

    # ---- making channels

    def _bind_one(self, channel: ChannelId, schema: object) -> str:
        _refuse_dictionaries(channel, schema)
        offer: dict[str, str] = {}
        sockets = []
        if self._directory.path is not None and not (self._tcp and self._tcp.only):
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
        self._keys = keys = self._keys or Keys.fresh()
        serve_encrypted(socket, keys)
        port = bind_tcp(socket, tcp.address, tcp.ports)
        return {"tcp": f"tcp://{tcp.address}:{port}", "key": keys.public.decode("ascii")}

    def _connect_one(self, channel: ChannelId, offer: dict[str, str]) -> ZmqOutput:
        socket = self._new(reads=False)
        near = "ipc" in offer and shares_host(offer["ipc"], offer["token"])
        if not near and "tcp" not in offer:
            socket.close(0)
            raise ChannelLost(
                f"channel {channel} leads to another host, which only listens on its own"
            )
        if not near:
            connect_encrypted(socket, offer["key"].encode("ascii"))
        watch = Watch(socket, listens=False)
        socket.connect(offer["ipc"] if near else offer["tcp"])
        return ZmqOutput(channel, socket, watch)

    def _new(self, *, reads: bool) -> Any:
        socket = new_socket(self._context, zmq.DEALER)
        socket.setsockopt(zmq.RCVHWM, FRAMES_MAX if reads else CONFIRMATIONS_MAX)
        socket.setsockopt(zmq.SNDHWM, CONFIRMATIONS_MAX if reads else FRAMES_MAX)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 2)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        return socket


class ZmqOutput:
    """The sending end of a channel."""

    def __init__(self, channel: ChannelId, socket: Any, watch: Watch) -> None:
        self.socket = socket
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
            if self._watch.broken and not self._ended:
                raise ChannelLost(f"the receiver of channel {self._channel} is gone")
            return False
        if isinstance(frame, Batch):
            self._send_batch(frame.data)
        elif isinstance(frame, Barrier):
            kind = _URGENT_BARRIER if frame.urgent else _BARRIER
            socket.send(_HEADER.pack(kind, self._sequence, frame.checkpoint), _NOBLOCK)
        else:
            socket.send(_HEADER.pack(_END, self._sequence, 0), _NOBLOCK)
            self._ended = True
        self._sequence += 1
        return True

    def confirmed(self) -> CheckpointId:
        while self.socket.getsockopt(_EVENTS) & _POLLIN:
            (checkpoint,) = _CONFIRMATION.unpack(self.socket.recv(_NOBLOCK))
            self._confirmed = max(self._confirmed, CheckpointId(checkpoint))
        if self._watch.broken and not self._ended:
            raise ChannelLost(f"the receiver of channel {self._channel} is gone")
        return self._confirmed

    def look(self) -> bool:
        return self._watch.look() and not self._ended

    def close(self) -> None:
        self._watch.close()

    def _send_batch(self, batch: Any) -> None:
        body = batch.serialize()
        if body.size > FRAME_BYTES_MAX:
            raise SchemaError(
                f"a batch of {batch.num_rows} rows for channel {self._channel} has {body.size} bytes;"
                f" at most {FRAME_BYTES_MAX} can be sent: make smaller batches"
            )
        self.socket.send(_HEADER.pack(_BATCH, self._sequence, 0), _NOBLOCK | _SNDMORE)
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
        kind, sequence, checkpoint = _HEADER.unpack(socket.recv(_NOBLOCK))
        if sequence != self._sequence:
            raise ChannelLost(
                f"channel {self._channel} lost frames: expected {self._sequence}, got {sequence}"
            )
        self._sequence = sequence + 1
        if kind == _BATCH:
            return Batch(_read(socket.recv(_NOBLOCK, copy=False), self._schema))
        if kind == _END:
            return End()
        return Barrier(CheckpointId(checkpoint), urgent=kind == _URGENT_BARRIER)

    def _keep(self, socket: Any) -> None:
        for other in self.sockets:
            if other is not socket:
                other.close(0)
        self.sockets = [socket]


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
