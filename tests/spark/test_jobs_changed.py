"""A job is stopped and started again, changed and at another parallelism: its state goes with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from tests.spark import jobs
from tests.spark.ends import PATIENCE_S
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
ROWS = 600
BEFORE = 400


class Remembers:
    """Lists every row that came, whatever its key; and who has been here."""

    def open(self, ctx: pen.ProcessContext) -> None:
        self.rows = ctx.split_list_state("rows", "i BIGINT")
        self.lives = ctx.union_list_state("lives", "parallelism INT, subtask INT, seen INT")
        self.lives.add((ctx.parallelism, ctx.index, len(self.lives.get())))

    def process(self, key: Any, rows: list[Any], ctx: pen.ProcessContext) -> Iterator[Any]:
        for row in rows:
            self.rows.add((row.i,))
        yield key.k, len(rows)


def test_a_changed_job_goes_on_with_its_state_at_another_parallelism(
    spark: Any, tmp_path: Path
) -> None:
    """S2, S10, P5, R6, I1: with an aggregate more and one less, and with lists that belong to no key."""
    tap, folder = Tap(tmp_path / "end", rate=2_500, held=BEFORE), tmp_path / "chk" / "changed"

    def start(parallelism: int, aggregates: dict[str, pen.Aggregate], **options: Any) -> pen.Job:
        numbers = tap.stream()
        listed = numbers.key_by("k").process(Remembers(), "k BIGINT, n BIGINT").named("listed")
        totals = numbers.key_by("k").agg(**aggregates).named("totals")
        pipeline = pen.Pipeline(
            listed.to(pen.BlackholeSink(), name="a"), totals.to(pen.BlackholeSink(), name="b")
        )
        return pipeline.start(
            spark,
            name="changed",
            parallelism=parallelism,
            checkpoint=jobs.config(tmp_path / "chk"),
            restart=jobs.AT_ONCE,
            **options,
        )

    def state(operator: str, name: str) -> list[Any]:
        options = {"operator": operator, "state": name}
        return spark.read.format("penstock").options(**options).load(str(folder)).collect()

    job = start(3, {"n": pen.count(), "top": pen.max("v")})
    with jobs.running(job):
        jobs.until_job(job, lambda: jobs.rows_in(job, "listed") == BEFORE)
        assert job.stop(timeout=PATIENCE_S)
    assert sorted(row.i for row in state("listed", "rows")) == list(range(BEFORE))

    job = start(2, {"total": pen.sum("v"), "n": pen.count()}, allow_non_restored_state=True)
    tap.end(ROWS)
    with jobs.running(job):
        jobs.finish(job)
    assert sorted(row.i for row in state("listed", "rows")) == list(range(ROWS))
    lives = sorted((row.parallelism, row.subtask, row.seen) for row in state("listed", "lives"))
    assert lives == [(2, 0, 3), (2, 1, 3), (3, 0, 0), (3, 1, 0), (3, 2, 0)]
    found = {row.k: (row.n, row.total) for row in state("totals", "aggregate")}
    keys = range(jobs.KEYS)
    rows = {k: [i for i in range(ROWS) if jobs.key_of(i) == k] for k in keys}
    late = {k: [jobs.value_of(i) for i in rows[k] if i >= BEFORE] for k in keys}
    assert found == {k: (len(rows[k]), sum(late[k])) for k in keys}
