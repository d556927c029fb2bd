"""The small files beside the checkpoints: whose folder it is, who claimed the job, what they went on from, who reads.

Like a manifest each is a document with a digest, written once and never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import CheckpointCorrupt
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId
from penstock.wire import document

_VERSION = 1


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`job.json`: this folder belongs to Penstock, and to the job of this name."""

    name: str
    created_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """`owner/<attempt>`: this driver claimed the attempt."""

    attempt: AttemptId
    driver: str
    """A host and process, for people."""
    claimed_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class RestoredRecord:
    """`owner/<attempt>-restored`: the attempt goes on from this checkpoint (0: from the beginning, or from another
    job's checkpoint, if there is an origin). It says all that records of earlier attempts said and that still
    matters, so that those can go."""

    attempt: AttemptId
    checkpoint: CheckpointId
    ids_until: CheckpointId = NO_CHECKPOINT
    first_id: CheckpointId = NO_CHECKPOINT
    """The first id of this attempt: lower ones are of earlier attempts."""
    origin: str = ""
    """The directory of the job whose checkpoint this one was begun with, without passwords."""
    origin_checkpoint: CheckpointId = NO_CHECKPOINT
    kept: tuple[CheckpointId, ...] = ()
    """The checkpoints of earlier attempts that count, the restored one among them; no other does."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """`chk-<n>/lease-<id>`: somebody reads this checkpoint, and wants its files to stay until then."""

    checkpoint: CheckpointId
    expires_ms: float
    """Milliseconds since 1970, by the reader's clock."""
    reader: str = ""
    """A host and process, for people."""
    files: tuple[str, ...] = ()
    """Those of them that other checkpoints may refer to, too: when this one has gone nothing else names them."""


def encode_job(record: JobRecord) -> bytes:
    return document.write(record, "penstock-job", _VERSION)


def decode_job(data: bytes, name: str) -> JobRecord:
    record: JobRecord = document.read(data, "penstock-job", {_VERSION: JobRecord}, name)
    return record


def encode_owner(record: OwnerRecord) -> bytes:
    return document.write(record, "penstock-owner", _VERSION)


def decode_owner(data: bytes, name: str) -> OwnerRecord:
    record: OwnerRecord = document.read(data, "penstock-owner", {_VERSION: OwnerRecord}, name)
    _check_not_negative(record.attempt, "attempt", name)
    return record


def encode_restored(record: RestoredRecord) -> bytes:
    return document.write(record, "penstock-restored", _VERSION)


def decode_restored(data: bytes, name: str) -> RestoredRecord:
    record: RestoredRecord = document.read(
        data, "penstock-restored", {_VERSION: RestoredRecord}, name
    )
    for field in ("attempt", "checkpoint", "ids_until", "first_id", "origin_checkpoint"):
        _check_not_negative(getattr(record, field), field, name)
    for checkpoint in record.kept:
        _check_not_negative(checkpoint, "kept", name)
    return record


def encode_lease(record: LeaseRecord) -> bytes:
    return document.write(record, "penstock-lease", _VERSION)


def decode_lease(data: bytes, name: str) -> LeaseRecord:
    record: LeaseRecord = document.read(data, "penstock-lease", {_VERSION: LeaseRecord}, name)
    return record


def _check_not_negative(number: Any, field: str, name: str) -> None:
    if number < 0:
        raise CheckpointCorrupt(f"{name}: {field} is {number} and must not be negative")
