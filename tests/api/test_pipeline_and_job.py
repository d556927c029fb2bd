"""Pipelines start through the shell, and the handle on a job speaks for its control."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.api import at_exit
from penstock.api.job import ENDED, STATES
from penstock.api.show import print_table
from penstock.protocol.phases import Outcome
from penstock.shells.spark.driver_loop import DriverLoop


class Control:
    """A job's control, in memory."""

    job_id = "totals"
    job_name = "Totals"

    def __init__(self, status: str = "running", failure: pen.JobFailed | None = None) -> None:
        self.state = status
        self.busy = ""
        self.failed = failure
        self.requests: list[str] = []
        self.waited: list[float | None] = []

    def status(self) -> str:
        return self.state

    def details(self) -> str:
        return self.busy

    def wait(self, timeout_s: float | None) -> bool:
        self.waited.append(timeout_s)
        return self.state in ENDED

    def failure(self) -> pen.JobFailed | None:
        return self.failed

    def checkpoints(self) -> list[pen.CheckpointInfo]:
        return [
            pen.CheckpointInfo(3, "checkpoint", "pending", 2.0, None),
            pen.CheckpointInfo(2, "checkpoint", "completed", 1.0, 5.0),
        ]

    def checkpoint_summary(self) -> pen.CheckpointSummary:
        return pen.CheckpointSummary(1, 0, 1, 0, None)

    def exceptions(self) -> list[pen.ExceptionInfo]:
        return [pen.ExceptionInfo(1.0, 1, "ValueError", "no")]

    def workers(self) -> tuple[pen.WorkerInfo, ...]:
        return (pen.WorkerInfo(0, 4711, "here"),)

    def metrics(self) -> dict[str, float]:
        return {"rows": 1.0}

    def trigger_checkpoint(self, timeout_s: float | None) -> pen.CheckpointInfo:
        self.waited.append(timeout_s)
        return self.checkpoints()[1]

    def request_stop(self) -> None:
        self.requests.append("stop")
        self.state = "stopped"

    def request_cancel(self) -> None:
        self.requests.append("cancel")
        self.state = "cancelled"


# ---- the job


def test_a_job_tells_about_itself() -> None:
    job = pen.Job(Control())
    assert (job.id, job.name, job.status) == ("totals", "Totals", "running")
    assert [info.id for info in job.checkpoints()] == [3, 2]
    assert job.checkpoint_summary().completed == 1
    assert job.exceptions[0].error == "ValueError"
    assert job.metrics() == {"rows": 1.0}
    assert job.workers == [pen.WorkerInfo(0, 4711, "here")]
    assert repr(job) == "<Job 'Totals': running, last checkpoint 2>"


@pytest.mark.parametrize("status", ["created", "starting"])
def test_a_job_that_has_not_begun_names_no_checkpoint_of_its_past(status: str) -> None:
    """R5: it may go on from a newer one than its history knows, or from another one."""
    assert repr(pen.Job(Control(status))) == f"<Job 'Totals': {status}>"


def test_waiting_answers_true_at_the_end_and_false_when_the_time_is_over() -> None:
    assert pen.Job(Control("finished")).await_termination() is True
    assert pen.Job(Control("running")).await_termination(timeout=0.5) is False


def test_waiting_for_a_job_that_failed_raises_its_failure() -> None:
    failure = pen.JobFailed("totals failed for good", "ValueError: no")
    with pytest.raises(pen.JobFailed, match="for good") as caught:
        pen.Job(Control("failed", failure)).await_termination()
    assert caught.value.cause == "ValueError: no"


@pytest.mark.parametrize(("reason", "shown"), [("ValueError: no", True), ("too few slots", False)])
def test_a_failure_has_the_traceback_of_its_own_cause_and_of_no_other(
    reason: str, shown: bool
) -> None:
    """The job may have met other failures before the one that ended it."""
    before = pen.ExceptionInfo(1.0, 1, "ValueError", "no", traceback="Traceback of ValueError")
    history = SimpleNamespace(exceptions=(before,))
    manager: Any = SimpleNamespace(outcome=Outcome.FAILED, reason=reason, history=history)
    nothing: Any = None
    loop = DriverLoop("id", "Totals", manager, nothing, nothing, nothing, nothing, durable=True)
    failure = loop.failure()
    assert failure is not None
    assert failure.cause == reason
    assert ("Traceback of ValueError" in str(failure)) is shown


@pytest.mark.parametrize(("timeout", "seconds"), [(None, None), (2, 2.0), ("500 ms", 0.5)])
def test_a_timeout_is_seconds_or_a_duration(timeout: Any, seconds: float | None) -> None:
    control = Control()
    pen.Job(control).trigger_checkpoint(timeout)
    assert control.waited == [seconds]


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan")])
def test_a_wrong_timeout_is_refused(timeout: Any) -> None:
    with pytest.raises(pen.ConfigError, match="timeout"):
        pen.Job(Control()).await_termination(timeout)


def test_stop_and_cancel_ask_and_then_wait() -> None:
    for method, status in (("stop", "stopped"), ("cancel", "cancelled")):
        control = Control()
        job = pen.Job(control)
        assert getattr(job, method)() is True
        assert control.requests == [method]
        assert job.status == status


@pytest.mark.parametrize("options", [{"savepoint": "sp/"}, {"drain": True}])
def test_what_stop_cannot_do_yet_is_refused_and_nothing_is_stopped(options: Any) -> None:
    control = Control()
    with pytest.raises(pen.ConfigError, match="not supported yet"):
        pen.Job(control).stop(**options)
    assert control.requests == []


def test_details_stand_beside_the_status() -> None:
    """R1: the status itself stays one word."""
    control = Control("restarting")
    job = pen.Job(control)
    assert (job.details, repr(job)) == ("", "<Job 'Totals': restarting, last checkpoint 2>")
    control.busy = "restoring state: 1 of 2 rows"
    assert (job.status, job.details) == ("restarting", control.busy)
    assert repr(job) == f"<Job 'Totals': restarting ({control.busy}), last checkpoint 2>"


def test_the_states_of_a_job_are_the_documented_ones() -> None:
    documented = "created starting running restarting finished failed cancelled stopped"
    assert documented.split() == list(STATES)


# ---- starting


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Stands in for the Spark shell: keeps what it was asked to start."""
    monkeypatch.setattr(at_exit, "_started", [])
    started: list[Any] = []
    module = ModuleType("penstock.shells.spark.start")

    def start_job(graph: Any, spark: Any, settings: Any) -> pen.Job:
        started.append((graph, spark, settings))
        return pen.Job(Control())

    module.start_job = start_job  # type: ignore[attr-defined]
    module.spark_settings = lambda spark: {}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "penstock.shells.spark.start", module)
    return started


class Session:
    """Looks as a SparkSession does: it has a context."""

    sparkContext = None


def pipeline() -> pen.Pipeline:
    return pen.from_rows([("a", 1)], "k STRING, v INT").named("in").to(pen.CollectSink())


def test_start_hands_graph_session_and_checked_settings_to_the_shell(shell: list[Any]) -> None:
    session = Session()
    job = pipeline().start(
        session,
        name="totals",
        parallelism=3,
        checkpoint=pen.CheckpointConfig("chk/", every="1 s"),
    )
    ((graph, spark, settings),) = shell
    assert isinstance(job, pen.Job)
    assert [node.name for node in graph.nodes] == ["in", "collect-sink-2"]
    assert spark is session
    assert (settings.name, settings.parallelism, settings.max_parallelism) == ("totals", 3, 128)
    assert settings.checkpoint.every_ms == 1_000
    assert (settings.restore, settings.spare_workers, settings.buffer_timeout_ms) == ("auto", 0, 10)


def test_a_job_without_a_name_is_called_after_the_last_named_operator(shell: list[Any]) -> None:
    pipeline().start()
    pen.from_rows([(1,)], "v INT").to(pen.CollectSink()).start()
    assert [settings.name for _, _, settings in shell] == ["in", "job"]
    assert [settings.unnamed for _, _, settings in shell] == [False, True]


def test_nothing_is_started_when_a_setting_is_wrong(shell: list[Any]) -> None:
    with pytest.raises(pen.ConfigError):
        pipeline().start(parallelism=0)
    assert shell == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "local[2]",
            r"a text and not a SparkSession.*SparkSession\.builder\.master\('local\[2\]'\)",
        ),
        ("spark://host:7077", r"builder\.master\('spark://host:7077'\)"),
        ("totals", "name='totals'"),
        (3, r"3 \(int\) is not a SparkSession"),
    ],
)
def test_what_is_no_session_is_refused_with_what_to_give(
    shell: list[Any], given: Any, message: str
) -> None:
    with pytest.raises(pen.ConfigError, match=message):
        pipeline().start(given)
    assert shell == []


def test_a_pipeline_needs_sinks() -> None:
    with pytest.raises(pen.PlanError, match="at least one"):
        pen.Pipeline()
    with pytest.raises(pen.PlanError, match=r"has no sink; end it with \.to\(sink\)"):
        pen.Pipeline(pen.from_rows([(1,)], "v INT"))  # type: ignore[arg-type]


def test_the_same_pipeline_given_twice_runs_once() -> None:
    one = pipeline()
    assert len(pen.Pipeline(one, one).graph().nodes) == 2


# ---- the end of the program


@pytest.mark.parametrize(
    ("directory", "then"),
    [
        ("chk/", "goes on from checkpoint 2"),
        ("memory:", "in the memory of this program, and are lost"),
        ("", "takes no checkpoints"),
    ],
)
def test_a_program_that_ends_before_its_job_is_told_so(
    shell: list[Any], caplog: pytest.LogCaptureFixture, directory: str, then: str
) -> None:
    """R5: the job is in the same place as one whose driver was killed."""
    chk = pen.CheckpointConfig(directory) if directory else None
    job = pipeline().start(checkpoint=chk)
    at_exit.tell()
    assert "job 'Totals' was still running when the program ended" in caplog.text
    assert "job.await_termination()" in caplog.text and then in caplog.text
    assert job.status == "running", "a cancel might delete its checkpoints"


def test_a_job_that_has_ended_is_not_talked_about(
    shell: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    pipeline().start().cancel()
    pipeline().start().stop()
    at_exit.tell()
    assert caplog.text == ""
    assert len(at_exit._started) == 1, "those that ended before are forgotten"


# ---- a first look


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stands in for the engine that runs a graph in place."""
    limits: list[int] = []
    module = ModuleType("penstock.shells.inline")

    def run_inline(graph: Any, limit: int) -> pa.Table:
        limits.append(limit)
        return pa.table({"k": ["a", None], "v": [1, 2]}, schema=graph.nodes[-1].schema)

    module.run_inline = run_inline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "penstock.shells.inline", module)
    return limits


def test_take_gives_rows_and_asks_for_no_more_than_needed(inline: list[int]) -> None:
    rows = pen.from_rows([("a", 1)], "k STRING, v INT").take(1)
    assert rows == [("a", 1)]
    assert rows[0].k == "a"
    assert inline == [1]


def test_show_prints_a_table(inline: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    pen.from_rows([("a", 1)], "k STRING, v INT").show()
    text = capsys.readouterr().out
    for word in ("k", "v", "a", "null", "2"):
        assert word in text
    assert inline == [20]


def test_show_cuts_long_values_and_takes_markup_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(pa.table({"t": ["x" * 100, "[red]"]}), 5)
    text = capsys.readouterr().out
    assert "x" * 39 + "…" in text
    assert "[red]" in text


def test_every_public_name_is_there() -> None:
    assert all(hasattr(pen, name) for name in pen.__all__)
