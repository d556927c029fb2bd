"""The past of a job as `penstock checkpoints` tells it: every snapshot that ended, failed ones too, and statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from penstock.cli.tables import Column, print_table, time_text
from penstock.cli.views import bytes_text
from penstock.engine.history.files import HistoryFiles
from penstock.engine.history.infos import at_least, was_lost
from penstock.engine.history.records import CheckpointInfo, Spread
from penstock.engine.history.summary import summarize
from penstock.ports.store import CheckpointStore

ROWS_SHOWN = 20


def tell_past(store: CheckpointStore, there: Iterable[CheckpointInfo]) -> dict[str, Any]:
    """`history`, newest first, and `summary`; both empty for a job that has none. `there` are the checkpoints that lie
    in the folder: the newest may not be in the history yet, or never, where its driver was killed."""
    past = HistoryFiles(store).load()
    known = {info.id: info for info in past.checkpoints}
    missing = {info.id: info for info in there if info.id not in known}
    lost = sum(was_lost(number, min(known, default=None)) for number in missing)
    totals = at_least(past.totals, known.values())
    totals = replace(totals, completed=totals.completed + lost)
    infos = [info for _, info in sorted({**known, **missing}.items(), reverse=True)]
    return {
        "history": [{**asdict(info), "acknowledged": info.acknowledged} for info in infos],
        "summary": asdict(summarize(infos, totals)) if infos else {},
    }


def show_past(found: dict[str, Any], console: Console) -> None:
    if not found["history"]:
        return
    _show_history(found["history"], console)
    _show_summary(found["summary"], console)


def _show_history(history: list[dict[str, Any]], console: Console) -> None:
    shown = history[:ROWS_SHOWN]
    title = f"history: the last {len(shown)} of {len(history)}"
    rows = [
        (
            str(each["id"]),
            each["kind"],
            each["mode"],
            each["status"],
            time_text(_utc(each["trigger_ms"]), console),
            f"{each['duration_ms'] or 0.0:.0f} ms",
            bytes_text(each["bytes_full"]),
            bytes_text(each["inflight_bytes"]),
            _why(each),
        )
        for each in shown
    ]
    print_table(console, _HISTORY, rows, title)


def _utc(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).isoformat(" ", "seconds")[:19]


def _why(told: dict[str, Any]) -> str:
    """Why it was given up, and who kept it waiting until then."""
    failure: str = told["failure"] or ""
    if not told["owed"]:
        return failure
    count = told["acknowledged"] + told["owed"]
    return f"{failure}; {told['acknowledged']} of {count} acknowledged, owed by {', '.join(told['owing'])}"


def _show_summary(summary: dict[str, Any], console: Console) -> None:
    restored = f", went on from a checkpoint {summary['restored']} times"
    last = f", the last time from {summary['restored_from']}" if summary["restored_from"] else ""
    console.print(
        f"in the life of the job {summary['completed']} completed, {summary['aborted']} were given up"
        f"{restored if summary['restored'] else ''}{last}",
        markup=False,
        soft_wrap=True,
    )
    rows = [
        (text, *(_number(name, summary[name][each]) for each in _SPREAD))
        for name, text in _MEASURED.items()
        if summary[name] is not None
    ]
    columns = [Column(each, right=True, wide_only=each in ("min", "p90")) for each in _SPREAD]
    print_table(console, (Column("of those above", long=True), *columns), rows)


_HISTORY = (
    Column("id", right=True),
    Column("kind", wide_only=True),
    Column("mode", wide_only=True),
    Column("status"),
    Column("began (UTC)"),
    Column("took", right=True),
    Column("size", right=True),
    Column("in flight", right=True, wide_only=True),
    Column("why", long=True),
)
_SPREAD = tuple(Spread.__dataclass_fields__)
_MEASURED = {
    "duration_ms": "duration",
    "start_delay_ms": "start delay, slowest subtask",
    "alignment_ms": "alignment, slowest subtask",
    "sync_ms": "synchronous part, slowest subtask",
    "async_ms": "asynchronous part, slowest subtask",
    "bytes_full": "size",
    "inflight_bytes": "in flight",
}


def _number(name: str, value: float) -> str:
    return f"{value:,.1f} ms" if name.endswith("_ms") else bytes_text(value)
