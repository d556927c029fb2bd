"""`penstock checkpoints` and `penstock inspect`: what lies in storage, read from the manifests alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from penstock.cli.past import show_past, tell_past
from penstock.cli.tables import Column, print_table, time_text
from penstock.cli.views import bytes_text
from penstock.engine.history.infos import rebuilt
from penstock.engine.history.records import CheckpointInfo
from penstock.engine.reading.stored import find_stored, open_stored
from penstock.errors import CheckpointCorrupt
from penstock.protocol.snapshot import OperatorSnapshot, Segment, SubtaskSnapshot
from penstock.storage.filesystem import FilesystemStore
from penstock.wire import paths
from penstock.wire.manifest import Manifest

_CHECKPOINTS = (
    Column("id", right=True),
    Column("kind"),
    Column("completed (UTC)"),
    Column("took", right=True),
    Column("size", right=True),
    Column("operators", long=True),
)
_STATE = (
    Column("operator", long=True),
    Column("subtask", right=True),
    Column("state", long=True),
    Column("rows", right=True),
    Column("size", right=True),
)
_FLYING = (
    Column("rows in flight", right=True, long=True),
    Column("their size", right=True, wide_only=True),
)
_CONNECTORS = (
    Column("lanes", right=True, wide_only=True),
    Column("to commit", right=True, long=True),
)


# ---- listing


def list_checkpoints(path: str) -> dict[str, Any]:
    """What can be restored now, and how it came to that: also for a job none of whose checkpoints completed."""
    stored = find_stored(path)
    past = tell_past(stored.store, [_rebuilt(each, stored.store) for each in stored.manifests])
    if not past["history"]:
        stored = open_stored(path)
    return {
        "path": stored.store.root,
        "checkpoints": [_summary(each, stored.store) for each in reversed(stored.manifests)],
        "damaged": [each.told() for each in stored.damaged],
        **past,
    }


def _summary(manifest: Manifest, store: FilesystemStore) -> dict[str, Any]:
    return {
        "id": manifest.checkpoint,
        "kind": str(manifest.kind),
        "completed": _time(manifest.completed_ms),
        "duration_ms": round(manifest.completed_ms - manifest.trigger_ms, 1),
        "bytes": manifest.bytes_total,
        "parallelism": manifest.parallelism,
        "operators": [operator.name for operator in manifest.operators],
        "path": _path(manifest, store),
    }


def _path(manifest: Manifest, store: FilesystemStore) -> str:
    return f"{store.root}/{paths.checkpoint_folder(manifest.checkpoint)}"


def _rebuilt(manifest: Manifest, store: FilesystemStore) -> CheckpointInfo:
    return rebuilt(manifest, _path(manifest, store))


def show_checkpoints(found: dict[str, Any], console: Console) -> None:
    rows = [
        (
            str(each["id"]),
            each["kind"],
            time_text(each["completed"].replace("T", " ")[:19], console),
            f"{each['duration_ms']:.0f} ms",
            bytes_text(each["bytes"]),
            ", ".join(each["operators"]),
        )
        for each in found["checkpoints"]
    ]
    print_table(console, _CHECKPOINTS, rows, found["path"])
    show_damage(found["damaged"], console)
    show_past(found, console)


def show_damage(damaged: list[dict[str, Any]], console: Console) -> None:
    for each in damaged:
        console.print("damaged", style="bold red", end=" ")
        console.print(f"{each['file']}: {each['reason']}", markup=False, soft_wrap=True)


# ---- one checkpoint


def describe_checkpoint(path: str) -> dict[str, Any]:
    """The newest that can be read, where a job's folder is given; `damaged` are newer ones that cannot."""
    stored = open_stored(path)
    if stored.damaged and not stored.manifests:
        raise CheckpointCorrupt(stored.damaged[-1].reason)
    manifest = stored.manifests[-1]
    parts = _in_order(manifest)
    return {
        **_summary(manifest, stored.store),
        **{f"{name}_total": sum(part[name] for part in parts) for name in _ADDED_UP},
        "job": manifest.job,
        "attempt": manifest.attempt,
        "max_parallelism": manifest.max_parallelism,
        "files": list(manifest.files),
        "parts": parts,
        "damaged": [
            each.told() for each in stored.damaged if each.checkpoint > manifest.checkpoint
        ],
    }


_ADDED_UP = ("rows", "bytes", "inflight_rows", "inflight_bytes")


def _in_order(manifest: Manifest) -> list[dict[str, Any]]:
    """By operator, as in the plan, then by subtask."""
    names = [operator.name for operator in manifest.operators]
    parts = [part for snapshot in manifest.snapshots for part in _parts(snapshot)]
    return sorted(parts, key=lambda part: (names.index(part["operator"]), part["subtask"]))


def _parts(snapshot: SubtaskSnapshot) -> Iterator[dict[str, Any]]:
    """Rows in flight count for the operator that they were on their way to, the first of its chain."""
    flying = {entry.operator: OperatorSnapshot() for entry in snapshot.inflight}
    for name, operator in {**flying, **snapshot.operators}.items():
        inflight = [entry.segment for entry in snapshot.inflight if entry.operator == name]
        yield {
            "operator": name,
            "subtask": snapshot.subtask.index,
            "finished": snapshot.finished,
            "segments": _segments(operator),
            "rows": sum(operator.rows.values()),
            "bytes": sum(each.bytes_total for each in operator.segments),
            "inflight_rows": sum(map(_rows, inflight)),
            "inflight_bytes": sum(each.bytes_total for each in inflight),
            "source_lanes": len(operator.lanes),
            "transactions": len(operator.transactions),
        }


def _segments(operator: OperatorSnapshot) -> list[dict[str, Any]]:
    return [
        {
            "state": each.state,
            "file": each.file or None,
            "blocks": len(each.blocks),
            "rows": _rows(each),
            "bytes": each.bytes_total,
            "delta": each.delta,
        }
        for each in operator.segments
    ]


def _rows(segment: Segment) -> int:
    return segment.rows_after if segment.member else sum(block.rows for block in segment.blocks)


def show_checkpoint(found: dict[str, Any], console: Console) -> None:
    if found["damaged"]:
        show_damage(found["damaged"], console)
        console.print(
            f"This is not the newest checkpoint: {len(found['damaged'])} newer cannot be read. "
            f"Shown is {found['id']}, the newest that can.",
            style="bold red",
            soft_wrap=True,
        )
    console.print(
        f"checkpoint {found['id']} of job {found['job']} ({found['kind']}), completed "
        f"{found['completed']}, attempt {found['attempt']}, parallelism {found['parallelism']} of "
        f"{found['max_parallelism']}, {bytes_text(found['bytes_total'])} of state"
        f"{_in_flight(found)} in {len(found['files'])} files besides its metadata",
        soft_wrap=True,
    )
    _show_parts(found["parts"], console)


def _in_flight(found: dict[str, Any]) -> str:
    if not found["inflight_rows_total"]:
        return ""
    size = bytes_text(found["inflight_bytes_total"])
    return f" and {found['inflight_rows_total']:,} rows in flight ({size})"


def _show_parts(parts: list[dict[str, Any]], console: Console) -> None:
    flying = any(part["inflight_rows"] for part in parts)
    columns = (*_STATE, *(_FLYING if flying else ()), *_CONNECTORS)
    rows = [
        (
            part["operator"],
            str(part["subtask"]),
            ", ".join(dict.fromkeys(each["state"] for each in part["segments"])),
            f"{part['rows']:,}",
            bytes_text(part["bytes"]),
            *(_flying(part) if flying else ()),
            str(part["source_lanes"]),
            str(part["transactions"]),
        )
        for part in parts
    ]
    print_table(console, columns, rows)


def _flying(part: dict[str, Any]) -> tuple[str, str]:
    return f"{part['inflight_rows']:,}", bytes_text(part["inflight_bytes"])


def _time(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat(timespec="milliseconds")
