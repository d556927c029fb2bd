"""Jobs on real Spark whose state lies in RocksDB: workers and drivers are killed, and it is restored in other ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import penstock as pen
from penstock.shells.spark.floors_dir import PREFIX, floors_parent
from tests.spark import jobs
from tests.spark.ends import until
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
ROWS, KEYS = 24_000, 3_000


class Numbers:
    """Numbers the rows of each key, and keeps the last few of them."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.value_state("seen", "n BIGINT, padding STRING")
        self.last = ctx.list_state("last", "i BIGINT")
        self.by_kind = ctx.map_state("by_kind", "kind STRING", "n BIGINT")

    def process(self, key: Any, rows: Iterable[Any], ctx: Any) -> Iterator[tuple[int, int, int]]:
        n = (self.seen.get() or (0, ""))[0]
        assert len(self.last.get()) == n, "the list has what the number says"
        assert sum(row.n for row in self.by_kind.values()) == n, "and so has the map"
        for row in rows:
            n += 1
            self.last.add((row.i,))
            kind = "even" if row.i % 2 == 0 else "odd"
            self.by_kind.put(kind, ((self.by_kind.get(kind) or (0,))[0] + 1,))
            yield (key.k, row.i, n)
        self.seen.update((n, f"{key.k}" * 40))


def many_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    i = batch.column("i").to_numpy()
    columns = [pa.array(i), pa.array(i % KEYS), pa.array(i)]
    return pa.RecordBatch.from_arrays(columns, names=["i", "k", "v"])


def numbered(tap: Tap) -> Any:
    return (
        tap.stream()
        .map_batches(many_keys, jobs.SCHEMA)
        .key_by("k")
        .process(Numbers(), jobs.NUMBERED)
    )


def check(table: pa.Table) -> None:
    jobs.assert_each_once(table["i"].to_pylist(), ROWS)
    nths = sorted(zip(table["k"].to_pylist(), table["nth"].to_pylist(), strict=True))
    assert nths == [(key, n) for key in range(KEYS) for n in range(1, ROWS // KEYS + 1)]


def folders() -> list[Path]:
    """Of the floors of the workers that live."""
    local = set()
    for pid in jobs.workers():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_LOCAL_DIRS", psutil.Process(pid).environ()["SPARK_LOCAL_DIRS"])
            local.add(floors_parent())
    return [path for each in local for path in each.glob(f"{PREFIX}*") if path.is_dir()]


def test_a_killed_worker_is_replaced_and_every_row_counts_once(spark: Any, tmp_path: Path) -> None:
    """S5, R1, I1, I26: value, list and map state; what the dead worker had on its disk goes."""
    sink, tap = pen.CollectSink(), Tap(tmp_path / "end", rate=4_000, held=ROWS - 1_000)
    chk = jobs.config(tmp_path / "chk", backend="rocksdb", state_memory="16 MiB")
    job = (
        numbered(tap)
        .to(sink)
        .start(spark, name="rocks", parallelism=2, checkpoint=chk, restart=jobs.AT_ONCE)
    )
    with jobs.running(job):
        for _ in range(2):
            jobs.more_checkpoints(job, 2)
            before = jobs.restarts(job)
            jobs.kill(jobs.workers()[0])
            jobs.until_job(job, lambda before=before: jobs.restarts(job) > before)
        jobs.more_checkpoints(job, 2)
        until(lambda: len(folders()) == 2)
        local = {path.parent for path in folders()}
        tap.end(ROWS)
        jobs.finish(job)
        check(sink.to_table())
        until(lambda: not [path for each in local for path in each.glob(f"{PREFIX}*")])


def test_state_in_rocksdb_goes_on_in_memory_and_back_and_can_be_read(
    spark: Any, tmp_path: Path
) -> None:
    """I23, R6, P5: the same job with another backend and another parallelism, again and again."""
    tap = Tap(tmp_path / "end", rate=6_000, held=ROWS - 1_000)
    out = tmp_path / "out"
    ways = [("rocksdb", 2), ("heap", 3), ("rocksdb", 1), ("rocksdb", 3)]
    for backend, parallelism in ways:
        chk = jobs.config(tmp_path / "chk", backend=backend, state_memory="16 MiB")
        pipeline = numbered(tap).to(pen.FileSink(out, format="parquet"))
        job = pipeline.start(
            spark, name="moved", parallelism=parallelism, checkpoint=chk, restart=jobs.AT_ONCE
        )
        with jobs.running(job):
            jobs.more_checkpoints(job, 2)
            if (backend, parallelism) == ways[-1]:
                tap.end(ROWS)
                jobs.finish(job)
            else:
                job.stop()
    import pyarrow.dataset as ds

    check(ds.dataset(out).to_table())
    state = spark.read.format("penstock").option("path", str(tmp_path / "chk" / "moved"))
    seen = state.option("operator", job_operator(tmp_path)).option("state", "seen").load()
    assert {(row.k, row.n) for row in seen.collect()} == {(k, ROWS // KEYS) for k in range(KEYS)}


def job_operator(folder: Path) -> str:
    """The name that the function got."""
    from penstock.wire import manifest

    newest = max((folder / "chk" / "moved").glob("chk-*/_metadata"))
    operators = manifest.decode(
        newest.read_bytes(), "chk-1/_metadata".replace("1", newest.parent.name[4:])
    )
    return next(each.name for each in operators.operators if "process" in each.name)
