"""What completing a checkpoint commits."""

from __future__ import annotations

from penstock.protocol.commit import Pending, covered
from penstock.protocol.ids import CheckpointId


def entry(checkpoint: int, name: str) -> Pending[str]:
    return Pending(CheckpointId(checkpoint), name)


def test_it_covers_its_own_and_all_older_ones_oldest_first() -> None:
    """E3: 2 was aborted, its transaction goes with 3; 4 waits."""
    pending = [entry(4, "d"), entry(3, "c"), entry(1, "a"), entry(2, "b")]
    names = [p.transaction for p in covered(pending, CheckpointId(3))]
    assert names == ["a", "b", "c"]


def test_it_covers_nothing_newer() -> None:
    """C3, E2."""
    assert covered([entry(5, "e")], CheckpointId(4)) == ()


def test_transactions_of_one_checkpoint_keep_their_order() -> None:
    pending = [entry(1, "first"), entry(1, "second")]
    assert [p.transaction for p in covered(pending, CheckpointId(1))] == ["first", "second"]
