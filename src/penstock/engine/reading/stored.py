"""From a path to the checkpoints that lie there: of a job's folder all or the newest, of a folder chk-<n> that one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from penstock.errors import CheckpointCorrupt, ConfigError, StorageError
from penstock.ports.store import CheckpointStore
from penstock.protocol.ids import CheckpointId
from penstock.redaction import redacted
from penstock.storage.filesystem import FilesystemStore
from penstock.storage.memory import MEMORY
from penstock.wire import manifest as manifests
from penstock.wire import paths
from penstock.wire.manifest import Manifest
from penstock.wire.tombstones import is_tombstone

TRIES_MAX = 20
"""How often a checkpoint may go between being found and being read."""
SHOWN_MAX = 10


@dataclass(frozen=True)
class Damaged:
    """A manifest that cannot be read."""

    checkpoint: CheckpointId
    name: str
    reason: str

    def told(self) -> dict[str, Any]:
        return {"id": self.checkpoint, "file": self.name, "reason": self.reason}


@dataclass(frozen=True)
class Stored:
    """The checkpoints that a path stands for, oldest first."""

    store: FilesystemStore
    manifests: tuple[Manifest, ...]
    damaged: tuple[Damaged, ...]


@dataclass(frozen=True)
class Place:
    """A job's folder, and the checkpoint in it that a path names; None: it names none."""

    root: str
    checkpoint: CheckpointId | None

    def open(self, storage_options: Mapping[str, Any] | None = None) -> FilesystemStore:
        return FilesystemStore.to_read(self.root, storage_options)


def place_of(path: str) -> Place:
    if path.startswith(MEMORY) and "://" not in path:
        raise ConfigError(
            f"{redacted(path)}: there is nothing to read: such checkpoints are in the memory of the driver that runs"
            " the job, and nobody else sees them. In that program job.checkpoints() tells of them; to read state give"
            ' the job a directory, as in CheckpointConfig("checkpoints/")'
        )
    path = path.rstrip("/").removesuffix("/_metadata")
    root, _, folder = path.rpartition("/")
    checkpoint = paths.metadata_of(f"{folder}/_metadata")
    return Place(path, None) if checkpoint is None else Place(root or ".", checkpoint)


# ---- all of them


def open_stored(path: str) -> Stored:
    """There must be one."""
    stored = find_stored(path)
    if not stored.manifests and not stored.damaged:
        raise ConfigError(f"{redacted(path)} has no completed checkpoint")
    return stored


def find_stored(path: str) -> Stored:
    place = place_of(path)
    store = place.open()
    names = _names_in(store, path)
    found = sorted(
        (checkpoint, name)
        for name in names
        if (checkpoint := paths.metadata_of(name)) is not None
        and place.checkpoint in (None, checkpoint)
    )
    read = [_read(store, checkpoint, name) for checkpoint, name in found]
    whole = tuple(entry for entry in read if isinstance(entry, Manifest))
    damaged = tuple(entry for entry in read if isinstance(entry, Damaged))
    return Stored(store, whole, damaged)


def _read(store: CheckpointStore, checkpoint: CheckpointId, name: str) -> Manifest | Damaged | None:
    """None for the tombstone of a checkpoint that never came to be."""
    try:
        data = store.read(name)
        return None if is_tombstone(name, data) else manifests.decode(data, name)
    except CheckpointCorrupt as error:
        return Damaged(checkpoint, name, str(error))


def _names_in(store: CheckpointStore, path: str) -> list[str]:
    names = store.list()
    if paths.JOB not in names:
        raise ConfigError(not_a_job(redacted(path), names))
    return names


def jobs_in(names: list[str]) -> list[str]:
    """The jobs of a checkpoint directory that has these files."""
    suffix = f"/{paths.JOB}"
    below = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(name for name in below if "/" not in name)


def not_a_job(path: str, names: list[str]) -> str:
    jobs = jobs_in(names)
    if jobs:
        shown = ", ".join(f"{path.rstrip('/')}/{job}" for job in jobs[:10])
        return f"{path} is a checkpoint directory; name a job in it: {shown}"
    return (
        f"{path} is not the folder of a Penstock job (it has no {paths.JOB}): give "
        "<checkpoint directory>/<job>, or a folder chk-<n> in it"
    )


# ---- one of them


def read_one(store: CheckpointStore, root: str, wanted: CheckpointId | None) -> Manifest:
    """The checkpoint with this id, or the newest. A job that runs may delete it while it is looked at: then there is a
    newer one. One that is damaged is an error: an older one would be the answer to another question."""
    for _ in range(TRIES_MAX):
        there = sorted(n for name in _names_in(store, root) if (n := paths.metadata_of(name)))
        found = _first(store, [n for n in reversed(there) if wanted in (None, n)])
        match found:
            case Manifest():
                return found
            case None:
                raise ConfigError(_no_such(store, root, wanted, there))
            case Damaged():
                _require_gone(store, found, there)
            case _:
                assert_never(found)
    raise too_fast(root)


def too_fast(root: str) -> StorageError:
    return StorageError(
        f"{redacted(root)}: checkpoints come and go faster than they can be read; raise keep= in the job's"
        " CheckpointConfig"
    )


def _first(store: CheckpointStore, wanted: list[CheckpointId]) -> Manifest | Damaged | None:
    """The first that is no tombstone."""
    read = (_read(store, checkpoint, paths.metadata(checkpoint)) for checkpoint in wanted)
    return next((each for each in read if each is not None), None)


def is_there(store: CheckpointStore, checkpoint: CheckpointId) -> bool:
    """Whether a checkpoint still exists."""
    return paths.metadata(checkpoint) in store.list(paths.checkpoint_folder(checkpoint))


def _require_gone(store: CheckpointStore, found: Damaged, there: list[CheckpointId]) -> None:
    if is_there(store, found.checkpoint):
        others = [n for n in there if n != found.checkpoint]
        raise CheckpointCorrupt(f"{found.reason}; {_others(others)}")


def _no_such(
    store: CheckpointStore, root: str, wanted: CheckpointId | None, there: list[CheckpointId]
) -> str:
    """`there` may have tombstones among them."""
    if wanted is None:
        return f"{redacted(root)} has no completed checkpoint"
    whole = [n for n in there if isinstance(_first(store, [n]), Manifest)]
    return f"{redacted(root)} has no checkpoint {wanted}; {_others(whole)}"


def _others(there: list[CheckpointId]) -> str:
    shown = ", ".join(map(str, there[-SHOWN_MAX:]))
    return f"there are checkpoints {shown}" if there else "there is no other one"
