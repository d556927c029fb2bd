"""A bell that any thread may ring and that a poll over sockets can hear.

It is a pair of connected sockets and not a bare pipe: whoever rings after `close` gets an error from a closed
socket object, and never writes into a stranger's file that has got the same number meanwhile.
"""

from __future__ import annotations

import contextlib
import socket


class WakeUp:
    def __init__(self) -> None:
        self._heard, self._rung = socket.socketpair()
        self._heard.setblocking(False)
        self._rung.setblocking(False)

    def fileno(self) -> int:
        """What to poll for reading."""
        return self._heard.fileno()

    def ring(self) -> None:
        """Thread-safe, never waits. A full pipe is a bell that rings already."""
        with contextlib.suppress(OSError):
            self._rung.send(b"!")

    def clear(self) -> None:
        """Silences the bell; call it before looking at what it stands for."""
        with contextlib.suppress(OSError):
            while len(self._heard.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        self._rung.close()
        self._heard.close()
