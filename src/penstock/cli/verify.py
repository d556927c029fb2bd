"""`penstock verify`: reads all state of a checkpoint, or of all of a job, as a restore would, and checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

from rich.console import Console

from penstock.cli.stored import show_damage
from penstock.engine.reading.stored import open_stored
from penstock.engine.worker.snapshots import fetch_from, read_inflight, reader
from penstock.errors import StorageError
from penstock.protocol.snapshot import InFlight, Segment
from penstock.state.floor_files import with_fetch
from penstock.state.segments import read_schema
from penstock.storage.filesystem import FilesystemStore
from penstock.wire import paths
from penstock.wire.manifest import Manifest

Read: TypeAlias = Callable[[], Iterable[object]]


def verify_path(path: str) -> dict[str, Any]:
    """Counts what was read, and lists what is damaged with the file that it is in."""
    stored = open_stored(path)
    problems = [each.told() for each in stored.damaged]
    blocks = size = 0
    for manifest in stored.manifests:
        problems += _damages(manifest, stored.store)
        segments = [segment for segment, _ in _reads(manifest, stored.store)]
        blocks += sum(len(segment.blocks) for segment in segments)
        size += sum(segment.bytes_total for segment in segments)
    return {
        "path": stored.store.root,
        "checkpoints": len(stored.manifests) + len(stored.damaged),
        "blocks": blocks,
        "bytes": size,
        "problems": problems,
    }


def show_verified(result: dict[str, Any], console: Console) -> None:
    show_damage(result["problems"], console)
    console.print(
        f"{result['checkpoints']} checkpoints, {result['blocks']} blocks, {result['bytes']:,} bytes: "
        f"{len(result['problems'])} problems"
    )


def _damages(manifest: Manifest, store: FilesystemStore) -> list[dict[str, Any]]:
    found = []
    for segment, read in _reads(manifest, store):
        try:
            for _ in read():
                pass
        except StorageError as error:
            name = segment.file or paths.metadata(manifest.checkpoint)
            found.append({"id": manifest.checkpoint, "file": name, "reason": str(error)})
    return found


def _reads(manifest: Manifest, store: FilesystemStore) -> list[tuple[Segment, Read]]:
    """Every state, and the rows in flight, each with what reads it as a restore does."""
    read, groups = reader(store), range(manifest.max_parallelism)
    files = with_fetch(fetch_from(store))
    found: list[tuple[Segment, Read]] = []
    for snapshot in manifest.snapshots:
        for operator in snapshot.operators.values():
            for segment in operator.segments:
                look = partial(files, segment) if segment.member else partial(read, segment, groups)
                found.append((segment, look))
        found += [(each.segment, partial(_read_rows, store, each)) for each in snapshot.inflight]
    return found


def _read_rows(store: FilesystemStore, inflight: InFlight) -> Iterable[object]:
    return read_inflight(fetch_from(store), inflight, read_schema(inflight.segment))
