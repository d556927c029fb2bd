"""Tracebacks show the user's own frames, and every error where the user's code is."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.tracebacks import place_of, user_frames, user_traceback
from penstock.errors import InvariantBroken, SchemaError

HERE = __file__
ROWS = pen.from_rows([("a", 1), ("b", -1)], "k STRING, v BIGINT")


def caught(stream: pen.Stream) -> BaseException:
    with pytest.raises(Exception) as found:
        stream.take()
    return found.value


def divide(row: Any) -> Any:
    return (row.k, 1 // (row.v - 1))


def test_an_exception_in_a_function_is_shown_from_that_function_on() -> None:
    shown = user_traceback(caught(ROWS.map(divide)))
    assert shown.startswith("Traceback (most recent call last):")
    assert f'File "{HERE}", line {divide.__code__.co_firstlineno + 1}, in divide' in shown
    assert shown.rstrip().endswith("ZeroDivisionError: integer division or modulo by zero")
    assert "src/penstock" not in shown


def test_frames_of_ours_between_two_of_the_user_s_are_left_out() -> None:
    def outer(row: Any) -> Any:
        return ROWS.map(divide).take()[0]

    shown = user_traceback(caught(ROWS.map(outer)))
    assert "in outer" in shown and "in divide" in shown
    assert "src/penstock" not in shown


def test_what_the_user_calls_in_a_library_is_shown() -> None:
    def parse(row: Any) -> Any:
        return __import__("json").loads("{")

    assert "json/decoder.py" in user_traceback(caught(ROWS.map(parse)))


def test_a_schema_error_points_at_the_function_that_returned_the_wrong_rows() -> None:
    """No traceback leads there: the function had returned already."""
    line = "def short(row):\n    return (row.k,)\n"
    names: dict[str, Any] = {}
    exec(compile(line, "/home/me/app.py", "exec"), names)
    shown = user_traceback(_in_worker(ROWS.map(names["short"])))
    assert shown == "the function of 'map-2' is in File \"/home/me/app.py\", line 1, in short"


def _in_worker(stream: pen.Stream) -> BaseException:
    """The error as a worker sees it, without the frames of this test."""
    error = caught(stream)
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename == HERE:
        place = place.tb_next
    return error.with_traceback(place)


def test_a_function_is_found_behind_partials_and_in_objects() -> None:
    class Doubled:
        def __call__(self, row: Any) -> Any:
            return row

    class Stateful:
        def process(self, key: Any, rows: Any, ctx: Any) -> Any:
            return rows

    assert "in divide" in place_of(partial(partial(divide)))
    assert "in __call__" in place_of(Doubled())
    assert "in process" in place_of(Stateful())
    assert place_of(len) == ""


def test_an_error_of_ours_without_user_code_is_shown_whole_unless_the_user_can_mend_it() -> None:
    def made(error: Exception) -> BaseException:
        """Raised where only Penstock and Python run."""
        try:
            raise error
        except Exception as raised:
            return raised.with_traceback(None)

    assert "InvariantBroken: no" in user_traceback(made(InvariantBroken("no")))
    assert user_traceback(made(SchemaError("no"))) == ""


def test_a_cause_inside_of_a_library_of_ours_is_left_out() -> None:
    """The message has what the user needs of it."""
    error = caught(ROWS.map(lambda row: (row.k, "x")))
    assert isinstance(error.__cause__, pa.ArrowException | TypeError | ValueError)
    assert "direct cause" not in user_traceback(error)


def test_the_lines_that_led_to_an_error_are_those_of_the_program() -> None:
    with pytest.raises(SchemaError) as found:
        ROWS.key_by("w")
    shown = user_frames(found.value)
    assert 'ROWS.key_by("w")' in shown and "src/penstock" not in shown


@pytest.mark.parametrize(
    ("condition", "hint"),
    [
        (lambda row: row["v"] > 0, 'pen.col("v") > 0'),
        (lambda row: row.v > 0, 'pen.col("v") > 0'),
        (lambda row: row["k"] == "a", 'pen.col("k") == "..."'),
    ],
)
def test_a_filter_that_takes_the_batch_for_a_row_gets_a_hint(condition: Any, hint: str) -> None:
    shown = "".join([str(error := caught(ROWS.filter(condition))), user_traceback(error)])
    assert "filter-2: " in shown
    assert "gets a whole batch" in shown and hint in shown
