"""Which subtask each row of a batch goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, assert_never

import numpy as np
import pyarrow as pa

from penstock.plan.graph import Broadcast, Forward, Hash, Partitioning, Rebalance
from penstock.plan.keyhash import key_groups, key_hashes, owner_of
from penstock.state.flat import int64_array, take_rows

Partitioner: TypeAlias = Callable[[pa.RecordBatch], Iterable[tuple[int, pa.RecordBatch]]]
"""Rows in; pairs of (position in the list of output channels, rows) out."""


def make_partitioner(
    partitioning: Partitioning, targets: int, max_parallelism: int, first: int = 0
) -> Partitioner:
    """`first` is where a rebalancing subtask begins its round, so that not all begin at the same target."""
    match partitioning:
        case Hash(keys, columns):
            to_owners = _by_key(keys, targets, max_parallelism)
            return to_owners if columns is None else _only(columns, to_owners)
        case Forward():
            return _to_the_only_one
        case Rebalance():
            return _in_turn(targets, first)
        case Broadcast():
            return lambda batch: [(target, batch) for target in range(targets)]
        case _:
            assert_never(partitioning)


def _to_the_only_one(batch: pa.RecordBatch) -> Iterable[tuple[int, pa.RecordBatch]]:
    return ((0, batch),)


def _only(columns: tuple[str, ...], partition: Partitioner) -> Partitioner:
    """What the reader does not need is left behind before anything is moved."""
    wanted = list(columns)
    return lambda batch: partition(batch.select(wanted))


def _in_turn(targets: int, first: int) -> Partitioner:
    following = first

    def partition(batch: pa.RecordBatch) -> Iterable[tuple[int, pa.RecordBatch]]:
        nonlocal following
        target = following % targets
        following += 1
        return ((target, batch),)

    return partition


def _by_key(keys: tuple[str, ...], targets: int, max_parallelism: int) -> Partitioner:
    every_target = np.arange(targets, dtype=np.uint16)

    if targets == 1:
        return _to_the_only_one

    def partition(batch: pa.RecordBatch) -> Iterable[tuple[int, pa.RecordBatch]]:
        h1, _ = key_hashes([batch.column(key) for key in keys])
        owners = owner_of(key_groups(h1, max_parallelism), targets, max_parallelism)
        if batch.num_rows == 1:
            return ((int(owners[0]), batch),)
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners.take(order), every_target, side="right")
        return _slices(take_rows(batch, int64_array(order)), ends)

    return partition


def _slices(ordered: pa.RecordBatch, ends: np.ndarray) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of each target, one behind the other up to its end."""
    pieces = []
    start = 0
    for target, end in enumerate(ends.tolist()):
        if end > start:
            pieces.append((target, ordered.slice(start, end - start)))
            start = end
    return pieces
