"""Workers on Spark: the launcher and the control server put together behind the port."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from penstock.errors import ConfigError
from penstock.ports.control import ControlEvent, Crowded, LaunchEnded
from penstock.protocol.ids import WorkerId
from penstock.protocol.messages import ToWorker
from penstock.shells.spark.control_server import Addresses, ControlServer
from penstock.shells.spark.entry import DEFAULT_BODY, make_task
from penstock.shells.spark.launcher import JobEnded, Launcher
from penstock.shells.spark.session import check_session, is_local

LEAVE_WITHIN_S = 2.0
"""How long a worker may take to leave when asked, before Spark is told to kill it."""
KILL_WITHIN_S = 5.0


class SparkWorkers:
    """`ports.control.Workers`: each launch is a Spark job of one task.

    For the job manager's thread alone, except `wake`. It sleeps in `wait`, which ends with any event."""

    def __init__(
        self,
        spark: Any,
        job_id: str,
        job_name: str,
        payload: bytes,
        total: int,
        *,
        body: str = DEFAULT_BODY,
        force_tcp: bool = False,
        driver_timeout_s: float = 30.0,
        versions: Mapping[str, str] | None = None,
        keep_copies: bool = False,
    ) -> None:
        check_session(spark)
        context = spark.sparkContext
        self._payload = payload
        self._total = total
        self._body = body
        self._near = is_local(context)
        self._force_tcp = force_tcp
        self._driver_timeout_s = driver_timeout_s
        self._data_ports = _ports(spark, "spark.penstock.data.ports")
        self._server = ControlServer(_addresses(spark, force_tcp), versions)
        self._ended: SimpleQueue[JobEnded | Crowded] = SimpleQueue()
        """What other threads have found out."""
        self._launcher = Launcher(
            context, job_id, job_name, total, self._report, keep_copies=keep_copies
        )
        self._open: set[int] = set()
        self._kill_at_s: dict[int, float] = {}

    def launch(self, launch: int, description: str = "") -> None:
        invitation = replace(
            self._server.expect(launch, self._body),
            ipc="" if self._force_tcp else self._server.ipc,
            data_by_tcp=self._force_tcp or not self._near,
            only_tcp=self._force_tcp,
            driver_timeout_s=self._driver_timeout_s,
            data_ports=(self._data_ports[0], self._data_ports[-1]) if self._data_ports else None,
        )
        self._open.add(launch)
        text = description or f"worker {launch + 1} of {self._total}"
        self._launcher.start(launch, text, make_task(invitation.to_bytes(), self._payload))

    def cancel(self, launch: int) -> None:
        asked = self._server.processes(launch) > 0
        self._server.forget(launch, "it was told to leave")
        if launch in self._launcher.running():
            self._kill_at_s[launch] = time.monotonic() + (LEAVE_WITHIN_S if asked else 0.0)
            self._kill_overdue()

    def receive(self) -> Sequence[ControlEvent]:
        """A cancelled launch comes before its worker has left: whoever hears that the worker is gone must
        know already that nobody is to blame."""
        self._kill_overdue()
        events = self._server.receive()
        cancelled: list[ControlEvent] = []
        over: list[ControlEvent] = []
        while (ended := self._next_ended()) is not None:
            if isinstance(ended, Crowded):
                over.append(ended)
                continue
            self._kill_at_s.pop(ended.launch, None)
            self._server.forget(ended.launch, ended.reason)
            told = LaunchEnded(ended.launch, ended.reason, ended.fatal, ended.cancelled)
            (cancelled if ended.cancelled else over).append(told)
        if cancelled or over:
            events += self._server.receive()
        return [event for event in [*cancelled, *events, *over] if self._is_news(event)]

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        self._server.send(worker, message)

    def wait(self, timeout_ms: float) -> None:
        """Sleeps until there is something to receive, `wake` was called, or the time is over."""
        if self._ended.empty():
            due_s = min(self._kill_at_s.values(), default=None)
            if due_s is not None:
                timeout_ms = min(timeout_ms, (due_s - time.monotonic()) * 1000)
            self._server.wait(timeout_ms)

    def wake(self) -> None:
        self._server.wake()

    def capacity(self) -> str:
        return self._launcher.capacity()

    def spread(self) -> None:
        if not self._near:
            threading.Thread(
                target=self._look_for_room, name="penstock-spread", daemon=True
            ).start()

    def _look_for_room(self) -> None:
        with contextlib.suppress(
            Exception
        ):  # Spark's internal view; a place that is not the best is good enough
            launches = tuple(self._launcher.crowded())
            if launches:
                self._ended.put(Crowded(launches))
                self._server.wake()

    def close(self) -> None:
        """Asks every worker to leave; those that stay are killed by Spark. Nothing is left behind."""
        for launch in list(self._open):
            self._server.forget(launch, "the job has ended")
        end_s = time.monotonic() + LEAVE_WITHIN_S
        if not self._launcher.join(end_s - time.monotonic()):
            self._launcher.cancel_all()
            self._launcher.join(KILL_WITHIN_S)
        self._server.close()

    def _report(self, ended: JobEnded) -> None:
        """From a launch's own thread."""
        self._ended.put(ended)
        self._server.wake()

    def _next_ended(self) -> JobEnded | Crowded | None:
        try:
            return self._ended.get_nowait()
        except Empty:
            return None

    def _is_news(self, event: ControlEvent) -> bool:
        """A launch ends once, though the handshake and Spark may both tell."""
        if not isinstance(event, LaunchEnded):
            return True
        known = event.launch in self._open
        self._open.discard(event.launch)
        return known

    def _kill_overdue(self) -> None:
        """Again and again until the job has ended: one that is just being submitted has no tag yet."""
        now_s = time.monotonic()
        for launch, due_s in list(self._kill_at_s.items()):
            if now_s >= due_s:
                self._launcher.cancel(launch)
                self._kill_at_s[launch] = now_s + 1.0


def _addresses(spark: Any, force_tcp: bool) -> Addresses:
    ports = _ports(spark, "spark.penstock.control.port")
    if is_local(spark.sparkContext):
        return Addresses("127.0.0.1" if force_tcp else "", "127.0.0.1", ports)
    conf = spark.sparkContext.getConf()
    return Addresses(
        bind=conf.get("spark.driver.bindAddress", "") or "0.0.0.0",  # noqa: S104
        advertise=conf.get("spark.driver.host"),
        ports=ports,
    )


def _ports(spark: Any, name: str) -> range | None:
    """`first` or `first-last` of a setting; one port alone means the hundred from it on."""
    text = (spark.conf.get(name, "") or "").strip()
    if not text:
        return None
    first, _, last = text.partition("-")
    try:
        ports = range(int(first), int(last or int(first) + 99) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports[0] < 1 or ports[-1] > 65_535:
        raise ConfigError(f"{name} is {text!r}; write a port (41000) or a range (41000-41099)")
    return ports
