"""Too little memory for the workers is told when a job starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.shells.spark import memory
from penstock.shells.spark.memory import container_limit, size_in_bytes, warn_of_little_memory
from tests.spark import jobs

GIB = 1 << 30


class Context:
    """As much of a SparkContext as is asked."""

    def __init__(self, settings: dict[str, str], master: str = "local[4,1000]") -> None:
        self.settings = settings
        self.master = master

    def getConf(self) -> dict[str, str]:
        return self.settings


def told(
    caplog: pytest.LogCaptureFixture, context: Context, workers: int = 2, limit: int | None = None
) -> list[str]:
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "penstock"):
        patch.setattr(memory, "container_limit", lambda: limit)
        warn_of_little_memory(context, "totals", workers)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, False),
        ({"spark.executor.pyspark.memory": "3g"}, False),
        ({"spark.executor.pyspark.memory": "3071m"}, True),
        ({"spark.executor.pyspark.memory": "2048"}, True),
        ({"spark.executor.pyspark.memory": "4g", "spark.executor.cores": "2"}, True),
        ({"spark.executor.pyspark.memory": "6g", "spark.executor.cores": "2"}, False),
    ],
)
def test_a_limit_of_addresses_below_what_a_worker_reserves_is_told(
    caplog: pytest.LogCaptureFixture, settings: dict[str, str], warned: bool
) -> None:
    """The limit of an executor is shared out over its cores, as Spark does it."""
    for master in ("local[4]", "spark://somewhere:7077"):
        assert len(told(caplog, Context(settings, master))) == warned


def test_the_warning_names_the_setting_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"spark.executor.pyspark.memory": "2g", "spark.executor.cores": "2"}
    (text,) = told(caplog, Context(settings))
    assert "job totals: spark.executor.pyspark.memory=2g leaves each of 2" in text
    assert "1 GiB of address space" in text and "set it to 6 GiB or more" in text


@pytest.mark.parametrize(
    ("limit", "workers", "settings", "warned"),
    [
        (None, 100, {}, False),
        (4 * GIB, 4, {}, False),
        (4 * GIB, 8, {}, True),
        (4 * GIB, 4, {"spark.driver.memory": "2g"}, True),
        (int(3.25 * GIB), 4, {}, False),
        (int(3.25 * GIB) - 1, 4, {}, True),
    ],
)
def test_a_container_too_small_for_all_workers_and_spark_is_told(
    caplog: pytest.LogCaptureFixture,
    limit: int | None,
    workers: int,
    settings: dict[str, str],
    warned: bool,
) -> None:
    assert len(told(caplog, Context(settings), workers, limit)) == warned


def test_the_drivers_container_says_nothing_about_executors_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert told(caplog, Context({}, "spark://somewhere:7077"), workers=100, limit=GIB) == []


@pytest.mark.parametrize(
    ("files", "groups", "limit"),
    [
        ({"memory.max": "2147483648"}, "0::/", 2 * GIB),
        ({"a/b/memory.max": "max", "a/memory.max": "1073741824"}, "0::/a/b", GIB),
        ({"a/memory.max": "3", "memory.max": "7"}, "0::/a", 3),
        ({"other/memory.max": "3"}, "0::/a", None),
        ({"memory/a/memory.limit_in_bytes": "5"}, "4:memory:/a\n0::/", 5),
        ({"memory/memory.limit_in_bytes": "6"}, "4:cpu,memory:/hosts/path", 6),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, "4:memory:/", None),
        ({"memory/memory.limit_in_bytes": "6"}, "4:cpu:/", None),
        ({}, "", None),
        ({}, "nonsense", None),
    ],
)
def test_the_lowest_limit_of_all_groups_above_counts(
    tmp_path: Path, files: dict[str, str], groups: str, limit: int | None
) -> None:
    """Both versions of cgroups; what is not there is no limit."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert container_limit(groups, tmp_path) == limit


def test_the_limit_of_this_machine_can_be_asked() -> None:
    limit = container_limit()
    assert limit is None or limit > 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512 << 20),
        ("512m", 512 << 20),
        ("2g", 2 << 30),
        ("2GB", 2 << 30),
        (" 1t ", 1 << 40),
        ("64k", 64 << 10),
        ("100b", 100),
        ("", None),
        ("much", None),
        ("1.5g", None),
    ],
)
def test_sizes_are_read_as_spark_writes_them(text: str, size: int | None) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.spark
def test_a_job_that_starts_says_it_once(
    spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two workers and one spare are three."""
    monkeypatch.setattr(memory, "container_limit", lambda: GIB)
    with caplog.at_level(logging.WARNING, "penstock"):
        job = jobs.source(100).to(pen.BlackholeSink()).start(spark, parallelism=2, spare_workers=1)
        with jobs.running(job):
            jobs.finish(job)
    found = [text for text in caplog.messages if "cgroup" in text]
    assert len(found) == 1 and "3 workers" in found[0]
