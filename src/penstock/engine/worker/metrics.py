"""What a worker counts."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engine.metrics import (
    BACK_PRESSURE,
    LAG,
    ROWS_IN,
    ROWS_OUT,
    series,
)
from penstock.engine.worker.subtask import Subtask


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
