"""Permission to commit is a value, and only a durable checkpoint of a proven owner makes one.

The coordinator is the single place that creates a `CommitPermit`, when it is told that the metadata is durable and
that the attempt still owned the job after that. Whoever tells subtasks to commit, or deletes older checkpoints,
must show one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.protocol.ids import AttemptId, CheckpointId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """Everything up to and including `checkpoint` may be made visible."""

    attempt: AttemptId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """A pre-committed transaction that is not yet known to be committed."""

    checkpoint: CheckpointId
    transaction: T


def covered(pending: Iterable[Pending[T]], checkpoint: CheckpointId) -> tuple[Pending[T], ...]:
    """What completing `checkpoint` commits: its own transactions and all older ones, oldest first."""
    due = [entry for entry in pending if entry.checkpoint <= checkpoint]
    return tuple(sorted(due, key=lambda entry: entry.checkpoint))
