"""Taking a table out of a checkpoint that may be deleted at any time: found, leased, and still there after that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.engine.checkpoints.leases import LEASE_MS, Borrower, Lease, Renewal, give_back, take
from penstock.engine.reading.request import Request
from penstock.engine.reading.stored import TRIES_MAX, is_there, too_fast
from penstock.engine.reading.tables import Table
from penstock.errors import CheckpointCorrupt, StorageError
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import CheckpointId


@dataclass(frozen=True)
class Borrowed:
    """A table of a checkpoint, or a piece of it, with the lease that keeps its files. None: it needs no file, or
    nothing can be written there."""

    checkpoint: CheckpointId
    table: Table
    lease: Lease | None

    def pieces(self, most: int) -> list[Borrowed]:
        """At most so many, each for a process of its own; at least one, which may have no rows."""
        return [replace(self, table=piece) for piece in self.table.pieces(most)]

    def read(self, store: CheckpointStore, borrower: Borrower) -> Iterator[pa.RecordBatch]:
        """All rows. The lease is renewed meanwhile."""
        renewal = None if self.lease is None else Renewal(store, self.lease, borrower)
        try:
            for batch in self.table.read(store):
                if renewal is not None:
                    renewal.keep()
                yield batch
        except CheckpointCorrupt as error:
            if is_there(store, self.checkpoint):
                raise
            raise StorageError(
                f"checkpoint {self.checkpoint} was deleted before it was read: load again, or raise keep= in the job's"
                f" CheckpointConfig ({error})"
            ) from error

    def give_back(self, store: CheckpointStore) -> None:
        """Nobody reads it any more."""
        if self.lease is not None:
            give_back(store, self.lease)


def borrow(
    store: CheckpointStore, request: Request, borrower: Borrower, for_ms: float = LEASE_MS
) -> Borrowed:
    """What was asked for. Its files stay for so long after it was last read."""
    for _ in range(TRIES_MAX):
        manifest, table = request.find(store)
        files = table.files
        lease = take(store, manifest.checkpoint, borrower, for_ms, files) if files else None
        if lease is None or is_there(store, manifest.checkpoint):
            return Borrowed(manifest.checkpoint, table, lease)
        give_back(store, lease)
    raise too_fast(request.root)
