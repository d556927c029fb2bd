"""What earlier runs left in a job's folder, where a start has to say something about it."""

from __future__ import annotations

import logging

from penstock.api.config import JobSettings
from penstock.errors import ConfigError, StorageError
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import CheckpointId
from penstock.redaction import redacted
from penstock.storage.filesystem import FilesystemStore
from penstock.storage.memory import MemoryStore
from penstock.wire import paths
from penstock.wire.tombstones import is_tombstone

SHOWN_MAX = 10

log = logging.getLogger("penstock")


def completed_checkpoints(store: CheckpointStore) -> list[CheckpointId]:
    """Those with metadata, oldest first; one that was given up has a tombstone instead."""
    found = ((paths.metadata_of(name), name) for name in store.list())
    return sorted(
        n for n, name in found if n is not None and not is_tombstone(name, store.read(name))
    )


def warn_of_no_name(settings: JobSettings, store: FilesystemStore | MemoryStore) -> None:
    """All jobs without a name share one: another program's state would be a surprise."""
    if not settings.unnamed or settings.restore != "auto" or not completed_checkpoints(store):
        return
    log.warning(
        "this job was started without a name, so it is %r, and goes on from the last checkpoint of the last job"
        " without a name in that directory (%s), whatever program that was. Give every job a name of its own:"
        ' start(name="...", ...); to begin anew: restore="fresh"',
        settings.name,
        redacted(store.root),
    )


def require_checkpoint(origin: FilesystemStore, checkpoint: CheckpointId, given: str) -> None:
    """Raises ConfigError, with those that there are, when nothing at all is left of a checkpoint or ever was."""
    if origin.list(paths.checkpoint_folder(checkpoint)):
        return
    raise ConfigError(
        f"restore={redacted(given)!r}: there is no such checkpoint; {_those_there(origin)}"
    )


def _those_there(origin: FilesystemStore) -> str:
    where = redacted(origin.root)
    try:
        origin.read(paths.JOB)
    except StorageError:
        return f"{where} is not the folder of a Penstock job"
    found = completed_checkpoints(origin)
    if not found:
        return f"{where} has none"
    names = ", ".join(paths.checkpoint_folder(each) for each in found[-SHOWN_MAX:])
    return f"in {where} there are: {names}"
