"""Checkpoints on a local (or mounted) disk: whole files or none, on the disk before they count.

A file is written under a name that nobody else uses, fsynced, and then given its own name in one step: by
rename, or by a hard link where there must not be a file of that name yet. The folder is fsynced after that,
because a name is the folder's data. Files are 0600 and folders 0700: state is nobody else's business.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from penstock.errors import CheckpointCorrupt, StorageError
from penstock.storage.names import (
    check_range,
    checked,
    checked_folder,
    checked_for_delete,
    is_temp,
    temp_beside,
)
from penstock.storage.pieces import write_all

T = TypeVar("T")
Names = list[str]
Entries = list[os.DirEntry[str]]

_TRIES = 100
"""A folder may be pruned by `delete` between making it and writing to it; so often it is made again."""

_HINTS = {
    errno.EACCES: "give this user the right to write there, or name another directory",
    errno.EPERM: "give this user the right to write there, or name another directory",
    errno.EROFS: "the disk is mounted read-only; name another directory",
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the quota is used up; free some space",
    errno.ENOTDIR: "a part of the path is a file; name a directory",
    errno.ELOOP: "symbolic links inside a checkpoint directory are not followed",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
}
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class LocalStore:
    """Files below `root`. Any number of threads and processes may use the same root."""

    def __init__(self, root: str, *, durable: bool = True) -> None:
        """`durable=False`: for what nobody misses after a crash of the machine."""
        self._durable = durable
        with _storage_errors("use", root):
            self.root = os.path.realpath(Path(root).expanduser())

    def begin(self, name: str) -> _LocalFile:
        path = self._path(checked(name))
        with _storage_errors("write", path):
            return _LocalFile(path, *self._open_temp(path), durable=self._durable)

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        return write_all(self.begin(name), chunks)

    def create(self, name: str, data: bytes) -> bool:
        path = self._path(checked(name))
        with _storage_errors("create", path):
            temp, file = self._open_temp(path)
            with _removed_on_error(temp), file:
                file.write(data)
                _to_disk(file)
            try:
                created = _link(temp, path)
            finally:
                with suppress(OSError):
                    os.unlink(temp)
            _fsync_folder(os.path.dirname(path))
        return created

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        check_range(name, offset, length)
        path = self._path(checked(name))
        with _storage_errors("read", path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                raise CheckpointCorrupt(f"{path} is missing") from None
            try:
                return _read_range(descriptor, path, offset, length)
            finally:
                os.close(descriptor)

    def list(self, prefix: str = "") -> Names:
        return sorted(name for name in self._walk(checked_folder(prefix)) if not is_temp(name))

    def delete(self, name: str) -> None:
        path = self._path(checked_for_delete(name))
        with _storage_errors("delete", path):
            with suppress(FileNotFoundError):
                os.unlink(path)
            _fsync_folder(self._prune(os.path.dirname(path)))

    def leftovers(self, older_than_s: float = 3600.0) -> Names:
        """Temporary files that their writers left behind; `delete` takes these names."""
        limit = time.time() - older_than_s
        return sorted(
            name for name in self._walk("") if is_temp(name) and self._modified(name) <= limit
        )

    def look_at(self, name: str) -> tuple[int, float] | None:
        """The size of a file, and when it was written: seconds since 1970. None: there is none."""
        path = self._path(checked_for_delete(name))
        with _storage_errors("look at", path):
            try:
                status = os.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                return None
        return status.st_size, status.st_mtime

    # ---- paths

    def _path(self, name: str) -> str:
        """Where `name` is. Its folder must be what it looks like: no link may lead out of the root."""
        path = os.path.join(self.root, name)
        folder = os.path.dirname(path)
        if os.path.realpath(folder) != folder:
            raise StorageError(
                f"{folder} leads outside the checkpoint directory by a symbolic link"
            )
        return path

    def _walk(self, folder: str) -> Iterator[str]:
        path = os.path.join(self.root, folder) if folder else self.root
        for entry in self._entries(path):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(name)
            else:
                yield name

    def _entries(self, path: str) -> Entries:
        with _storage_errors("list", path):
            try:
                with os.scandir(path) as entries:
                    return [*entries]
            except FileNotFoundError:
                return []

    def _modified(self, name: str) -> float:
        try:
            return os.stat(self._path(name), follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return float("inf")

    # ---- folders and temporary files

    def _open_temp(self, path: str) -> tuple[str, BinaryIO]:
        temp = temp_beside(path)
        descriptor = self._in_folder(path, lambda: _open_new(temp))
        return temp, os.fdopen(descriptor, "wb")

    def _in_folder(self, path: str, act: Callable[[], T]) -> T:
        """Does something in the folder of `path`, which is made when it is not there."""
        for _ in range(_TRIES - 1):
            try:
                return act()
            except FileNotFoundError:
                _make_folders(os.path.dirname(path))
        return act()

    def _prune(self, folder: str) -> str:
        """Removes empty folders from here upwards; returns the first that stays."""
        while folder != self.root:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                return folder
            folder = os.path.dirname(folder)
        return folder


class _LocalFile:
    """Has a name that nobody else uses until it is whole."""

    def __init__(self, path: str, temp: str, file: BinaryIO, *, durable: bool) -> None:
        self._path = path
        self._temp = temp
        self._file = file
        self._durable = durable

    def write(self, chunk: bytes | memoryview) -> None:
        with _storage_errors("write", self._path):
            self._file.write(chunk)

    def finish(self) -> int:
        with _storage_errors("write", self._path), _removed_on_error(self._temp):
            with self._file as file:
                if self._durable:
                    _to_disk(file)
                size = file.tell()
            os.replace(self._temp, self._path)
            if self._durable:
                _fsync_folder(os.path.dirname(self._path))
        return size

    def discard(self) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            os.unlink(self._temp)


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _open_new(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _make_folders(folder: str) -> None:
    """Makes a folder and those above it, each durable in its parent."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_folders(os.path.dirname(folder))
        with suppress(FileExistsError, FileNotFoundError):
            os.mkdir(folder, 0o700)
    _fsync_folder(os.path.dirname(folder))


def _fsync_folder(folder: str) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # pruned meanwhile: there is no name left to keep
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(temp: str, path: str) -> bool:
    """Gives a whole file its name, unless the name is taken."""
    try:
        os.link(temp, path, follow_symlinks=False)
    except FileExistsError:
        return _is_same_file(temp, path)  # a retried request on a network disk: it was us
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise StorageError(
                f"{path}: this disk has no hard links, so two drivers could own one job at a time; "
                "name a checkpoint directory on another disk"
            ) from error
        raise
    return True


def _is_same_file(temp: str, path: str) -> bool:
    try:
        return os.path.samestat(os.lstat(temp), os.lstat(path))
    except FileNotFoundError:
        return False


def _read_range(descriptor: int, path: str, offset: int, length: int | None) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointCorrupt(f"{path} is not a file")
    end = status.st_size if length is None else offset + length
    if offset > status.st_size or end > status.st_size:
        raise CheckpointCorrupt(
            f"{path} has {status.st_size} bytes and should have {max(offset, end)}"
        )
    parts: list[bytes] = []
    while offset < end:
        part = os.pread(descriptor, min(end - offset, 1 << 30), offset)
        if not part:
            raise CheckpointCorrupt(
                f"{path} became shorter while it was read: {offset} of {end} bytes"
            )
        parts.append(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def _removed_on_error(temp: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.unlink(temp)
        raise


@contextmanager
def _storage_errors(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        code = errno.errorcode.get(error.errno or 0, "no code")
        hint = _HINTS.get(error.errno or 0)
        advice = f"; {hint}" if hint else ""
        raise StorageError(f"cannot {action} {path}: {reason} ({code}){advice}") from error
