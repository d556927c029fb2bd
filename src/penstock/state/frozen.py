"""What a snapshot's writer sees of state: a frozen view that can be encoded later, on another thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.protocol.snapshot import Block


@dataclass(frozen=True)
class Encoded:
    """Frozen state as bytes: `chunks` in order; block offsets count from the first chunk's start."""

    state: str
    schema: bytes
    chunks: Sequence[memoryview]
    blocks: tuple[Block, ...]


class Frozen(Protocol):
    """State as it was at one moment, taken in microseconds; `encode` runs later, on another thread."""

    def encode(self) -> Encoded: ...

    def release(self) -> None:
        """The snapshot was given up: forget it. Also fine after `encode`."""
        ...
