"""Watches one sink from outside: which transactions there are, what was called, and what anybody can see.

At every moment what is visible must be the rows of the committed transactions, no more and no less. That is looked at
after every prepare, commit and abort, so that a finding ends the schedule at the very call that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.connectors.base import Sink, SinkContext
from penstock.errors import ConfigError
from penstock.protocol.snapshot import Plain
from penstock.shells.sim.outside import Transaction
from penstock.testing import multiset
from penstock.testing.compare import Difference, LastPer, View, all_rows, difference, to_rows
from penstock.testing.finding import Finding, rule
from penstock.testing.multiset import Rows
from penstock.testing.outside import Outside
from penstock.testing.sink_place import RETURN_PLAIN

if TYPE_CHECKING:
    from penstock.testing.world import UserWorld

Read = Callable[[Any], Any]
UNCERTAIN_MAX = 4
Row = tuple[Any, ...]


@dataclass(frozen=True)
class LeftOut:
    """A `prepare` that had nothing to commit although rows had been written."""

    name: str
    index: int
    checkpoint: int
    rows: Sequence[Row]


class SinkWatch(Outside):
    def __init__(
        self,
        world: UserWorld,
        name: str,
        schema: pa.Schema,
        sink: Sink | None,
        read: Read | None,
        upserts: LastPer | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.writes_directly: bool | None = None
        """Whether `prepare` has nothing to commit although rows were written: the sink shows them at once. None until
        that is known."""
        self.learns = True
        """Whether that is still to be found out; a disturbed run knows it from the undisturbed ones."""
        self._schema = schema
        self._sink = sink
        self._read = read
        self._upserts = upserts
        """Set where the sink may keep the newest row of each key only, instead of all rows."""
        self._is_late = sink is not None and hands_to_driver(sink)
        """Rows are seen when they have arrived in the driver, some time after their commit."""
        self._known: dict[str, Transaction] = {}
        self._descriptions: dict[str, Plain] = {}
        self._uncertain: set[str] = set()
        self._written: list[Row] = []
        """Every row that was ever written, in order, as often as it was."""
        self._left_out: list[LeftOut] = []

    # ---- told by the watched sink

    def call(self, context: SinkContext, what: str, transaction: str = "") -> None:
        where = f"{self.name} [{context.index}] attempt {context.attempt}"
        self.world.call(where, what, transaction)

    def written(self, rows: list[Row]) -> None:
        if self._sink is not None:
            self._written += rows

    def left_out(self, context: SinkContext, checkpoint: int, rows: Sequence[Row]) -> None:
        """`prepare` had nothing to commit. A sink that otherwise waits for commits has lost the rows; one that shows
        them at once has not, and may do so."""
        if not rows:
            return
        name = self._transaction(context, checkpoint)
        counted = f"{len(rows)} row{'' if len(rows) == 1 else 's'} written since the last one"
        self.call(context, f"prepare({checkpoint}) -> None, with {counted}", name)
        entry = LeftOut(name, context.index, checkpoint, rows)
        self._left_out.append(entry)
        if self.learns:
            self.writes_directly = True
        elif self.is_exact and not self.world.is_stale(context.attempt):
            self.world.found(self._dropped(entry, self._rows_of_batch(rows)))

    def begun(self, context: SinkContext, checkpoint: int, rows: list[Row]) -> str:
        """A transaction was ended by `prepare`; it is durable when `prepared` says so."""
        if self.writes_directly is None:
            self.writes_directly = False
        name = self._transaction(context, checkpoint)
        now_ms = self.world.clock.now_ms
        entry = Transaction(
            self.name, context.index, context.attempt, checkpoint, tuple(rows), now_ms
        )
        self.world.table.prepared[name] = self._known[name] = entry
        return name

    def forgotten(self, name: str) -> Sequence[Row]:
        """A transaction that turned out to be none when it was made durable."""
        self.world.table.prepared.pop(name, None)
        return self._known.pop(name).rows

    def cannot_be_kept(self, name: str, problem: str) -> None:
        what = f"sink {self.name!r}, what prepare() returned: {problem}"
        look_at = f"prepare() of this sink, and what it returns. {RETURN_PLAIN}"
        kept = "what describes a transaction can be kept in a checkpoint"
        self.world.found(
            Finding(f"plain {self.name}", kept, what, look_at=look_at, transactions=(name,))
        )

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
            table.show(name)
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

    def written_rows(self) -> list[dict[str, Any]]:
        return [self._named(row) for row in self._written]

    def lost_when_nothing_failed(self, view: View) -> Finding | None:
        """What was written and cannot be seen when an undisturbed run is over. Where rows are shown at once nobody
        knows what a sink makes of them (it may overwrite by key), so only what is certain counts."""
        if self._sink is None or self._read is None or not self._written:
            return None
        seen = self.visible_rows()
        if not seen:
            return self._nothing_seen()
        missing = Rows() if self._sink.idempotent else self._missing(seen, view)
        for entry in self._left_out:
            lost = self._rows_of_batch(entry.rows) & missing
            if lost:
                return self._dropped(entry, lost)
        return None

    def _missing(self, seen: list[dict[str, Any]], view: View) -> Rows:
        written = self.written_rows()
        given = all_rows(written)
        if view is all_rows:
            gone = given - all_rows(seen)
            return gone if len(seen) < len(written) else Rows()
        if isinstance(view, LastPer):
            want, have = view(written), view(seen)
            return Rows(row for key, row in want.items() if _is_stale(have.get(key), row, given))
        return Rows()

    def check_visible(self, after: str, name: str = "") -> None:
        """What anybody sees right after a call; `name` is the transaction that it was for."""
        if not self.is_exact or self.world.finding is not None:
            return
        try:
            rows = self.visible_rows()
        except ConfigError as error:
            self.world.found(Finding("read", "what a sink shows can be read", str(error)))
            return
        seen, committed = all_rows(rows), all_rows(self.committed_rows())
        under_way = self._is_late and after != "the end" and seen <= committed
        if seen == committed or under_way or seen in self._possible(committed):
            return
        if self._upserts is None or len(rows) != len(self._upserts(rows)):
            self.world.found(self._explain(seen, committed, after, name))
        elif self._upserts(rows) not in self._newest(self._upserts):
            self.world.found(self._explain_upsert(self._upserts, rows, after, name))

    def _newest(self, view: LastPer) -> list[dict[str, str]]:
        """What a sink shows that keeps the newest committed row of each key, with every choice as above."""
        committed = self.committed_rows()
        chosen = [[], *self._choices()]
        rows = [[self._named(row) for name in each for row in self._rows(name)] for each in chosen]
        return [view([*committed, *more]) for more in rows]

    def _possible(self, committed: Rows) -> list[Rows]:
        """With every choice of the transactions whose outcome nobody knows."""
        return [
            multiset.plus([committed, *(self._rows_of(name) for name in chosen)])
            for chosen in self._choices()
        ]

    def _choices(self) -> list[list[str]]:
        open_ones = sorted(self._uncertain)[:UNCERTAIN_MAX]
        sizes = range(1, len(open_ones) + 1)
        return [list(chosen) for size in sizes for chosen in combinations(open_ones, size)]

    def _rows_of(self, name: str) -> Rows:
        return self._rows_of_batch(self._rows(name))

    def _rows(self, name: str) -> Sequence[Row]:
        """Empty for a transaction of another sink."""
        return self._known[name].rows if name in self._known else ()

    def _rows_of_batch(self, rows: Sequence[Row]) -> Rows:
        return all_rows([self._named(row) for row in rows])

    def _named(self, row: Row) -> dict[str, Any]:
        return dict(zip(self._schema.names, row, strict=True))

    def _transaction(self, context: SinkContext, checkpoint: int) -> str:
        return f"{self.name}/{context.index}/{checkpoint}/{context.attempt}"

    # ---- findings

    def _explain(self, seen: Rows, committed: Rows, after: str, name: str) -> Finding:
        wrong = difference(seen, committed) or Difference("", (), ())
        extra = seen - committed
        if not extra:
            look_at = ABORTED if after == "abort" else LOST if seen else f"{LOST} {NO_OUTSIDE}"
            gone = [n for n in self.world.table.visible if self._rows_of(n) & (committed - seen)]
            return self._finding("lost", "I10", wrong, [name, *gone], look_at)
        if after in ("commit", "commit again") and self._rows_of(name) & extra:
            return self._finding("twice", "I10", wrong, [name], TWICE)
        if after == "half a commit":
            return self._finding("half", "I10", wrong, [name], HALF)
        waiting = [n for n in self._known if n not in self.world.table.visible]
        early = [n for n in waiting if self._rows_of(n) & extra]
        if early or extra <= self._rows_of_batch(self._written):
            return self._finding("early", "I9", wrong, early[-1:], EARLY)
        return self._finding("strange", "I1", wrong, [], STRANGE)

    def _explain_upsert(
        self, view: LastPer, rows: list[dict[str, Any]], after: str, name: str
    ) -> Finding:
        have, want = view(rows), view(self.committed_rows())
        wrong = difference(have, want) or Difference("", (), ())
        if want.keys() - have.keys():
            look_at = LOST if rows else f"{LOST} {NO_OUTSIDE}"
            return self._finding("lost", "I10", wrong, [name], look_at)
        if after in ("prepare", "abort"):
            return self._finding("early", "I9", wrong, [name], EARLY)
        return self._finding("not the newest", "I10", wrong, [name], NOT_THE_NEWEST)

    def _nothing_seen(self) -> Finding:
        first = self._left_out[0] if self._left_out else None
        if first is not None:
            return self._dropped(first, self._rows_of_batch(first.rows))
        what = f"sink {self.name!r}: {len(self._written)} rows were written and none is visible"
        listed = multiset.listed(self._rows_of_batch(self._written))
        return Finding(f"lost {self.name}", WRITTEN, what, listed, ("no rows",), NOTHING_SEEN)

    def _dropped(self, entry: LeftOut, lost: Rows) -> Finding:
        count, gone = len(entry.rows), lost.total()
        written = "1 row" if count == 1 else f"{count} rows"
        which = f"{gone} of them" if gone < count else "it" if count == 1 else "they"
        what = (
            f"sink {self.name!r}: prepare({entry.checkpoint}) of subtask {entry.index} returned None although {written}"
            f" had been written: {which} {'is' if gone == 1 else 'are'} lost"
        )
        return Finding(
            f"dropped {self.name}",
            WRITTEN,
            what,
            multiset.listed(lost),
            ("None, and these rows are nowhere to be seen",),
            DROPPED,
            (entry.name,),
        )

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


def _is_stale(have: str | None, want: str, given: Rows) -> bool:
    """Whether a key shows nothing, or a row that was written before the last one. A row that was never written is what
    the sink has made of it."""
    return have is None or (have != want and have in given)


def hands_to_driver(sink: Any) -> bool:
    """Whether what a sink shows is in the driver's own copy of it."""
    inside = getattr(sink, "inside", None)
    return type(sink).receive is not Sink.receive if inside is None else hands_to_driver(inside)


WRITTEN = "I1, exactly once: what was written becomes visible"
TWICE = (
    "commit() of this sink. It is called again for a transaction whenever the outcome of an earlier call is not known:"
    " after an error, and by the next attempt after a restart. The second call must see that the work is done and do"
    " nothing. Note the transaction's name where the rows go, in the same atomic act, and look there first."
)
NOT_THE_NEWEST = (
    "commit() of this sink: it keeps one row for each key, and that must be the newest that was committed. A"
    " transaction is committed again whenever the outcome of an earlier call is not known, also when a newer one has"
    " been committed since: to write its rows again would bring old values back. Note the transaction's name where the"
    " rows go, in the same atomic act, and look there first."
)
HALF = (
    "commit() of this sink: it failed half-way and left some of the rows to be seen. All rows of a transaction must"
    " become visible in one atomic act: one database transaction, one rename."
)
EARLY = (
    "write() and prepare() of this sink: rows are visible before their checkpoint is complete. Keep them where no"
    " reader looks until commit() is called. Or the transaction and the writer share one list: prepare() must hand over"
    " its buffer and begin a new one (rows, self.rows = self.rows, []), because rows that are written later are of the"
    " next transaction."
)
DROPPED = (
    "prepare() of this sink. None says that nothing was written: the checkpoint counts these rows as done, and they"
    " never come again. Return a description whenever there were rows since the last prepare(), and let errors out: an"
    " `except` that returns None loses rows, while after an error the job goes back and writes them again. A sink that"
    ' overwrites rows by key says so, with idempotent = True or compare=last_per("key").'
)
NOTHING_SEEN = (
    "write() and prepare() of this sink, and `read`: what was written must be there when the job is over. If this input"
    " leaves nothing to be seen, as where all rows are deleted again, take another one: nothing can be compared."
)
STRANGE = "What `read` returns and what the sink writes: there are rows that were never given to the sink."
LOST = (
    "commit() of this sink: it returned, and rows of the transaction cannot be seen. Either it did not make them"
    " visible, or write() or prepare() left them out, or they were not durable after prepare(), or abort_others() took"
    " away what it had to keep, or two transactions have the same name. A sink that keeps only the newest row of each"
    ' key says so with compare=last_per("key").'
)
NO_OUTSIDE = (
    "Nothing at all is visible: does `read` look where commit() writes? A fake in memory must derive from"
    " penstock.testing.Outside, or each process has a copy of its own."
)
ABORTED = "abort_others() of this sink: it took away rows that had been committed before."
