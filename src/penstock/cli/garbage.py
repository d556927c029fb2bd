"""`penstock gc`: what no checkpoint needs, in one job's folder or in those of all jobs of a checkpoint directory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from penstock.cli.tables import Column, print_table
from penstock.cli.views import bytes_text
from penstock.engine.checkpoints.garbage import Garbage, find_garbage
from penstock.engine.reading.stored import jobs_in
from penstock.errors import ConfigError, StorageError
from penstock.redaction import redacted
from penstock.storage.filesystem import FilesystemStore
from penstock.wire import paths

_FOUND = (
    Column("file", long=True),
    Column("size", right=True),
    Column("why", long=True),
)


def collect(path: str, older_than_ms: float, *, dry_run: bool) -> dict[str, Any]:
    """Finds, and deletes unless it is a dry run. What cannot be deleted does not keep the others."""
    found, failed = [], []
    for store in _jobs(path):
        for each in _old_garbage(store, older_than_ms):
            found.append(each)
            if dry_run:
                continue
            try:
                store.delete(each["file"])
            except StorageError as error:
                failed.append({**each, "reason": redacted(str(error))})
    return {
        "path": redacted(path),
        "dry_run": dry_run,
        "garbage": found,
        "bytes": sum(each["bytes"] for each in found),
        "failed": failed,
    }


def _jobs(path: str) -> list[FilesystemStore]:
    store = FilesystemStore.to_read(path)
    names = store.list()
    if paths.JOB in names:
        return [store]
    jobs = jobs_in(names)
    if not jobs:
        raise ConfigError(
            f"{redacted(path)} is neither the folder of a Penstock job (it has no {paths.JOB}) nor a checkpoint"
            " directory with such folders; give one of those. A folder chk-<n> alone cannot tell what is needed"
        )
    return [FilesystemStore.to_read(f"{path.rstrip('/')}/{job}") for job in jobs]


def _old_garbage(store: FilesystemStore, older_than_ms: float) -> Iterator[dict[str, Any]]:
    """Only what was written longer ago: clocks and listings may be behind."""
    now_s = time.time()
    temporary = [
        Garbage(name, "its writer died while it was written")
        for name in store.leftovers(older_than_ms / 1_000)
    ]
    for each in [*find_garbage(store, now_s * 1_000), *temporary]:
        seen = store.look_at(each.name)
        if seen is None or seen[1] > now_s - older_than_ms / 1_000:
            continue
        yield {"job": store.root, "file": each.name, "bytes": seen[0], "why": each.why}


def show_garbage(result: dict[str, Any], console: Console) -> None:
    for job in dict.fromkeys(each["job"] for each in result["garbage"]):
        rows = [
            (each["file"], bytes_text(each["bytes"]), each["why"])
            for each in result["garbage"]
            if each["job"] == job
        ]
        print_table(console, _FOUND, rows, job)
    for each in result["failed"]:
        console.print("not deleted", style="bold red", end=" ")
        console.print(f"{each['file']}: {each['reason']}", markup=False, soft_wrap=True)
    count = len(result["garbage"]) - len(result["failed"])
    done = "would be deleted" if result["dry_run"] else "deleted"
    console.print(f"{count} files {done}, {bytes_text(result['bytes'])}", soft_wrap=True)
