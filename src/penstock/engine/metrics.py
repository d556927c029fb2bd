"""Numbers for people, by the names they have on the Prometheus page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.engine.subtask import Subtask


def attempt_metrics(subtasks: Iterable[Subtask]) -> dict[str, float]:
    """Rows in and out per operator, of one worker, since its attempt began."""
    numbers: dict[str, float] = {}
    for subtask in subtasks:
        for name, rows_in, rows_out in subtask.chain.counts():
            numbers[f'penstock_records_in_total{{operator="{name}"}}'] = rows_in
            numbers[f'penstock_records_out_total{{operator="{name}"}}'] = rows_out
    return numbers


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The same numbers over all workers."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total
