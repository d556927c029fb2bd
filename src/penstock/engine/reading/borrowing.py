"""Taking a table out of a checkpoint that may be deleted at any time: found, leased, and still there after that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.engine.leases import LEASE_MS, Borrower, Lease, Renewal, give_back, take
from penstock.engine.reading.request import Request
from penstock.engine.reading.stored import TRIES_MAX, is_there, too_fast
from penstock.engine.reading.tables import Table, shares
from penstock.errors import CheckpointCorrupt, StorageError
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import CheckpointId


@dataclass(frozen=True)
class Borrowed:
    """Tables of a checkpoint, or pieces of them, with the lease that keeps their files. None: they need no file, or
    nothing can be written there."""

    checkpoint: CheckpointId
    tables: tuple[Table, ...]
    lease: Lease | None

    def only(self, tables: Sequence[Table]) -> Borrowed:
        """Less of the same."""
        return replace(self, tables=tuple(tables))

    def shared_out(self, most: int) -> list[Borrowed]:
        """In at most so many parts, each for a process of its own; at least one, which may be empty."""
        pieces = [piece for table in self.tables for piece in table.pieces(most)]
        ends = shares([piece.rows for piece in pieces], most)
        return [self.only(pieces[start:end]) for start, end in ends]

    def read(self, store: CheckpointStore, borrower: Borrower) -> Iterator[pa.RecordBatch]:
        """All rows. The lease is renewed meanwhile."""
        renewal = None if self.lease is None else Renewal(store, self.lease, borrower)
        try:
            for batch in (batch for table in self.tables for batch in table.read(store)):
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
        lease = take(store, manifest.checkpoint, borrower, for_ms) if table.files else None
        if lease is None or is_there(store, manifest.checkpoint):
            return Borrowed(manifest.checkpoint, (table,), lease)
        give_back(store, lease)
    raise too_fast(request.root)
