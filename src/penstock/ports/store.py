"""Where checkpoints live. Names are relative, '/'-separated, and made by `penstock.wire.paths` alone.

Every call blocks and raises `StorageError` (a subclass, or with the cause chained) when it fails; it runs in
the background, never on a loop. A call that raised may still have happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Writing(Protocol):
    """A file that is being made, piece by piece: there is none of its name before `finish` has been called."""

    def write(self, chunk: bytes | memoryview) -> None:
        """The next piece. It is not held in memory beyond what a store sends in one go."""
        ...

    def finish(self) -> int:
        """Durable, and visible under its name, when it returns. The number of bytes."""
        ...

    def discard(self) -> None:
        """The file is not wanted any more: nothing is left of it. Never raises; after `finish` it does nothing."""
        ...


class CheckpointStore(Protocol):
    def begin(self, name: str) -> Writing:
        """Begins a file of any size. One that has to be there whole, or not at all."""
        ...

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Writes a whole file; durable, and visible under `name`, when it returns. The number of bytes."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Writes a whole file only if there is none of that name, atomically and durably. False if there is."""
        ...

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Exactly `length` bytes (or all); raises `CheckpointCorrupt` if the file is missing or shorter."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """All names below a folder, at any depth, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Deletes a file. One that does not exist is no error. Empty folders go, too."""
        ...
