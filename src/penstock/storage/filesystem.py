"""The checkpoint store that a path or URL stands for, and the job folder in it.

store = open_job("chk/", "totals")       # local
store = open_job("s3://bucket/chk", "totals", storage_options={...})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from penstock.errors import CheckpointCorrupt, ConfigError
from penstock.ports.store import Writing
from penstock.storage.local import LocalStore
from penstock.storage.remote import RemoteStore
from penstock.wire import paths, records

Names = list[str]


class FilesystemStore:
    """A `CheckpointStore` below a local path, a `file://` URL or another fsspec URL."""

    def __init__(self, root: str, storage_options: Mapping[str, Any] | None = None) -> None:
        local = _local_path(root)
        self._store: LocalStore | RemoteStore = (
            RemoteStore(root, storage_options) if local is None else LocalStore(local)
        )

    @classmethod
    def to_read(cls, root: str, storage_options: Mapping[str, Any] | None = None) -> Self:
        """For whoever owns nothing there: any URL that fsspec can read, and nothing is written to find out."""
        made = cls.__new__(cls)
        local = _local_path(root)
        made._store = (
            RemoteStore.to_read(root, storage_options) if local is None else LocalStore(local)
        )
        return made

    @property
    def root(self) -> str:
        """Where the files are, fit to be shown: without passwords."""
        return self._store.root

    def __repr__(self) -> str:
        return f"FilesystemStore({self.root!r})"

    def begin(self, name: str) -> Writing:
        return self._store.begin(name)

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        return self._store.write(name, chunks)

    def create(self, name: str, data: bytes) -> bool:
        return self._store.create(name, data)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._store.read(name, offset, length)

    def list(self, prefix: str = "") -> Names:
        return self._store.list(prefix)

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def leftovers(self, older_than_s: float = 3600.0) -> Names:
        """Temporary files that dead writers left behind; `delete` takes these names."""
        return self._store.leftovers(older_than_s)

    def look_at(self, name: str) -> tuple[int, float] | None:
        """The size of a file, and when it was written: seconds since 1970. None: there is none."""
        return self._store.look_at(name)


def open_job(
    directory: str,
    name: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    created_ms: float = 0.0,
) -> FilesystemStore:
    """The store of a job's own folder, proved to be writable and the job's.

    Raises `StorageError` when it cannot be written, `ConfigError` when it is somebody else's."""
    if not isinstance(directory, str) or not directory.strip():
        raise ConfigError(f"the checkpoint directory must be a path or a URL, not {directory!r}")
    store = FilesystemStore(paths.job_directory(directory, name), storage_options)
    if paths.JOB not in store.list():
        _claim_folder(store, records.JobRecord(name, created_ms))
    _check_name(store, name)
    return store


def _claim_folder(store: FilesystemStore, record: records.JobRecord) -> None:
    strangers = [found for found in store.list() if not paths.is_known(found)]
    if strangers and paths.JOB not in store.list():
        raise ConfigError(
            f"{store.root} is not empty and not a Penstock job: it has {strangers[0]!r} and no "
            f"{paths.JOB}. Name another checkpoint directory, or another job"
        )
    store.create(paths.JOB, records.encode_job(record))


def read_job(store: FilesystemStore) -> records.JobRecord:
    """Whose folder it is."""
    path = f"{store.root}/{paths.JOB}"
    try:
        return records.decode_job(store.read(paths.JOB), path)
    except CheckpointCorrupt as error:
        raise CheckpointCorrupt(
            f"{error}. Without it nobody can tell whose folder this is: put the file back, or name "
            "another checkpoint directory"
        ) from error


def _check_name(store: FilesystemStore, name: str) -> None:
    record = read_job(store)
    if record.name != name:
        raise ConfigError(
            f"{store.root} belongs to the job {record.name!r}, not to {name!r}: "
            "name another checkpoint directory, or use that job's name to go on with it"
        )


def _local_path(root: str) -> str | None:
    """The path that `root` means, or None when it is another store's URL."""
    protocol, separator, path = root.partition("://")
    if not separator:
        return root
    return path if protocol in ("file", "local") else None
