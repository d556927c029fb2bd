"""Both ends of a connection in one process, for tests without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.ports.control import ControlEvent
from penstock.shells.spark import control_server, start
from penstock.shells.spark.clock import RealClock
from penstock.shells.spark.control_client import ControlClient, register
from penstock.shells.spark.control_server import Addresses, ControlServer
from penstock.shells.spark.host import SparkHost
from penstock.shells.spark.invitation import Invitation
from penstock.shells.spark.network import TcpData
from penstock.shells.spark.sockets import new_context
from penstock.shells.spark.versions import versions

LOOPBACK = Addresses("127.0.0.1", "127.0.0.1")
PATIENCE_S = 180.0
"""How long a test waits for something at most. Waits end with what they wait for; a machine that is ten times slower,
or busy with other work, must not make a test fail."""


@contextmanager
def a_host(*, tcp: bool = False) -> Iterator[SparkHost]:
    context = new_context()
    host = SparkHost(context, TcpData("127.0.0.1", only=True) if tcp else None)
    try:
        yield host
    finally:
        host.close()
        context.destroy(linger=0)


@contextmanager
def a_server(*, tcp: bool = False, **options: Any) -> Iterator[ControlServer]:
    server = ControlServer(LOOPBACK if tcp else Addresses(), **options)
    try:
        yield server
    finally:
        server.close()


class Events:
    """Keeps what was received until a test asks for it."""

    def __init__(self, workers: Any) -> None:
        self.workers = workers
        self.seen: list[ControlEvent] = []

    def take(self, kind: type, within_s: float = PATIENCE_S, **fields: Any) -> Any:
        """The next event of this kind (with these values); others stay for later."""
        end_s = time.monotonic() + within_s
        while True:
            self.seen += self.workers.receive()
            for event in self.seen:
                if isinstance(event, kind) and all(
                    getattr(event, k) == v for k, v in fields.items()
                ):
                    self.seen.remove(event)
                    return event
            if time.monotonic() > end_s:
                pytest.fail(f"no {kind.__name__} {fields} within {within_s} s; seen: {self.seen}")
            self.workers.wait(50)


class ClockAhead(RealClock):
    """The machine's clock, which a test can set forward: a limit of minutes is over when the test says so."""

    def __init__(self) -> None:
        self.ahead_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.ahead_ms


def clock_of_jobs(monkeypatch: pytest.MonkeyPatch) -> ClockAhead:
    """Drives the jobs that are started from now on."""
    clock = ClockAhead()
    monkeypatch.setattr(start, "RealClock", lambda: clock)
    return clock


def on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the driver sees no process of its workers, as if they ran elsewhere."""
    monkeypatch.setattr(control_server, "find", lambda pid, numbered_by: None)


def until(
    condition: Callable[[], bool],
    within_s: float = PATIENCE_S,
    tick: Callable[[], Any] | None = None,
) -> None:
    """Waits for a condition; `tick` is what moves things on, and waits a little itself."""
    import threading

    pause = tick or (lambda: threading.Event().wait(0.01))
    end_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end_s:
            pytest.fail("the condition did not become true in time")
        pause()


@contextmanager
def joined(
    server: ControlServer, invitation: Invitation, **options: Any
) -> Iterator[ControlClient]:
    """A registered client; the server must be served by the caller's thread, so registration runs aside."""
    import threading

    context = new_context()
    result: list[Any] = []

    def enter() -> None:
        try:
            own = options.pop("versions", None) or versions()
            named = options.pop("process", "")
            result.append(register(context, invitation, own, process=named))
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    kept: list[ControlEvent] = []
    while thread.is_alive():
        server.wait(10)
        kept += server.receive()
        thread.join(0.001)
    server._events = [*kept, *server._events]
    if isinstance(result[0], BaseException):
        context.destroy(linger=0)
        raise result[0]
    client = ControlClient(*result[0], wake=lambda: None, **options)
    try:
        yield client
    finally:
        client.close()
        context.destroy(linger=0)
