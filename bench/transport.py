"""The channel between two processes: rows per second, beside a plain pipe that carries the same bytes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import zmq

from bench.figures import Figure, middle
from bench.sizes import Sizes
from bench.workload import INT_SCHEMA, int_rows
from penstock.ports.channel import Batch, End
from penstock.protocol.ids import ChannelId
from penstock.shells.spark.network import TcpData, ZmqNetwork
from penstock.shells.spark.sockets import new_context

ROWS = 32_768
CHANNEL = ChannelId(0, 0, 1)
PATIENCE_MS = 10_000
CHANNEL_WAY, TCP_WAY, PIPE = "channel, ipc", "channel, encrypted tcp", "pipe"


def run(sizes: Sizes) -> list[Figure]:
    ways: dict[str, Callable[[int], float]] = {
        CHANNEL_WAY: lambda frames: channel_rate(frames, None),
        TCP_WAY: lambda frames: channel_rate(frames, TcpData("127.0.0.1", only=True)),
        PIPE: pipe_rate,
    }
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(sizes.repetitions):
        for way, measure in ways.items():
            samples[way].append(measure(sizes.frames))
    pipe = middle(samples[PIPE])
    return [
        Figure(
            *("transport", way, middle(samples[way]), "rows/s", "a pipe of bytes", pipe),
            samples=tuple(samples[way]),
        )
        for way in (CHANNEL_WAY, TCP_WAY)
    ]


def channel_rate(frames: int, tcp: TcpData | None) -> float:
    context = new_context()
    network = ZmqNetwork(context, tcp)
    try:
        endpoint = network.bind([(CHANNEL, INT_SCHEMA)])[str(CHANNEL)]
        sender = _spawn(send_frames, endpoint, frames)
        try:
            return _receive_all(network)
        finally:
            _end(sender)
    finally:
        network.close()
        context.destroy(linger=0)


def _receive_all(network: ZmqNetwork) -> float:
    """From the first frame to the last one; the first one's rows do not count."""
    channel = network.input(CHANNEL)
    rows, began_s = 0, 0.0
    while True:
        frame = channel.try_receive()
        if isinstance(frame, Batch):
            if began_s:
                rows += frame.data.num_rows
            else:
                began_s = time.perf_counter()
        elif isinstance(frame, End):
            return rows / (time.perf_counter() - began_s)
        else:
            items = [(socket, zmq.POLLIN) for socket in network.readable(None)]
            if not zmq.zmq_poll(items, PATIENCE_MS):
                raise TimeoutError("the sending process sent nothing")


def send_frames(endpoint: str, frames: int) -> None:
    """The sending process."""
    context = new_context()
    network = ZmqNetwork(context)
    network.connect([(CHANNEL, endpoint)])
    while network.unreached():
        zmq.zmq_poll([(socket, zmq.POLLIN) for socket in network.readable(())], 100)
    output = network.output(CHANNEL)
    batch = Batch(int_rows(100_000, 0, ROWS))
    for frame in [*([batch] * frames), End()]:
        while not output.try_send(frame):
            if not zmq.zmq_poll([(output.socket, zmq.POLLOUT)], PATIENCE_MS):
                raise TimeoutError("the receiving process took nothing")
    context.destroy(linger=PATIENCE_MS)
    network.settled()


def pipe_rate(frames: int) -> float:
    receiving, sending = multiprocessing.Pipe(duplex=False)
    sender = _spawn(send_bytes, sending, frames)
    try:
        receiving.recv_bytes()
        began_s = time.perf_counter()
        for _ in range(frames - 1):
            receiving.recv_bytes()
        return (frames - 1) * ROWS / (time.perf_counter() - began_s)
    finally:
        _end(sender)
        receiving.close()
        sending.close()


def send_bytes(sending: Connection, frames: int) -> None:
    body = int_rows(100_000, 0, ROWS).serialize()
    for _ in range(frames):
        sending.send_bytes(body)


def _spawn(target: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    return process


def _end(process: Any) -> None:
    process.join(10)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
