"""Bugs of sources, keys and state: where a row comes from, whose it is, what a frozen state holds."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.engine.operators.base import FrozenOperator, OperatorContext
from penstock.engine.operators.connect import SourceOperator
from penstock.engine.worker import partition
from penstock.engine.worker.attempt import Attempt
from penstock.protocol.messages import SnapshotOrder
from penstock.state.keyed import Keyed
from penstock.state.table import Table
from tests.mutants.registry import simulated, swapped

# ---- sources


@simulated
def source_position_one_behind() -> AbstractContextManager[None]:
    """A snapshot has the position of the last row read, not of the next: one row comes twice (bug-G7)."""
    return _position_moved(-1)


@simulated
def source_position_one_ahead() -> AbstractContextManager[None]:
    """A snapshot has a position behind the next row: it is lost (bug-G7)."""
    return _position_moved(1)


def _position_moved(by: int) -> AbstractContextManager[None]:
    original = SourceOperator.freeze

    def freeze(self: SourceOperator, order: SnapshotOrder) -> FrozenOperator:
        frozen = original(self, order)
        lanes: Any = {lane: max(0, at + by) for lane, at in frozen.lanes.items()}  # type: ignore[operator]
        return replace(frozen, lanes=lanes)

    return swapped(SourceOperator, "freeze", freeze)


@simulated
def sources_begin_again() -> AbstractContextManager[None]:
    """A restore gives operators their state back and sources no position (R1, bug-G1)."""
    original = SourceOperator.open

    def open_(self: SourceOperator, context: OperatorContext) -> None:
        original(self, replace(context, restored=()))

    return swapped(SourceOperator, "open", open_)


# ---- keys


@simulated
def keys_by_pythons_hash() -> AbstractContextManager[None]:
    """Every process has its own PYTHONHASHSEED: two of them send the same key to different subtasks (I15)."""
    processes = itertools.count()

    def by_key(keys: tuple[str, ...], targets: int, max_parallelism: int) -> Any:
        seed = next(processes)

        def split(batch: Any) -> Any:
            columns = [batch.column(key).to_pylist() for key in keys]
            owners = [hash((seed, *key)) % targets for key in zip(*columns, strict=True)]
            ordered = batch.take(np.argsort(owners, kind="stable"))
            ends = np.cumsum(np.bincount(owners, minlength=targets))
            return partition._slices(ordered, ends)

        return split

    return swapped(partition, "_by_key", by_key)


@simulated
def everybody_restores_every_key() -> AbstractContextManager[None]:
    """A subtask takes the rows of all key groups back, not of its own (S1, R6, I15)."""
    whole = property(lambda self: range(self.max_parallelism))
    return swapped(OperatorContext, "key_groups", whole)


@simulated
def a_subtask_restores_only_its_own_snapshot() -> AbstractContextManager[None]:
    """With another parallelism nobody looks into the snapshots of the other old subtasks (R6, bug-E12)."""
    original = Attempt._context

    def context(self: Attempt, task: Any, operator: str) -> OperatorContext:
        made = original(self, task, operator)
        return replace(made, restored=made.restored[self.slot : self.slot + 1])

    return swapped(Attempt, "_context", context)


# ---- state


@simulated
def a_frozen_state_sees_later_changes() -> AbstractContextManager[None]:
    """While a snapshot is written it takes up what the stream changes meanwhile (S4, I2, bug-D19)."""
    return swapped(Table, "touch", lambda self, cells: None)


@simulated
def state_is_not_restored() -> AbstractContextManager[None]:
    """Operators begin with nothing while sources go on where they were (R1, I2)."""
    return swapped(Keyed, "load", lambda self, table, batch: None)
