"""Suites that a source or a sink must pass to be exactly-once, shipped and users' own.

    source_conformance(lambda: MySource(...))
    sink_conformance(lambda: MySink(...), read_back=lambda sink: ...)

Each raises an `AssertionError` that says what was lost, repeated or seen too early. Call them from a test.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.base import (
    EndOfInput,
    Sink,
    SinkCommitter,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceReader,
    Wait,
)
from penstock.protocol.snapshot import Plain

PARALLELISMS = (1, 2, 3, 5)
QUIET_AFTER_WAITS = 3
Positions = dict[int, Plain]
Rows = Counter[str]


# ---- sources


def source_conformance(
    make_source: Callable[[], Source],
    *,
    max_parallelism: int = 16,
    rows_max: int = 50,
    seed: int = 0,
) -> pa.Table:
    """Reads a source in many ways: whole, cut behind every batch, by 1, 2, 3 and 5 subtasks, and restored with
    another number of them. Returns its rows. The source must be small (some hundred rows, several splits) and
    must end, or have nothing more to give after three waits. `rows_max` is the largest poll; make it smaller than a
    split, so that cuts fall inside of splits."""
    suite = _SourceSuite(make_source, max_parallelism, rows_max, np.random.default_rng(seed))
    everything = suite.read_whole()
    suite.check_replay(_count(everything))
    suite.check_partition(_count(everything))
    suite.check_rescale(_count(everything))
    return everything


@dataclass
class _VirtualClock:
    ms: float = 0.0

    def now_ms(self) -> float:
        return self.ms


@dataclass
class _Reading:
    """One reader at work: what it returned, and its positions after each poll."""

    reader: SourceReader
    batches: list[pa.RecordBatch] = field(default_factory=list)
    cuts: list[tuple[int, str]] = field(default_factory=list)
    kept: list[tuple[Mapping[int, Plain], str]] = field(default_factory=list)


@dataclass
class _SourceSuite:
    make_source: Callable[[], Source]
    max_parallelism: int
    rows_max: int
    rng: np.random.Generator

    def read_whole(self) -> pa.Table:
        reading = self._read(0, 1, {})
        return pa.Table.from_batches(reading.batches, schema=self.make_source().schema)

    def check_replay(self, everything: Rows) -> None:
        """A reader that is opened at `positions()` returns exactly what the first one had not."""
        reading = self._read(0, 1, {})
        _equal(_count(reading.batches), everything, "reading a second time")
        for batches, text in reading.cuts:
            rest = self._read(0, 1, _positions(text))
            before = _count(reading.batches[:batches])
            _equal(
                before + _count(rest.batches),
                everything,
                f"cut behind batch {batches} of {len(reading.batches)}, positions {text}",
            )
        for positions, text in reading.kept:
            assert _text(positions) == text, (
                f"what positions() returned has changed since: {text} became {_text(positions)}; return a copy"
            )

    def check_partition(self, everything: Rows) -> None:
        """Every row is read by exactly one subtask, whatever the parallelism."""
        for parallelism in PARALLELISMS:
            rows = Rows()
            for index in range(parallelism):
                rows += _count(self._read(index, parallelism, {}).batches)
            _equal(rows, everything, f"parallelism {parallelism}")

    def check_rescale(self, everything: Rows) -> None:
        """Positions of any parallelism can be taken over by any other; cut at first, at last and in between."""
        for before in PARALLELISMS:
            for after in PARALLELISMS:
                for share in (0.0, 0.3, 0.7, 1.0):
                    rows, positions = self._read_some(before, share)
                    for index in range(after):
                        rows += _count(self._read(index, after, positions).batches)
                    _equal(
                        rows,
                        everything,
                        f"{before} subtasks stopped at {share:.0%}, {after} went on from {positions}",
                    )

    def _read_some(self, parallelism: int, share: float) -> tuple[Rows, Positions]:
        rows, positions = Rows(), Positions()
        for index in range(parallelism):
            whole = self._read(index, parallelism, {})
            batches, text = whole.cuts[round(share * (len(whole.cuts) - 1))]
            rows += _count(whole.batches[:batches])
            positions.update(_positions(text))
        return rows, positions

    def _read(self, index: int, parallelism: int, positions: Positions) -> _Reading:
        """Reads to the end, with polls of random size. Cuts are taken before the first poll, after each one, and
        at the end."""
        clock = _VirtualClock()
        source = deepcopy(self.make_source())
        context = SourceContext(
            "conformance", index, parallelism, self.max_parallelism, clock.now_ms
        )
        reading = _Reading(source.reader(context, positions))
        try:
            self._drain(reading, source.schema, context, clock)
        finally:
            reading.reader.close()
        return reading

    def _drain(
        self, reading: _Reading, schema: pa.Schema, context: SourceContext, clock: _VirtualClock
    ) -> None:
        waits = 0
        self._cut(reading, context)
        while waits < QUIET_AFTER_WAITS:
            rows_max = int(self.rng.integers(1, self.rows_max + 1))
            answer = reading.reader.poll(rows_max)
            if isinstance(answer, Wait):
                waits += 1
                clock.ms = max(clock.ms, answer.until_ms)
            elif isinstance(answer, EndOfInput):
                waits = QUIET_AFTER_WAITS
            else:
                waits = 0
                _check_batch(answer, schema, rows_max)
                reading.batches.append(answer)
            self._cut(reading, context)

    def _cut(self, reading: _Reading, context: SourceContext) -> None:
        positions = reading.reader.positions()
        strange = sorted(set(positions) - set(context.lanes))
        assert not strange, (
            f"positions() has the lanes {strange}, which belong to other subtasks than"
            f" {context.index} of {context.parallelism}"
        )
        text = _text(positions)
        reading.kept.append((positions, text))
        reading.cuts.append((len(reading.batches), text))


def _check_batch(batch: pa.RecordBatch, schema: pa.Schema, rows_max: int) -> None:
    assert batch.schema == schema, f"poll returned the schema {batch.schema}, promised was {schema}"
    assert batch.num_rows <= rows_max, f"poll({rows_max}) returned {batch.num_rows} rows"
    batch.validate(full=True)


def _text(positions: Mapping[int, Plain]) -> str:
    """Positions as a checkpoint keeps them."""
    return json.dumps({str(lane): position for lane, position in sorted(positions.items())})


def _positions(text: str) -> Positions:
    return {int(lane): position for lane, position in json.loads(text).items()}


# ---- sinks


def sink_conformance(
    make_sink: Callable[[], Sink],
    read_back: Callable[[Sink], pa.Table],
    *,
    schema: pa.Schema | None = None,
    make_rows: Callable[[int, int], pa.RecordBatch] | None = None,
    count_staged: Callable[[Sink], int] | None = None,
) -> None:
    """Drives a sink through commits in any order, aborts, rescales and a crash behind every step.

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
        writer, committer = place.open(_Where())
        writer.write(self.make_rows(0, 3))
        self._sees(place, 0, "rows are visible that were only written")
        transaction = _plain(writer.prepare(1))
        assert transaction is not None, "prepare returned None although there are rows to commit"
        self._sees(place, 0, "rows are visible before the commit")
        writer.write(self.make_rows(3, 2))
        committer.commit(transaction)
        self._sees(place, 3, "after the commit")
        committer.commit(transaction)
        self._sees(place, 3, "after the same commit a second time")
        place.committer(_Where(attempt=2)).commit(transaction)
        self._sees(place, 3, "after the same commit in another process")
        second = _plain(writer.prepare(2))
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
                writer = place.writer(_Where(index=number % 2, parallelism=2))
                writer.write(self.make_rows(number * 2, 2))
                transactions.append(_plain(writer.prepare(1 + number // 2)))
            committer = place.committer(_Where(parallelism=2))
            for number in (*order, order[0]):
                committer.commit(transactions[number])
            self._sees(place, 8, f"four transactions committed in the order {order}")
            place.close()

    def check_empty_transactions(self) -> None:
        """A checkpoint without rows changes nothing, before, between and after others."""
        place = self._place()
        writer, committer = place.open(_Where())
        transactions = [_plain(writer.prepare(1))]
        writer.write(self.make_rows(0, 2))
        writer.write(self.make_rows(0, 2).slice(0, 0))
        transactions += [_plain(writer.prepare(2)), _plain(writer.prepare(3))]
        for transaction in (*transactions, *transactions):
            if transaction is not None:
                committer.commit(transaction)
        self._sees(place, 2, "an empty, a full and an empty transaction")
        place.close()
        self._is_clean(place, "the transactions were empty or committed")

    def check_abort_others(self) -> None:
        """Only what earlier attempts of this job and subtask staged goes away."""
        mine = _Where(index=0, parallelism=2)
        others = [
            replace(mine, index=1),
            replace(mine, operator="out-1"),
            replace(mine, operator="out-0"),
            replace(mine, job="another job"),
            replace(mine, attempt=2),
        ]
        place = self._place()
        kept = place.stage(mine, self.make_rows(0, 2))
        place.stage(mine, self.make_rows(100, 2))
        place.stage_open(mine, self.make_rows(200, 2))
        foreign = [
            place.stage(where, self.make_rows(2 + 2 * i, 2)) for i, where in enumerate(others)
        ]
        staged = self.count_staged(place.sink)
        committer = place.committer(replace(mine, attempt=2))
        committer.abort_others([kept])
        if staged:
            left = self.count_staged(place.sink)
            assert left <= staged - 1, "abort_others left what an earlier attempt had prepared"
        self._sees(place, 0, "abort_others made rows visible")
        for transaction in (kept, *foreign):
            committer.commit(transaction)
        self._sees(place, 2 + 2 * len(others), "what abort_others had to leave alone was committed")
        committer.abort_others([kept, *foreign])
        self._sees(place, 2 + 2 * len(others), "abort_others took committed rows away")

    def check_abort_after_rescale(self) -> None:
        """With fewer subtasks the remaining ones clean up for those that are gone."""
        place = self._place()
        kept = [
            place.stage(_Where(index=index, parallelism=4), self.make_rows(2 * index, 2))
            for index in range(4)
        ]
        for index in range(4):
            place.stage(_Where(index=index, parallelism=4), self.make_rows(100, 2))
        for index in range(2):
            committer = place.committer(_Where(index=index, parallelism=2, attempt=2))
            for transaction in kept:
                committer.commit(transaction)
            committer.abort_others(kept)
        self._sees(place, 8, "four subtasks prepared, two recovered")
        place.close()
        self._is_clean(place, "two subtasks recovered for four")

    def check_crash(self, steps: int) -> None:
        """A job that dies after so many steps, recovers from its last complete checkpoint and ends."""
        place = self._place()
        run = _Run(self.make_rows)
        run.steps(place, _Where(), _STEPS[:steps])
        again = _Where(attempt=2)
        writer, committer = place.open(again)
        for transaction in run.completed:
            committer.commit(transaction)
        committer.abort_others(run.completed)
        what = f"a crash after {' '.join(_STEPS[:steps]) or 'nothing'}"
        self._sees(place, run.rows_completed, what)
        writer.write(self.make_rows(run.rows_completed, 20 - run.rows_completed))
        committer.commit(_plain(writer.prepare(9)))
        self._sees(place, 20, f"{what}, and the rest of the rows")
        place.crash_leftovers_are_closed()
        place.close()
        self._is_clean(place, what)

    def _place(self) -> _Place:
        sink = self.make_sink()
        sink.check(self.schema)
        place = _Place(sink, self.schema)
        self._sees(place, 0, "nothing was written yet")
        return place

    def _sees(self, place: _Place, rows: int, when: str) -> None:
        expected = _count([self.make_rows(0, rows)]) if rows else Rows()
        _equal(_count(self.read_back(place.sink)), expected, when)

    def _is_clean(self, place: _Place, when: str) -> None:
        left = self.count_staged(place.sink)
        assert left == 0, f"{left} staged leftovers, although {when}"


@dataclass(frozen=True)
class _Where:
    job: str = "job"
    operator: str = "out"
    index: int = 0
    parallelism: int = 1
    attempt: int = 1


@dataclass
class _Place:
    """One sink and the processes that use it: each gets its own copy, as over the wire."""

    sink: Sink
    schema: pa.Schema
    opened: list[SinkWriter | SinkCommitter] = field(default_factory=list)
    crashed: list[SinkWriter] = field(default_factory=list)
    checkpoint: int = 0

    def open(self, where: _Where) -> tuple[SinkWriter, SinkCommitter]:
        return self.writer(where), self.committer(where)

    def writer(self, where: _Where) -> SinkWriter:
        writer = self._copy().writer(self._context(where))
        self.opened.append(writer)
        return writer

    def committer(self, where: _Where) -> SinkCommitter:
        committer = self._copy().committer(self._context(where))
        self.opened.append(committer)
        return committer

    def stage(self, where: _Where, batch: pa.RecordBatch) -> Plain:
        """A transaction that was prepared; its process is gone."""
        writer = self.stage_open(where, batch)
        self.checkpoint += 1
        return _plain(writer.prepare(self.checkpoint))

    def stage_open(self, where: _Where, batch: pa.RecordBatch) -> SinkWriter:
        """A transaction that was begun by a process that is gone."""
        writer = self._copy().writer(self._context(where))
        writer.write(batch)
        self.crashed.append(writer)
        return writer

    def crash_leftovers_are_closed(self) -> None:
        """A process that is gone closes nothing; here its memory is given back at last."""
        for writer in self.crashed:
            writer.close()

    def close(self) -> None:
        for each in self.opened:
            each.close()

    def _copy(self) -> Sink:
        return deepcopy(self.sink)

    def _context(self, where: _Where) -> SinkContext:
        return SinkContext(
            where.job,
            where.operator,
            where.index,
            where.parallelism,
            where.attempt,
            self.schema,
            lambda item: self.sink.receive(_plain(item)),
        )


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

    def steps(self, place: _Place, where: _Where, names: Iterable[str]) -> None:
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
            self.pending.append(_plain(writer.prepare(self.checkpoint)))
            self.rows_prepared = self.rows
        elif name == "complete":
            self.completed = list(self.pending)
            self.rows_completed = self.rows_prepared
        else:
            for transaction in self.completed:
                committer.commit(transaction)
                self.pending.remove(transaction)


# ---- both


def _plain(value: Plain | Callable[[], Plain]) -> Plain:
    """As it comes back from a checkpoint or over the wire: anything that is no plain data shows here."""
    made = value() if callable(value) else value
    result: Plain = json.loads(json.dumps(made))
    return result


def _count(rows: pa.Table | Sequence[pa.RecordBatch]) -> Rows:
    """Rows as a multiset."""
    batches: Any = rows.to_batches() if isinstance(rows, pa.Table) else rows
    return Rows(repr(sorted(row.items())) for batch in batches for row in batch.to_pylist())


def _equal(have: Rows, want: Rows, when: str) -> None:
    if have == want:
        return
    lost, extra = want - have, have - want
    parts = [
        f"{len(rows)} {name}, such as {min(rows)}"
        for name, rows in (("rows lost", lost), ("rows too many", extra))
        if rows
    ]
    raise AssertionError(f"{when}: {'; '.join(parts)}")
