"""Checkpoints on any fsspec URL whose store can create a file exclusively.

That a job has one owner rests on "create, unless it is there" being one act of the store itself. fsspec's own
default asks first and writes then, which lets two drivers through, so for a job only stores known to do better are
taken, and each is probed before it is used: an old client that ignores the request is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, Self, TypeVar

import fsspec

from penstock.errors import CheckpointCorrupt, ConfigError, PenstockError, StorageError
from penstock.ports.store import Writing
from penstock.redaction import has_parameters, redacted, remember, texts_in
from penstock.storage.names import (
    check_range,
    checked,
    checked_folder,
    checked_for_delete,
    is_temp,
    temp_beside,
)
from penstock.storage.pieces import Collected

T = TypeVar("T")
Names = list[str]
Parts = list[bytes]

EXCLUSIVE = ("memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")
"""Their clients send "only if there is none" with the write (s3fs, gcsfs, adlfs); memory has our lock."""

_MEMORY_LOCK = Lock()


class RemoteStore:
    """Files below a URL. A file is sent whole in one call, or in parts that the store puts together at the end: a
    reader sees all of it or nothing."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        _require_exclusive(url)
        self._open(url, storage_options)
        self._probe()

    @classmethod
    def to_read(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> Self:
        """Any store, for whoever owns nothing there: it is not probed."""
        made = cls.__new__(cls)
        made._open(url, storage_options)
        return made

    def _open(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        remember(url, storage_options)
        self._secrets = texts_in(storage_options or {})
        self.root = redacted(url)
        _refuse_parameters(url)
        with self._storage_errors("open", ""):
            self._files, path = fsspec.core.url_to_fs(url, **(storage_options or {}))
            self._path = path.rstrip("/")
        self._in_memory = url.partition("://")[0] == "memory"

    def begin(self, name: str) -> Writing:
        path = self._full(checked(name))
        if self._in_memory:  # what is being written there can be seen
            return Collected(lambda pieces: self.write(name, pieces))
        with self._storage_errors("write", name):
            return _Upload(self, name, path, self._files.open(path, "wb"))

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        path = self._full(checked(name))
        data = b"".join(chunks)
        with self._storage_errors("write", name):
            self._files.pipe_file(path, data)
            self._check_size(path, name, len(data))
        return len(data)

    def create(self, name: str, data: bytes) -> bool:
        path = self._full(checked(name))
        with self._storage_errors("create", name):
            return self._create(path, bytes(data))

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        check_range(name, offset, length)
        path = self._full(checked(name))
        with self._storage_errors("read", name):
            try:
                size = self._size(path)
                end = size if length is None else offset + length
                if offset > size or end > size:
                    raise _too_short(self._show(name), size, max(offset, end))
                return self._read_range(path, name, offset, end)
            except (FileNotFoundError, IsADirectoryError):
                raise CheckpointCorrupt(f"{self._show(name)} is missing") from None

    def list(self, prefix: str = "") -> Names:
        return sorted(name for name in self._find(checked_folder(prefix)) if not is_temp(name))

    def delete(self, name: str) -> None:
        path = self._full(checked_for_delete(name))
        with self._storage_errors("delete", name):
            with suppress(FileNotFoundError):
                self._files.rm_file(path)
            self._files.invalidate_cache()
            self._prune(path)

    def leftovers(self, older_than_s: float = 3600.0) -> Names:
        """Temporary files that their writers left behind; `delete` takes these names."""
        limit = datetime.now(UTC) - timedelta(seconds=older_than_s)
        with self._storage_errors("list", ""):
            return sorted(
                name
                for name in self._find("")
                if is_temp(name) and self._files.modified(self._full(name)) <= limit
            )

    def look_at(self, name: str) -> tuple[int, float] | None:
        """The size of a file, and when it was written: seconds since 1970. None: there is none."""
        path = self._full(checked_for_delete(name))
        with self._storage_errors("look at", name):
            try:
                return int(self._files.size(path) or 0), self._files.modified(path).timestamp()
            except FileNotFoundError:
                return None

    # ---- parts

    def _create(self, path: str, data: bytes) -> bool:
        try:
            if self._in_memory:
                with _MEMORY_LOCK:
                    self._files.pipe_file(path, data, mode="create")
            else:
                self._files.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True

    def _probe(self) -> None:
        """Creates a file twice: a store that lets the second one through cannot fence."""
        with self._storage_errors("write to", ""):
            probe = temp_beside(f"{self._path}/probe")
            first, second = self._create(probe, b"1"), self._create(probe, b"2")
            kept = bytes(self._files.cat_file(probe))
            self._files.rm_file(probe)
        if (first, second, kept) != (True, False, b"1"):
            raise StorageError(
                f"{self.root}: the store overwrites where it was asked to create exclusively, so two "
                "drivers could own one job at a time; update its fsspec package or use another store"
            )

    def _read_range(self, path: str, name: str, offset: int, end: int) -> bytes:
        """A store may answer with less than was asked for: ask again for the rest."""
        parts: Parts = []
        while offset < end:
            part = bytes(self._files.cat_file(path, start=offset, end=end))
            if not part or len(part) > end - offset:
                raise _too_short(self._show(name), offset, end)
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _check_size(self, path: str, name: str, size: int) -> None:
        found = self._size(path)
        if found != size:
            raise StorageError(f"{self._show(name)}: wrote {size} bytes, the store has {found}")

    def _size(self, path: str) -> int:
        self._files.invalidate_cache()
        information = self._files.info(path)
        if information["type"] != "file":
            raise IsADirectoryError(path)
        return int(information["size"])

    def _find(self, folder: str) -> Names:
        path = self._full(folder) if folder else self._path
        with self._storage_errors("list", folder):
            self._files.invalidate_cache()
            found = _or_empty(lambda: list(self._files.find(path)))
        start = len(self._path) + 1
        inside = f"{path}/"
        return [name[start:] for name in found if name.startswith(inside)]

    def _prune(self, path: str) -> None:
        """Where folders are real (memory), empty ones go; object stores have none."""
        folder = path.rpartition("/")[0]
        while self._in_memory and len(folder) > len(self._path):
            try:
                self._files.rmdir(folder)
            except OSError:
                return
            folder = folder.rpartition("/")[0]

    def _full(self, name: str) -> str:
        return f"{self._path}/{name}"

    # ---- errors without secrets

    def _show(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    @contextmanager
    def _storage_errors(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:  # every fsspec package has errors of its own
            text = f"{type(error).__name__}: {error}"
            clean = redacted(text, self._secrets)
            message = f"cannot {action} {self._show(name)}: {clean[:500]}"
            raise StorageError(message) from (error if clean == text else None)


class _Upload:
    """fsspec's own file: sends a part when it has enough for one, and has the parts put together when it is closed."""

    def __init__(self, store: RemoteStore, name: str, path: str, file: Any) -> None:
        self._store = store
        self._name = name
        self._path = path
        self._file = file
        self._bytes = 0
        self._over = False

    def write(self, chunk: bytes | memoryview) -> None:
        with self._store._storage_errors("write", self._name):
            self._file.write(chunk)
        self._bytes += len(chunk)

    def finish(self) -> int:
        with self._store._storage_errors("write", self._name):
            self._file.close()
            self._over = True
            self._store._check_size(self._path, self._name, self._bytes)
        return self._bytes

    def discard(self) -> None:
        """A file that is closed, or dropped, would be put together of the parts that were sent."""
        if not self._over:
            self._over = self._file.closed = True
            with suppress(Exception):
                self._file.discard()


def _require_exclusive(url: str) -> None:
    protocol = url.partition("://")[0]
    if protocol not in EXCLUSIVE:
        raise StorageError(
            f"{redacted(url)}: {protocol}:// cannot create a file exclusively, so two drivers could own "
            f"one job at a time; use a local path or one of {', '.join(EXCLUSIVE)}"
        )


def _refuse_parameters(url: str) -> None:
    """Names are put behind the URL, so there is no place for them."""
    if has_parameters(url):
        raise ConfigError(
            f"{redacted(url)}: a directory cannot have ?name=value at its end; give what the store needs"
            " with storage_options={...}"
        )


def _too_short(shown: str, size: int, expected: int) -> CheckpointCorrupt:
    return CheckpointCorrupt(f"{shown} has {size} bytes and should have {expected}")


def _or_empty(find: Callable[[], Names]) -> Names:
    try:
        return find()
    except FileNotFoundError:
        return []
