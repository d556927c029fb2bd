"""Shared files in simulated checkpoints: what operators will write that keep state over several of them.

A worker that writes its state may write a *keepsake* before it, a shared file. Its answer then refers to that, and to
some of those that the base refers to: the newest checkpoint that was complete when the snapshot was triggered. Nobody
restores anything from them; whether they are there, and what is in them, is for the checkers to see.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from xxhash import xxh3_128_hexdigest

from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId
from penstock.protocol.messages import Ack, FromWorker, ToWorker, Trigger
from penstock.protocol.snapshot import Block, Segment
from penstock.wire import paths
from penstock.wire.manifest import Manifest

if TYPE_CHECKING:
    from penstock.ports.store import CheckpointStore
    from penstock.shells.sim.world import World

KEPT = 0.7
"""How many of its base's keepsakes a snapshot refers to again."""


class Keepsakes:
    """Has dice of its own: schedules without keepsakes are what they would be without this."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = Random(f"keepsakes {seed}")
        self._rate = self._rng.choice((0.0, 0.4, 1.0)) if world.scenario.sources else 0.0
        self._bases: dict[CheckpointId, CheckpointId] = {}
        self._written: dict[str, str] = {}
        """By the worker's file that it was written beside."""

    def on_sent(self, driver: int, message: ToWorker) -> None:
        if isinstance(message, Trigger):
            coordinator = self._world.cluster.drivers[driver].manager.coordinator
            self._bases.setdefault(message.checkpoint, coordinator.newest_completed)

    def base_of(self, checkpoint: CheckpointId) -> Manifest | None:
        base = self._bases.get(checkpoint, NO_CHECKPOINT)
        return self._world.checkers.manifests.get(base)

    def before_write(self, store: CheckpointStore, name: str) -> None:
        """A worker is about to write its state."""
        file = paths.worker_file_of(name)
        if file is None or self._rng.random() >= self._rate:
            return
        keepsake = paths.shared_file(replace(file, part="keepsake"))
        store.write(keepsake, [keepsake.encode()])
        self._written[name] = keepsake

    def added_to(self, message: FromWorker) -> FromWorker:
        """The answer, as an operator with keepsakes would give it."""
        if not isinstance(message, Ack):
            return message
        files = {self._written[name] for name in _files(message) if name in self._written}
        base = self.base_of(message.checkpoint)
        for file in base.files if base is not None and self._rate else ():
            if paths.shared_of(file) is not None and self._rng.random() < KEPT:
                files.add(file)
        return _referring_to(message, sorted(files), self._world.scenario.sources)


def _files(ack: Ack) -> set[str]:
    return {segment.file for snapshot in ack.snapshots for segment in snapshot.segments}


def _referring_to(ack: Ack, files: list[str], sources: Collection[str]) -> Ack:
    """By an operator that has no other segments."""
    segments = tuple(
        Segment(
            "keepsake",
            b"",
            (Block(0, 0, 1, 0, len(name), xxh3_128_hexdigest(name.encode())),),
            name,
        )
        for name in files
    )
    snapshots = list(ack.snapshots)
    for i, snapshot in enumerate(snapshots):
        for name, part in snapshot.operators.items():
            if name in sources and segments:
                operators = {**snapshot.operators, name: replace(part, segments=segments)}
                snapshots[i] = replace(snapshot, operators=operators)
                return replace(ack, snapshots=tuple(snapshots))
    return ack
