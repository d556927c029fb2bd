"""What stands outside of a job in a test: a fake database, queue or service that all of the job's processes share.

A job is copied to its workers, so whatever a source or sink holds is copied, too. A fake that derives from `Outside`
is not: every copy of it is the same thing, as a real database would be. `simulate` starts each schedule with a fresh
one, just as it was when `simulate` was called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, Self

_calm: ContextVar[bool] = ContextVar("penstock_calm", default=False)


class FaultPoints(Protocol):
    """Whoever decides whether the outside fails now."""

    def outside_may_fail(self, what: str) -> None: ...


_fault_points: ContextVar[FaultPoints | None] = ContextVar("penstock_fault_points", default=None)


class SimulatedFault(Exception):
    """Raised by a simulation in the place of a real failure: a lost connection, a full disk, a kill."""


class Outside:
    """Base class for fakes that are shared by everything that uses them."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def in_new_world(self) -> dict[str, Any]:
        """The attributes that the same thing has when another schedule begins."""
        return self.__dict__


class MemoryTable(Outside):
    """A table in memory, with a place for rows that wait: enough of a database to test a sink with."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        """What everybody sees."""
        self.staged: dict[str, list[dict[str, Any]]] = {}
        """Rows that wait to be published, by the name of their transaction."""
        self.published: set[str] = set()
        """For a sink that notes what it has published."""


def may_fail(what: str) -> None:
    """Call it in a fake wherever the real thing could fail. In a simulation it then sometimes does, with a
    `SimulatedFault`; everywhere else nothing happens."""
    points = _fault_points.get()
    if points is not None:
        points.outside_may_fail(what)


@contextmanager
def fault_points(points: FaultPoints) -> Iterator[None]:
    """`may_fail` asks these."""
    token = _fault_points.set(points)
    try:
        yield
    finally:
        _fault_points.reset(token)


@contextmanager
def calm() -> Iterator[None]:
    """Inside, scripts let everything succeed: what comes out then is what must come out with their failures."""
    token = _calm.set(True)
    try:
        yield
    finally:
        _calm.reset(token)


def is_calm() -> bool:
    return _calm.get()
