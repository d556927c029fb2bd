"""Which positions a source's feed hears of: those in every checkpoint that may still be restored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.engine.checkpoints.restore_points import RestorePoint
from penstock.engine.driver.feeding import Feeding
from penstock.ports.feed import Positions, Trouble
from penstock.protocol.ids import AttemptId, CheckpointId, SubtaskId
from penstock.protocol.snapshot import OperatorSnapshot, SubtaskSnapshot
from penstock.wire.manifest import Manifest
from tests.wire.examples import MANIFEST


class Heard:
    """A feed that notes what it is told."""

    def __init__(self) -> None:
        self.begun: list[Positions] = []
        self.needed: list[list[Positions]] = []
        self.pending: list[Trouble] = []

    def begin(self, restored: Positions) -> None:
        self.begun.append(dict(restored))

    def retained(self, positions: Sequence[Positions]) -> None:
        self.needed.append([dict(each) for each in positions])

    def troubles(self) -> Sequence[Trouble]:
        found, self.pending = self.pending, []
        return found


def parts(at: int) -> tuple[SubtaskSnapshot, ...]:
    """Of two subtasks with a lane each."""
    return tuple(
        SubtaskSnapshot(
            SubtaskId(0, index),
            {"in": OperatorSnapshot(lanes={index: at}), "out": OperatorSnapshot()},
        )
        for index in (0, 1)
    )


def manifest(checkpoint: int) -> Manifest:
    return replace(MANIFEST, checkpoint=CheckpointId(checkpoint), snapshots=parts(checkpoint))


def point(**changes: Any) -> RestorePoint:
    given: dict[str, Any] = {"kept": (), "manifest": None, **changes}
    return RestorePoint(AttemptId(1), CheckpointId(0), CheckpointId(1), **given)


def at(position: int) -> dict[int, int]:
    return {0: position, 1: position}


def test_a_feed_hears_of_every_checkpoint_that_is_retained() -> None:
    feed = Heard()
    feeding = Feeding({"in": feed})
    feeding.claimed(point())
    feeding.completed(CheckpointId(1), parts(10))
    feeding.completed(CheckpointId(2), parts(20))
    assert feed.begun == [{}]
    assert feed.needed[-1] == [at(10), at(20)]
    feeding.deleted(CheckpointId(1))
    assert feed.needed[-1] == [at(20)]


def test_a_restored_job_needs_what_its_older_checkpoints_need() -> None:
    """R5, I12: those that an earlier driver took and kept."""
    older = manifest(4)
    newest = manifest(5)
    feed = Heard()
    feeding = Feeding({"in": feed})
    feeding.claimed(point(kept=(4, 5), manifest=newest, older=(older,)))
    assert feed.begun == [at(5)]
    assert feed.needed[-1] == [at(4), at(5)]


def test_while_a_retained_checkpoint_is_unknown_everything_is_needed() -> None:
    newest = manifest(5)
    feed = Heard()
    feeding = Feeding({"in": feed})
    feeding.claimed(point(kept=(4, 5), manifest=newest))
    assert feed.needed == []
    feeding.deleted(CheckpointId(4))
    assert feed.needed[-1] == [at(5)]


def test_the_checkpoint_of_another_job_keeps_nothing_of_ours() -> None:
    other = manifest(9)
    feed = Heard()
    feeding = Feeding({"in": feed})
    feeding.claimed(point(manifest=other, origin="/elsewhere"))
    assert feed.begun == [at(9)], "the source says that those rows are not here"
    assert feed.needed[-1] == []


def test_troubles_are_told_once() -> None:
    feed = Heard()
    feeding = Feeding({"in": feed})
    feed.pending = [Trouble("QueryFailed: x")]
    told: list[Trouble] = []
    feeding.step(told.append)
    feeding.step(told.append)
    assert told == [Trouble("QueryFailed: x")]
