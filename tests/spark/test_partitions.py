"""Folders of a `FileSink` with `partition_by`, and those that Spark itself makes: the same, and Spark reads both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.base import SinkContext
from penstock.connectors.sinks import FileSink

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("n", pa.int32())])
TEXTS = [
    *("a/b", "../x", "50%", "x=y", "a b", "é", "\n", "\x7f", "\"#'*:?\\{[]^}<>|&;~,"),
    None,
    "",
]
ROWS = [(number, text, number % 2) for number, text in enumerate(TEXTS)]


def folders(path: Path) -> set[str]:
    return {str(file.parent.relative_to(path)) for file in path.rglob("part-*.parquet")}


def test_spark_names_the_folders_the_same_and_reads_the_rows_back(
    spark: Any, tmp_path: Path
) -> None:
    """E4: special characters, nulls and empty texts."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    sink = FileSink(str(ours), partition_by=["text", "n"])
    context = SinkContext("job", "out", 0, 1, 1, SCHEMA, lambda item: None)
    writer, committer = sink.writer(context), sink.committer(context)
    columns = [pa.array(c, f.type) for c, f in zip(zip(*ROWS, strict=True), SCHEMA)]
    for checkpoint in (1, 2):
        writer.write(pa.record_batch(columns, schema=SCHEMA))
        made = writer.prepare(checkpoint)
        if checkpoint == 1:
            committer.commit(made() if callable(made) else made)
    frame = spark.createDataFrame(ROWS, "id BIGINT, text STRING, n INT")
    frame.write.partitionBy("text", "n").parquet(str(theirs))
    assert folders(ours) == folders(theirs)
    read = spark.read.schema("id BIGINT, text STRING, n INT").parquet(str(ours))
    found = {row.id: (row.text, row.n) for row in read.collect()}
    assert found == {number: (text or None, n) for number, text, n in ROWS}
    assert spark.read.parquet(str(ours)).count() == len(ROWS)
