"""The folder of a worker's floors: state that is larger than memory lies on disks that Spark was given for such things.

Each attempt has a folder of its own, and holds a lock beside it for as long as it lives. A worker that is killed leaves
its folder behind and its lock free: whoever opens floors next on this host removes such folders first.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import StorageError
from penstock.ports.floor import Floor, Members
from penstock.shells.spark.copies_dir import local_dir
from penstock.storage.rocks import RocksFloors, check_installed, remove_at_once

PREFIX = "penstock-floors-"
_LOCK = ".lock"


class LockedFloors:
    """Meets the contract `Floors`."""

    def __init__(self, parent: Path) -> None:
        sweep(parent)
        name = f"{PREFIX}{uuid.uuid4().hex}"
        self._path, self._lock = _locked(parent / f"{name}{_LOCK}")
        self._floors = RocksFloors(parent / name)

    def open(self, members: Members | None = None) -> Floor:
        return self._floors.open(members)

    def close(self) -> None:
        self._floors.close()
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):
            os.close(self._lock)


def open_floors() -> LockedFloors:
    """In a worker."""
    check_installed()
    parent = floors_parent()
    try:
        return LockedFloors(parent)
    except OSError as error:
        raise StorageError(
            f"state cannot be kept in {parent}: {error}; name a folder on a disk with room with spark.local.dir"
        ) from error


def floors_parent() -> Path:
    """Beside the folder of Spark's own blocks, where the next worker on this host looks, too."""
    return local_dir()


def sweep(parent: Path) -> None:
    """Removes the folders of this user whose workers are gone."""
    for path in parent.glob(f"{PREFIX}*{_LOCK}"):
        with suppress(OSError), _taken(path):
            remove_at_once(path.with_name(path.name.removesuffix(_LOCK)))
            path.unlink()


@contextmanager
def _taken(path: Path) -> Iterator[None]:
    """Raises OSError while the worker lives."""
    lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(lock).st_uid != os.getuid():
            raise PermissionError(f"{path} is another user's")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _locked(path: Path) -> tuple[Path, int]:
    """Made and locked. Between the two another worker may take it for a dead one's: then it is not there any more."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.lstat(path)):
                return path, lock
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(lock)
