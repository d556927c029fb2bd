"""A sink that counts rows and forgets them: for measuring everything else."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.connectors.base import Sink, SinkCommitter, SinkContext, SinkWriter
from penstock.errors import CommitError
from penstock.protocol.snapshot import Plain


class BlackholeSink(Sink):
    """Has no transactions: there is nothing to be seen before or after a commit."""

    idempotent = True

    def writer(self, context: SinkContext) -> BlackholeWriter:
        return BlackholeWriter()

    def committer(self, context: SinkContext) -> SinkCommitter:
        return NoCommitter()


class BlackholeWriter(SinkWriter):
    def __init__(self) -> None:
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows

    def prepare(self, checkpoint: int) -> Plain:
        return None


class NoCommitter(SinkCommitter):
    """For writers that never have a transaction to commit."""

    def commit(self, transaction: Plain) -> None:
        if transaction is not None:
            raise CommitError(
                f"this sink has no transactions, but the snapshot holds {transaction!r};"
                " it was taken with another kind of sink under this name"
            )

    def abort_others(self, keep: Sequence[Plain]) -> None:
        """There is nothing staged."""
