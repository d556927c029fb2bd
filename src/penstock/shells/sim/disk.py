"""Storage that fails: operations raise before, after or in the middle of taking effect, and may take their time.
Everything that happens is watched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.errors import StorageError
from penstock.storage.memory import MemoryStore
from penstock.storage.pieces import Collected

if TYPE_CHECKING:
    from penstock.shells.sim.world import World

SLOW_DELETE_MS = 2_000.0


class SimStore:
    """One process's view of the disk that all processes share."""

    def __init__(self, world: World, disk: MemoryStore, who: str) -> None:
        self._world = world
        self._disk = disk
        self._who = who

    def begin(self, name: str) -> Collected:
        return Collected(lambda pieces: self.write(name, pieces))

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        data = b"".join(chunks)
        self._before("write", name)
        if self._world.happens("torn_write"):
            self._write_part(name, data)
        size = self._disk.write(name, [data])
        self._world.checkers.on_written(name)
        self._after(f"write {name}", name)
        return size

    def create(self, name: str, data: bytes) -> bool:
        self._before("create", name)
        created = self._disk.create(name, data)
        if created:
            self._world.checkers.on_created(self._who, name, data)
        self._after(f"create {name} {created}", name)
        return created

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._before("read", name)
        return self._disk.read(name, offset, length)

    def list(self, prefix: str = "") -> list[str]:
        self._before("list", prefix)
        names = self._disk.list(prefix)
        if not prefix:
            self._world.checkers.on_listed(self._who, names)
        return names

    def delete(self, name: str) -> None:
        if self._world.happens("slow_delete"):
            self._world.pause(self._world.rng.random() * SLOW_DELETE_MS)
        self._before("delete", name)
        if self._world.happens("delete_error"):
            self._fail("delete", name)
        self._world.checkers.on_deleted(self._who, name)
        self._disk.delete(name)
        self._after(f"delete {name}", name)

    def _write_part(self, name: str, data: bytes) -> None:
        """Part of a file is there for a while, or for ever: its process may die now, or the store may give up. Only a
        plain write can be torn: `create` promises that it cannot."""
        world = self._world
        size = world.rng.randrange(len(data) + 1)
        self._disk.write(name, [data[:size]])
        world.checkers.on_written(name)
        world.note(self._who, f"write {name} has come to byte {size} of {len(data)}")
        world.pause(world.background_delay_ms())
        if world.rng.random() < 0.5:
            world.note(self._who, f"write {name} ends in the middle")
            raise StorageError(f"simulated failure in the middle of write {name}")

    def _before(self, what: str, name: str) -> None:
        if self._world.happens("stall"):
            self._world.pause(self._world.background_delay_ms())
        if self._world.happens("storage_error"):
            self._fail(what, name)

    def _fail(self, what: str, name: str) -> None:
        self._world.note(self._who, f"storage fails: {what} {name}")
        self._world.checkers.on_refused(self._who, name)
        raise StorageError(f"simulated failure before {what} {name}")

    def _after(self, what: str, name: str) -> None:
        self._world.note(self._who, what)
        if self._world.happens("storage_unknown"):
            self._world.note(self._who, f"storage answers with an error all the same: {what}")
            self._world.checkers.on_refused(self._who, name)
            raise StorageError(f"simulated failure after {what}")
