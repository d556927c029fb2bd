"""Races that the simulator found, small enough to read: two drivers that claim one job, clean-up that ends late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.restore_points import RestoreWish
from penstock.errors import JobFenced
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.storage.memory import MemoryStore
from penstock.wire import paths


class Interrupted(MemoryStore):
    """Something else happens right after a file was created."""

    def __init__(self, after: str, then: Callable[[], object]) -> None:
        super().__init__()
        self._after = after
        self._then = then

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        if name == self._after:
            self._after = ""
            self._then()
        return created


def files(store: MemoryStore, driver: str) -> CheckpointFiles:
    return CheckpointFiles(store, "job", driver, lambda: 0.0)


def claim(of: CheckpointFiles) -> AttemptId:
    return of.claim(RestoreWish(), may_fall_back=False, damaged={}).attempt


def test_a_driver_that_is_overtaken_while_it_claims_stops_before_it_uses_an_id() -> None:
    """I7, I18, bug-E15: the second has not seen which ids the first wants to use, so the first must see the second."""
    claimed: list[AttemptId] = []
    store = Interrupted(
        paths.owner(AttemptId(1)), lambda: claimed.append(claim(files(store, "second")))
    )
    with pytest.raises(JobFenced, match="second"):
        claim(files(store, "first"))
    assert claimed == [2]


def test_what_is_left_of_a_checkpoint_without_metadata_is_swept_though_it_was_kept() -> None:
    """I13, bug-D6: a deletion that failed in the middle leaves files that no checkpoint refers to."""
    store = MemoryStore()
    owner = files(store, "first")
    claim(owner)
    left, whole = CheckpointId(1), CheckpointId(2)
    for name in ("chk-1/0-1", "chk-2/0-1", paths.metadata(whole)):
        store.write(name, [b"data"])
    owner.sweep([left, whole], CheckpointId(3))
    assert store.list("chk-1") == []
    assert store.list("chk-2") == ["chk-2/0-1", "chk-2/_metadata"]


def test_nothing_of_a_snapshot_that_may_exist_is_swept() -> None:
    """I12: whether its metadata was written is not known yet."""
    store = MemoryStore()
    owner = files(store, "first")
    claim(owner)
    store.write("chk-1/0-1", [b"data"])
    owner.sweep([], CheckpointId(2), unsettled=[CheckpointId(1)])
    assert store.list("chk-1") == ["chk-1/0-1"]
