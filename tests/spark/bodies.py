"""Stand-ins for the worker's engine, run inside real Spark tasks by their dotted names."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from penstock.ports.control import DriverLost
from penstock.protocol.ids import AttemptId, SlotId
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
                        self.driver.send(Status(attempt, SlotId(0), _numbers()))
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


class LastWords(Obedient):
    """Says something and is killed at once."""

    def run(self) -> None:
        for number in range(100):
            self.driver.send(Dropped(AttemptId(number)))
        while self.driver._outbox:
            time.sleep(0.001)
        time.sleep(0.05)
        os.kill(os.getpid(), 9)


class LeavesThreads(Obedient):
    """Its payload names a file; it runs until told and ignores a lost driver."""

    def run(self) -> None:
        try:
            super().run()
        except DriverLost:
            while True:
                time.sleep(60)


def _numbers() -> dict[str, float]:
    return {
        "pid": float(os.getpid()),
        "parent": float(os.getppid()),
        "threads": float(threading.active_count()),
        "files": float(len(os.listdir("/proc/self/fd"))),
    }
