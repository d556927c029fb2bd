"""Storage that fails: operations raise before or after they took effect. Everything that happens is watched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.errors import StorageError
from penstock.storage.memory import MemoryStore

if TYPE_CHECKING:
    from penstock.shells.sim.world import World


class SimStore:
    """One process's view of the disk that all processes share."""

    def __init__(self, world: World, disk: MemoryStore, who: str) -> None:
        self._world = world
        self._disk = disk
        self._who = who

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        self._before(f"write {name}")
        size = self._disk.write(name, chunks)
        self._world.checkers.on_written(name)
        self._after(f"write {name}")
        return size

    def create(self, name: str, data: bytes) -> bool:
        self._before(f"create {name}")
        created = self._disk.create(name, data)
        if created:
            self._world.checkers.on_created(name, data)
        self._after(f"create {name} {created}")
        return created

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._before(f"read {name}")
        return self._disk.read(name, offset, length)

    def list(self, prefix: str = "") -> list[str]:
        self._before(f"list {prefix}")
        return self._disk.list(prefix)

    def delete(self, name: str) -> None:
        self._before(f"delete {name}")
        self._world.checkers.on_deleted(name)
        self._disk.delete(name)
        self._after(f"delete {name}")

    def _before(self, what: str) -> None:
        if self._world.happens("storage_error"):
            self._world.note(self._who, f"storage fails: {what}")
            raise StorageError(f"simulated failure before {what}")

    def _after(self, what: str) -> None:
        self._world.note(self._who, what)
        if self._world.happens("storage_unknown"):
            self._world.note(self._who, f"storage answers with an error all the same: {what}")
            raise StorageError(f"simulated failure after {what}")
