"""`penstock verify`: reads all state of a checkpoint, or of all of a job, as a restore would, and checks it."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from penstock.cli.stored import open_stored, show_damage
from penstock.engine.snapshots import reader
from penstock.errors import StorageError
from penstock.protocol.snapshot import Segment
from penstock.storage.filesystem import FilesystemStore
from penstock.wire import paths
from penstock.wire.manifest import Manifest


def verify_path(path: str) -> dict[str, Any]:
    """Counts what was read, and lists what is damaged with the file that it is in."""
    stored = open_stored(path)
    problems = [each.told() for each in stored.damaged]
    blocks = size = 0
    for manifest in stored.manifests:
        problems += _damages(manifest, stored.store)
        segments = _segments(manifest)
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
    read, groups = reader(store), range(manifest.max_parallelism)
    found = []
    for segment in _segments(manifest):
        try:
            for _ in read(segment, groups):
                pass
        except StorageError as error:
            name = segment.file or paths.metadata(manifest.checkpoint)
            found.append({"id": manifest.checkpoint, "file": name, "reason": str(error)})
    return found


def _segments(manifest: Manifest) -> list[Segment]:
    return [
        segment
        for snapshot in manifest.snapshots
        for operator in snapshot.operators.values()
        for segment in operator.segments
    ]
