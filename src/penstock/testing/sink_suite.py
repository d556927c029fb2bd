"""What a sink must do to be exactly-once: show every committed row once, and no other, whatever happens between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import permutations

import pyarrow as pa

from penstock.connectors.base import Sink, SinkCommitter, SinkWriter
from penstock.protocol.snapshot import Plain
from penstock.testing.multiset import Rows, count, require_equal
from penstock.testing.sink_place import Place, Where, plain

__tracebackhide__ = True
"""pytest shows what is wrong, and not how it was found."""


def sink_conformance(
    make_sink: Callable[[], Sink],
    read_back: Callable[[Sink], pa.Table],
    *,
    schema: pa.Schema | None = None,
    make_rows: Callable[[int, int], pa.RecordBatch] | None = None,
    count_staged: Callable[[Sink], int] | None = None,
) -> None:
    """Drives a sink through commits in any order, aborts, rescales, repeated recoveries and a crash behind every
    step.

    `make_sink` gives a sink with a place of its own, empty, at each call; `read_back` what anyone would see
    there. `make_rows(start, n)` makes rows of `schema` (a BIGINT and a STRING column if none is given). `count_staged`
    counts what is there and not visible, so that leftovers are noticed."""
    suite = _SinkSuite(
        make_sink,
        read_back,
        schema or _SCHEMA,
        make_rows or _default_rows,
        count_staged or (lambda _: 0),
    )
    suite.check_visibility()
    suite.check_commit_in_any_order()
    suite.check_empty_transactions()
    suite.check_abort_others()
    suite.check_abort_after_rescale()
    suite.check_prepare_in_background()
    suite.check_aborted_is_not_committed_silently()
    suite.check_recovery_that_is_repeated()
    for steps in range(len(_STEPS) + 1):
        suite.check_crash(steps)


_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
_STEPS = (
    "write",
    "prepare",
    "write",
    "complete",
    "commit",
    "write",
    "prepare",
    "complete",
    "commit",
    "write",
)


def _default_rows(start: int, count: int) -> pa.RecordBatch:
    ids = list(range(start, start + count))
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([f"row {each}" for each in ids])], schema=_SCHEMA
    )


@dataclass
class _SinkSuite:
    make_sink: Callable[[], Sink]
    read_back: Callable[[Sink], pa.Table]
    schema: pa.Schema
    make_rows: Callable[[int, int], pa.RecordBatch]
    count_staged: Callable[[Sink], int]

    def check_visibility(self) -> None:
        """Rows are seen after the commit, all of them, once, and not a moment earlier."""
        place = self._place()
        writer, committer = place.open(Where())
        writer.write(self.make_rows(0, 3))
        self._sees(place, 0, "rows are visible that were only written")
        transaction = plain(writer.prepare(1))
        assert transaction is not None, "prepare returned None although there are rows to commit"
        self._sees(place, 0, "rows are visible before the commit")
        writer.write(self.make_rows(3, 2))
        committer.commit(transaction)
        self._sees(place, 3, "after the commit")
        committer.commit(transaction)
        self._sees(place, 3, "after the same commit a second time")
        place.committer(Where(attempt=2)).commit(transaction)
        self._sees(place, 3, "after the same commit in another process")
        second = plain(writer.prepare(2))
        self._sees(place, 3, "rows of the second transaction are visible before its commit")
        committer.commit(second)
        self._sees(place, 5, "after the second commit")
        place.close()
        self._is_clean(place, "everything is committed and closed")

    def check_commit_in_any_order(self) -> None:
        """Transactions of two subtasks and two checkpoints, committed in every order, some of them twice."""
        for order in permutations(range(4)):
            place = self._place()
            transactions = []
            for number in range(4):
                writer = place.writer(Where(index=number % 2, parallelism=2))
                writer.write(self.make_rows(number * 2, 2))
                transactions.append(plain(writer.prepare(1 + number // 2)))
            committer = place.committer(Where(parallelism=2))
            for number in (*order, order[0]):
                committer.commit(transactions[number])
            self._sees(place, 8, f"four transactions committed in the order {order}")
            place.close()

    def check_empty_transactions(self) -> None:
        """A checkpoint without rows changes nothing, before, between and after others."""
        place = self._place()
        writer, committer = place.open(Where())
        transactions = [plain(writer.prepare(1))]
        writer.write(self.make_rows(0, 2))
        writer.write(self.make_rows(0, 2).slice(0, 0))
        transactions += [plain(writer.prepare(2)), plain(writer.prepare(3))]
        for transaction in (*transactions, *transactions):
            if transaction is not None:
                committer.commit(transaction)
        self._sees(place, 2, "an empty, a full and an empty transaction")
        place.close()
        self._is_clean(place, "the transactions were empty or committed")

    def check_abort_others(self) -> None:
        """Only what earlier attempts of this job and subtask staged goes away."""
        mine = Where(index=0, parallelism=2)
        others = {
            "subtask 1 of the same sink": replace(mine, index=1),
            "another sink of the job, named 'out-1'": replace(mine, operator="out-1"),
            "another sink of the job, named 'out-0'": replace(mine, operator="out-0"),
            "another job": replace(mine, job="another job"),
            "the attempt that calls it": replace(mine, attempt=2),
            "a later attempt": replace(mine, attempt=3),
        }
        place = self._place()
        kept = place.stage(mine, self.make_rows(0, 2))
        place.stage(mine, self.make_rows(100, 2))
        place.stage_open(mine, self.make_rows(200, 2))
        foreign = {
            whose: place.stage(where, self.make_rows(2 + 2 * i, 2))
            for i, (whose, where) in enumerate(others.items())
        }
        staged = self.count_staged(place.sink)
        committer = place.committer(replace(mine, attempt=2))
        committer.abort_others([kept])
        if staged:
            left = self.count_staged(place.sink)
            assert left <= staged - 1, "abort_others left what an earlier attempt had prepared"
        self._sees(place, 0, "abort_others made rows visible")
        staged_by = {"this subtask, which is in `keep`": kept, **foreign}
        for number, (whose, transaction) in enumerate(staged_by.items()):
            self._commits_what_was_left(place, committer, transaction, 2 + 2 * number, whose)
        committer.abort_others([kept, *foreign.values()])
        self._sees(place, 2 + 2 * len(others), "abort_others took committed rows away")

    def _commits_what_was_left(
        self, place: Place, committer: SinkCommitter, transaction: Plain, rows: int, whose: str
    ) -> None:
        """`rows` are visible then. Not to find it is as bad as to show nothing."""
        must = f"abort_others of subtask 0 of 'out' must leave alone what was staged by {whose}"
        try:
            committer.commit(transaction)
        except Exception as error:
            told = f"{must}; its commit then raised {type(error).__name__}: {error}"
            raise AssertionError(told) from error
        self._sees(place, rows, f"{must}; it was committed then")

    def check_abort_after_rescale(self) -> None:
        """With fewer subtasks the remaining ones clean up for those that are gone."""
        place = self._place()
        kept = [
            place.stage(Where(index=index, parallelism=4), self.make_rows(2 * index, 2))
            for index in range(4)
        ]
        for index in range(4):
            place.stage(Where(index=index, parallelism=4), self.make_rows(100, 2))
        for index in range(2):
            committer = place.committer(Where(index=index, parallelism=2, attempt=2))
            for transaction in kept:
                committer.commit(transaction)
            committer.abort_others(kept)
        self._sees(place, 8, "four subtasks prepared, two recovered")
        place.close()
        self._is_clean(place, "two subtasks recovered for four")

    def check_prepare_in_background(self) -> None:
        """Rows that come while an earlier transaction is still made durable belong to the next one."""
        place = self._place()
        writer, committer = place.open(Where())
        writer.write(self.make_rows(0, 2))
        first = writer.prepare(1)
        writer.write(self.make_rows(2, 3))
        committer.commit(plain(first))
        self._sees(place, 2, "rows came while the first transaction was made durable")
        second = writer.prepare(2)
        writer.write(self.make_rows(5, 1))
        third = writer.prepare(3)
        for transaction in (plain(third), plain(second)):
            committer.commit(transaction)
        self._sees(place, 6, "two transactions were made durable in another order")
        place.close()

    def check_aborted_is_not_committed_silently(self) -> None:
        """A commit of what is gone raises: to return would lose the rows without a word. (A sink whose transactions
        carry their rows may well commit them.)"""
        place = self._place()
        aborted = place.stage(Where(), self.make_rows(0, 2))
        committer = place.committer(Where(attempt=2))
        committer.abort_others([])
        try:
            committer.commit(aborted)
        except Exception:
            self._sees(place, 0, "a commit of an aborted transaction raised")
        else:
            self._sees(place, 2, "a commit of an aborted transaction returned without an error")

    def check_recovery_that_is_repeated(self) -> None:
        """A recovery that fails half-way is begun again by the next attempt, also when it was nearly done."""
        place = self._place()
        kept = [place.stage(Where(), self.make_rows(2 * i, 2)) for i in range(2)]
        place.stage(Where(), self.make_rows(100, 2))
        place.committer(Where(attempt=2)).commit(kept[0])
        for attempt in (3, 4):
            committer = place.committer(Where(attempt=attempt))
            for transaction in kept:
                committer.commit(transaction)
            committer.abort_others(kept)
            self._sees(place, 4, f"attempt {attempt} recovered what attempt 1 had prepared")
        place.crash_leftovers_are_closed()
        place.close()
        self._is_clean(place, "four attempts recovered")

    def check_crash(self, steps: int) -> None:
        """A job that dies after so many steps, recovers from its last complete checkpoint and ends."""
        place = self._place()
        run = _Run(self.make_rows)
        run.steps(place, Where(), _STEPS[:steps])
        again = Where(attempt=2)
        writer, committer = place.open(again)
        for transaction in run.completed:
            committer.commit(transaction)
        committer.abort_others(run.completed)
        what = f"a crash after {' '.join(_STEPS[:steps]) or 'nothing'}"
        self._sees(place, run.rows_completed, what)
        writer.write(self.make_rows(run.rows_completed, 20 - run.rows_completed))
        committer.commit(plain(writer.prepare(9)))
        self._sees(place, 20, f"{what}, and the rest of the rows")
        place.crash_leftovers_are_closed()
        place.close()
        self._is_clean(place, what)

    def _place(self) -> Place:
        sink = self.make_sink()
        sink.check(self.schema)
        place = Place(sink, self.schema)
        self._sees(place, 0, "nothing was written yet")
        return place

    def _sees(self, place: Place, rows: int, when: str) -> None:
        expected = count([self.make_rows(0, rows)]) if rows else Rows()
        require_equal(count(self.read_back(place.sink)), expected, when)

    def _is_clean(self, place: Place, when: str) -> None:
        left = self.count_staged(place.sink)
        assert left == 0, f"{left} staged leftovers, although {when}"


@dataclass
class _Run:
    """A job of one subtask: what its last complete checkpoint says."""

    make_rows: Callable[[int, int], pa.RecordBatch]
    rows: int = 0
    rows_prepared: int = 0
    rows_completed: int = 0
    checkpoint: int = 0
    pending: list[Plain] = field(default_factory=list)
    completed: list[Plain] = field(default_factory=list)

    def steps(self, place: Place, where: Where, names: Iterable[str]) -> None:
        writer = place.stage_open(where, self.make_rows(0, 1).slice(0, 0))
        committer = place.committer(where)
        for name in names:
            self._step(name, writer, committer)

    def _step(self, name: str, writer: SinkWriter, committer: SinkCommitter) -> None:
        if name == "write":
            writer.write(self.make_rows(self.rows, 2))
            self.rows += 2
        elif name == "prepare":
            self.checkpoint += 1
            self.pending.append(plain(writer.prepare(self.checkpoint)))
            self.rows_prepared = self.rows
        elif name == "complete":
            self.completed = list(self.pending)
            self.rows_completed = self.rows_prepared
        else:
            for transaction in self.completed:
                committer.commit(transaction)
                self.pending.remove(transaction)
