"""Streaming DataFrames for tests: the same rows by a data source of a user's own, by Spark's rate source, by files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import penstock as pen
from tests.spark import jobs

ROWS_PER_BATCH = 300
COUNTED = "i BIGINT"


def counting(spark: Any, folder: Path) -> Any:
    """A data source of the user's own: row after row, from any offset again. Numbers 0, 1, 2 and so on."""
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

    rows = ROWS_PER_BATCH

    class Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
            end = {"at": start["at"] + rows}
            return self.readBetweenOffsets(start, end), end

        def readBetweenOffsets(
            self, start: dict[str, int], end: dict[str, int]
        ) -> Iterator[tuple[int]]:
            return iter([(i,) for i in range(start["at"], end["at"])])

    class Counting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def schema(self) -> str:
            return "i bigint"

        def simpleStreamReader(self, schema: Any) -> Reader:
            return Reader()

    spark.dataSource.register(Counting)
    return spark.readStream.format("counting").load()


def rates(spark: Any, folder: Path) -> Any:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    return reader.load().selectExpr("value as i")


def files(spark: Any, folder: Path) -> Any:
    """A folder of files, one in each micro-batch."""
    source = folder / "files"
    fill(source, 60)
    reader = spark.readStream.schema(COUNTED).option("maxFilesPerTrigger", 1)
    return reader.json(str(source))


FRAMES: dict[str, Callable[[Any, Path], Any]] = {
    "counting": counting,
    "rates": rates,
    "files": files,
}


def fill(folder: Path, count: int) -> None:
    """So many files of numbers that follow each other, if they are not there."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        rows = range(number * ROWS_PER_BATCH, (number + 1) * ROWS_PER_BATCH)
        path = folder / f"{number:06}.json"
        if not path.exists():
            temp = folder / f".{path.name}"
            temp.write_text("".join(json.dumps({"i": i}) + "\n" for i in rows))
            temp.rename(path)


def numbered(frame: Any) -> pen.Stream:
    """Its rows with a key each, numbered by key."""
    rows = pen.from_dataframe(frame, "frame")
    keyed = rows.map_batches(with_keys, "i BIGINT, k BIGINT, v BIGINT")
    return jobs.count_up(keyed)


def with_keys(batch: Any) -> Any:
    return jobs.rows_of(batch.column("i").to_numpy())


def start(frame: Any, folder: Path, **options: Any) -> pen.Job:
    pipeline = numbered(frame).to(pen.FileSink(str(folder / "out")), name="out")
    return pipeline.start(
        name="frames", checkpoint=jobs.config(folder / "chk"), restart=jobs.AT_ONCE, **options
    )


def rows_out(folder: Path) -> int:
    return int(jobs.read_parts(folder / "out").num_rows)


def wait_for_every_row(job: pen.Job, folder: Path) -> None:
    """Until all rows are there up to the last that is there now. What is staged for one subtask may be read before
    what was staged earlier for another, so at any moment there may be gaps."""
    last = max(jobs.read_parts(folder / "out")["i"].to_pylist())
    wanted = set(range(last + 1))
    jobs.until_job(job, lambda: wanted <= set(jobs.read_parts(folder / "out")["i"].to_pylist()))


def staged(folder: Path) -> list[Path]:
    """The files of staged rows that are there now; Spark's own temporary folders come and go meanwhile."""
    found = glob(str(folder / "chk/*/taskowned/*/*/rows/*/part-*.parquet"))
    return [Path(each) for each in found]


def sets(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in (folder / "chk").rglob("taskowned/*/*/set.json"))


def bytes_staged(folder: Path) -> int:
    found = 0
    for file in staged(folder):
        with suppress(FileNotFoundError):
            found += file.stat().st_size
    return found
