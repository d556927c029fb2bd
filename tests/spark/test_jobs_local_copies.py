"""Workers on real Spark read their state back from their own disks, and leave nothing there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import penstock as pen
from penstock.shells.spark.copies_dir import PREFIX, local_dir
from tests.spark import jobs
from tests.spark.ends import until
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
ROWS, KEYS = 20_000, 2_000
LOCAL, PRIMARY = (
    f'penstock_restored_bytes_total{{copy="{copy}"}}' for copy in ("local", "primary")
)


class Long:
    """Numbers the rows of each key, with state that is too large to travel in the metadata."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.value_state("seen", "n BIGINT, padding STRING")

    def process(self, key: Any, rows: Iterable[Any], ctx: Any) -> Iterator[tuple[int, int, int]]:
        n = (self.seen.get() or (0, ""))[0]
        for row in rows:
            n += 1
            yield (key.k, row.i, n)
        self.seen.update((n, f"{key.k}" * 20))


def many_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    i = batch.column("i").to_numpy()
    columns = [pa.array(i), pa.array(i % KEYS), pa.array(i)]
    return pa.RecordBatch.from_arrays(columns, names=["i", "k", "v"])


class Copied:
    """A job with copies whose input ends when a test says so."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.sink = pen.CollectSink()
        self.tap = Tap(folder / "end", rate=4_000, held=ROWS - 1_000)
        keyed = self.tap.stream().map_batches(many_keys, jobs.SCHEMA).key_by("k")
        pipeline = keyed.process(Long(), jobs.NUMBERED).to(self.sink)
        chk = jobs.config(folder / "chk", local_recovery=True)
        options: Any = {"checkpoint": chk, "restart": jobs.AT_ONCE}
        self.job = pipeline.start(spark, name=folder.name, parallelism=2, **options)

    def lose_a_worker(self) -> None:
        """And wait until the job has completed checkpoints after that."""
        before = jobs.restarts(self.job)
        jobs.kill(jobs.workers()[0])
        jobs.until_job(self.job, lambda: jobs.restarts(self.job) > before)
        jobs.more_checkpoints(self.job, 2)

    def begin(self) -> None:
        """Until there are checkpoints. Where its workers may write only they know."""
        jobs.more_checkpoints(self.job, 3)
        given = psutil.Process(jobs.workers()[0]).environ()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_LOCAL_DIRS", given["SPARK_LOCAL_DIRS"])
            self.host = local_dir()

    def folders(self) -> list[Path]:
        """Of its copies on this host."""
        return list(self.host.glob(f"{PREFIX}{self.job.id}-*"))

    def finish(self) -> None:
        self.tap.end(ROWS)
        jobs.finish(self.job)
        until(lambda: not self.folders())
        table = self.sink.to_table()
        jobs.assert_each_once(table["i"].to_pylist(), ROWS)
        nths = sorted(zip(table["k"].to_pylist(), table["nth"].to_pylist(), strict=True))
        assert nths == [(key, n) for key in range(KEYS) for n in range(1, ROWS // KEYS + 1)]


def is_unusable(disk: Path) -> bool:
    """Puts a file where a folder has to be, unless a worker makes that again in the same moment."""
    shutil.rmtree(disk, ignore_errors=True)
    with suppress(FileExistsError, IsADirectoryError):
        disk.touch(exist_ok=False)
    return disk.is_file()


def test_a_killed_worker_is_replaced_by_one_that_reads_its_copy(spark: Any, tmp_path: Path) -> None:
    """R4, bug-E8: all bytes come from the disks of the workers, and the output is what it would have been."""
    copied = Copied(spark, tmp_path)
    with jobs.running(copied.job) as job:
        copied.begin()
        copied.lose_a_worker()
        restored = next(info for info in job.checkpoints() if info.restored_bytes)
        assert restored.restored_local_bytes == restored.restored_bytes > 16_384
        assert f"{restored.restored_bytes:,} of them from local copies" in repr(restored)
        jobs.until_job(job, lambda: job.metrics()[LOCAL] >= restored.restored_bytes)
        assert job.metrics()[PRIMARY] == 0
        assert [(f.stat().st_mode & 0o777) for f in copied.folders()] == [0o700]
        copied.finish()


def test_with_a_broken_disk_a_job_goes_on_from_the_checkpoint_directory(
    spark: Any, tmp_path: Path
) -> None:
    """R4, bug-E8: no checkpoint fails, and it shows in the numbers."""
    copied = Copied(spark, tmp_path)
    with jobs.running(copied.job) as job:
        copied.begin()
        (folder,) = copied.folders()
        until(lambda: is_unusable(folder / "files"))
        copied.lose_a_worker()
        jobs.until_job(job, lambda: job.metrics()[PRIMARY] > 16_384)
        jobs.until_job(job, lambda: job.metrics()["penstock_local_copies_lost_total"] > 0)
        assert jobs.only_lost_workers(job)
        copied.finish()
