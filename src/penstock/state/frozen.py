"""What a snapshot's writer sees of state: a frozen view that writes itself later, on another thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa

from penstock.protocol.snapshot import ALL_GROUPS, Segment


class Out(Protocol):
    """Where frozen state goes. Nothing of it counts before the whole snapshot is written."""

    def put(
        self,
        state: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        groups: tuple[int, int] = ALL_GROUPS,
        delta: bool = False,
        shared: bool = False,
    ) -> Segment:
        """Writes these batches, one block each, while they are made; where they lie.
        `shared`: later checkpoints may refer to them, too."""
        ...

    def put_file(
        self,
        state: str,
        schema: pa.Schema,
        member: str,
        pieces: Iterable[bytes],
        *,
        groups: tuple[int, int],
        shared: bool = False,
    ) -> Segment:
        """Writes a file of a floor, one block per piece. `groups`: the first of the key groups whose rows are in it,
        and the first behind them."""
        ...


class Frozen(Protocol):
    """State as it was at one moment, taken in microseconds; `write` runs later, on another thread."""

    def write(self, out: Out) -> tuple[Segment, ...]:
        """Writes itself piece by piece, on another thread. The segments in the order in which they are applied; among
        them may be some of earlier checkpoints."""
        ...

    def release(self) -> None:
        """The snapshot was given up: forget it. Also fine after `write`."""
        ...
