"""A pipeline is one or more sinks and all that leads to them. Starting it makes a job."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from penstock.api import hints, keys
from penstock.api.at_exit import watch
from penstock.api.config import (
    CheckpointConfig,
    Duration,
    ExponentialDelay,
    JobSettings,
    NoRestart,
    RestartStrategy,
    positive_ms,
    truth_value,
    whole_number,
)
from penstock.api.job import Job
from penstock.api.steps import Step, build_graph, in_order
from penstock.api.stream import Stream, explain_graph
from penstock.errors import ConfigError, PlanError
from penstock.plan.duration import parse_duration_ms
from penstock.plan.graph import LogicalGraph
from penstock.protocol.restart import Never, Strategy
from penstock.redaction import redacted

DEFAULT_NAME = "job"
MAX_PARALLELISM_LIMIT = 32_768
WITHOUT_CHECKPOINTS = Never(
    "the job takes no checkpoints, so there is nothing to restore after a failure; to survive one, start it"
    ' with checkpoint=pen.CheckpointConfig("checkpoints/", every="1 second")'
)


class Pipeline:
    """Made with `stream.to(sink)`; `Pipeline(a, b)` puts several together into one job."""

    _ends: tuple[Step, ...]

    def __init__(self, *pipelines: Pipeline) -> None:
        if not pipelines:
            raise PlanError(
                "Pipeline: give at least one pipeline, as in pen.Pipeline(stream.to(sink))"
            )
        ends: dict[int, Step] = {}
        for each in pipelines:
            if not isinstance(each, Pipeline):
                raise PlanError(f"Pipeline: {_not_a_pipeline(each)}")
            ends.update((id(end), end) for end in each._ends)
        self._ends = tuple(ends.values())
        self.graph()

    @classmethod
    def of(cls, sink: Step) -> Pipeline:
        """The pipeline of one sink."""
        made = cls.__new__(cls)
        made._ends = (sink,)
        made.graph()
        return made

    def graph(self) -> LogicalGraph:
        """The logical graph: raises PlanError where two operators have one name."""
        return build_graph(self._ends)

    def explain(self) -> str:
        """The operators, one per line, with their inputs and schemas."""
        return explain_graph(self.graph())

    def start(
        self,
        spark: Any = None,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        checkpoint: CheckpointConfig | None = None,
        restart: RestartStrategy | None = None,
        max_parallelism: int | None = None,
        restore: str | None = None,
        allow_non_restored_state: bool | None = None,
        spare_workers: int | None = None,
        buffer_timeout: Duration | None = None,
        slot_timeout: Duration | None = None,
        driver_timeout: Duration | None = None,
    ) -> Job:
        """Starts the job on this Spark session. Where none is given: on the program's own, or that of
        `spark-submit`, or else on a local Spark.

        An option that is not given, or None, is set by its key, `spark.penstock.<option>`, else it has its default:
        docs/configuration.md lists both.

        `restore="auto"` goes on where the job of this name stood; "fresh" starts anew; a path restores that
        checkpoint. State in it that the job does not have any more is refused, unless `allow_non_restored_state` lets
        it go. Without `checkpoint` a failure ends the job, unless `restart` is given: then it begins from
        scratch, and what its sinks have committed is written again.
        """
        _check_session(spark)
        shell = importlib.import_module("penstock.shells.spark.start")
        options = {
            "name": name,
            "parallelism": parallelism,
            "checkpoint": checkpoint,
            "restart": restart,
            "max_parallelism": max_parallelism,
            "restore": restore,
            "allow_non_restored_state": allow_non_restored_state,
            "spare_workers": spare_workers,
            "buffer_timeout": buffer_timeout,
            "slot_timeout": slot_timeout,
            "driver_timeout": driver_timeout,
        }
        given = {option: value for option, value in options.items() if value is not None}
        settings = self._settings(given, shell.spark_settings(spark))
        job = cast("Job", shell.start_job(self.graph(), spark, settings))
        watch(job, settings.checkpoint)
        return job

    if not TYPE_CHECKING:  # type checkers are to know the methods above and no others

        def __getattr__(self, name: str) -> Any:
            """Only for names that there are not: what somebody who knows Spark may have meant."""
            raise hints.missing("a pipeline", name, hints.PIPELINE)

    def __repr__(self) -> str:
        return f"Pipeline[{' | '.join(node.name for node in self.graph().nodes)}]"

    def _settings(self, given: Mapping[str, Any], spark_settings: Mapping[str, str]) -> JobSettings:
        """What the program gives, then what keys say, then what is usual."""
        by_key = keys.left_open(keys.read(spark_settings, job_settings), given)
        with keys.named_in_errors(by_key):
            options = {"name": self._default_name()} | keys.combined(by_key, given)
            settings = job_settings(**options)
        unnamed = settings.name == DEFAULT_NAME and "name" not in given and "name" not in by_key
        return replace(settings, unnamed=unnamed)

    def _default_name(self) -> str:
        """The name of the last operator that has one of the user's; so the same program has the same name."""
        given = [step.given_name for step in in_order(self._ends) if step.given_name]
        return given[-1] if given else DEFAULT_NAME


def job_settings(
    *,
    name: str,
    parallelism: int = 2,
    checkpoint: CheckpointConfig | None = None,
    restart: RestartStrategy | None = None,
    max_parallelism: int = 128,
    restore: str = "auto",
    allow_non_restored_state: bool = False,
    spare_workers: int = 0,
    buffer_timeout: Duration = "10 ms",
    slot_timeout: Duration | None = None,
    driver_timeout: Duration = "30 seconds",
) -> JobSettings:
    """Every option of `Pipeline.start` with its default, all of them checked. Each has a key, by its name and type."""
    groups = whole_number(max_parallelism, "max_parallelism", 1, MAX_PARALLELISM_LIMIT)
    truth_value(allow_non_restored_state, "allow_non_restored_state")
    return JobSettings(
        name=_checked_name(name),
        parallelism=_checked_parallelism(parallelism, groups),
        max_parallelism=groups,
        checkpoint=_checked_checkpoint(checkpoint),
        restart=_checked_restart(restart, checkpoint),
        restore=_checked_restore(restore, checkpoint),
        allow_non_restored_state=allow_non_restored_state,
        spare_workers=whole_number(spare_workers, "spare_workers", 0, 1_000),
        slot_timeout_ms=None if slot_timeout is None else positive_ms(slot_timeout, "slot_timeout"),
        buffer_timeout_ms=parse_duration_ms(buffer_timeout, "buffer_timeout"),
        driver_timeout_ms=parse_duration_ms(driver_timeout, "driver_timeout"),
    )


def _check_session(spark: Any) -> None:
    """A session of Spark Connect is one, too: why it is refused all the same, the shell says."""
    if spark is None or hasattr(type(spark), "sparkContext"):
        return
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return
    if isinstance(spark, str):
        is_master = spark.startswith(("local", "yarn")) or "://" in spark
        session = f"give SparkSession.builder.master({spark!r}).getOrCreate()"
        raise ConfigError(
            f"start: {spark!r} is a text and not a SparkSession; leave it out to get a local Spark, or"
            f" {session if is_master else f'write name={spark!r} if it is the name of the job'}"
        )
    raise ConfigError(
        f"start: {spark!r} ({type(spark).__name__}) is not a SparkSession; leave it out to get a local Spark,"
        " or give what SparkSession.builder.getOrCreate() returns"
    )


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > 200 or not name.isprintable():
        raise ConfigError(
            f"name: {name!r} is not a name for a job; give a short text, its checkpoints are found by it"
        )
    return name


def _checked_parallelism(parallelism: int, groups: int) -> int:
    whole_number(parallelism, "parallelism", 1, MAX_PARALLELISM_LIMIT)
    if parallelism > groups:
        raise ConfigError(
            f"parallelism: {parallelism} is more than max_parallelism ({groups}), the number of key groups"
            " that state is divided into; raise max_parallelism or lower parallelism"
        )
    return parallelism


def _checked_checkpoint(checkpoint: object) -> CheckpointConfig | None:
    if checkpoint is None or isinstance(checkpoint, CheckpointConfig):
        return checkpoint
    raise ConfigError(
        f"checkpoint: {checkpoint!r} is not a CheckpointConfig; write"
        ' pen.CheckpointConfig("checkpoints/", every="1 second")'
    )


def _checked_restart(restart: object, checkpoint: object) -> Strategy:
    """Without checkpoints there is nothing to go on from, so there are no restarts; who asks for them all the same
    gets a job that begins from scratch."""
    if restart is None:
        return WITHOUT_CHECKPOINTS if checkpoint is None else ExponentialDelay().strategy()
    if not isinstance(restart, RestartStrategy):
        raise ConfigError(
            f"restart: {restart!r} is no strategy; use pen.ExponentialDelay(), pen.FixedDelay(),"
            " pen.FailureRate() or pen.NoRestart()"
        )
    if checkpoint is None and isinstance(restart, NoRestart):
        return WITHOUT_CHECKPOINTS
    return restart.strategy()


def _checked_restore(restore: object, checkpoint: object) -> str:
    if not isinstance(restore, str) or not restore.strip():
        raise ConfigError(
            f'restore: {restore!r} is neither "auto", "fresh" nor a checkpoint\'s path'
        )
    if restore not in ("auto", "fresh") and checkpoint is None:
        raise ConfigError(
            f"restore={redacted(restore)!r} needs a checkpoint directory: give checkpoint=pen.CheckpointConfig(...)"
        )
    return restore


def _not_a_pipeline(value: object) -> str:
    if isinstance(value, Stream):
        return f"{value!r} has no sink; end it with .to(sink)"
    return f"{value!r} ({type(value).__name__}) is not a pipeline; one is made with stream.to(sink)"
