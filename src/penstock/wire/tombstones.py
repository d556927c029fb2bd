"""What lies in the place of metadata that will never be."""

from __future__ import annotations

from penstock.protocol.ids import CheckpointId
from penstock.wire import paths


def tombstone(checkpoint: CheckpointId) -> bytes:
    """It says whose it is: one in another's place is damage."""
    return f"checkpoint {checkpoint} was given up\n".encode("ascii")


def is_tombstone(name: str, data: bytes) -> bool:
    checkpoint = paths.metadata_of(name)
    return checkpoint is not None and data == tombstone(checkpoint)
