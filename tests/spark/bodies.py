"""Stand-ins for the worker's engine, run inside real Spark tasks by their dotted names."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from penstock.protocol.ids import SlotId
from penstock.protocol.messages import Drop, Dropped, Leave, Status, Trigger


class Obedient:
    """Answers every Drop with Dropped and a Trigger with its process's numbers; leaves when told."""

    def __init__(self, payload: bytes, driver: Any, host: Any, clock: Any, background: Any) -> None:
        self.driver = driver
        self.host = host

    def run(self) -> None:
        while True:
            for message in self.driver.receive():
                match message:
                    case Drop(attempt=attempt):
                        self.driver.send(Dropped(attempt))
                    case Trigger(attempt=attempt):
                        self.driver.send(Status(attempt, SlotId(0), metrics=_numbers()))
                    case Leave():
                        return
            self.host.wait(1000, waiting_for_room=())


class Stuck:
    """Never looks at a message: user code that does not come back."""

    def __init__(self, payload: bytes, driver: Any, host: Any, clock: Any, background: Any) -> None:
        self.pid_file = payload.decode()

    def run(self) -> None:
        with open(self.pid_file, "w") as file:
            file.write(str(os.getpid()))
        while True:
            time.sleep(60)


class Broken(Obedient):
    """Fails with the first message."""

    def run(self) -> None:
        while not self.driver.receive():
            self.host.wait(1000, waiting_for_room=())
        1 / 0  # noqa: B018


def _numbers() -> dict[str, float]:
    return {
        "pid": float(os.getpid()),
        "parent": float(os.getppid()),
        "threads": float(threading.active_count()),
        "files": float(len(os.listdir("/proc/self/fd"))),
    }
