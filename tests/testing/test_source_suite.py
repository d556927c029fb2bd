"""The source suite: what a source returns and raises is told with the method, the step and the rule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock.testing import source_conformance, source_suite
from tests.testing.shop import Numbers, NumbersReader


class Odd(Numbers):
    """Good, but for a reader with some other methods."""

    def __init__(self, change: Callable[[NumbersReader], Any]) -> None:
        super().__init__()
        self.change = change

    def reader(self, context: pen.SourceContext, positions: Mapping[int, Any]) -> Any:
        at = {lane: _number(position) for lane, position in positions.items()}
        reader = NumbersReader(context, at, 0)
        self.change(reader)
        return reader


def _number(position: Any) -> Any:
    """Whatever it was wrapped into, as a good source would undo it."""
    while not isinstance(position, int):
        position = next(iter(position.values() if isinstance(position, dict) else position))
    return position


def positions(wrap: Callable[[int], Any]) -> Callable[[NumbersReader], None]:
    def change(reader: NumbersReader) -> None:
        reader.positions = lambda: {lane: wrap(at) for lane, at in reader.at.items()}  # type: ignore[method-assign]

    return change


def method(name: str, function: Callable[..., Any]) -> Callable[[NumbersReader], None]:
    return lambda reader: setattr(reader, name, function)


def raises(*arguments: Any) -> Any:
    raise KeyError("page")


def fails(change: Callable[[NumbersReader], Any]) -> str:
    with pytest.raises(AssertionError) as failed:
        source_conformance(lambda: Odd(change), max_parallelism=8, rows_max=5)
    return str(failed.value)


def test_plain_positions_pass() -> None:
    """E1."""
    for wrap in (lambda at: at, lambda at: [at], lambda at: {"row": at}):
        assert source_conformance(lambda: Odd(positions(wrap)), max_parallelism=8).num_rows == 48  # noqa: B023


@pytest.mark.parametrize(
    ("wrap", "told"),
    [
        (lambda at: (at,), "tuple is not plain data"),
        (lambda at: {at}, "set is not plain data"),
        (np.int64, "int64 is not plain data"),
        (lambda at: bytes([at]), "bytes is not plain data"),
        (lambda at: {1: at}, "a key: expected str, got int"),
    ],
)
def test_positions_that_no_checkpoint_can_keep_are_told_with_what_can(wrap: Any, told: str) -> None:
    """The check is that of the engine: what passes here must not end a job on Spark."""
    text = fails(positions(wrap))
    assert text.startswith("what positions() returned: {0: "), text
    assert told in text
    assert "list(pair) for a tuple" in text
    assert "\n  step   reading it whole, with one subtask\n  calls  subtask 0 of 1: reader(" in text
    assert "\n  rule   " in text


@pytest.mark.parametrize("answer", [None, [(1, 2)], {3}, {"0": 1}, {0: 1, "a": 2}])
def test_positions_are_a_dict_by_lane(answer: Any) -> None:
    assert "positions()" in fails(method("positions", lambda: answer)).split("\n")[0]


@pytest.mark.parametrize("answer", [None, [], pa.table({"number": [1]}), pen.END.__class__])
def test_poll_says_what_it_must_return(answer: Any) -> None:
    text = fails(method("poll", lambda max_rows: answer))
    assert text.startswith("poll() returned ")
    assert "it must return a pa.RecordBatch, pen.Wait(until_ms) when there are no rows yet" in text


def test_a_wait_is_until_a_number() -> None:
    text = fails(method("poll", lambda max_rows: pen.Wait("soon")))  # type: ignore[arg-type]
    assert "it takes milliseconds" in text


@pytest.mark.parametrize("call", ["poll", "positions", "close"])
def test_what_a_reader_raises_is_told_with_the_step_and_the_rule(call: str) -> None:
    text = fails(method(call, raises))
    assert text.startswith(f"{call}("), text
    assert "raised KeyError: 'page'\n  step   reading it whole, with one subtask\n" in text
    assert "\n  rule   poll() returns the rows that are left" in text


def test_what_only_fails_after_a_restart_is_told_with_that_step() -> None:
    class OpensOnce(Numbers):
        def reader(self, context: pen.SourceContext, positions: Mapping[int, Any]) -> Any:
            if positions:
                raise KeyError("page")
            return super().reader(context, positions)

    with pytest.raises(AssertionError) as failed:
        source_conformance(OpensOnce, max_parallelism=8)
    assert str(failed.value).startswith("reader(context, {0: 0, 1: 0, ")
    assert "\n  step   reading it again, and from every position behind a batch\n" in str(
        failed.value
    )
    assert isinstance(failed.value.__cause__, KeyError)


def test_a_reader_that_is_none_is_told() -> None:
    class NoReader(Numbers):
        def reader(self, context: pen.SourceContext, positions: Mapping[int, Any]) -> Any:
            return None

    with pytest.raises(AssertionError, match=r"reader\(\) returned None .* a pen.SourceReader"):
        source_conformance(NoReader)


def test_a_source_that_cannot_be_copied_is_told() -> None:
    class Locked(Numbers):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(AssertionError, match="copying the source for another process raised Type"):
        source_conformance(Locked)


def test_a_source_without_an_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_suite, "POLLS_MAX", 50)
    empty = pa.RecordBatch.from_pylist([], pa.schema([("number", pa.int64())]))
    assert fails(method("poll", lambda max_rows: empty)).startswith(
        "after 50 polls there is no end"
    )


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Numbers(), r"is no function; .* as in source_conformance\(lambda: Numbers\(\.\.\.\)\)"),
        (None, r"as in source_conformance\(lambda: MySource\(\.\.\.\)\)"),
        (lambda: 7, r"make_source\(\) returned 7 \(int\), and no pen.Source"),
        (lambda path: Numbers(), "the lambda cannot be called with no arguments"),
    ],
)
def test_a_source_that_is_none_is_refused(make: Any, told: str) -> None:
    with pytest.raises(pen.ConfigError, match=told):
        source_conformance(make)


def test_sizes_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(pen.ConfigError, match="rows_max: 0 is out of range"):
        source_conformance(Numbers, rows_max=0)
