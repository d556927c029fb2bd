"""The disk of the one simulated host, for copies of state: nobody may rely on it, and it shows that nobody does.

It has dice of its own, so that the same seed means the same schedule whatever this disk does."""

from __future__ import annotations

from random import Random

from penstock.errors import StorageError
from penstock.storage.memory import MemoryStore
from penstock.storage.pieces import Collected

FAILS, IS_LOST, IS_DAMAGED = 0.05, 0.05, 0.1


class CopiesDisk(MemoryStore):
    """Also in a healed world: what cannot do harm needs no end."""

    def __init__(self, dice: Random) -> None:
        super().__init__()
        self._dice = dice
        self.reads_good = self.reads_bad = 0
        """How often it gave what was written, as far as it knows, and how often not."""

    def begin(self, name: str) -> Collected:
        self._maybe_fail("begin", name)
        return super().begin(name)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """A file may have been lost or changed since it was written."""
        try:
            self._maybe_fail("read", name)
            if self._dice.random() < IS_LOST:
                super().delete(name)
            data = super().read(name, offset, length)
        except StorageError:
            self.reads_bad += 1
            raise
        if data and self._dice.random() < IS_DAMAGED:
            self.reads_bad += 1
            at = self._dice.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << self._dice.randrange(8)]) + data[at + 1 :]
        self.reads_good += 1
        return data

    def list(self, prefix: str = "") -> list[str]:
        self._maybe_fail("list", prefix)
        return super().list(prefix)

    def delete(self, name: str) -> None:
        self._maybe_fail("delete", name)
        super().delete(name)

    def _maybe_fail(self, what: str, name: str) -> None:
        if self._dice.random() < FAILS:
            raise StorageError(f"simulated failure of a worker's own disk before {what} {name}")
