"""Checkpoints in this process's memory: a driver's, for jobs that ask for it, and those of tests and the simulator."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from penstock.errors import CheckpointCorrupt
from penstock.storage.names import check_range, checked, checked_folder
from penstock.storage.pieces import Collected

MEMORY = "memory:"
"""What a user writes in the place of a directory."""


class MemoryStore:
    """A dictionary with the manners of a disk. Any thread may use it."""

    root = MEMORY

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._lock = Lock()

    def begin(self, name: str) -> Collected:
        checked(name)
        return Collected(lambda pieces: self.write(name, pieces))

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        data = b"".join(chunks)
        with self._lock:
            self._files[checked(name)] = data
        return len(data)

    def create(self, name: str, data: bytes) -> bool:
        with self._lock:
            if checked(name) in self._files:
                return False
            self._files[name] = bytes(data)
            return True

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        check_range(name, offset, length)
        with self._lock:
            data = self._files.get(checked(name))
        if data is None:
            raise CheckpointCorrupt(f"{name} is missing")
        end = len(data) if length is None else offset + length
        if offset > len(data) or end > len(data):
            raise CheckpointCorrupt(
                f"{name} has {len(data)} bytes and should have {max(offset, end)}"
            )
        return data[offset:end]

    def list(self, prefix: str = "") -> list[str]:
        folder = checked_folder(prefix)
        with self._lock:
            names = sorted(self._files)
        return [name for name in names if not folder or name.startswith(f"{folder}/")]

    def delete(self, name: str) -> None:
        with self._lock:
            self._files.pop(checked(name), None)
