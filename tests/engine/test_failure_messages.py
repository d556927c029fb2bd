"""What a worker says about a failure, in the one line that everybody reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.connectors.base import SourceContext
from penstock.connectors.sources.files import FileSource
from penstock.engine.operators.rows import Filter
from penstock.engine.worker.worker import _shown, _with_hints
from penstock.errors import DataError, SchemaError
from penstock.protocol.messages import Failed, Start
from tests.engine.test_worker import E1, Bench, deploy

POSITION = "/in/a.csv, before row 0 of those read"


def test_a_filter_written_for_rows_is_told_in_the_message_itself() -> None:
    """Not only in the traceback: the log and `job.exceptions` show the message."""
    bench = Bench(lambda: Filter(lambda row: row.nothing > 3))
    bench.tell(deploy(E1))
    (failed,) = [m for m in bench.tell(Start(E1, {})) if isinstance(m, Failed)]
    assert failed.error == "AttributeError"
    assert "; work: the function of a filter gets a whole batch" in failed.message


def test_notes_of_our_own_errors_stay_out_of_the_message() -> None:
    """They are about places, and shown below it."""
    ours, theirs = SchemaError("two columns"), ValueError("bad")
    for error in (ours, theirs):
        error.add_note("a note")
    assert (_with_hints(ours), _with_hints(theirs)) == ("two columns", "bad; a note")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (DataError("/in/a.csv, line 3: 'x' is no BIGINT"), ""),
        (DataError("the sum is too large"), f" (at {POSITION})"),
        (ValueError("cannot read /in/a.csv"), f" (at {POSITION})"),
    ],
)
def test_a_position_is_told_where_the_error_names_no_place_itself(
    error: Exception, shown: str
) -> None:
    assert _shown(POSITION, error) == shown
    assert _shown("", error) == ""


def test_a_bad_line_of_a_file_is_told_with_one_place_only(tmp_path: Path) -> None:
    """The number of rows read beside the number of the line would only confuse."""
    (tmp_path / "a.csv").write_text("n\n1\nx\n")
    source = FileSource(str(tmp_path), format="csv", schema="n BIGINT")
    context = SourceContext("in", 0, 1, 8, lambda: 0.0)
    reader = source.reader(context, {})
    with pytest.raises(DataError, match="a.csv, line 3") as caught:
        reader.poll(10)
    assert reader.describe().startswith(f"{tmp_path}/a.csv, before row")
    assert _shown(reader.describe(), caught.value) == ""


def test_the_hint_is_for_columns_that_there_are() -> None:
    with pytest.raises(AttributeError) as caught:
        list(Filter(lambda row: row.b).process(pa.record_batch({"a": [1], "b": [2]}), 0))
    assert 'pen.col("b") > 0' in caught.value.__notes__[0]
