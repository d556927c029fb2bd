"""What a user sets reaches the job that is started, every option of it. No Spark is needed: the job is not run."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as pen
from penstock.api import pipeline
from penstock.engine.driver.manager import JobManager
from penstock.engine.spec import Changelogs, InDriver, Mode
from penstock.plan.graph import LogicalGraph
from penstock.protocol import restart
from penstock.shells.spark import start as shell
from penstock.shells.spark import storing
from penstock.storage.memory import MemoryStore


class Started:
    """In the place of the thread that runs a job."""

    def __init__(
        self, job_id: str, name: str, manager: JobManager, workers: Any, background: Any, *_: Any
    ) -> None:
        self.manager = manager
        background.close()

    def begin(self) -> None:
        """It never runs."""


class NoWorkers:
    given: dict[str, Any] = {}

    def __init__(self, *_: Any, **given: Any) -> None:
        """Nothing is launched."""
        NoWorkers.given = given

    def wake(self) -> None:
        """Nobody waits."""


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(
        sparkContext=None, conf=SimpleNamespace(get=lambda name, default: default)
    )
    monkeypatch.setattr(shell, "local_session", lambda slots, holder: session)
    monkeypatch.setattr(shell, "_check_slots", lambda *_: None)
    monkeypatch.setattr(shell, "is_local", lambda _: True)
    monkeypatch.setattr(shell, "warn_of_little_memory", lambda *_: None)
    monkeypatch.setattr(shell.progress_bar, "hide", lambda context, holder: lambda: None)
    monkeypatch.setattr(shell, "SparkWorkers", NoWorkers)
    monkeypatch.setattr(shell, "DriverLoop", Started)
    monkeypatch.setattr(shell, "SIGNALS", SimpleNamespace(watch=lambda loop: None))
    monkeypatch.setattr(shell, "Job", lambda loop: loop)
    monkeypatch.setattr(pipeline, "watch", lambda job, checkpoint: None)


def started(checkpoint: pen.CheckpointConfig | None, **settings: Any) -> JobManager:
    """The manager of a job that would run now."""
    job: Any = (
        pen.from_rows([{"n": 1}], "n BIGINT")
        .to(pen.CollectSink())
        .start(**{"name": "job"} | settings, checkpoint=checkpoint)
    )
    manager: JobManager = job.manager
    return manager


PLACES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "every": ({"every": "7 seconds"}, "coordinator.config.every_ms", 7_000),
    "mode": ({"mode": "at_least_once"}, "_spec.mode", Mode.AT_LEAST_ONCE),
    "unaligned": ({"unaligned": True}, "coordinator.config.unaligned", True),
    "aligned_timeout": (
        {"aligned_timeout": "3 seconds"},
        "coordinator.config.aligned_timeout_ms",
        3_000,
    ),
    "timeout": ({"timeout": "77 seconds"}, "coordinator.config.timeout_ms", 77_000),
    "min_pause": ({"min_pause": "5 seconds"}, "coordinator.config.min_pause_ms", 5_000),
    "max_concurrent": ({"max_concurrent": 3}, "coordinator.config.max_concurrent", 3),
    "tolerable_failures": ({"tolerable_failures": 9}, "coordinator.config.tolerable_failures", 9),
    "keep": ({"keep": 8}, "coordinator.config.keep", 8),
    "retain": ({"retain": "never_retain"}, "_config.retain", "never_retain"),
    "incremental": ({"incremental": False}, "coordinator.config.incremental", False),
    "changelog": ({"changelog": True}, "_spec.changelog", Changelogs(600_000)),
    "materialize_every": (
        {"changelog": True, "materialize_every": "7 minutes"},
        "_spec.changelog",
        Changelogs(420_000),
    ),
    "compression": ({"compression": "zstd"}, "_spec.compression", "zstd"),
    "backend": ({"backend": "rocksdb"}, "_spec.floor_memory_bytes", 512 << 20),
    "state_memory": (
        {"backend": "rocksdb", "state_memory": "1g"},
        "_spec.floor_memory_bytes",
        1 << 30,
    ),
    "inflight_bytes_max": ({"inflight_bytes_max": 12_345}, "_spec.inflight_bytes_max", 12_345),
}
"""Per option: what is set, where it has to arrive, and as what."""

ELSEWHERE = {"directory", "storage_options", "local_recovery"}
"""They have tests below."""


def found(manager: JobManager, place: str) -> Any:
    value: Any = manager
    for name in place.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("option", PLACES)
def test_every_option_of_a_checkpoint_reaches_the_job(tmp_path: Path, option: str) -> None:
    """C1, C4, C5: what is set and dropped on the way is believed and not there."""
    given, place, expected = PLACES[option]
    usual = found(started(pen.CheckpointConfig(tmp_path)), place)
    assert usual != expected, "this proves nothing"
    assert found(started(pen.CheckpointConfig(tmp_path, **given)), place) == expected


def test_the_timeout_of_the_driver_reaches_the_workers() -> None:
    """R1: how long they wait for a driver that stands still."""
    started(None)
    assert NoWorkers.given["driver_timeout_s"] == 30.0
    started(None, driver_timeout="7 seconds")
    assert NoWorkers.given["driver_timeout_s"] == 7.0


def test_leave_to_let_state_go_reaches_the_job() -> None:
    """R8, S10."""
    assert not started(None)._spec.allow_non_restored_state
    assert started(None, allow_non_restored_state=True)._spec.allow_non_restored_state


def test_no_option_of_a_checkpoint_is_forgotten_here() -> None:
    """Who adds one says where it arrives."""
    assert {spec.name for spec in fields(pen.CheckpointConfig)} == {*PLACES, *ELSEWHERE}


def test_the_usual_values_are_those_of_the_configuration(tmp_path: Path) -> None:
    """C1: none is made up on the way."""
    manager = started(pen.CheckpointConfig(tmp_path))
    usual = {
        spec.name: spec.default
        for spec in fields(pen.CheckpointConfig)
        if spec.default is not MISSING
    }
    for name in ("max_concurrent", "tolerable_failures", "keep"):
        assert getattr(manager.coordinator.config, name) == usual[name]
    assert (usual["timeout"], manager.coordinator.config.timeout_ms) == ("10 minutes", 600_000)
    assert (usual["every"], manager.coordinator.config.every_ms) == ("10 seconds", 10_000)


def test_the_directory_reaches_the_job_as_a_path_that_workers_understand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: they may have another folder of work."""
    monkeypatch.chdir(tmp_path)
    spec = started(pen.CheckpointConfig("chk"))._spec
    assert spec.location == str(tmp_path / "chk" / "job")
    monkeypatch.chdir("/")
    assert spec.open_store is not None
    assert spec.open_store().list() == ["job.json"]


def test_local_copies_are_opened_where_they_are_asked_for_and_by_the_identity_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: two jobs of one name in two directories never meet."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    for folder in ("a", "b", "a"):
        spec = started(pen.CheckpointConfig(tmp_path / folder, local_recovery=True))._spec
        assert spec.open_copies is not None
        assert spec.open_copies() is not None
    assert len(list(tmp_path.glob("penstock-copies-job-*"))) == 2
    assert started(pen.CheckpointConfig(tmp_path / "a"))._spec.open_copies is None


def test_storage_options_reach_every_store_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: the driver's, the workers', and that of a checkpoint of another job."""
    seen: list[Any] = []

    def noting(root: str, options: Any) -> Any:
        seen.append((root, options))
        return SimpleNamespace(root=root)

    monkeypatch.setattr(storing, "FilesystemStore", noting)
    monkeypatch.setattr(shell, "pack", lambda spec: b"")
    monkeypatch.setattr(
        storing,
        "open_job",
        lambda directory, name, storage_options, created_ms: noting(directory, storage_options),
    )
    monkeypatch.setattr(shell, "warn_of_no_name", lambda *_: None)
    config = pen.CheckpointConfig("s3://bucket/chk", storage_options={"anon": True})
    spec = started(config)._spec
    assert spec.open_store is not None and spec.open_origin is not None
    spec.open_store()
    spec.open_origin("s3://bucket/other")
    assert [options for _, options in seen] == [{"anon": True}] * 3
    assert seen[1][0] == "s3://bucket/chk/job"


def test_a_job_in_memory_has_no_store_for_its_workers_and_keeps_its_own_by_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """T1: started again in the same process it finds what it kept, and another job does not."""
    config = pen.CheckpointConfig("memory:", inflight_bytes_max=1 << 30)
    first, again = started(config, parallelism=4), started(config)
    spec = first._spec
    assert (spec.open_store, spec.location) == (None, "")
    assert spec.in_driver == InDriver(5 << 20, 16 << 20)
    assert spec.inflight_bytes_max == 5 << 20
    assert len([r for r in caplog.records if "in the memory of this driver" in r.message]) == 2
    other = started(config, name="other")
    stores = [found(each, "_claims._files._store") for each in (first, again, other)]
    assert stores[0] is stores[1] is not stores[2]


@pytest.mark.parametrize("checkpoint", [None, pen.CheckpointConfig("memory:")])
def test_rows_that_only_the_driver_would_see_are_not_staged_on_a_cluster(
    monkeypatch: pytest.MonkeyPatch, checkpoint: pen.CheckpointConfig | None
) -> None:
    """T1, E1: neither without a directory nor with checkpoints in the driver's memory."""
    monkeypatch.setattr(shell, "dataframes", lambda graph: ["a DataFrame"])
    monkeypatch.setattr(shell, "is_local", lambda _: False)
    settings: Any = SimpleNamespace(checkpoint=checkpoint, name="job")
    session, graph, store = SimpleNamespace(sparkContext=None), LogicalGraph(()), MemoryStore()
    with pytest.raises(pen.ConfigError, match="a directory that they share"):
        shell._feeds(graph, session, settings, store)


def test_the_other_settings_reach_the_job_too(tmp_path: Path) -> None:
    """R2, P1."""
    manager = started(
        pen.CheckpointConfig(tmp_path),
        parallelism=3,
        spare_workers=2,
        restart=pen.FixedDelay(attempts=4, delay="9 seconds"),
        slot_timeout="71 seconds",
        buffer_timeout="13 ms",
        max_parallelism=64,
    )
    config = manager.machine.config
    assert (config.slots, config.spare_workers) == (3, 2)
    assert config.strategy == restart.Fixed(4, 9_000)
    assert (config.slot_timeout_ms, config.goes_on) == (71_000, True)
    assert manager._spec.buffer_timeout_ms == 13
    assert (manager._spec.plan.parallelism, manager._spec.plan.max_parallelism) == (3, 64)
    usual = started(None).machine.config
    assert (usual.slot_timeout_ms, usual.goes_on) == (120_000, False)
