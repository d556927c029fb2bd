"""From a graph to a running job: `Pipeline.start` ends up here."""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.api.config import JobSettings
from penstock.api.job import Job
from penstock.connectors.base import Sink
from penstock.engine.checkpoints.cleaning import retains
from penstock.engine.checkpoints.durable import QUEUES
from penstock.engine.checkpoints.files import CheckpointFiles
from penstock.engine.checkpoints.restore_points import RestoreWish
from penstock.engine.driver.manager import JobManager, ManagerConfig
from penstock.engine.spec import JobSpec, Mode
from penstock.errors import CheckpointCorrupt, ConfigError, LaunchError
from penstock.plan.graph import LogicalGraph
from penstock.plan.physical import make_plan
from penstock.protocol.coordinator import CoordinatorConfig
from penstock.protocol.lifecycle import LifecycleConfig
from penstock.protocol.phases import Outcome
from penstock.redaction import redacted
from penstock.shells.spark import progress_bar
from penstock.shells.spark.background import ThreadBackground
from penstock.shells.spark.clock import RealClock
from penstock.shells.spark.dataframes import DataFrameSource
from penstock.shells.spark.driver_loop import DriverLoop
from penstock.shells.spark.earlier import (
    completed_checkpoints,
    require_checkpoint,
    warn_of_no_name,
)
from penstock.shells.spark.executors import slots_of
from penstock.shells.spark.feeds import Feeds, dataframes, make_feeds, without_dataframes
from penstock.shells.spark.floors_dir import open_floors
from penstock.shells.spark.memory import warn_of_little_memory
from penstock.shells.spark.session import (
    SPARK_SLOTS_LEFT,
    check_session,
    is_local,
    is_on_own_spark,
    local_session,
    refuse_connect,
    release_session,
    settings_of,
)
from penstock.shells.spark.sharing import (
    Mark,
    check_marks,
    existing_mark,
    is_on_disk,
    leave_mark,
    remove_marks,
)
from penstock.shells.spark.shipping import pack
from penstock.shells.spark.signals import SIGNALS
from penstock.shells.spark.storing import Store, absolute, open_store, staging_root, stored_in
from penstock.shells.spark.workers import SparkWorkers
from penstock.storage.filesystem import FilesystemStore
from penstock.wire import manifest as manifests
from penstock.wire import paths

LOCAL_SLOTS_MS = 120_000
"""How long workers on this machine may take to come: it may be busy with other things."""
COMMIT_EVERY_MS = 1_000
"""How often sinks commit in a job that takes no checkpoints."""


def spark_settings(spark: Any) -> dict[str, str]:
    """What the Spark is set to that a job would be started on: options may be among it."""
    refuse_connect(spark)
    return settings_of(spark)


def start_job(graph: LogicalGraph, spark: Any, settings: JobSettings) -> Job:
    frames = dataframes(graph)
    if spark is None and frames:
        spark = frames[0].frame.sparkSession
    refuse_connect(spark)
    if spark is None and is_on_own_spark():
        _check_access(graph)
    job_id = paths.job_id(settings.name)
    clock = RealClock()
    store = open_store(settings, clock.wall_ms())
    wish = _wish(settings, store)
    pack(_spec(job_id, without_dataframes(graph), settings, store))
    total = settings.parallelism + settings.spare_workers
    holder = f"{uuid.uuid4().hex[:8]} {settings.name}"
    session = local_session(total + SPARK_SLOTS_LEFT, holder) if spark is None else spark
    held = ExitStack()
    held.callback(release_session, holder)
    try:
        _check_slots(session, total, settings, sum(not each.bounded for each in frames))
        if is_local(session.sparkContext):
            _check_access(graph)
        _refuse_rows_of_others(graph, wish)
        feeds = _feeds(graph, session, settings, store)
        held.callback(feeds.close)
        spec = _spec(job_id, feeds.graph, settings, store)
        payload = pack(spec)
        if not is_local(session.sparkContext):
            marks = _marks(graph, settings, job_id)
            held.callback(remove_marks, marks)
            payload = pack(replace(spec, check_host=partial(check_marks, marks)))
        warn_of_little_memory(session.sparkContext, settings.name, total)
        held.callback(progress_bar.hide(session.sparkContext, holder))
        workers = SparkWorkers(
            session,
            job_id,
            settings.name,
            payload,
            total,
            force_tcp=session.conf.get("spark.penstock.transport", "auto") == "tcp",
            driver_timeout_s=settings.driver_timeout_ms / 1000,
            keep_copies=spec.open_copies is not None,
        )
    except BaseException:
        held.close()
        raise
    feeds.wake_with(workers.wake)
    background = ThreadBackground(threads=QUEUES, wake=workers.wake)
    manager = JobManager(
        spec,
        _manager_config(settings, wish, is_local(session.sparkContext)),
        workers,
        _files(store, job_id, clock, spec),
        clock,
        background,
        _sinks(graph),
        feeds.by_operator,
    )
    held.callback(_remove_staged_rows, feeds, manager, settings, store)
    durable = store is not None
    loop = DriverLoop(
        job_id, settings.name, manager, workers, background, clock, held.close, durable
    )
    loop.begin()
    SIGNALS.watch(loop)
    return Job(loop)


def _feeds(graph: LogicalGraph, session: Any, settings: JobSettings, store: Store | None) -> Feeds:
    config, frames = settings.checkpoint, dataframes(graph)
    shared = config is not None and not config.in_memory
    if frames and not shared and not is_local(session.sparkContext):
        raise ConfigError(
            "a DataFrame is staged where all hosts of the cluster see it: beside the checkpoints. Give the job a"
            ' directory that they share: checkpoint=pen.CheckpointConfig("hdfs://... or a shared path")'
        )
    if config is None or store is None or not frames:
        return make_feeds(graph, settings.name, "", {}, settings.restart)
    root = staging_root(config, settings.name)
    options = dict(config.storage_options or {})
    fresh = settings.restore == "fresh"
    begun = not fresh and bool(completed_checkpoints(store))
    return make_feeds(
        graph, settings.name, root, options, settings.restart, fresh=fresh, begun=begun
    )


def _refuse_rows_of_others(graph: LogicalGraph, wish: RestoreWish) -> None:
    """A position in staged rows is of no use in another job's: what that one had read cannot be left out here."""
    if wish.manifest is None or not wish.origin:
        return
    for node in graph.nodes:
        parts = (part.operators.get(node.name) for part in wish.manifest.snapshots)
        if isinstance(node.connector, DataFrameSource) and any(p and p.lanes for p in parts):
            raise ConfigError(
                f"{node.name}: a job cannot begin with another job's checkpoint where it stands in the middle of a"
                " DataFrame: those rows were staged for the other job. Go on under its name, or begin from scratch"
                ' with restore="fresh"'
            )


def _remove_staged_rows(
    feeds: Feeds, manager: JobManager, settings: JobSettings, store: Store | None
) -> None:
    """With the checkpoints. Where they stay, because another driver has taken the job over, these do, too."""
    outcome, config = manager.outcome, settings.checkpoint
    if config is not None and store is not None and feeds.by_operator and outcome is not None:
        kept = retains(config.retain, outcome) or bool(store.list(paths.OWNER_FOLDER))
        feeds.close(finished=outcome is Outcome.FINISHED, retained=kept)


def _spec(job_id: str, graph: LogicalGraph, settings: JobSettings, store: Store | None) -> JobSpec:
    plan = make_plan(graph, settings.parallelism, settings.max_parallelism)
    spec = JobSpec(
        job_id,
        plan,
        buffer_timeout_ms=settings.buffer_timeout_ms,
        allow_non_restored_state=settings.allow_non_restored_state,
    )
    config = settings.checkpoint
    if config is None or store is None:
        return spec
    spec = replace(
        spec,
        mode=Mode(config.mode),
        inflight_bytes_max=config.inflight_bytes_max,
        compression=config.compression,
        open_floors=open_floors,
        floor_memory_bytes=config.state_memory_bytes if config.backend == "rocksdb" else None,
    )
    return stored_in(spec, config, settings.name, store)


def _files(
    store: Store | None, job_id: str, clock: RealClock, spec: JobSpec
) -> CheckpointFiles | None:
    if store is None:
        return None
    driver = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
    return CheckpointFiles(store, job_id, driver, clock.wall_ms, spec.open_origin)


def _wish(settings: JobSettings, store: Store | None) -> RestoreWish:
    if store is None:
        return RestoreWish()
    if settings.restore == "auto":
        warn_of_no_name(settings, store)
        return RestoreWish()
    if settings.restore == "fresh":
        return RestoreWish(fresh=True)
    return _explicit(settings.restore.rstrip("/"), settings, store)


def _explicit(path: str, settings: JobSettings, store: Store) -> RestoreWish:
    """`.../<job>/chk-7`, of this job or of another one."""
    path = path if "://" in path else str(Path(path).absolute())
    root, _, folder = path.rpartition("/")
    name = f"{folder}/_metadata"
    checkpoint = paths.metadata_of(name)
    if checkpoint is None:
        raise ConfigError(
            f"restore={redacted(settings.restore)!r} is not a checkpoint: give the path of a folder chk-<n> that has "
            'a _metadata file, or "auto", or "fresh"'
        )
    options = settings.checkpoint.storage_options if settings.checkpoint is not None else None
    origin = FilesystemStore(root, options)
    require_checkpoint(origin, checkpoint, settings.restore)
    try:
        manifest = manifests.decode(origin.read(name), name)
    except CheckpointCorrupt as error:
        raise CheckpointCorrupt(f"restore={redacted(settings.restore)!r}: {error}") from error
    return RestoreWish(manifest=manifest, origin="" if origin.root == store.root else root)


def _marks(graph: LogicalGraph, settings: JobSettings, job_id: str) -> list[Mark]:
    """What every worker must see, too: the job's folder and those of its sinks."""
    marks = []
    if settings.checkpoint is not None and not settings.checkpoint.in_memory:
        directory = absolute(settings.checkpoint)
        file = f"{paths.job_directory(directory, settings.name)}/{paths.JOB}"
        if is_on_disk(directory):
            marks.append(existing_mark(f"the checkpoint directory {directory}", file))
    for name, sink in _sinks(graph).items():
        folder = sink.shared_folder()
        if folder is not None and is_on_disk(folder):
            marks.append(leave_mark(f"the folder of sink {name!r}", folder, job_id))
    return marks


def _check_access(graph: LogicalGraph) -> None:
    """What can never be read or written is refused here, where driver and workers see the same disks."""
    for node in graph.nodes:
        if node.role in ("source", "sink"):
            node.connector.check_access()


def _check_slots(session: Any, total: int, settings: JobSettings, queries: int) -> None:
    check_session(session)
    context = session.sparkContext
    slots = slots_of(context)
    if is_local(context) and slots < total:
        raise LaunchError(
            f"job {settings.name!r} needs {total} workers (parallelism {settings.parallelism}, spare_workers "
            f"{settings.spare_workers}), one core each, and this Spark ({context.master}) has {slots}. Lower "
            f"parallelism, or give Spark more cores: --master local[{total + SPARK_SLOTS_LEFT}] for spark-submit, "
            f'SparkSession.builder.master("local[{total + SPARK_SLOTS_LEFT}]") in a program.'
        )
    if is_local(context) and queries and slots < total + 1:
        raise LaunchError(
            f"job {settings.name!r} needs {total} workers, one core each, and its streaming DataFrame one more for "
            f"Spark's own query; this Spark ({context.master}) has {slots}. Start it with more, as in "
            f'SparkSession.builder.master("local[{total + SPARK_SLOTS_LEFT}]"), or lower parallelism.'
        )


def _manager_config(settings: JobSettings, wish: RestoreWish, local: bool) -> ManagerConfig:
    config = settings.checkpoint
    lifecycle = LifecycleConfig(
        settings.parallelism,
        settings.spare_workers,
        settings.restart,
        settings.slot_timeout_ms or (LOCAL_SLOTS_MS if local else 300_000),
        goes_on=config is not None,
    )
    if config is None:
        return ManagerConfig(lifecycle, CoordinatorConfig(every_ms=COMMIT_EVERY_MS), wish)
    coordinator = CoordinatorConfig(
        every_ms=config.every_ms,
        timeout_ms=config.timeout_ms,
        min_pause_ms=config.min_pause_ms,
        max_concurrent=config.max_concurrent,
        tolerable_failures=config.tolerable_failures,
        keep=config.keep,
        unaligned=config.unaligned_at_once,
        aligned_timeout_ms=config.aligned_timeout_ms,
        incremental=config.incremental,
    )
    return ManagerConfig(lifecycle, coordinator, wish, config.retain)


def _sinks(graph: LogicalGraph) -> dict[str, Sink]:
    return {node.name: node.connector for node in graph.nodes if node.role == "sink"}
