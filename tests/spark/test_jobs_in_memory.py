"""Jobs on real Spark that keep their checkpoints in the driver's memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.shells.spark.storing import _staging_folder
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S
from tests.spark.taps import Slow, Tap

pytestmark = pytest.mark.spark
ROWS = 20_000


def in_memory(**options: Any) -> pen.CheckpointConfig:
    return pen.CheckpointConfig("memory:", every="150 ms", **options)


def kill_one(job: pen.Job) -> None:
    """When there is a checkpoint to go on from; waits until there is one of the next attempt."""
    jobs.more_checkpoints(job, 2)
    before = jobs.restarts(job)
    jobs.kill(jobs.workers()[0])
    jobs.until_job(job, lambda: jobs.restarts(job) > before)
    jobs.more_checkpoints(job)


@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
def test_a_killed_worker_goes_on_exactly_once(spark: Any, tmp_path: Path, unaligned: bool) -> None:
    """T1, R1, I1, I2: nothing but the driver's memory has the state. Started again in the same program the job goes
    on where it stood."""
    tap = Tap(tmp_path / "end", rate=2_000, held=ROWS)
    name, config = f"in memory {unaligned}", in_memory(unaligned=unaligned)
    program = jobs.to_files(tmp_path / "out", tap.stream())
    with jobs.running(
        program.start(spark, name=name, checkpoint=config, restart=jobs.AT_ONCE)
    ) as job:
        kill_one(job)
        assert [info.path for info in job.checkpoints() if info.path] == []
        assert job.stop(timeout=PATIENCE_S)
    tap.end(ROWS)
    with jobs.running(program.start(spark, name=name, checkpoint=config)) as job:
        jobs.finish(job)
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), ROWS)


def staged() -> list[Path]:
    return list(Path(_staging_folder()).rglob("rows/*/part-*.parquet"))


def test_rows_of_a_dataframe_count_once_too(spark: Any, tmp_path: Path) -> None:
    """T1, E1, I1: they are staged for as long as the checkpoints are kept."""
    slow = Slow(tmp_path / "go")
    frame = spark.range(ROWS).repartition(4).selectExpr("id as i", "(id * 7919) % 17 as k")
    stream = pen.from_dataframe(frame, "frame").map_batches(slow, "i BIGINT, k BIGINT")
    job = jobs.to_files(tmp_path / "out", stream).start(
        spark, name="frame in memory", checkpoint=in_memory(), restart=jobs.AT_ONCE
    )
    with jobs.running(job):
        kill_one(job)
        assert staged()
        slow.release()
        jobs.finish(job)
    jobs.assert_numbered(jobs.read_parts(tmp_path / "out"), ROWS)
    assert not staged()


class Hoard:
    """Keeps six megabytes for its only key."""

    def open(self, ctx: Any) -> None:
        self.all = ctx.value_state("all", "text STRING")

    def process(self, key: Any, rows: Iterable[Any], ctx: Any) -> Iterator[tuple[int]]:
        self.all.update(("x" * (6 << 20),))
        yield from ((row.i,) for row in rows)


def test_state_that_is_too_large_says_what_to_do(spark: Any, tmp_path: Path) -> None:
    """T1: what, where, how much, and what to do instead."""
    tap = Tap(tmp_path / "end", rate=100)
    hoard = tap.stream().key_by("k").process(Hoard(), "i BIGINT").named("hoard")
    job = hoard.to(pen.CollectSink()).start(
        spark, name="hoard", checkpoint=in_memory(), restart=pen.NoRestart()
    )
    with jobs.running(job), pytest.raises(pen.JobFailed) as caught:
        jobs.finish(job)
    told = str(caught.value)
    assert "state 'all' of operator 'hoard' in subtask" in told
    assert "5,242,880" in told and 'CheckpointConfig("checkpoints/")' in told
