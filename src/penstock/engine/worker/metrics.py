"""What a worker counts."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engine.metrics import (
    BACK_PRESSURE,
    COPIES_LOST,
    LAG,
    RESTORED_BYTES,
    ROWS_IN,
    ROWS_OUT,
    series,
)
from penstock.engine.worker.subtask import Subtask
from penstock.storage.local_copies import CopiedStore


def attempt_metrics(subtasks: Iterable[Subtask]) -> dict[str, float]:
    """Of one worker, since its attempt began."""
    numbers: dict[str, float] = {}
    for subtask in subtasks:
        chain = subtask.chain
        for name, rows_in, rows_out in chain.counts():
            numbers[series(ROWS_IN, operator=name)] = rows_in
            numbers[series(ROWS_OUT, operator=name)] = rows_out
        where = series(BACK_PRESSURE, operator=chain.head_name, subtask=subtask.id.index)
        numbers[where] = subtask.pressure.share()
        if chain.source is not None:
            for unit, behind in chain.source.lag().items():
                numbers[series(LAG, operator=chain.head_name, unit=unit)] = behind
    return numbers


def restore_metrics(own: CopiedStore | None, read: CopiedStore) -> dict[str, float]:
    """Where the state of one worker came from when its attempt began, and the copies that it had to do without."""
    numbers: dict[str, float] = {series(RESTORED_BYTES, copy="primary"): read.primary_bytes}
    if own is not None and own.copies_lost is not None:
        numbers[series(RESTORED_BYTES, copy="local")] = read.local_bytes
        numbers[COPIES_LOST] = own.copies_lost
    return numbers
