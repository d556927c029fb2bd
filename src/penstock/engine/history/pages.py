"""The past of a job as bytes: a page is lines of JSON, each of which proves itself.

The first line has the totals of the job when the page was written, each other one a checkpoint that ended. A line that
is damaged costs that line: nothing depends on the history but what people see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.engine.history.records import CheckpointInfo, Totals
from penstock.errors import CheckpointCorrupt
from penstock.wire import document

VERSION = 1
_HEAD = "penstock-history"
_ENTRY = "penstock-history-entry"


@dataclass(frozen=True)
class Entry:
    """A checkpoint and the line that says it."""

    info: CheckpointInfo
    line: bytes


@dataclass(frozen=True)
class Page:
    totals: Totals
    entries: tuple[Entry, ...]
    damaged: int = 0
    """Lines that cannot be read."""


def make_entry(info: CheckpointInfo) -> Entry:
    return Entry(info, document.write(info, _ENTRY, VERSION))


def encode(totals: Totals, entries: Iterable[Entry]) -> list[bytes]:
    return [document.write(totals, _HEAD, VERSION), *[entry.line for entry in entries]]


def decode(data: bytes, name: str) -> Page:
    """What can be read of a page; never raises."""
    head, *lines = data.split(b"\n")
    totals = _read(head + b"\n", _HEAD, Totals, name)
    found = [
        (line + b"\n", _read(line + b"\n", _ENTRY, CheckpointInfo, name)) for line in lines if line
    ]
    entries = tuple(Entry(info, line) for line, info in found if isinstance(info, CheckpointInfo))
    damaged = len(found) - len(entries) + (totals is None)
    return Page(totals if isinstance(totals, Totals) else Totals(), entries, damaged)


def _read(line: bytes, kind: str, record: type, name: str) -> object | None:
    try:
        value: object = document.read(line, kind, {VERSION: record}, name)
    except CheckpointCorrupt:
        return None
    return value
