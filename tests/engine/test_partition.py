"""Which subtask each row goes to."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine.worker.partition import make_partitioner
from penstock.plan.graph import Broadcast, Forward, Hash, Rebalance
from penstock.plan.keyhash import key_groups, key_hashes, owner_of

GROUPS = 128


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"k": list(range(count)), "v": [n * 10 for n in range(count)], "s": ["x"] * count}
    )


@pytest.mark.parametrize("targets", [1, 2, 3, 7])
def test_every_row_goes_to_the_owner_of_its_key_group_and_keeps_its_order(targets: int) -> None:
    """I15: state is where its rows are sent."""
    batch = rows(1_000)
    pieces = dict(make_partitioner(Hash(("k",)), targets, GROUPS)(batch))
    seen = sorted(k for piece in pieces.values() for k in piece.column("k").to_pylist())
    assert seen == list(range(1_000))
    for target, piece in pieces.items():
        lane, _ = key_hashes([piece.column("k")])
        assert set(owner_of(key_groups(lane, GROUPS), targets, GROUPS).tolist()) == {target}
        assert piece.column("k").to_pylist() == sorted(piece.column("k").to_pylist())
        assert piece.column("v").to_pylist() == [k * 10 for k in piece.column("k").to_pylist()]


@pytest.mark.parametrize("targets", [1, 2])
def test_columns_that_nobody_needs_stay_behind(targets: int) -> None:
    partition = make_partitioner(Hash(("k",), ("k", "v")), targets, GROUPS)
    for _, piece in partition(rows(10)):
        assert piece.schema.names == ["k", "v"]


def test_batches_go_in_turn_beginning_at_the_subtasks_own_number() -> None:
    partition = make_partitioner(Rebalance(), 3, GROUPS, first=1)
    targets = [target for _ in range(4) for target, _ in partition(rows(1))]
    assert targets == [1, 2, 0, 1]


def test_a_broadcast_goes_to_everyone_and_a_forward_edge_to_one() -> None:
    batch = rows(3)
    assert list(make_partitioner(Broadcast(), 2, GROUPS)(batch)) == [(0, batch), (1, batch)]
    assert list(make_partitioner(Forward(), 1, GROUPS)(batch)) == [(0, batch)]
