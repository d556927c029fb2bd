"""The past of a job as `penstock checkpoints` tells it: every snapshot that ended, failed ones too, and statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.views import bytes_text
from penstock.engine.history_files import HistoryFiles
from penstock.engine.infos import at_least, was_lost
from penstock.engine.records import CheckpointInfo, Spread
from penstock.engine.summary import summarize
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
    table = Table(title=title, title_justify="left")
    right = ("id", "took", "size", "in flight")
    columns = ("id", "kind", "mode", "status", "began (UTC)", "took", "size", "in flight", "why")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    for each in shown:
        began = datetime.fromtimestamp(each["trigger_ms"] / 1_000, UTC)
        table.add_row(
            str(each["id"]),
            each["kind"],
            each["mode"],
            each["status"],
            began.isoformat(" ", "seconds")[:19],
            f"{each['duration_ms'] or 0.0:.0f} ms",
            bytes_text(each["bytes_full"]),
            bytes_text(each["inflight_bytes"]),
            escape(_why(each)),
        )
    console.print(table)


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
    table = Table()
    table.add_column("of those above")
    for name in Spread.__dataclass_fields__:
        table.add_column(name, justify="right")
    for name, text in _MEASURED.items():
        numbers = summary[name]
        if numbers is not None:
            table.add_row(text, *[_number(name, value) for value in numbers.values()])
    console.print(table)


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
