"""What a running job tells about itself, as plain records."""

from __future__ import annotations

from penstock.engine.records import CheckpointInfo, ExceptionInfo, SubtaskInfo, WorkerInfo

__all__ = ["CheckpointInfo", "ExceptionInfo", "SubtaskInfo", "WorkerInfo"]
