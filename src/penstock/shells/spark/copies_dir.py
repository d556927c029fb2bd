"""The folder on a host in which all workers of one job there keep copies of their state.

It lies beside the folder of Spark's own blocks, on the disks that Spark was given for such things, and is this user's
alone. Workers hold a lock on it, all together, for as long as they live. The last one of a job that is over removes it;
if all were killed, the next worker of any job on this host does, a day after the last one came.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from penstock.errors import StorageError
from penstock.storage.local import LocalStore
from penstock.storage.local_copies import LocalCopies

PREFIX = "penstock-copies-"
FORGOTTEN_AFTER_S = 24 * 3600.0
_LOCK = "lock"
_TRIES = 10
"""The folder may be removed by another worker between making it and locking it."""

log = logging.getLogger("penstock")


def copies_name(job: str, directory: str, created_ms: float) -> str:
    """Of the folder for this job's copies: other directories, and a directory that was made anew, have other ones."""
    what = hashlib.sha256(f"{directory}\n{created_ms!r}".encode()).hexdigest()[:24]
    return f"{PREFIX}{job}-{what}"


def open_copies(name: str) -> LocalCopies | None:
    """In a worker. None where this host has no place for them: that is said, and nothing else comes of it."""
    parent = local_dir()
    sweep(parent)
    try:
        folder, lock = _locked(parent / name)
        disk = LocalStore(str(folder / "files"), durable=False)
    except (OSError, StorageError) as error:
        log.warning("no copies of state are kept on this host: %s", error)
        return None
    return LocalCopies(disk, lambda over: _close(folder, lock, over))


def local_dir() -> Path:
    """Where Spark lets its executors write. The folder of its blocks in there goes with the executor: beside it lasts
    longer."""
    first = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0].strip()
    if not first:
        return Path(tempfile.gettempdir())
    path = Path(first)
    return path.parent if path.name.startswith("blockmgr-") else path


def sweep(parent: Path, older_than_s: float = FORGOTTEN_AFTER_S) -> None:
    """Removes this user's folders that nobody has used for so long."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _used_s(folder) <= time.time() - older_than_s:
                _remove_if_free(folder, _open_lock(folder, os.O_CREAT))


def _used_s(folder: Path) -> float:
    """When a worker came last; without a lock, which somebody must have removed, when anything changed."""
    lock = folder / _LOCK
    return (lock if lock.exists() else folder).stat().st_mtime


def _locked(folder: Path) -> tuple[Path, int]:
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        _check_own(folder)
        with suppress(FileNotFoundError):
            lock = _open_lock(folder, os.O_CREAT)
            if _held(folder, lock):
                os.utime(lock)
                return folder, lock
            os.close(lock)
    raise OSError(f"{folder} is being removed by somebody")


def _held(folder: Path, lock: int) -> bool:
    """Together with other workers; False while somebody removes the folder, or has done so."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return _is_there(folder, lock)


def _close(folder: Path, lock: int, over: bool) -> None:
    if over:
        _remove_if_free(folder, lock)
    else:
        os.close(lock)


def _remove_if_free(folder: Path, lock: int) -> None:
    """Unless another worker holds the lock, too."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(folder, lock):
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(lock)


def _open_lock(folder: Path, flags: int = 0) -> int:
    _check_own(folder)
    return os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)


def _is_there(folder: Path, lock: int) -> bool:
    """The lock is that of the folder which has this name now."""
    try:
        return os.path.samestat(os.fstat(lock), os.lstat(folder / _LOCK))
    except FileNotFoundError:
        return False


def _check_own(folder: Path) -> None:
    """In a place where everybody may write, somebody else may have made it."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
