"""What a running job tells about itself, as plain records."""

from __future__ import annotations

from penstock.engine.history.records import (
    CheckpointInfo,
    CheckpointSummary,
    ExceptionInfo,
    Spread,
    SubtaskInfo,
    WorkerInfo,
)

__all__ = [
    "CheckpointInfo",
    "CheckpointSummary",
    "ExceptionInfo",
    "Spread",
    "SubtaskInfo",
    "WorkerInfo",
]
