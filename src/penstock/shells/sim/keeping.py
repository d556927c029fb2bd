"""How state is kept, and where checkpoints are: what a user says in CheckpointConfig. All of it is drawn here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from penstock.engine.spec import Changelogs, InDriver, JobSpec
from penstock.ports.store import CheckpointStore
from penstock.shells.sim.settings import Settings
from penstock.storage.local_copies import LocalCopies
from penstock.storage.memory import MemoryStore
from penstock.storage.memory_floor import MemoryFloors

IN_DRIVER = InDriver(5 << 20, 32 << 20)
"""As it is on Spark."""


@dataclass(frozen=True)
class Keeping:
    incremental: bool = True
    """Checkpoints build on earlier ones."""
    copies: bool = False
    """Workers have copies of their state on a disk of their own, which is not to be relied on."""
    in_driver: bool = False
    """Checkpoints are in the driver's memory. Here that outlives the driver, as it does where a job is started again in
    the same program, and fails as a disk does: the engine cannot tell."""
    floors: bool = False
    """Rows that the last batch did not have leave memory: the backend for state that is larger than that."""
    changelog: Changelogs | None = None
    """Where checkpoints build on earlier ones, state is written ahead of them."""

    def tuned(self, settings: Settings) -> Settings:
        """The limits of a job that keeps its state like this."""
        coordinator = replace(settings.coordinator, incremental=self.incremental)
        return replace(settings, coordinator=coordinator)

    def stored(
        self, spec: JobSpec, open_store: Callable[[], CheckpointStore], disk: MemoryStore | None
    ) -> JobSpec:
        """With all that workers have to know; `disk` is for copies."""
        memory_bytes = 1 if self.floors else None
        spec = replace(
            spec,
            open_floors=MemoryFloors,
            floor_memory_bytes=memory_bytes,
            floor_memory_is_strict=False,
        )
        if self.in_driver:
            return replace(spec, in_driver=IN_DRIVER)
        copies = (lambda: LocalCopies(disk)) if self.copies and disk is not None else None
        return replace(
            spec,
            open_store=open_store,
            open_copies=copies,
            incremental=self.incremental,
            changelog=self.changelog if self.incremental else None,
        )

    def describe(self) -> str:
        where = "the driver's memory" if self.in_driver else "a directory"
        how = "incremental" if self.incremental else "full"
        more = [
            (self.copies, ", local copies"),
            (self.floors, ", floors"),
            (self.changelog is not None, ", changelog"),
        ]
        return f"{how} checkpoints in {where}{''.join(text for there, text in more if there)}"


def draw(rng: Random) -> Keeping:
    """Whatever the user may choose belongs here. Later draws come last, so that those before stay as they are."""
    in_driver = rng.random() < 0.1
    incremental = rng.random() < 0.75
    copies = not in_driver and rng.random() < 0.3
    floors = rng.random() < 0.3
    logged = incremental and not in_driver and rng.random() < 0.35
    limits = Changelogs(rng.choice((1.0, 50.0, 600_000.0)), rng.choice((1, 200, 4 << 20)))
    return Keeping(incremental, copies, in_driver, floors, limits if logged else None)


def draw_later(rng: Random, first: Keeping) -> Keeping:
    """What a job has that is started again: mostly the same. It finds its checkpoints where they were."""
    if rng.random() < 0.7:
        return first
    other = draw(rng)
    copies = other.copies and not first.in_driver
    return replace(other, in_driver=first.in_driver, copies=copies)
