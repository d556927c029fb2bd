"""What a sink must do to be exactly-once: show every committed row once, and no other, whatever happens between."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from typing import Any

import pyarrow as pa

from penstock.connectors.base import Sink, SinkCommitter, SinkContext, SinkWriter
from penstock.connectors.contract import wrong_committer, wrong_writer
from penstock.errors import ConfigError
from penstock.protocol.snapshot import Plain
from penstock.testing.arguments import check_function
from penstock.testing.compare import all_rows, to_rows
from penstock.testing.finding import short
from penstock.testing.multiset import Rows, count, require_equal
from penstock.testing.sink_place import RETURN_PLAIN, Place, Where, not_plain, plain
from penstock.testing.steps import StepFailed, Steps

__tracebackhide__ = True
"""pytest shows what is wrong, and not how it was found."""


def sink_conformance(
    make_sink: Callable[[], Sink],
    read_back: Callable[[Any], Any],
    *,
    schema: pa.Schema | None = None,
    make_rows: Callable[[int, int], pa.RecordBatch] | None = None,
    count_staged: Callable[[Any], Any] | None = None,
) -> None:
    """Drives a sink through commits in any order, aborts, rescales, repeated recoveries and a crash behind every
    step.

    `make_sink` gives a sink with a place of its own, empty, at each call; `read_back` takes the sink and returns what
    anyone would see there: a `pa.Table`, a DataFrame, dicts or tuples. `make_rows(start, n)` makes rows of `schema` (a
    BIGINT and a STRING column if none is given). `count_staged` counts what is there and not visible, so that leftovers
    are noticed. An `AssertionError` says what went wrong, in which step, and which rule that breaks."""
    _check_arguments(make_sink, read_back, schema, make_rows, count_staged)
    suite = _SinkSuite(
        make_sink,
        read_back,
        schema or _SCHEMA,
        make_rows or _default_rows,
        count_staged or (lambda _: 0),
    )
    for step, (check, rule) in _CHECKS.items():
        suite.steps.run(step, rule, partial(check, suite))
    for steps in range(len(_STEPS) + 1):
        suite.steps.run(_crash(steps), _RECOVERY, partial(suite.check_crash, steps))


def _check_arguments(
    make_sink: object,
    read_back: object,
    schema: object,
    make_rows: object,
    count_staged: object,
) -> None:
    name = type(make_sink).__name__ if isinstance(make_sink, Sink) else "MySink"
    makes = f"makes a sink in an empty place, as in sink_conformance(lambda: {name}(...), ...)"
    what = "sink_conformance: "
    check_function(make_sink, f"{what}make_sink", 0, makes)
    reads = "takes the sink, as in read_back=lambda sink: sink.table.rows"
    check_function(read_back, f"{what}read_back", 1, reads)
    if schema is not None and not isinstance(schema, pa.Schema):
        raise ConfigError(f"{what}schema={short(schema)} is no pa.Schema")
    if make_rows is not None:
        check_function(make_rows, f"{what}make_rows", 2, "takes a start and a number of rows")
    if count_staged is not None:
        counts = "takes the sink, as in count_staged=lambda sink: len(sink.table.staged)"
        check_function(count_staged, f"{what}count_staged", 1, counts)


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
    read_back: Callable[[Any], Any]
    schema: pa.Schema
    given_rows: Callable[[int, int], pa.RecordBatch]
    count_staged: Callable[[Any], Any]
    steps: Steps = field(default_factory=Steps)

    def check_visibility(self) -> None:
        """Rows are seen after the commit, all of them, once, and not a moment earlier."""
        place = self._place()
        writer, committer = place.open(Where())
        writer.write(self.make_rows(0, 3))
        self._sees(place, 0, "rows are visible that were only written")
        transaction = plain(writer.prepare(1))
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
        staged = self._staged(place)
        committer = place.committer(replace(mine, attempt=2))
        committer.abort_others([kept])
        if staged:
            left = self._staged(place)
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
        except StepFailed as failed:
            raise AssertionError(f"{must}; then {failed}") from failed.__cause__
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
        except StepFailed:
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
        what = _crash(steps)
        self._sees(place, run.rows_completed, what)
        writer.write(self.make_rows(run.rows_completed, 20 - run.rows_completed))
        committer.commit(plain(writer.prepare(9)))
        self._sees(place, 20, f"{what}, and the rest of the rows")
        place.crash_leftovers_are_closed()
        place.close()
        self._is_clean(place, what)

    def make_rows(self, start: int, rows: int) -> pa.RecordBatch:
        made = self.steps.quietly(
            f"make_rows({start}, {rows})", lambda: self.given_rows(start, rows)
        )
        if not isinstance(made, pa.RecordBatch) or made.num_rows != rows:
            raise ConfigError(
                f"sink_conformance: make_rows({start}, {rows}) returned {short(made)}; it must return a pa.RecordBatch"
                f" of {rows} rows"
            )
        return made

    def _place(self) -> Place:
        self.steps.begin()
        sink = self.steps.quietly("make_sink()", self.make_sink)
        if not isinstance(sink, Sink):
            raise ConfigError(
                f"sink_conformance: make_sink() returned {short(sink)} ({type(sink).__name__}), and no pen.Sink"
            )
        self.steps.quietly("check(schema)", lambda: sink.check(self.schema))
        place = Place(_SteppedSink(sink, self.steps), self.schema)
        empty = "make_sink must give an empty place at each call, and before anything is written"
        self._sees(place, 0, f"{empty} there are rows")
        staged = self._staged(place)
        assert staged == 0, f"{empty} count_staged finds {staged}"
        return place

    def _sees(self, place: Place, rows: int, when: str) -> None:
        expected = count([self.make_rows(0, rows)]) if rows else Rows()
        require_equal(self._visible(place, when), expected, when)

    def _visible(self, place: Place, when: str) -> Rows:
        sink = _inside_of(place)
        answer = self.steps.quietly(f"{when}: read_back(sink)", lambda: self.read_back(sink))
        if answer is None:
            raise ConfigError(
                "sink_conformance: read_back returned None; it must return the rows that a reader sees, as a pa.Table,"
                " a DataFrame, or a list of dicts or tuples ([] where there are none)"
            )
        if isinstance(answer, list) and answer and isinstance(answer[0], pa.RecordBatch):
            answer = pa.Table.from_batches(answer)
        return all_rows(to_rows(answer, self.schema, "sink_conformance: read_back"))

    def _is_clean(self, place: Place, when: str) -> None:
        left = self._staged(place)
        assert left == 0, f"{left} staged leftovers, although {when}"

    def _staged(self, place: Place) -> int:
        sink = _inside_of(place)
        found = self.steps.quietly("count_staged(sink)", lambda: self.count_staged(sink))
        try:
            return operator.index(found)
        except TypeError:
            raise ConfigError(
                f"sink_conformance: count_staged returned {short(found)} ({type(found).__name__}); return how many"
                " things are staged, a whole number such as len(...)"
            ) from None


_RECOVERY = (
    "after a crash the transactions of the last complete checkpoint are committed, all others are aborted, and the job"
    " goes on"
)
_CHECKS: dict[str, tuple[Callable[[_SinkSuite], None], str]] = {
    "write, prepare and commit, then commit again, also in another process": (
        _SinkSuite.check_visibility,
        "rows are seen after their commit, all of them, once however often it is called, and not a moment earlier",
    ),
    "transactions of two subtasks and two checkpoints, committed in every order": (
        _SinkSuite.check_commit_in_any_order,
        "a transaction is committed by its description alone, in any order, by any process",
    ),
    "checkpoints without rows, before, between and after others": (
        _SinkSuite.check_empty_transactions,
        "a checkpoint without rows changes nothing; prepare may return None then",
    ),
    "abort_others of the second attempt, with things staged by others": (
        _SinkSuite.check_abort_others,
        "abort_others removes what earlier attempts of this job, operator and subtask staged, except `keep`, and"
        " nothing else",
    ),
    "a recovery with two subtasks after a run with four": (
        _SinkSuite.check_abort_after_rescale,
        "with fewer subtasks the remaining ones commit and clean up for those that are gone:"
        " index % parallelism says for whom",
    ),
    "rows that are written while a transaction is made durable": (
        _SinkSuite.check_prepare_in_background,
        "rows that are written after prepare() belong to the next transaction",
    ),
    "a commit of a transaction that was aborted": (
        _SinkSuite.check_aborted_is_not_committed_silently,
        "a transaction that is gone and was not committed is an error, never a success",
    ),
    "a recovery that is begun again by the next attempts": (
        _SinkSuite.check_recovery_that_is_repeated,
        "a recovery can be repeated: what was committed stays so, what was aborted stays gone",
    ),
}


def _crash(steps: int) -> str:
    return f"a crash after {' '.join(_STEPS[:steps]) or 'nothing'}"


def _inside_of(place: Place) -> Sink:
    """What the user gave."""
    assert isinstance(place.sink, _SteppedSink)
    return place.sink.inside


class _SteppedSink(Sink):
    """The user's sink: every call of it is noted, and told when it fails or returns what it must not."""

    def __init__(self, inside: Sink, steps: Steps) -> None:
        self.inside = inside
        self.idempotent = inside.idempotent
        self._steps = steps

    def __deepcopy__(self, memo: dict[int, Any]) -> _SteppedSink:
        what = "copying the sink for another process"
        copied = self._steps.quietly(what, lambda: deepcopy(self.inside, memo))
        return _SteppedSink(copied, self._steps)

    def receive(self, item: Plain) -> None:
        self._steps.quietly("receive(item)", lambda: self.inside.receive(item))

    def writer(self, context: SinkContext) -> SinkWriter:
        made = self._steps.quietly("writer(context)", lambda: self.inside.writer(context))
        self._steps.refuse(wrong_writer(made))
        return _SteppedWriter(made, context, self._steps)

    def committer(self, context: SinkContext) -> SinkCommitter:
        told = replace(context, to_driver=lambda item: self._hand_over(context, item))
        made = self._steps.quietly("committer(context)", lambda: self.inside.committer(told))
        self._steps.refuse(wrong_committer(made))
        return _SteppedCommitter(made, context, self._steps)

    def _hand_over(self, context: SinkContext, item: Plain) -> None:
        problem = not_plain(item)
        self._steps.refuse(problem and f"what to_driver() was given: {problem}. {RETURN_PLAIN}")
        context.to_driver(item)


def _who(context: SinkContext) -> str:
    place = f"{context.job}/{context.operator}"
    of = "" if place == f"{Where.job}/{Where.operator}" else f" of {place}"
    return f"subtask {context.index} of {context.parallelism}{of}, attempt {context.attempt}"


class _SteppedWriter(SinkWriter):
    def __init__(self, inside: SinkWriter, context: SinkContext, steps: Steps) -> None:
        self._inside = inside
        self._who = _who(context)
        self._steps = steps
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        what = f"write({batch.num_rows} rows)"
        self._steps.call(self._who, what, lambda: self._inside.write(batch))

    def prepare(self, checkpoint: int) -> Plain | Callable[[], Plain]:
        rows, self._rows = self._rows, 0
        what = f"prepare({checkpoint})"
        made = self._steps.call(self._who, what, lambda: self._inside.prepare(checkpoint))
        if callable(made):
            work, later = made, f"the function of {what}"
            return lambda: self._described(self._steps.call(self._who, later, work), rows, later)
        return self._described(made, rows, what)

    def close(self) -> None:
        self._steps.call(self._who, "close() of the writer", self._inside.close)

    def _described(self, made: Plain, rows: int, what: str) -> Plain:
        if made is None and rows:
            raise StepFailed(
                f"{what} returned None although there are rows to commit: {rows} were written since the last one. None"
                " says that there is nothing to commit, and loses them. (A sink that shows rows at once and overwrites"
                " by key, with idempotent = True, is for simulate and not for this suite.)"
            )
        problem = not_plain(made)
        self._steps.refuse(problem and f"what {what} returned: {problem}. {RETURN_PLAIN}")
        return made


class _SteppedCommitter(SinkCommitter):
    def __init__(self, inside: SinkCommitter, context: SinkContext, steps: Steps) -> None:
        self._inside = inside
        self._who = _who(context)
        self._steps = steps

    def commit(self, transaction: Plain) -> None:
        what = f"commit({short(transaction)})"
        self._steps.call(self._who, what, lambda: self._inside.commit(transaction))

    def abort_others(self, keep: Sequence[Plain]) -> None:
        what = f"abort_others({short(list(keep))})"
        self._steps.call(self._who, what, lambda: self._inside.abort_others(keep))

    def close(self) -> None:
        self._steps.call(self._who, "close() of the committer", self._inside.close)


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
