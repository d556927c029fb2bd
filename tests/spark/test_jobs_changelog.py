"""A job on real Spark that writes its state ahead of checkpoints, and loses workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.engine.spec import Changelogs
from penstock.shells.spark import storing
from penstock.wire import manifest as manifests
from penstock.wire import paths
from tests.spark import jobs
from tests.spark.taps import Tap
from tests.spark.test_jobs_local_copies import KEYS, Long, many_keys

pytestmark = pytest.mark.spark
ROWS = 60_000
AHEAD, MATERIALIZED = (
    f'penstock_changelog_bytes_total{{written="{written}"}}'
    for written in ("ahead", "materialized")
)


def test_a_job_goes_on_from_what_was_written_ahead(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7, R1, I1: kill -9 of a worker, when checkpoints have begun with a materialization and gone on with what was
    written ahead of their barriers. Files that no checkpoint refers to are gone at the end."""
    monkeypatch.setattr(storing, "Changelogs", lambda every: Changelogs(every, ahead_bytes=20_000))
    sink, tap = pen.CollectSink(), Tap(tmp_path / "end", rate=4_000, held=ROWS - 1_000)
    keyed = tap.stream().map_batches(many_keys, jobs.SCHEMA).key_by("k")
    often: Any = {"every": "1 second", "materialize_every": "2 seconds"}
    chk = jobs.config(tmp_path / "chk", changelog=True, **often)
    pipeline = keyed.process(Long(), jobs.NUMBERED).to(sink)
    options: Any = {"checkpoint": chk, "restart": jobs.AT_ONCE}
    job = pipeline.start(spark, name=tmp_path.name, parallelism=2, **options)
    with jobs.running(job):
        seen: set[str] = set()
        jobs.until_job(job, lambda: {"log", "base"} <= noted(seen, tmp_path / "chk"))
        jobs.kill(jobs.workers()[0])
        jobs.until_job(job, lambda: jobs.restarts(job) > 0)
        jobs.more_checkpoints(job, 2)
        assert job.metrics()[AHEAD] > 0
        assert job.metrics()[MATERIALIZED] > 0
        tap.end(ROWS)
        jobs.finish(job)
    table = sink.to_table()
    jobs.assert_each_once(table["i"].to_pylist(), ROWS)
    nths = sorted(zip(table["k"].to_pylist(), table["nth"].to_pylist(), strict=True))
    assert nths == [(key, n) for key in range(KEYS) for n in range(1, ROWS // KEYS + 1)]
    there = {f"shared/{file.name}" for file in (tmp_path / "chk").glob("*/shared/*")}
    assert there <= {name for files in referred(tmp_path / "chk") for name in files}


def referred(folder: Path) -> list[tuple[str, ...]]:
    """What each checkpoint refers to. One that goes meanwhile is passed over."""
    found = []
    for file in sorted(folder.glob("*/chk-*/_metadata")):
        try:
            found.append(manifests.decode(file.read_bytes(), str(file)).files)
        except FileNotFoundError:
            continue
    return found


def noted(seen: set[str], folder: Path) -> set[str]:
    """What checkpoints were made of so far."""
    files = [name for names in referred(folder) for name in names]
    seen.update(str(shared.role) for shared in paths.shared_among(files))
    return seen
