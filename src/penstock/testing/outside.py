"""What stands outside of a job in a test: a fake database, queue or service that all of the job's processes share.

A job is copied to its workers, so whatever a source or sink holds is copied, too. A fake that derives from `Outside`
is not: every copy of it is the same thing, as a real database would be. `simulate` starts each schedule with a fresh
one, just as it was when `simulate` was called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from typing import Any, Protocol, Self

_new_world: ContextVar[bool] = ContextVar("penstock_new_world", default=False)


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
        if not _new_world.get():
            return self
        made = object.__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(deepcopy(self.__dict__, memo))
        return made


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
def new_world() -> Iterator[None]:
    """Copies made inside are of another world: they have an outside of their own."""
    token = _new_world.set(True)
    try:
        yield
    finally:
        _new_world.reset(token)


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
