"""The sink suite: each of these sinks has one bug, and the suite says which, in which step, and what the rule is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import CommitError
from penstock.testing import MemoryTable, sink_conformance
from penstock.testing.sink_place import not_plain, not_plain_positions

BUGS = {
    "commits what is gone without a word": "aborted transaction returned without an error",
    "takes the rows when they are made durable": "rows came while the first transaction",
    "forgets what it published when it recovers": "attempt 4 recovered",
    "takes other jobs for its own": "must leave alone what was staged by another job; .*CommitError",
    "aborts what comes later": "must leave alone what was staged by a later attempt; .*CommitError",
    "loses rows of other sinks": "staged by another sink of the job, named 'out-1'; .*rows lost: 2",
}


class Staging(pen.Sink):
    def __init__(self, bug: str = "") -> None:
        self.table = MemoryTable()
        self.bug = bug

    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        return StagingWriter(self.table, context, self.bug)

    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        return StagingCommitter(self.table, context, self.bug)


class StagingWriter(pen.SinkWriter):
    """Makes its rows durable in the background."""

    def __init__(self, table: MemoryTable, context: pen.SinkContext, bug: str) -> None:
        self.table, self.context, self.bug = table, context, bug
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def prepare(self, checkpoint: int) -> Callable[[], str | None]:
        context = self.context
        owner = f"{context.job}/{context.operator}"
        name = f"{owner}/{context.index}/{context.attempt}/{checkpoint}"
        rows, self.rows = self.rows, []
        late = self.bug == "takes the rows when they are made durable"

        def make_durable() -> str | None:
            taken = rows
            if late:
                taken, self.rows = rows + self.rows, []
            if not taken:
                return None
            self.table.staged[name] = taken
            return name

        return make_durable


class StagingCommitter(pen.SinkCommitter):
    def __init__(self, table: MemoryTable, context: pen.SinkContext, bug: str) -> None:
        self.table, self.context, self.bug = table, context, bug

    def commit(self, transaction: Any) -> None:
        if transaction is None or transaction in self.table.published:
            return
        if transaction not in self.table.staged:
            if self.bug == "commits what is gone without a word":
                return
            raise CommitError(f"{transaction} is gone")
        keeps = self.bug == "forgets what it published when it recovers"
        rows = self.table.staged[transaction]
        self.table.rows += rows
        self.table.published.add(transaction)
        if not keeps:
            del self.table.staged[transaction]

    def abort_others(self, keep: Sequence[Any]) -> None:
        context = self.context
        for name in list(self.table.staged):
            owner, index, attempt, _ = name.rsplit("/", 3)
            job, operator = owner.split("/")
            any_job = self.bug == "takes other jobs for its own"
            earlier = int(attempt) < context.attempt
            if self.bug == "aborts what comes later":
                earlier = int(attempt) != context.attempt
            mine = (any_job or job == context.job) and earlier
            if self.bug == "loses rows of other sinks" and operator == "out-1":
                self.table.staged[name] = []
            mine = mine and operator == context.operator
            if mine and int(index) % context.parallelism == context.index and name not in keep:
                del self.table.staged[name]
        if self.bug == "forgets what it published when it recovers" and context.attempt > 2:
            self.table.published.clear()


def conforms(bug: str) -> None:
    sink_conformance(
        lambda: Staging(bug),
        read_back=lambda sink: pa.Table.from_pylist(sink.table.rows),
        count_staged=lambda sink: 0 if bug else len(sink.table.staged),
    )


def test_a_sink_that_prepares_in_the_background_passes() -> None:
    """E2: commits in any order, aborts, repeated recoveries and a crash behind every step."""
    conforms("")


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_sink_with_a_bug_in_its_recovery_does_not_pass(bug: str) -> None:
    """E2, E3, I10."""
    with pytest.raises(AssertionError, match=BUGS[bug]):
        conforms(bug)


# ---- what a sink returns and raises


class Odd(Staging):
    """A good sink, but for one method."""

    def __init__(self, **methods: Any) -> None:
        super().__init__()
        self.methods = methods

    def writer(self, context: pen.SinkContext) -> Any:
        return self._with_odd_methods(StagingWriter(self.table, context, ""))

    def committer(self, context: pen.SinkContext) -> Any:
        return self._with_odd_methods(StagingCommitter(self.table, context, ""))

    def _with_odd_methods(self, made: Any) -> Any:
        for name, method in self.methods.items():
            if hasattr(made, name):
                setattr(made, name, partial(method, getattr(made, name)))
        return made


def raising(error: Exception) -> Callable[..., Any]:
    def method(*arguments: Any) -> Any:
        raise error

    return method


def fails(make_sink: Callable[[], Any], **options: Any) -> str:
    read_back = options.pop("read_back", lambda sink: sink.table.rows)
    with pytest.raises(AssertionError) as failed:
        sink_conformance(make_sink, read_back, **options)
    return str(failed.value)


@pytest.mark.parametrize(
    ("wrap", "told"),
    [
        (lambda name: (name, 1), "tuple is not plain data"),
        (lambda name: {name}, "set is not plain data"),
        (str.encode, "bytes is not plain data"),
        (lambda name: {1: name}, "a key: expected str, got int"),
        (lambda name: [{"at": (name,)}], "[0].at: tuple is not plain data"),
    ],
)
@pytest.mark.parametrize("in_background", [True, False])
def test_what_no_checkpoint_can_keep_is_told_with_what_can(
    wrap: Any, told: str, in_background: bool
) -> None:
    """The check is that of the engine: what passes here must not end a job on Spark."""

    def prepare(good: Any, checkpoint: int) -> Any:
        name = good(checkpoint)()
        wrapped = None if name is None else wrap(name)
        return (lambda: wrapped) if in_background else wrapped

    text = fails(lambda: Odd(prepare=prepare))
    assert text.startswith("what ")
    assert "prepare(1) returned: " in text
    assert told in text
    assert "list(pair) for a tuple" in text
    assert "  step   write, prepare and commit" in text


@pytest.mark.parametrize("call", ["write", "prepare", "commit", "abort_others", "close"])
def test_what_a_sink_raises_is_told_with_the_step_the_calls_and_the_rule(call: str) -> None:
    with pytest.raises(AssertionError) as failed:
        sink_conformance(
            lambda: Odd(**{call: raising(KeyError("shelf"))}), lambda sink: sink.table.rows
        )
    text = str(failed.value)
    assert text.startswith(f"{call}("), text
    assert "raised KeyError: 'shelf'\n  step   " in text
    assert f"subtask 0 of {'2' if call == 'abort_others' else '1'}, attempt" in text
    assert "\n  rule   " in text
    assert isinstance(failed.value.__cause__, KeyError), "with the user's own traceback"


def test_a_difference_is_told_with_the_step_and_the_rule_too() -> None:
    text = fails(lambda: Staging("takes the rows when they are made durable"))
    assert "\n  step   rows that are written while a transaction is made durable\n  calls  " in text
    assert text.endswith(
        "rule   rows that are written after prepare() belong to the next transaction"
    )


@pytest.mark.parametrize("after", [0, 1, 5])
def test_none_for_rows_is_refused_and_never_committed(after: int) -> None:
    committed: list[Any] = []

    def prepare(good: Any, checkpoint: int) -> Any:
        name = good(checkpoint)()
        return None if len(committed) >= after else name

    def commit(good: Any, transaction: Any) -> None:
        committed.append(transaction)
        good(transaction)

    text = fails(lambda: Odd(prepare=prepare, commit=commit))
    assert "returned None although there are rows to commit: " in text
    assert None not in committed


def test_a_writer_or_committer_that_is_none_is_told() -> None:
    class NoWriter(Staging):
        def writer(self, context: pen.SinkContext) -> Any:
            return None

    class NoCommitter(Staging):
        def committer(self, context: pen.SinkContext) -> Any:
            return None

    assert "writer() returned None (NoneType), which has no write(); it must" in fails(NoWriter)
    assert "must return a pen.SinkCommitter" in fails(NoCommitter)


def test_a_sink_that_cannot_be_copied_is_told() -> None:
    class Locked(Staging):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    assert "copying the sink for another process raised TypeError: cannot pickle" in fails(Locked)


def test_the_driver_is_only_given_plain_data() -> None:
    class ToDriver(Staging):
        def committer(self, context: pen.SinkContext) -> Any:
            made = StagingCommitter(self.table, context, "")
            made.commit = lambda transaction: context.to_driver({"a", transaction})  # type: ignore[arg-type, method-assign]
            return made

    assert "what to_driver() was given: {'" in fails(ToDriver)


# ---- the arguments


def test_the_same_place_twice_is_told() -> None:
    shared = Staging()
    text = fails(lambda: shared)
    assert text.startswith("make_sink must give an empty place at each call, and before anything")
    half = Staging()
    half.table.staged["job/out/0/1/1"] = [{"id": 0, "text": "row 0"}]
    text = fails(lambda: half, count_staged=lambda sink: len(sink.table.staged))
    assert "must give an empty place at each call, and before anything is written count_st" in text


@pytest.mark.parametrize(
    "convert",
    [
        lambda rows: rows,
        lambda rows: [(row["id"], row["text"]) for row in rows],
        lambda rows: pd.DataFrame(rows, columns=["id", "text"]),
        lambda rows: pa.Table.from_pylist(rows, SCHEMA),
        lambda rows: pa.Table.from_pylist(rows, SCHEMA).to_batches(),
        lambda rows: iter(rows),
    ],
)
def test_rows_are_read_back_as_in_simulate(convert: Callable[[Any], Any]) -> None:
    sink_conformance(
        Staging,
        read_back=lambda sink: convert(sink.table.rows),
        count_staged=lambda sink: len(sink.table.staged),
    )


SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
ROWS = {"read_back": lambda sink: sink.table.rows}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"make_sink": Staging(), **ROWS}, r"as in sink_conformance\(lambda: Staging\(\.\.\.\), "),
        ({"make_sink": lambda: 7, **ROWS}, r"make_sink\(\) returned 7 \(int\), and no pen.Sink"),
        ({"make_sink": lambda path: 7, **ROWS}, "the lambda cannot be called with no arguments"),
        ({"read_back": 7}, "read_back=7 .* is no function; give one that takes the sink"),
        ({"read_back": lambda: [1]}, "cannot be called with 1 argument; give"),
        ({"read_back": lambda sink: None}, "read_back returned None; it must return the rows"),
        ({"read_back": lambda sink: [1]}, "read_back did not return rows of the sink's schema"),
        ({"count_staged": 7, **ROWS}, "count_staged=7"),
        ({"count_staged": lambda sink: sink.table.staged, **ROWS}, r"returned {} .* len\(\.\.\.\)"),
        ({"make_rows": lambda start, n: [1], **ROWS}, r"must return a pa.RecordBatch of 3 rows"),
        ({"schema": "id BIGINT", **ROWS}, "is no pa.Schema"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: Any, told: str) -> None:
    with pytest.raises(pen.ConfigError, match=told):
        sink_conformance(**{"make_sink": Staging, **arguments})


def test_a_read_back_that_raises_is_told_with_the_step() -> None:
    text = fails(Staging, read_back=lambda sink: sink.tabel.rows)
    assert "read_back(sink) raised AttributeError: " in text
    assert "  step   write, prepare and commit" in text


@pytest.mark.parametrize("value", [1 << 70, float("nan"), ["a\udcff"]])
def test_plain_data_that_no_document_can_hold_is_refused_as_the_engine_does(value: Any) -> None:
    assert "cannot be kept in a checkpoint" in (not_plain(value) or "")
    assert "cannot be kept in a checkpoint" in (not_plain_positions({0: value}) or "")
