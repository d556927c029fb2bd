"""The control plane without Spark: handshake, order, twins, loss, and the watchdog."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import zmq

from penstock.errors import LaunchError
from penstock.ports.control import DriverLost, Joined, LaunchEnded, Left, Received
from penstock.protocol.ids import AttemptId
from penstock.protocol.messages import Drop, Dropped, Leave
from penstock.shells.spark import control_client, rejoining
from penstock.shells.spark.control_client import ControlClient, Refused, _Watchdog
from penstock.shells.spark.control_server import ControlServer
from penstock.shells.spark.door import STRANGERS_MAX
from penstock.shells.spark.invitation import Invitation
from penstock.shells.spark.sockets import Watch, new_context, new_socket
from penstock.shells.spark.versions import versions
from tests.spark.ends import PATIENCE_S, Events, a_server, joined, on_another_machine, until


@pytest.fixture(params=["ipc", "tcp"])
def server(request: pytest.FixtureRequest) -> Iterator[ControlServer]:
    with a_server(tcp=request.param == "tcp") as made:
        if request.param == "tcp":
            made.ipc = ""
        yield made


@pytest.fixture
def near() -> Iterator[ControlServer]:
    with a_server() as made:
        yield made


def must_leave(client: ControlClient) -> bool:
    """Told to leave; the end of the connection may overtake the message and means the same."""
    try:
        return Leave() in client.receive()
    except DriverLost:
        return True


def drop(number: int) -> Drop:
    return Drop(AttemptId(number))


def test_a_registered_worker_joins_with_its_host_and_pid(server: ControlServer) -> None:
    events = Events(server)
    with joined(server, server.expect(3, "x:y")):
        event = events.take(Joined)
    assert (event.launch, event.pid) == (3, os.getpid())


def test_messages_keep_their_order_both_ways(server: ControlServer) -> None:
    events = Events(server)
    with joined(server, server.expect(0, "x:y")) as client:
        worker = events.take(Joined).worker
        for number in range(500):
            server.send(worker, drop(number))
            client.send(Dropped(AttemptId(number)))
        got: list[Any] = []
        until(lambda: got.extend(client.receive()) is None and len(got) == 500)
        assert got == [drop(number) for number in range(500)]
        answers = [events.take(Received).message for _ in range(500)]
        assert answers == [Dropped(AttemptId(number)) for number in range(500)]


def test_another_version_ends_the_launch_for_good_and_says_both(near: ControlServer) -> None:
    """A version mismatch is a launch error: no restart can help."""
    events = Events(near)
    theirs = versions() | {"pyarrow": "1.2.3"}
    with (
        pytest.raises(Refused, match=r"pyarrow 1\.2\.3"),
        joined(near, near.expect(5, "x:y"), versions=theirs),
    ):
        pass
    event = events.take(LaunchEnded)
    assert event.fatal
    assert "1.2.3" in event.reason and versions()["pyarrow"] in event.reason
    assert not [each for each in events.seen if isinstance(each, Joined)]


def test_who_does_not_know_the_secret_gets_no_answer(near: ControlServer) -> None:
    """Security: the per-launch secret is the way in, and a wrong one learns nothing."""
    near.expect(1, "x:y")
    with zmq.Context() as context:
        stranger = context.socket(zmq.DEALER)
        stranger.linger = 0
        stranger.connect(near.ipc)
        good = {"launch": 1, "token": "?", "pid": 1, "host": "h", "numbering": "", "process": ""}
        good["versions"] = versions()
        for data in (
            b"",
            b"\xc1",
            msgpack.packb(3),
            msgpack.packb({"launch": "x"}),
            msgpack.packb(good),
        ):
            stranger.send(data)
        near.wait(200)
        assert near.receive() == []
        assert not stranger.poll(100)
        assert near.processes(1) == 0
        stranger.close()


def test_a_launch_that_is_over_lets_nobody_in(near: ControlServer) -> None:
    """bug-I5: a zombie retry of Spark is sent away."""
    invitation = near.expect(1, "x:y")
    near.forget(1, "over")
    with pytest.raises(Refused, match="launch 1 is over"), joined(near, invitation):
        pass


def test_a_twin_waits_until_the_first_is_gone_and_then_takes_over(server: ControlServer) -> None:
    """bug-I7: of two processes of one launch only the first is a worker; the second is told nothing."""
    events, invitation = Events(server), server.expect(2, "x:y")
    with joined(server, invitation) as first:
        one = events.take(Joined)
        with joined(server, invitation) as twin:
            until(lambda: server.processes(2) == 2, tick=lambda: server.wait(10))
            twin.send(Dropped(AttemptId(1)))
            server.send(one.worker, drop(9))
            until(lambda: list(first.receive()) == [drop(9)])
            assert server.receive() == [] and list(twin.receive()) == []
            first.close()
            assert events.take(Left).worker == one.worker
            two = events.take(Joined, launch=2)
            assert two.worker != one.worker
            server.send(two.worker, drop(10))
            until(lambda: list(twin.receive()) == [drop(10)])
            first._thread.join()
            first.close = lambda: None  # type: ignore[method-assign]


def test_a_twin_whose_launch_ends_is_told_to_leave(near: ControlServer) -> None:
    """bug-I7: nobody stays behind parked."""
    invitation = near.expect(2, "x:y")
    with joined(near, invitation), joined(near, invitation) as twin:
        until(
            lambda: near.receive() is not None and near.processes(2) == 2,
            tick=lambda: near.wait(10),
        )
        near.forget(2, "over")
        until(lambda: must_leave(twin))


def test_a_worker_that_speaks_nonsense_is_cut_off_alone(near: ControlServer) -> None:
    events = Events(near)
    with joined(near, near.expect(0, "x:y")) as good, joined(near, near.expect(1, "x:y")) as bad:
        events.take(Joined, launch=0)
        worker = events.take(Joined, launch=1).worker
        bad._outbox.append(b"\xc1 nonsense")
        bad._bell.ring()
        left = events.take(Left)
        assert left.worker == worker and "cannot be read" in left.reason
        good.send(Dropped(AttemptId(4)))
        assert events.take(Received).message == Dropped(AttemptId(4))


def test_a_stranger_at_a_workers_port_does_not_end_its_connection() -> None:
    """A port scanner that comes and goes is not the worker."""
    with a_server(tcp=True) as server:
        server.ipc = ""
        events = Events(server)
        with joined(server, server.expect(0, "x:y")) as client:
            worker = events.take(Joined).worker
            port = int(server.tcp.rpartition(":")[2])
            with (
                socket.create_connection(("127.0.0.1", port)) as scanner,
                contextlib.suppress(ConnectionError),
            ):
                looks(server, events, strangers=1)
                scanner.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(100))
                scanner.recv(1)
                scanner.recv(100)
            looks(server, events, strangers=0)
            client.send(Dropped(AttemptId(4)))
            assert events.take(Received).worker == worker
            assert not [each for each in events.seen if isinstance(each, Left)]


def looks(server: ControlServer, events: Events, *, strangers: int) -> None:
    """The server goes on until it knows of so many strangers."""

    def look() -> bool:
        events.seen += server.receive()
        return sum(len(door._strangers) for door in server._doors) == strangers

    until(look, tick=lambda: server.wait(50))


def test_strangers_who_knock_and_babble_disturb_nobody_and_take_no_room() -> None:
    """Security: whoever fails the handshake loses its own connection. Many who stay silent make the oldest go."""
    with a_server(tcp=True) as server:
        server.ipc = ""
        events, port = Events(server), int(server.tcp.rpartition(":")[2])
        with joined(server, server.expect(0, "x:y")) as client, contextlib.ExitStack() as strangers:
            worker = events.take(Joined).worker
            most = 0
            for number in range(2 * STRANGERS_MAX):
                knock = strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
                if number % 10 == 0:
                    knock.sendall(os.urandom(200))
                server.receive()
                most = max(most, *(len(door._strangers) for door in server._doors))
            assert most <= STRANGERS_MAX
            with joined(server, server.expect(1, "x:y")):
                assert events.take(Joined).launch == 1
            client.send(Dropped(AttemptId(4)))
            assert events.take(Received).worker == worker
            left = [e.worker for e in events.seen if isinstance(e, Left)]
            assert worker not in left, "nobody was disturbed"


def test_a_worker_that_was_cut_off_comes_back_by_another_connection(server: ControlServer) -> None:
    """R1: the same process registers again; what it was before is over, and it is a worker like a new one."""
    events, invitation = Events(server), server.expect(4, "x:y")
    with joined(server, invitation, process="p"):
        first = events.take(Joined)
        with joined(server, invitation, process="p") as again:
            assert events.take(Left).worker == first.worker
            second = events.take(Joined, launch=4)
            server.send(second.worker, drop(9))
            until(lambda: list(again.receive()) == [drop(9)], tick=lambda: server.wait(10))


def test_a_worker_rejoins_a_driver_that_stood_still(near: ControlServer) -> None:
    """R1: silence is no reason to go; the process waits, registers again, and is let in."""
    events, invitation = Events(near), near.expect(0, "x:y")
    process = start(invitation, messages=1, rejoins=True)
    try:
        first = events.take(Joined)
        events.take(Received)
        near._end(near._connections[first.worker], "as if the driver had stood still")
        events.take(Left)
        again = events.take(Joined)
        assert again.pid == first.pid and again.worker != first.worker
    finally:
        process.kill()
        process.wait()


def test_a_worker_whose_driver_is_gone_leaves_in_seconds_and_not_after_the_whole_timeout() -> None:
    """R5: where nobody listens any more the driver is gone; nobody waits half a minute for it."""
    with a_server() as server:
        invitation = replace(server.expect(0, "x:y"), driver_timeout_s=3600.0)
        process = start(invitation, rejoins=True)
        Events(server).take(Joined)
    try:
        assert process.wait(timeout=PATIENCE_S) == 1
    finally:
        process.kill()
        process.wait()


def test_a_driver_that_listens_and_does_not_answer_is_asked_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R1: one that stands still. Only when nobody listens any more it is gone."""
    monkeypatch.setattr(rejoining, "ANSWER_WITHIN_MS", 100)
    monkeypatch.setattr(rejoining, "GONE_AFTER_S", 0.05)
    with a_server(tcp=True) as server, socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        invitation = replace(server.expect(0, "x:y"), ipc="", tcp=f"tcp://127.0.0.1:{port}")
        invitation = replace(invitation, driver_timeout_s=PATIENCE_S)
        with zmq.Context() as context, ThreadPoolExecutor(1) as aside:
            rejoined = aside.submit(rejoining.rejoin, context, invitation, "p", "silence")
            knocks = [silent.accept()[0] for _ in range(10)]
            assert not rejoined.done()
            silent.close()
            for each in knocks:
                each.close()
            with pytest.raises(DriverLost, match="silence"):
                rejoined.result(PATIENCE_S)


def test_a_connection_that_was_closed_before_anything_was_said_is_not_waited_for() -> None:
    """R5: a worker must not hang in saying hello to a driver that has just gone."""
    context = new_context()
    dead = new_socket(context, zmq.DEALER)
    watch = Watch(dead)
    with socket.create_server(("127.0.0.1", 0)) as server:
        dead.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        server.accept()[0].close()
    until(lambda: not dead.getsockopt(zmq.EVENTS) & zmq.POLLOUT)
    with pytest.raises(LaunchError, match="cannot reach the driver at tcp"):
        control_client._send(dead, b"hello", "tcp://...")
    watch.close()
    context.destroy(linger=0)


def test_a_launch_that_is_over_does_not_get_its_worker_back(near: ControlServer) -> None:
    """bug-I5: one that comes back too late is told to go, and goes."""
    events, invitation = Events(near), near.expect(0, "x:y")
    process = start(invitation, rejoins=True)
    try:
        events.take(Joined)
        near.forget(0, "over")
        until(lambda: near.receive() is not None and process.poll() is not None)
        assert process.returncode == 1
    finally:
        process.kill()
        process.wait()


def test_a_driver_that_is_gone_is_lost_for_good(near: ControlServer) -> None:
    """R5: workers do not outlive their driver."""
    events = Events(near)
    with joined(near, near.expect(0, "x:y")) as client:
        worker = events.take(Joined).worker
        near._end(near._connections[worker], "cut off")
        until(lambda: bool(client._lost))
        for _ in range(2):
            with pytest.raises(DriverLost):
                client.receive()


# ---- the watchdog


@pytest.mark.parametrize("message", [drop(1), Leave()])
def test_a_loop_that_does_not_take_an_urgent_message_ends_the_process(
    near: ControlServer, message: Any
) -> None:
    """A worker stuck in user code ends itself after a second; Spark replaces it."""
    events, ended = Events(near), []
    with joined(near, near.expect(0, "x:y"), end_process=ended.append) as client:
        client.receive()
        worker, began_s = events.take(Joined).worker, time.monotonic()
        near.send(worker, message)
        until(lambda: bool(ended))
    assert time.monotonic() - began_s > 0.9
    assert ended[0] == 70


def test_a_loop_that_never_comes_back_from_an_urgent_message_ends_the_process(
    near: ControlServer,
) -> None:
    events, ended = Events(near), []
    with joined(near, near.expect(0, "x:y"), end_process=ended.append) as client:
        worker, began_s = events.take(Joined).worker, time.monotonic()
        near.send(worker, drop(1))
        until(lambda: bool(client.receive()))
        until(lambda: bool(ended))
    assert time.monotonic() - began_s > 0.9


def test_a_loop_that_takes_its_messages_is_left_alone(
    near: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "TAKE_WITHIN_S", PATIENCE_S)
    monkeypatch.setattr(control_client, "ACT_WITHIN_S", PATIENCE_S)
    events, ended = Events(near), []
    with joined(near, near.expect(0, "x:y"), end_process=ended.append) as client:
        worker = events.take(Joined).worker
        for number in range(5):
            near.send(worker, drop(number))
            until(lambda number=number: drop(number) in client.receive())  # type: ignore[misc]
            client.receive()
        assert not client._watchdog.armed
        assert not client._watchdog.bites(time.monotonic() + 10 * PATIENCE_S)
    assert ended == []


def test_a_process_that_stood_still_as_a_whole_is_not_taken_for_stuck() -> None:
    """A machine that was paused: the loop had no more time than the watchdog."""
    dog = _Watchdog()
    dog.urgent(100.0, final=False)
    assert not dog.bites(100.1)
    assert not dog.bites(160.0)
    assert not dog.bites(160.4)
    assert not any(dog.bites(160.4 + tick / 20) for tick in range(9))
    assert dog.bites(161.2)


def test_a_lost_driver_is_urgent_and_only_the_end_is_good_enough(near: ControlServer) -> None:
    """R5: soon after the driver's death the process is gone, whatever the loop does."""
    events, ended = Events(near), []
    with joined(near, near.expect(0, "x:y"), end_process=ended.append) as client:
        worker = events.take(Joined).worker
        near._end(near._connections[worker], "cut off")
        until(lambda: bool(client._lost))
        for _ in range(3):
            with pytest.raises(DriverLost):
                client.receive()
        until(lambda: bool(ended))


# ---- processes that die


PROCESS = """
    import sys, threading
    from penstock.shells.spark.control_client import ControlClient, register
    from penstock.ports.control import DriverLost
    from penstock.shells.spark.invitation import Invitation
    from penstock.shells.spark.rejoining import rejoin
    from penstock.shells.spark.sockets import new_context
    from penstock.shells.spark.versions import versions
    from penstock.protocol.messages import Dropped, Leave
    wake = threading.Event()
    invitation = Invitation.from_bytes(bytes.fromhex(sys.argv[1]))
    context = new_context()
    client = ControlClient(*register(context, invitation, versions(), process="p"), wake=wake.set)
    for number in range(int(sys.argv[2])):
        client.send(Dropped(number))
    while True:
        wake.wait()
        wake.clear()
        try:
            if any(isinstance(message, Leave) for message in client.receive()):
                sys.exit(1)
        except DriverLost as error:
            if sys.argv[3] == "leaves":
                raise
            client.close()
            client = ControlClient(*rejoin(context, invitation, "p", str(error)), wake=wake.set)
"""


def start(
    invitation: Invitation, messages: int = 0, rejoins: bool = False
) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", textwrap.dedent(PROCESS), invitation.to_bytes().hex()]
    environment = dict(os.environ, PYTHONPATH="src")
    after = "rejoins" if rejoins else "leaves"
    return subprocess.Popen([*arguments, str(messages), after], env=environment)


@pytest.mark.parametrize("by", ["ipc", "tcp"])
def test_a_killed_process_is_left_at_once_and_its_last_words_are_heard_first(by: str) -> None:
    """R1, bug-I1: kill -9 becomes Left for exactly that worker, after all that it had sent."""
    with a_server(tcp=by == "tcp") as server:
        events, invitation = Events(server), server.expect(0, "x:y")
        process = start(replace(invitation, ipc="") if by == "tcp" else invitation, messages=200)
        try:
            events.take(Joined)
            last = events.take(Received, message=Dropped(AttemptId(150)))
            process.kill()
            left = events.take(Left)
            assert left.worker == last.worker
            heard = [each.message.attempt for each in events.seen if isinstance(each, Received)]
            assert heard[:150] == list(range(150)) and heard == sorted(heard)
        finally:
            process.kill()
            process.wait()


def test_a_process_that_stands_still_is_left(
    near: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: SIGSTOP breaks no connection; ZeroMQ's heartbeats tell."""
    on_another_machine(monkeypatch)
    events = Events(near)
    process = start(near.expect(0, "x:y"))
    try:
        events.take(Joined)
        process.send_signal(signal.SIGSTOP)
        events.take(Left)
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=PATIENCE_S) != 0, (
            "it must notice that it was cut off, and leave"
        )
    finally:
        process.kill()
        process.wait()


def test_a_process_stuck_in_c_code_that_holds_the_interpreter_is_busy_and_not_dead(
    near: ControlServer,
) -> None:
    """Heartbeats come from ZeroMQ's own thread, so a long call is seen as busy."""
    busy = "print('in', flush=True); sum(range(7 * 10**7)); print('out', flush=True)"
    code = PROCESS.replace("while True:", f"{busy}\n    while True:")
    environment = dict(os.environ, PYTHONPATH="src")
    invitation = near.expect(0, "x:y").to_bytes().hex()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), invitation, "0", "leaves"],
        env=environment,
        stdout=subprocess.PIPE,
    )
    try:
        events = Events(near)
        events.take(Joined)
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n" and process.stdout.readline() == b"out\n"
        near.wait(50)
        assert not [each for each in near.receive() if isinstance(each, Left)]
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_a_closed_server_leaves_no_directory_and_no_files() -> None:
    """I26: everything is freed."""

    def once() -> str:
        with a_server(tcp=True) as server:
            path = str(server._directory.path)
            with joined(server, server.expect(0, "x:y")):
                pass
        return path

    assert not os.path.exists(once())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        once()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)
