"""Generated rows, their pace, and rows that the program holds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from penstock.connectors.base import SourceContext, SourceReader, Wait
from penstock.connectors.sources import GeneratorSource, RowsSource
from penstock.errors import ConfigError, DataError, SchemaError
from penstock.protocol.snapshot import Plain

SCHEMA = pa.schema([("id", pa.int64())])


def numbered(start: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(np.arange(start, start + count))], schema=SCHEMA)


class Clock:
    def __init__(self) -> None:
        self.ms = 5_000.0

    def now_ms(self) -> float:
        return self.ms


def context(clock: Clock, index: int = 0, parallelism: int = 1) -> SourceContext:
    return SourceContext("numbers", index, parallelism, 128, clock.now_ms)


def due_rows(reader: SourceReader, max_rows: int = 100_000) -> list[int]:
    """All rows that are due now."""
    rows: list[int] = []
    while isinstance(batch := reader.poll(max_rows), pa.RecordBatch):
        rows += batch.column(0).to_pylist()
    return rows


def test_without_a_rate_batches_are_as_large_as_asked_for() -> None:
    """One call of the function per batch: blocks are large, and neighbours are read in one go."""
    calls = []

    def counted(start: int, count: int) -> pa.RecordBatch:
        calls.append((start, count))
        return numbered(start, count)

    reader = GeneratorSource(counted, SCHEMA).reader(context(Clock()), {})
    for _ in range(5):
        batch = reader.poll(50_000)
        assert isinstance(batch, pa.RecordBatch)
        assert batch.num_rows >= 25_000
    assert len(calls) == 5


def test_few_rows_are_shared_out_to_all_subtasks() -> None:
    source = GeneratorSource(numbered, SCHEMA, rows=200)
    counts = [len(due_rows(source.reader(context(Clock(), index, 8), {}))) for index in range(8)]
    assert sum(counts) == 200
    assert min(counts) >= 20


@pytest.mark.parametrize("rate", [3.0, 100.0, 1_000_000.0, 7.3])
def test_rows_are_due_at_an_even_rate_over_all_subtasks(rate: float) -> None:
    """After every tenth of a second, the rows so far are those of the rate, give or take one block each."""
    clock = Clock()
    source = GeneratorSource(numbered, SCHEMA, rate=rate)
    readers = [source.reader(context(clock, index, 4), {}) for index in range(4)]
    total = 0
    for tenth in range(1, 11):
        clock.ms = 5_000.0 + tenth * 100
        total += sum(len(due_rows(reader)) for reader in readers)
        assert abs(total - rate * tenth / 10) <= max(4, rate * 0.001)


def test_every_row_comes_at_the_moment_that_was_told() -> None:
    """A wait ends with a row: no second wait for the same moment, which would be a busy loop."""
    clock = Clock()
    reader = GeneratorSource(numbered, SCHEMA, rate=7.3).reader(context(clock), {})
    for expected in range(200):
        assert due_rows(reader) == [expected]
        wait = reader.poll(10)
        assert isinstance(wait, Wait)
        assert wait.until_ms == pytest.approx(5_000 + (expected + 1) * 1000 / 7.3)
        clock.ms = wait.until_ms


def test_a_restored_generator_neither_bursts_nor_waits() -> None:
    """The position where it stopped is due when it is opened again, however long that took."""
    clock = Clock()
    source = GeneratorSource(numbered, SCHEMA, rate=1000.0)
    first = source.reader(context(clock), {})
    clock.ms += 2_000
    assert len(due_rows(first)) == 2001
    clock.ms += 60_000
    restored = source.reader(context(clock), first.positions())
    assert due_rows(restored) == [2001]
    clock.ms += 100
    assert due_rows(restored) == list(range(2002, 2102))


def test_a_generator_that_is_behind_catches_up_in_full_batches() -> None:
    clock = Clock()
    reader = GeneratorSource(numbered, SCHEMA, rate=10_000.0).reader(context(clock), {})
    clock.ms += 1_000
    batch = reader.poll(4_000)
    assert isinstance(batch, pa.RecordBatch)
    assert 2_000 <= batch.num_rows <= 4_000


@pytest.mark.parametrize(("rows", "parallelism"), [(None, 1), (None, 3), (1_500, 2)])
def test_a_generator_says_how_many_rows_are_due(rows: int | None, parallelism: int) -> None:
    """U2: the sum over all subtasks is exact at any moment."""
    clock = Clock()
    source = GeneratorSource(numbered, SCHEMA, rows=rows, rate=1_000)
    readers = [source.reader(context(clock, i, parallelism), {}) for i in range(parallelism)]
    clock.ms += 1_234.5
    due = [reader.lag()["rows"] for reader in readers]
    assert sum(due) == 1_235
    for _ in range(3):
        batch = readers[0].poll(100)
        assert isinstance(batch, pa.RecordBatch)
        due[0] -= batch.num_rows
        assert readers[0].lag() == {"rows": due[0]}
    assert [len(due_rows(reader)) for reader in readers] == due
    clock.ms += 9_000
    ends = 1_500 if rows else 10_235
    assert sum(reader.lag()["rows"] for reader in readers) == ends - 1_235


def test_a_generator_without_a_rate_is_never_behind() -> None:
    assert GeneratorSource(numbered, SCHEMA).reader(context(Clock()), {}).lag() == {}


def test_another_rate_after_a_restore_loses_and_repeats_nothing() -> None:
    """E1: the size of the blocks is part of the position."""
    clock = Clock()
    before = [
        GeneratorSource(numbered, SCHEMA, rows=900, rate=1000).reader(context(clock, i, 2), {})
        for i in (0, 1)
    ]
    clock.ms += 400
    rows = due_rows(before[0]) + due_rows(before[1], 7)
    positions: Mapping[int, Plain] = {**before[0].positions(), **before[1].positions()}
    after = GeneratorSource(numbered, SCHEMA, rows=1000)
    for index in range(3):
        rows += due_rows(after.reader(context(clock, index, 3), positions))
    assert sorted(rows) == list(range(1000))


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda start, n: numbered(start, n + 1), r"fn\(0, \d+\) returned \d+ rows, not"),
        (lambda start, n: pa.table(numbered(start, n)), "returned Table"),
        (lambda start, n: pa.record_batch({"id": pa.array(["a"] * n)}), "'id' is STRING.*BIGINT"),
        (lambda start, n: pa.record_batch({"other": pa.array([1] * n)}), "'id' is missing"),
    ],
)
def test_a_function_that_breaks_its_promise_is_told_what_differs(fn: object, text: str) -> None:
    reader = GeneratorSource(fn, SCHEMA, rows=100).reader(context(Clock()), {})  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match=text):
        reader.poll(10)


def test_nulls_in_a_not_null_column_are_refused() -> None:
    source = GeneratorSource(
        lambda start, n: pa.record_batch({"id": pa.nulls(n, pa.int64())}), "id BIGINT NOT NULL", 10
    )
    with pytest.raises(SchemaError, match="'id' is NOT NULL"):
        source.reader(context(Clock()), {}).poll(10)


@pytest.mark.parametrize(
    "arguments", [{"rows": -1}, {"rows": 1.5}, {"rate": 0}, {"rate": float("inf")}]
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        GeneratorSource(numbered, SCHEMA, **arguments)  # type: ignore[arg-type]


def test_a_position_of_another_source_is_refused() -> None:
    with pytest.raises(DataError, match="another kind of source"):
        GeneratorSource(numbered, SCHEMA).reader(context(Clock()), {0: {"done": ""}})


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([("a", 1), ("b", "x")], "row 1, column 'v' .*'x'"),
        ([("a", 1), ("b", 1.5)], "row 1, column 'v' .*1.5: not a whole number"),
        ([("a", 2**70)], "row 0, column 'v'"),
        ([("a", 1), (None, 1)], "row 1, column 'k' .*NOT NULL"),
        ([("a", 1), ("b",)], "row 1: 1 values for 2 columns"),
        ([{"k": "a", "w": 1}], "row 0: no column 'w'"),
        (["ab"], "row 0: 'ab' is no tuple"),
    ],
)
def test_a_row_that_does_not_fit_is_named(rows: list[tuple[object, ...]], text: str) -> None:
    with pytest.raises(DataError, match=text):
        RowsSource(rows, "k STRING NOT NULL, v BIGINT")


def test_rows_may_be_tuples_or_dicts() -> None:
    source = RowsSource([("a", 1), {"k": "b", "v": 2}, {"k": "c"}], "k STRING, v BIGINT")
    batch = source.reader(context(Clock()), {}).poll(10)
    assert isinstance(batch, pa.RecordBatch)
    assert batch.to_pylist() == [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "c", "v": None}]
