"""Watches one sink from outside: which transactions there are, what was called, and what anybody can see.

At every moment what is visible must be the rows of the committed transactions, no more and no less. That is looked at
after every prepare, commit and abort, so that a finding ends the schedule at the very call that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.base import Sink, SinkContext
from penstock.errors import ConfigError
from penstock.protocol.snapshot import Plain
from penstock.shells.sim.outside import Transaction
from penstock.testing import multiset
from penstock.testing.compare import Difference, all_rows, difference, to_rows
from penstock.testing.finding import Finding, rule
from penstock.testing.multiset import Rows
from penstock.testing.outside import Outside

if TYPE_CHECKING:
    from penstock.testing.world import UserWorld

Read = Callable[[Any], Any]
UNCERTAIN_MAX = 4


class SinkWatch(Outside):
    def __init__(
        self,
        world: UserWorld,
        name: str,
        schema: pa.Schema,
        sink: Sink | None,
        read: Read | None,
    ) -> None:
        self.world = world
        self.name = name
        self.writes_directly: bool | None = None
        """Whether `prepare` has nothing to commit although rows were written: the sink shows them at once. None until
        that is known."""
        self._schema = schema
        self._sink = sink
        self._read = read
        self._is_late = sink is not None and hands_to_driver(sink)
        """Rows are seen when they have arrived in the driver, some time after their commit."""
        self._known: dict[str, Transaction] = {}
        self._descriptions: dict[str, Plain] = {}
        self._uncertain: set[str] = set()
        self._given = Rows()
        """Every row that was ever written, as often as it was."""

    # ---- told by the watched sink

    def call(self, context: SinkContext, what: str, transaction: str = "") -> None:
        where = f"{self.name} [{context.index}] attempt {context.attempt}"
        self.world.call(where, what, transaction)

    def written(self, rows: list[tuple[Any, ...]]) -> None:
        if self._sink is not None:
            self._given.update(all_rows([self._named(row) for row in rows]))

    def begun(self, context: SinkContext, checkpoint: int, rows: list[tuple[Any, ...]]) -> str:
        """A transaction was ended by `prepare`; it is durable when `prepared` says so."""
        if self.writes_directly is None:
            self.writes_directly = False
        name = f"{self.name}/{context.index}/{checkpoint}/{context.attempt}"
        stale = self.world.is_stale(context.attempt)
        entry = Transaction(
            self.name, context.index, context.attempt, checkpoint, tuple(rows), stale
        )
        self.world.table.prepared[name] = self._known[name] = entry
        return name

    def prepared(self, name: str, description: Plain) -> None:
        self._known[name].durable = True
        self._descriptions[name] = description
        self.check_visible("prepare", name)

    def description(self, name: str) -> Plain:
        return self._descriptions.get(name)

    def is_known(self, name: str) -> bool:
        table = self.world.table
        return name in table.prepared or name in table.visible

    def committed(self, name: str) -> None:
        table = self.world.table
        again = name in table.visible or name in self._uncertain
        if name not in table.visible:
            self.world.checkers.on_commit(name)
            table.visible[name] = table.prepared.pop(name)
        self._uncertain.discard(name)
        self.check_visible("commit again" if again else "commit", name)

    def commit_raised(self, name: str) -> None:
        """Nobody knows whether it took effect: both are right, but not half of it."""
        again = name in self.world.table.visible or name in self._uncertain
        if name not in self.world.table.visible:
            self._uncertain.add(name)
        self.check_visible("commit again" if again else "half a commit", name)

    def aborted_others(self, context: SinkContext, kept: set[str]) -> None:
        table = self.world.table
        for name, entry in list(table.prepared.items()):
            mine = entry.operator == self.name and entry.attempt < context.attempt
            if mine and entry.index % context.parallelism == context.index and name not in kept:
                del table.prepared[name]
                table.aborted.add(name)
        self.check_visible("abort")

    # ---- what can be seen

    @property
    def is_exact(self) -> bool:
        """Whether what is visible follows from the committed transactions alone."""
        if self._sink is None or self._read is None or self._sink.idempotent:
            return False
        return self.writes_directly is False

    def visible_rows(self) -> list[dict[str, Any]]:
        """What the sink itself shows, or what was committed where it is only a stand-in."""
        if self._read is None or self._sink is None:
            return self.committed_rows()
        return to_rows(self._read(self._sink), self._schema, f"read, for sink {self.name!r},")

    def committed_rows(self) -> list[dict[str, Any]]:
        return [self._named(row) for row in self.world.table.rows(self.name)]

    def check_visible(self, after: str, name: str = "") -> None:
        """What anybody sees right after a call; `name` is the transaction that it was for."""
        if not self.is_exact or self.world.finding is not None:
            return
        try:
            seen = all_rows(self.visible_rows())
        except ConfigError as error:
            self.world.found(Finding("read", "what a sink shows can be read", str(error)))
            return
        committed = all_rows(self.committed_rows())
        under_way = self._is_late and after != "the end" and seen <= committed
        if seen != committed and not under_way and seen not in self._possible(committed):
            self.world.found(self._explain(seen, committed, after, name))

    def _possible(self, committed: Rows) -> list[Rows]:
        """With every choice of the transactions whose outcome nobody knows."""
        open_ones = sorted(self._uncertain)[:UNCERTAIN_MAX]
        return [
            multiset.plus([committed, *(self._rows_of(name) for name in chosen)])
            for size in range(1, len(open_ones) + 1)
            for chosen in combinations(open_ones, size)
        ]

    def _rows_of(self, name: str) -> Rows:
        """Empty for a transaction of another sink."""
        if name not in self._known:
            return Rows()
        return all_rows([self._named(row) for row in self._known[name].rows])

    def _named(self, row: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self._schema.names, row, strict=True))

    # ---- findings

    def _explain(self, seen: Rows, committed: Rows, after: str, name: str) -> Finding:
        wrong = difference(seen, committed) or Difference("", (), ())
        extra = seen - committed
        if not extra:
            look_at = ABORTED if after == "abort" else LOST
            gone = [n for n in self.world.table.visible if self._rows_of(n) & (committed - seen)]
            return self._finding("lost", "I10", wrong, [name, *gone], look_at)
        if after in ("commit", "commit again") and self._rows_of(name) & extra:
            return self._finding("twice", "I10", wrong, [name], TWICE)
        if after == "half a commit":
            return self._finding("half", "I10", wrong, [name], HALF)
        waiting = [n for n in self._known if n not in self.world.table.visible]
        early = [n for n in waiting if self._rows_of(n) & extra]
        if early or extra <= self._given:
            return self._finding("early", "I9", wrong, early[-1:], EARLY)
        return self._finding("strange", "I1", wrong, [], STRANGE)

    def _finding(
        self, kind: str, invariant: str, wrong: Difference, names: list[str], look_at: str
    ) -> Finding:
        concerned = [name for name in names if name][:1]
        return Finding(
            f"{kind} {self.name}",
            rule(invariant),
            f"sink {self.name!r}: {wrong.summary}",
            wrong.expected,
            wrong.seen,
            look_at,
            tuple(concerned),
        )


def hands_to_driver(sink: Any) -> bool:
    """Whether what a sink shows is in the driver's own copy of it."""
    inside = getattr(sink, "inside", None)
    return type(sink).receive is not Sink.receive if inside is None else hands_to_driver(inside)


TWICE = (
    "commit() of this sink. It is called again for a transaction whenever the outcome of an earlier call is not known:"
    " after an error, and by the next attempt after a restart. The second call must see that the work is done and do"
    " nothing. Note the transaction's name where the rows go, in the same atomic act, and look there first."
)
HALF = (
    "commit() of this sink: it failed half-way and left some of the rows to be seen. All rows of a transaction must"
    " become visible in one atomic act: one database transaction, one rename."
)
EARLY = (
    "write() and prepare() of this sink: rows are visible before their checkpoint is complete. Keep them where no"
    " reader looks until commit() is called."
)
STRANGE = "What `read` returns and what the sink writes: there are rows that were never given to the sink."
LOST = (
    "commit() of this sink: it returned, and rows of the transaction cannot be seen. Either it did not make them"
    " visible, or the rows were not durable after prepare(), or abort_others() took away what it had to keep."
)
ABORTED = "abort_others() of this sink: it took away rows that had been committed before."
