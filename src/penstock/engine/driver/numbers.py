"""The numbers of all workers and attempts, added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.engine.metrics import (
    BACK_PRESSURE,
    ROWS_IN,
    ROWS_OUT,
    STATE_BYTES,
    STATE_ROWS,
    series,
)
from penstock.protocol.ids import SlotId
from penstock.protocol.snapshot import SubtaskSnapshot


class Numbers:
    """The numbers of a job over all its attempts. Rows that are processed again count again."""

    def __init__(self, operators: Iterable[str]) -> None:
        names = [series(name, operator=op) for op in operators for name in (ROWS_IN, ROWS_OUT)]
        self._before: dict[str, float] = dict.fromkeys(names, 0.0)
        """The counters of attempts that are over."""
        self._gauges: dict[str, float] = {}
        self._state: dict[str, float] = {}
        self._workers: dict[SlotId, Mapping[str, float]] = {}
        self.values: Mapping[str, float] = dict(self._before)
        """Replaced whole, so that other threads can read it at any time."""

    def status(self, slot: SlotId, metrics: Mapping[str, float]) -> None:
        """What a worker of the running attempt has counted so far."""
        self._workers[slot] = metrics
        self._publish()

    def attempt_over(self) -> None:
        """Counters go on from here; what was seen last stays until something new is seen. Nothing flows any more, so
        nothing presses."""
        counters, gauges = _split(summed(self._workers.values()))
        self._before = summed((self._before, counters))
        seen = {**self._gauges, **gauges}
        self._gauges = {n: 0.0 if n.startswith(BACK_PRESSURE) else v for n, v in seen.items()}
        self._workers = {}
        self._publish()

    def checkpointed(self, parts: Iterable[SubtaskSnapshot]) -> None:
        """A checkpoint has completed, or is gone on from: what there is of state."""
        self._state = state_sizes(parts)
        self._publish()

    def _publish(self) -> None:
        counters, gauges = _split(summed(self._workers.values()))
        self.values = {
            **summed((self._before, counters)),
            **self._gauges,
            **gauges,
            **self._state,
        }


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The same numbers over all workers."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def state_sizes(parts: Iterable[SubtaskSnapshot]) -> dict[str, float]:
    """Rows and bytes of every keyed state."""
    total: dict[str, float] = {}
    for part in parts:
        for operator, snapshot in part.operators.items():
            sizes = [(STATE_ROWS, state, rows) for state, rows in snapshot.rows.items()]
            sizes += [(STATE_BYTES, each.state, each.bytes_total) for each in snapshot.segments]
            for name, state, size in sizes:
                label = series(name, operator=operator, state=state)
                total[label] = total.get(label, 0.0) + size
    return total


def _split(numbers: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Counters and gauges."""
    counters = {n: value for n, value in numbers.items() if "_total{" in n or n.endswith("_total")}
    return counters, {n: value for n, value in numbers.items() if n not in counters}
