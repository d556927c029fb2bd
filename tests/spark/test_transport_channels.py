"""Channels over ZeroMQ: order, back pressure, loss, memory, and who may use them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pyarrow as pa
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import SchemaError
from penstock.ports.channel import Barrier, Batch, ChannelLost, End, Frame
from penstock.protocol.ids import ChannelId, CheckpointId
from penstock.protocol.messages import SnapshotKind, SnapshotOrder
from penstock.shells.spark.host import SparkHost
from penstock.shells.spark.network import ZmqNetwork
from tests.engine.kit import barrier
from tests.spark.ends import a_host, until

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.float64()))])
CHANNEL = ChannelId(0, 1, 2)
OTHER = ChannelId(0, 3, 2)
LONG_MS = 120_000


@contextmanager
def ends_early() -> Iterator[None]:
    """A wait ends by what happens, not by its limit."""
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < LONG_MS / 1_000


def rows(count: int, start: int = 0) -> pa.RecordBatch:
    numbers = np.arange(start, start + count)
    return pa.record_batch(
        [numbers, [f"row {n}" for n in numbers], [[float(n)] * (n % 3) for n in numbers]],
        schema=SCHEMA,
    )


class Pair:
    """Two hosts and the channels between them."""

    def __init__(self, sender: SparkHost, receiver: SparkHost) -> None:
        self.sender, self.receiver = sender, receiver
        self.there: ZmqNetwork = receiver.network(1)
        self.here: ZmqNetwork = sender.network(1)

    def open(self, *channels: ChannelId) -> dict[str, str]:
        endpoints = self.there.bind([(channel, SCHEMA) for channel in channels])
        self.here.connect([(channel, endpoints[str(channel)]) for channel in channels])
        until(
            lambda: not self.here.unreached(),
            tick=lambda: self.sender.wait(10, waiting_for_room=()),
        )
        return endpoints

    def send(self, frame: Frame, channel: ChannelId = CHANNEL) -> None:
        output = self.here.output(channel)
        until(
            lambda: output.try_send(frame),
            tick=lambda: self.sender.wait(100, waiting_for_room=[channel]),
        )

    def receive(self, channel: ChannelId = CHANNEL) -> Frame:
        taken: list[Frame] = []

        def one() -> bool:
            frame = self.there.input(channel).try_receive()
            taken.extend([frame] if frame is not None else [])
            return bool(taken)

        until(one, tick=lambda: self.receiver.wait(100, waiting_for_room=()))
        return taken[0]


@pytest.fixture(params=["ipc", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    tcp = request.param == "tcp"
    with a_host(tcp=tcp) as sender, a_host(tcp=tcp) as receiver:
        yield Pair(sender, receiver)


@pytest.fixture
def near() -> Iterator[Pair]:
    with a_host() as sender, a_host() as receiver:
        yield Pair(sender, receiver)


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("kind", SnapshotKind)
@pytest.mark.parametrize("base", [0, 6, 1 << 60])
def test_a_barrier_says_what_it_said(
    pair: Pair, urgent: bool, kind: SnapshotKind, base: int
) -> None:
    """B1, C3, S6: whether it goes before others, whether the job stops behind it, and what the snapshot builds on:
    whoever meets it first knows all about it."""
    pair.open(CHANNEL)
    sent = Barrier(SnapshotOrder(CheckpointId(7), kind, urgent, CheckpointId(base)))
    pair.send(sent)
    assert pair.receive() == sent


def test_frames_arrive_whole_and_in_the_order_they_were_sent(pair: Pair) -> None:
    """I4, B1: a barrier stands between the batches it was sent between."""
    pair.open(CHANNEL)
    sent = [Batch(rows(3)), barrier(CheckpointId(7)), Batch(rows(5000)), Batch(rows(0)), End()]
    for frame in sent:
        pair.send(frame)
        got = pair.receive()
        assert type(got) is type(frame)
        if isinstance(frame, Batch):
            assert isinstance(got, Batch) and got.data.equals(frame.data)
        else:
            assert got == frame


def test_a_channel_that_is_not_read_fills_up_and_has_room_again_when_read(near: Pair) -> None:
    near.open(CHANNEL)
    output = near.here.output(CHANNEL)
    near.send(Batch(rows(20_000)))
    sent = 1
    while sent < 100 and output.try_send(Batch(rows(20_000, sent))):
        sent += 1
        near.sender.wait(20, waiting_for_room=[CHANNEL])
    assert sent < 20, "a channel without a reader took everything"
    for expected in range(sent):
        got = near.receive()
        assert isinstance(got, Batch)
        assert got.data.column(0)[0].as_py() == (expected if expected else 0)
    near.send(End())
    assert near.receive() == End()


def test_waiting_for_room_ends_when_there_is_room(near: Pair) -> None:
    near.open(CHANNEL)
    output, sent = near.here.output(CHANNEL), 0
    while output.try_send(Batch(rows(20_000))) or sent == 0:
        sent += 1
        near.sender.wait(50, waiting_for_room=[CHANNEL])
    for _ in range(sent):
        near.receive()
    with ends_early():
        until(
            lambda: output.try_send(End()),
            tick=lambda: near.sender.wait(LONG_MS, waiting_for_room=[CHANNEL]),
        )


def test_a_missing_frame_is_a_lost_channel(near: Pair) -> None:
    """I4: a gap in the sequence numbers ends the attempt instead of losing rows silently."""
    near.open(CHANNEL)
    near.send(Batch(rows(1)))
    near.receive()
    near.here.output(CHANNEL)._sequence += 1
    near.send(Batch(rows(1)))
    with pytest.raises(ChannelLost, match=r"0:1>2 lost frames: expected 1, got 2"):
        near.receive()


def test_a_receiver_that_is_gone_is_noticed_by_the_sender(pair: Pair) -> None:
    """R1: a broken connection is never mended; the channel is lost and the attempt with it."""
    pair.open(CHANNEL)
    pair.send(barrier(CheckpointId(1)))
    pair.receive()
    pair.there.close()
    lost = r"receiver of channel 0:1>2, is gone|does not hear from .* any more"
    with pytest.raises(ChannelLost, match=lost):
        until(lambda: pair.here.check() is not None)


def test_a_receiver_that_leaves_after_the_end_is_no_loss(near: Pair) -> None:
    near.open(CHANNEL)
    near.send(End())
    near.receive()
    near.there.close()
    until(
        lambda: near.here.check() is None and near.here.output(CHANNEL)._watch.broken,
        tick=lambda: near.sender.wait(250, waiting_for_room=[CHANNEL]),
    )
    assert near.here.output(CHANNEL).try_send(End()) is False


def test_a_frame_in_a_blocked_channel_does_not_end_the_wait(near: Pair) -> None:
    """B3: while a subtask aligns it sleeps, although the channel it must not read has frames."""
    near.open(CHANNEL, OTHER)
    near.send(Batch(rows(1)), CHANNEL)
    near.receiver.wait(LONG_MS, waiting_for_room=(), reading=[CHANNEL])
    began_s = time.monotonic()
    near.receiver.wait(60, waiting_for_room=(), reading=[OTHER])
    assert time.monotonic() - began_s >= 0.05
    with ends_early():
        near.receiver.wait(LONG_MS, waiting_for_room=())


def test_the_wait_ends_when_somebody_rings(near: Pair) -> None:
    near.receiver.wake()
    with ends_early():
        near.receiver.wait(LONG_MS, waiting_for_room=())


def test_rows_stay_what_they_were_while_later_frames_come(near: Pair) -> None:
    """The batch lies in the memory of its frame, which must live as long as the batch."""
    near.open(CHANNEL)
    kept = []
    for number in range(30):
        near.send(Batch(rows(2000 if number % 2 else 10, number)))
        got = near.receive()
        assert isinstance(got, Batch)
        kept.append(got.data)
    for number, batch in enumerate(kept):
        batch.validate(full=True)
        assert batch.equals(rows(2000 if number % 2 else 10, number))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=12), start=st.integers(0, 1000))
def test_small_frames_that_share_a_read_buffer_are_read_right(sizes: list[int], start: int) -> None:
    with a_host() as sender, a_host() as receiver:
        pair = Pair(sender, receiver)
        pair.open(CHANNEL)
        waiting = list(sizes)
        received: list[pa.RecordBatch] = []
        while len(received) < len(sizes):
            while waiting and pair.here.output(CHANNEL).try_send(Batch(rows(waiting[0], start))):
                waiting.pop(0)
            frame = pair.there.input(CHANNEL).try_receive()
            if isinstance(frame, Batch):
                received.append(frame.data)
        for size, batch in zip(sizes, received, strict=True):
            batch.validate(full=True)
            buffers = [each for column in batch.columns for each in column.buffers() if each]
            assert all(each.address % 8 == 0 for each in buffers), "NumPy would have to copy"
            assert batch.equals(rows(size, start))


def test_a_stranger_without_the_key_gets_nothing_through() -> None:
    """Security: over tcp every channel is encrypted with keys of its attempt."""
    with a_host(tcp=True) as sender, a_host(tcp=True) as receiver, zmq.Context() as context:
        pair = Pair(sender, receiver)
        address = json.loads(pair.there.bind([(CHANNEL, SCHEMA)])[str(CHANNEL)])["tcp"]
        stranger = context.socket(zmq.PUSH)
        stranger.linger = 0
        stranger.connect(address)
        stranger.setsockopt(zmq.SNDTIMEO, 300)
        with pytest.raises(zmq.Again):
            for _ in range(1500):
                stranger.send(b"\x02" + bytes(16))
        receiver.wait(50, waiting_for_room=())
        assert pair.there.input(CHANNEL).try_receive() is None
        stranger.close()


def test_a_host_that_shares_no_directory_is_reached_by_tcp() -> None:
    """The offer holds both ways; `ipc://` is taken only after the token file was read."""
    with a_host(tcp=True) as sender, a_host(tcp=True) as receiver:
        receiver._tcp = receiver._tcp and type(receiver._tcp)("127.0.0.1")
        pair = Pair(sender, receiver)
        offer = json.loads(pair.there.bind([(CHANNEL, SCHEMA)])[str(CHANNEL)])
        assert set(offer) == {"ipc", "token", "tcp", "key", "pulse", "host"}
        pair.here.connect([(CHANNEL, json.dumps(offer | {"token": "another host's"}))])
        until(lambda: not pair.here.unreached())
        pair.send(Batch(rows(4)))
        assert isinstance(pair.receive(), Batch)
        endpoint = pair.here.output(CHANNEL).socket.getsockopt_string(zmq.LAST_ENDPOINT)
        assert endpoint.startswith("tcp://")


def test_a_peer_that_stands_still_is_lost_although_no_connection_broke() -> None:
    """R1: nobody answers the pulse of a network that is cut, or of a process that stands still."""
    with a_process_that_listens() as (process, offer), a_host(tcp=True) as sender:
        here = sender.network(1)
        here.connect([(CHANNEL, offer)])
        until(lambda: not here.unreached())
        here.check()
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(ChannelLost, match=r"does not hear from .* any more: the network"):
            until(lambda: here.check() is not None)


def test_a_peer_that_does_not_answer_is_waited_for_and_named() -> None:
    """R1: nothing is lost before anything was sent; as soon as it answers the channel is open."""
    with a_process_that_listens() as (process, offer), a_host(tcp=True) as sender:
        process.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        here = sender.network(1)
        here.connect([(CHANNEL, offer)])
        name = f"{json.loads(offer)['host']} ({json.loads(offer)['pulse'].removeprefix('tcp://')})"
        for _ in range(30):
            assert here.unreached() == [name]
            sender.wait(100, waiting_for_room=(), reading=())
        process.send_signal(signal.SIGCONT)
        until(lambda: not here.unreached())
        assert here.output(CHANNEL).try_send(End())


LISTENING = """
    import sys
    import pyarrow as pa
    from penstock.protocol.ids import ChannelId
    from penstock.shells.spark.host import SparkHost
    from penstock.shells.spark.network import TcpData
    from penstock.shells.spark.sockets import new_context
    there = SparkHost(new_context(), TcpData("127.0.0.1", only=True)).network(1)
    print(there.bind([(ChannelId(0, 1, 2), pa.schema([]))])["0:1>2"], flush=True)
    sys.stdin.read()
"""


@contextmanager
def a_process_that_listens() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process with the reading end of CHANNEL, and what it offers."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LISTENING)],
        env=dict(os.environ, PYTHONPATH="src"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_sockets_leave_no_trace_on_the_disk_once_everybody_is_connected(near: Pair) -> None:
    """I26: a worker that is killed later has left nothing in the temporary folder."""
    endpoint = json.loads(near.open(CHANNEL)[str(CHANNEL)])["ipc"].removeprefix("ipc://")
    near.there.settled()
    assert not os.path.exists(os.path.dirname(endpoint))
    near.send(Batch(rows(3)))
    assert isinstance(near.receive(), Batch)


def test_dictionary_columns_are_refused_by_name(near: Pair) -> None:
    schema = pa.schema([("city", pa.dictionary(pa.int32(), pa.string()))])
    with pytest.raises(SchemaError, match="'city' on channel 0:1>2 is dictionary encoded"):
        near.there.bind([(CHANNEL, schema)])


def test_sockets_are_private_to_their_owner(near: Pair) -> None:
    """Security: local directories are 0700, files 0600."""
    endpoint = json.loads(near.open(CHANNEL)[str(CHANNEL)])["ipc"].removeprefix("ipc://")
    directory = os.path.dirname(endpoint)
    assert os.stat(directory).st_mode & 0o777 == 0o700
    assert os.stat(os.path.join(directory, "token")).st_mode & 0o777 == 0o600
    assert len(endpoint) < 107


def test_a_hundred_attempts_leave_no_files_and_no_sockets(near: Pair) -> None:
    """I26, bug-I8: everything of an attempt is freed when it is closed."""
    near.here.close()
    near.there.close()

    def attempt() -> None:
        one = Pair(near.sender, near.receiver)
        one.open(CHANNEL, OTHER)
        one.send(Batch(rows(100)))
        one.receive()
        one.here.close()
        one.there.close()

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    attempt()
    until(lambda: True)
    before = open_files()
    for _ in range(100):
        attempt()
    until(lambda: open_files() <= before + 4)
