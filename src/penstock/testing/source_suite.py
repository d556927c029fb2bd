"""What a source must do to be exactly-once: give the same rows again, from any position, to any number of subtasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.connectors.base import EndOfInput, Source, SourceContext, SourceReader, Wait
from penstock.protocol.snapshot import Plain
from penstock.testing.multiset import Rows, count, require_equal

__tracebackhide__ = True
"""pytest shows what is wrong, and not how it was found."""
PARALLELISMS = (1, 2, 3, 5)
QUIET_AFTER_WAITS = 3
Positions = dict[int, Plain]


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
    suite.check_replay(count(everything))
    suite.check_partition(count(everything))
    suite.check_rescale(count(everything))
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
        require_equal(count(reading.batches), everything, "reading a second time")
        for batches, text in reading.cuts:
            rest = self._read(0, 1, _positions(text))
            before = count(reading.batches[:batches])
            require_equal(
                before + count(rest.batches),
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
                rows += count(self._read(index, parallelism, {}).batches)
            require_equal(rows, everything, f"parallelism {parallelism}")

    def check_rescale(self, everything: Rows) -> None:
        """Positions of any parallelism can be taken over by any other; cut at first, at last and in between."""
        for before in PARALLELISMS:
            for after in PARALLELISMS:
                for share in (0.0, 0.3, 0.7, 1.0):
                    rows, positions = self._read_some(before, share)
                    for index in range(after):
                        rows += count(self._read(index, after, positions).batches)
                    require_equal(
                        rows,
                        everything,
                        f"{before} subtasks stopped at {share:.0%}, {after} went on from {positions}",
                    )

    def _read_some(self, parallelism: int, share: float) -> tuple[Rows, Positions]:
        rows, positions = Rows(), Positions()
        for index in range(parallelism):
            whole = self._read(index, parallelism, {})
            batches, text = whole.cuts[round(share * (len(whole.cuts) - 1))]
            rows += count(whole.batches[:batches])
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
