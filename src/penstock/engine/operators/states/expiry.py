"""When rows of a state are over: they are dropped before anybody looks at them, and a few at a time by a sweep."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Protocol, TypeAlias

import numpy as np

from penstock.engine.operators.states.scope import Scope
from penstock.errors import ConfigError
from penstock.plan.duration import parse_duration_ms
from penstock.plan.keyhash import I64
from penstock.state.child import Child, Walked
from penstock.state.lifetime import Lifetimes, Ttl
from penstock.state.table import Table

TtlOn: TypeAlias = Literal["write", "read"]


class Expiry(Protocol):
    def evict(self, cells: I64) -> bool:
        """Drops what is over in these cells, among which may be NOBODY; whether there was something."""
        ...

    def read(self, cells: I64) -> None:
        """A function has read what these cells have."""
        ...

    def restored(self) -> None:
        """The state was filled from a snapshot: drops what is over."""
        ...


class Never:
    """Of a state without a time to live."""

    def evict(self, cells: I64) -> bool:
        return False

    def read(self, cells: I64) -> None: ...

    def restored(self) -> None: ...


class AfterTtl:
    """Of a state with one. Keys that lose their last row go at the end of the batch."""

    def __init__(self, lifetimes: Lifetimes, rows: Table | Child, scope: Scope) -> None:
        self._lifetimes = lifetimes
        self._rows = rows
        self._table = rows.table if isinstance(rows, Child) else rows
        self._scope = scope
        scope.expiring.append(self)

    def evict(self, cells: I64) -> bool:
        cells = self._held(cells)
        over = cells[self._lifetimes.over(cells)]
        self._drop(over)
        return len(over) > 0

    def read(self, cells: I64) -> None:
        if self._lifetimes.ttl.on_read:
            cells = self._held(cells)
            self._table.prolong(cells[self._lifetimes.fading(cells)])

    def sweep(self) -> None:
        """Looks at no more than a few thousand cells."""
        self._drop_in(self._lifetimes.next_sweep(self._table.cells.end))

    def restored(self) -> None:
        end = self._table.cells.end
        if self._lifetimes.latest_ms > self._lifetimes.now_ms:
            self._table.hold_back(np.flatnonzero(self._table.present[:end]))
        self._drop_in(self._lifetimes.whole_sweep(end))

    def _held(self, cells: I64) -> I64:
        """Those that have a row, once each."""
        cells = np.unique(cells[cells >= 0])
        return cells[self._table.present.take(cells)]

    def _drop_in(self, part: slice) -> None:
        over = self._table.present[part] & self._lifetimes.over(part)
        self._drop(np.flatnonzero(over) + part.start)

    def _drop(self, cells: I64) -> None:
        if not len(cells):
            return
        owners = self._rows.owners(cells) if isinstance(self._rows, Child) else cells
        self._rows.drop(cells)
        self._scope.keyed.leave(owners)


def make_expiry(rows: Table | Child, scope: Scope) -> Expiry:
    lifetimes = (rows.table if isinstance(rows, Child) else rows).lifetimes
    return Never() if lifetimes is None else AfterTtl(lifetimes, rows, scope)


def walk_living(child: Child, owners: I64, expiry: Expiry) -> Walked:
    """All rows of these keys that are not over."""
    walked = child.walk(owners)
    return child.walk(owners) if expiry.evict(walked.cells) else walked


def parse_ttl(ttl: str | timedelta | None, ttl_on: TtlOn, label: str) -> Ttl | None:
    """The arguments of a state."""
    if ttl_on not in ("write", "read"):
        raise ConfigError(
            f'{label}: ttl_on={ttl_on!r} is neither "write" nor "read"; with "write" the time begins when a value is'
            ' written, with "read" also when it is read'
        )
    if ttl is None:
        if ttl_on != "write":
            raise ConfigError(
                f'{label}: ttl_on={ttl_on!r} without a ttl; add one, as in ttl="1 hour"'
            )
        return None
    ms = parse_duration_ms(ttl, f"{label}: ttl")
    if ms < 1:
        raise ConfigError(
            f"{label}: ttl: {ttl!r} is no time to live; values need a millisecond or more, and without a ttl they"
            " stay for ever"
        )
    return Ttl(ms, ttl_on == "read")
