"""Telling the feeds of sources which rows are behind every checkpoint that may still be restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.engine.checkpoints.restore_points import RestorePoint
from penstock.ports.feed import Feed, Trouble
from penstock.protocol.ids import CheckpointId
from penstock.protocol.snapshot import Plain, SubtaskSnapshot


class Feeding:
    def __init__(self, feeds: Mapping[str, Feed]) -> None:
        self._feeds = feeds
        self._parts: dict[CheckpointId, tuple[SubtaskSnapshot, ...]] = {}
        """Of the checkpoints that are retained."""
        self._unknown: set[CheckpointId] = set()
        """Retained ones that nobody has read: while there are any, everything is needed."""

    def claimed(self, point: RestorePoint) -> None:
        """An attempt goes on from here. Positions in another job's checkpoint are of rows that are not ours."""
        if not self._feeds:
            return
        own = point.manifest if point.manifest is not None and not point.origin else None
        known = [*point.older, *([own] if own is not None else [])]
        self._parts = {manifest.checkpoint: tuple(manifest.snapshots) for manifest in known}
        self._unknown = set(point.kept) - set(self._parts)
        restored = point.manifest.snapshots if point.manifest is not None else ()
        for operator, feed in self._feeds.items():
            feed.begin(_positions(operator, restored))
        self._tell()

    def completed(self, checkpoint: CheckpointId, parts: Iterable[SubtaskSnapshot]) -> None:
        if self._feeds:
            self._parts[checkpoint] = tuple(parts)
            self._tell()

    def deleted(self, checkpoint: CheckpointId) -> None:
        """Not before it has gone: while it is there, the next attempt may yet go back to it."""
        self._parts.pop(checkpoint, None)
        self._unknown.discard(checkpoint)
        self._tell()

    def step(self, trouble: Callable[[Trouble], None]) -> None:
        for feed in self._feeds.values():
            for each in feed.troubles():
                trouble(each)

    def _tell(self) -> None:
        if self._unknown:
            return
        for operator, feed in self._feeds.items():
            feed.retained([_positions(operator, self._parts[n]) for n in sorted(self._parts)])


def _positions(operator: str, parts: Iterable[SubtaskSnapshot]) -> dict[int, Plain]:
    return {
        lane: position
        for part in parts
        if operator in part.operators
        for lane, position in part.operators[operator].lanes.items()
    }
