"""Leases: the files of a checkpoint stay while somebody reads it.

A job that takes a checkpoint every second deletes old ones just as often, and whoever reads the newest may need
longer than that. So a reader puts a lease beside the files and looks *then* whether the metadata is still there; the
job deletes the metadata and looks *then* for leases. Whoever comes first, one of the two sees the other.

A reader that dies leaves a lease that expires. One that cannot write there reads without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from penstock.errors import CheckpointCorrupt, StorageError
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import CheckpointId
from penstock.wire import paths, records

LEASE_MS = 600_000.0
"""How long a lease counts that is not renewed, unless its reader wants it otherwise."""
LEASE_MS_MAX = 3_600_000.0
"""The longest that a reader may want. What expires later than that, by any clock, is no lease."""
CLOCKS_APART_MS = 600_000.0
"""So much the clocks of a reader and of the job may differ."""


def is_read(store: CheckpointStore, names: Iterable[str], now_ms: float) -> bool:
    """Whether one of these files is a lease that has not expired. For a checkpoint whose metadata is gone."""
    return any(_that_counts(store, name, now_ms) for name in names if paths.lease_of(name))


def files_read(
    store: CheckpointStore, checkpoints: Iterable[CheckpointId], names: Iterable[str], now_ms: float
) -> dict[CheckpointId, set[str]]:
    """Of these checkpoints, those that somebody reads, with the shared files that it wants to stay."""
    wanted, read = set(checkpoints), dict[CheckpointId, set[str]]()
    for name in names:
        checkpoint = paths.lease_of(name)
        if checkpoint is None or checkpoint not in wanted:
            continue
        if (lease := _that_counts(store, name, now_ms)) is not None:
            read.setdefault(checkpoint, set()).update(lease.files)
    return read


def _that_counts(store: CheckpointStore, name: str, now_ms: float) -> records.LeaseRecord | None:
    """A lease that cannot be read is looked at twice: the first time it may just have been renewed. Else it was given
    back, or is none."""
    for _ in range(2):
        with suppress(CheckpointCorrupt):
            lease = records.decode_lease(store.read(name), name)
            counts = now_ms < lease.expires_ms <= now_ms + LEASE_MS_MAX + CLOCKS_APART_MS
            return lease if counts else None
    return None


@dataclass(frozen=True)
class Borrower:
    """Who reads. `unique` gives 32 hexadecimal digits that nobody else uses."""

    who: str
    wall_ms: Callable[[], float]
    unique: Callable[[], str]


@dataclass(frozen=True)
class Lease:
    """It is taken by one process, and renewed for `length_ms` by those that read."""

    checkpoint: CheckpointId
    name: str
    expires_ms: float
    length_ms: float
    shared: tuple[str, ...] = ()
    """What is read that does not lie beside it."""


def take(
    store: CheckpointStore,
    checkpoint: CheckpointId,
    borrower: Borrower,
    length_ms: float,
    files: Iterable[str] = (),
) -> Lease | None:
    """For these files of the checkpoint. None where nothing can be written."""
    name = paths.lease(checkpoint, borrower.unique())
    shared = tuple(file.name for file in sorted(paths.shared_among(files)))
    lease = Lease(checkpoint, name, borrower.wall_ms() + length_ms, length_ms, shared)
    try:
        return lease if store.create(name, _encoded(lease, borrower)) else None
    except StorageError:
        return None


def give_back(store: CheckpointStore, lease: Lease) -> None:
    """What cannot be deleted expires."""
    with suppress(StorageError):
        store.delete(lease.name)


class Renewal:
    """Keeps a lease while one process reads."""

    def __init__(self, store: CheckpointStore, lease: Lease, borrower: Borrower) -> None:
        self._store = store
        self._lease = lease
        self._borrower = borrower

    def keep(self) -> None:
        """Called again and again: writes when a quarter of the time has passed. A lease that cannot be renewed is no
        reason to end: perhaps nobody wants to delete."""
        now_ms, lease = self._borrower.wall_ms(), self._lease
        if now_ms >= lease.expires_ms - 0.75 * lease.length_ms:
            self._lease = replace(lease, expires_ms=now_ms + lease.length_ms)
            with suppress(StorageError):
                self._store.write(lease.name, [_encoded(self._lease, self._borrower)])


def _encoded(lease: Lease, borrower: Borrower) -> bytes:
    record = records.LeaseRecord(lease.checkpoint, lease.expires_ms, borrower.who, lease.shared)
    return records.encode_lease(record)
