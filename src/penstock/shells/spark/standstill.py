"""Worker processes that were stopped (SIGSTOP) and stand still: ended from here where that is possible.

Spark waits for such a process as long as it exists. The driver hears nothing from it and gives it up within 1.3 s, but
a replacement had to wait until the job manager lost its patience (5 s) and, without a free core, until Spark's kill had
freed one (4 s more). Ended at once it is a killed worker like any other, and Spark brings another one. It loses nothing
by that: it is cut off already, and would leave as soon as it ran again.

Only on Linux, and only where a process number means the same to the driver and to the worker.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STOPPED = "T"


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine. Numbers are used again; number and start together are not."""

    pid: int
    started: str


def numbering() -> str:
    """Equal in two processes if and only if process numbers mean the same to both; empty where nobody can tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def find(pid: int, numbered_by: str) -> Process | None:
    """The process that says it has this number, in its own numbering; None when it cannot be found from here."""
    if not numbered_by or numbered_by != numbering():
        return None
    state = _state(pid)
    return Process(pid, state[1]) if state is not None else None


def end_if_stopped(process: Process) -> bool:
    """Kills it when it stands still; whoever runs is left alone, and so is who got its number since."""
    if _state(process.pid) != (_STOPPED, process.started):
        return False
    with suppress(OSError):  # another user's, or gone in this moment
        os.kill(process.pid, signal.SIGKILL)
        return True
    return False


def _state(pid: int) -> tuple[str, str] | None:
    """What it does (one letter) and when it started; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # its name, in brackets, may hold anything
    return fields[0], fields[19]
