"""A private directory for `ipc://` sockets, and the proof that two processes are on one host.

Whoever can read the `token` file of a directory shares its file system, so a socket in it can be reached. A
directory whose owner was killed is swept away by whoever makes or closes one next: the owner holds a lock on
`lock` for as long as it lives, and the kernel frees that with the process.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import shutil
import tempfile
from pathlib import Path

PREFIX = "penstock-"
PATH_BYTES_MAX = 107
"""What the kernel allows for the path of a socket."""
_NAME_BYTES_MAX = 24


class SocketDir:
    """One process's sockets. `path` is None where no directory has a path short enough."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)
        self.path: Path | None = None
        self._lock = -1
        self._count = 0
        for parent in (Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108
            if self.path is None and _fits(parent) and os.access(parent, os.W_OK):
                sweep(parent)
                self._make(parent)

    def _make(self, parent: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        flags = os.O_CREAT | os.O_WRONLY | os.O_EXCL
        self._lock = os.open(self.path / "lock.new", flags, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (self.path / "lock.new").rename(self.path / "lock")  # there is never one that is not locked
        with os.fdopen(os.open(self.path / "token", flags, 0o600), "w") as file:
            file.write(self.token)

    def endpoint(self) -> str:
        """A fresh `ipc://` address."""
        if self.path is None:
            raise RuntimeError("no directory for sockets: ask for `path` first")
        self._count += 1
        return f"ipc://{self.path}/{self._count}"

    def close(self) -> None:
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            sweep(self.path.parent)
            self.path = None


def shares_host(endpoint: str, token: str) -> bool:
    """True when the directory of this `ipc://` address is the one that the token belongs to."""
    try:
        found = Path(endpoint.removeprefix("ipc://")).with_name("token").read_text()
    except OSError:
        return False
    return hmac.compare_digest(found, token)


def sweep(parent: Path) -> None:
    """Removes this user's directories whose owner is dead."""
    for path in parent.glob(PREFIX + "*"):
        if _is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    """Only what is surely one of these directories: others may have names like theirs."""
    try:
        if path.stat().st_uid != os.getuid() or not (path / "token").is_file():
            return False
        descriptor = os.open(path / "lock", os.O_WRONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _fits(parent: Path) -> bool:
    name = len(PREFIX) + 8 + 1 + _NAME_BYTES_MAX
    return len(os.fsencode(parent)) + 1 + name < PATH_BYTES_MAX
