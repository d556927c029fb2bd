"""Strangers who connect to every port that they find and say things: nothing, noise, half a handshake, HTTP."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Self

from tests.cluster.hosts import Host, Hosts

_PROGRAM = """
import os, random, socket, sys, time
host, end_s = sys.argv[1], time.monotonic() + float(sys.argv[2])
ports, open_ones, knocks = [int(p) for p in sys.argv[3:]], [], 0
noises = [b"", b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\xff" + bytes(8) + b"\\x7f\\x03\\x01CURVE" + bytes(60)]
while time.monotonic() < end_s:
    for port in ports:
        try:
            knock = socket.create_connection((host, port), timeout=1)
            knock.sendall(random.choice([*noises, os.urandom(300)]))
        except OSError:
            continue
        knocks += 1
        open_ones.append(knock)
        if len(open_ones) > 300:
            open_ones.pop(random.randrange(300)).close()
    time.sleep(0.001)
print(knocks)
"""


class Strangers:
    """On the driver's host, at all ports of Python processes on all hosts, for so many seconds."""

    def __init__(self, hosts: Hosts, seconds: float) -> None:
        self.knocks = 0
        self._hosts = hosts
        self._seconds = seconds
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for host in self._hosts:
            ports = host.python_ports()
            if ports:
                thread = threading.Thread(target=self._knock, args=(host, ports))
                self._threads.append(thread)
                thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for thread in self._threads:
            thread.join()

    def _knock(self, host: Host, ports: list[int]) -> None:
        given = [host.address, str(self._seconds), *map(str, ports)]
        told = self._hosts["driver"].run(sys.executable, "-c", _PROGRAM, *given)
        self.knocks += int(told)
