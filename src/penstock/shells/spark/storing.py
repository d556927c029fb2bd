"""Where a job keeps its checkpoints: in a directory that its workers reach, too, or in the memory of this driver.

What is kept in memory is found again by the job's name, as it would be in a directory, for as long as this process
lives.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
from collections import defaultdict
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from penstock.api.config import CheckpointConfig, JobSettings
from penstock.engine.spec import Changelogs, InDriver, JobSpec
from penstock.shells.spark.copies_dir import copies_name, open_copies
from penstock.storage.filesystem import FilesystemStore, open_job, read_job
from penstock.storage.memory import MemoryStore
from penstock.wire import paths

STATE_BYTES_MAX = 5 << 20
"""Of one state of one operator in one subtask, where checkpoints are in the driver's memory."""
CHECKPOINT_BYTES_MAX = 64 << 20
"""Of a whole checkpoint there: one message brings all of it to each worker. Every worker may use its share."""

Store: TypeAlias = FilesystemStore | MemoryStore

log = logging.getLogger("penstock")


def open_store(settings: JobSettings, created_ms: float) -> Store | None:
    config = settings.checkpoint
    if config is None:
        return None
    if config.in_memory:
        _warn(settings.name)
        return _MEMORIES[settings.name]
    return open_job(
        absolute(config),
        settings.name,
        storage_options=config.storage_options,
        created_ms=created_ms,
    )


def stored_in(spec: JobSpec, config: CheckpointConfig, name: str, store: Store) -> JobSpec:
    """With all that workers have to know about where checkpoints are."""
    options = dict(config.storage_options or {})
    spec = replace(spec, open_origin=partial(_open_origin, options))
    if isinstance(store, MemoryStore):
        share = CHECKPOINT_BYTES_MAX // spec.plan.parallelism
        flying = min(spec.inflight_bytes_max, STATE_BYTES_MAX)
        return replace(spec, in_driver=InDriver(STATE_BYTES_MAX, share), inflight_bytes_max=flying)
    root = paths.job_directory(absolute(config), name)
    copies = None
    if config.local_recovery:
        record = read_job(store)
        copies = partial(open_copies, copies_name(spec.job, store.root, record.created_ms))
    return replace(
        spec,
        open_copies=copies,
        open_store=partial(FilesystemStore, root, options),
        location=store.root,
        incremental=config.incremental,
        changelog=Changelogs(config.materialize_every_ms) if config.changelog else None,
    )


def staging_root(config: CheckpointConfig, name: str) -> str:
    """Where rows of DataFrames are staged: they stay as long as the checkpoints do."""
    directory = _staging_folder() if config.in_memory else absolute(config)
    return paths.job_directory(directory, name)


def absolute(config: CheckpointConfig) -> str:
    """Workers may have another working directory than the driver."""
    directory = str(config.directory)
    return directory if "://" in directory else str(Path(directory).absolute())


def _open_origin(options: dict[str, Any], root: str) -> FilesystemStore:
    return FilesystemStore(root, options)


# ---- in memory

_MEMORIES: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)
"""By the names of jobs."""


@cache
def _staging_folder() -> str:
    """On this machine's disk, until this process ends."""
    folder = tempfile.mkdtemp(prefix="penstock-staged-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _warn(name: str) -> None:
    log.warning(
        "job %s: its checkpoints are in the memory of this driver. It survives the loss of workers; when this process"
        " ends, in whatever way, they are gone and the job can only begin anew. For more give it a directory:"
        ' CheckpointConfig("checkpoints/")',
        name,
    )
