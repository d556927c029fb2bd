"""One Spark job of one task per worker, each watched by a daemon thread.

The thread sets its own tags, description and pool and inherits nothing: with an inherited job group a user's
`cancelJobGroup` would end our workers, too. How a job ended is told through `report`, from that thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.shells.spark.entry import FATAL, LATER, LEFT
from penstock.shells.spark.executors import executors
from penstock.shells.spark.placing import Copies, Places
from penstock.shells.spark.session import is_local, is_stopped, worker_environment

Task = Callable[[Iterable[Any]], Iterator[str]]
_REASON_CHARS_MAX = 2000
_CANCELLED = "[SPARK_JOB_CANCELLED]"
"""How Spark's message begins when a job was cancelled, by whomever and in whatever way."""
_environment_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class JobEnded:
    launch: int
    reason: str
    fatal: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class _Running:
    thread: threading.Thread
    executor: str
    """Where it was told to go; empty where Spark chose."""
    host: str = ""
    wanted: bool = True


class Launcher:
    def __init__(
        self,
        context: Any,
        job_id: str,
        job_name: str,
        total: int,
        report: Callable[[JobEnded], None],
        *,
        keep_copies: bool = False,
    ) -> None:
        """`keep_copies`: workers have copies of their state on their hosts."""
        self._context = context
        self._places = Places(context, total)
        self._copies = Copies() if keep_copies else None
        self._crowded: set[int] = set()
        """Launches whose workers would be better elsewhere, wherever their copies are."""
        self._job_id = job_id
        self._job_name = job_name
        self._report = report
        self._running: dict[int, _Running] = {}
        self._lock = threading.Lock()

    def start(self, launch: int, description: str, task: Task) -> None:
        """Starts the job and returns at once."""
        text = f"Penstock {self._job_name}: {description}, runs until the job ends"
        thread = threading.Thread(
            target=self._run,
            args=(launch, text, task),
            name=f"penstock-launch-{launch}",
            daemon=True,
        )
        with self._lock:
            self._running[launch] = _Running(thread, "")
        thread.start()

    def cancel(self, launch: int) -> None:
        """Has Spark kill the task. Does not wait, not even for the JVM."""
        with self._lock:
            if launch in self._running:
                self._running[launch].wanted = False
                self._leave_copy(launch)
        self._cancel_tag(self._tag(launch))

    def cancel_all(self) -> None:
        with self._lock:
            for each in self._running.values():
                each.wanted = False
        self._cancel_tag(self._tag())

    def running(self) -> list[int]:
        with self._lock:
            return sorted(self._running)

    def join(self, timeout_s: float) -> bool:
        """Waits until every job has ended; False when some have not."""
        end_s = time.monotonic() + timeout_s
        with self._lock:
            threads = [each.thread for each in self._running.values()]
        for thread in threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def capacity(self) -> str:
        """What Spark knows of its cores and of what holds them."""
        if is_stopped(self._context):
            return "the SparkContext is stopped"
        known = executors(self._context)
        if not known:
            return f"Spark ({self._context.master}) has no executor"
        cores, running = sum(e.cores for e in known), sum(e.running for e in known)
        jobs = len(self._context.statusTracker().getActiveJobsIds())
        return (
            f"Spark ({self._context.master}) has {cores} cores on {len(known)} executors;"
            f" {running} tasks run now, {jobs} jobs are active, {len(self.running())} of them workers of this job"
        )

    # ---- in the job's own thread

    def _run(self, launch: int, text: str, task: Task) -> None:
        try:
            self._label(launch, text)
            ended = _outcome(launch, self._rdd(launch, task).collect())
        except BaseException as error:
            ended = self._explain(launch, error)
        finally:
            with self._lock:
                self._leave_copy(launch)
                del self._running[launch]
        self._report(ended)

    def _leave_copy(self, launch: int) -> None:
        """Its worker is gone, or going. Tells it once."""
        host, self._running[launch].host = self._running[launch].host, ""
        if self._copies is not None and host and launch not in self._crowded:
            self._copies.left(host)

    def _label(self, launch: int, text: str) -> None:
        self._context.addJobTag(self._tag())
        self._context.addJobTag(self._tag(launch))
        self._context.setJobDescription(text)
        # A thread that Spark interrupts while it asks the daemon for a process takes the daemon for dead and
        # starts another, which ends every worker of the old one, those of other jobs included.
        self._context.setLocalProperty("spark.job.interruptOnCancel", "false")

    def _rdd(self, launch: int, task: Task) -> Any:
        """The job's RDD, built with our workers' environment."""
        context = self._context
        source = self._placed(launch)
        with _environment_lock:
            before, python = dict(context.environment), context.pythonExec
            context.environment.update(worker_environment(before.get("PYTHONPATH", "")))
            context.pythonExec = _python(context)
            try:
                rdd = source.mapPartitions(task)
                rdd._jrdd  # noqa: B018  the environment is read when this is made
            finally:
                context.pythonExec = python
                context.environment.clear()
                context.environment.update(before)
        return rdd

    def _placed(self, launch: int) -> Any:
        """One row whose preferred place is where a worker is best; anywhere when Spark does not tell."""
        wanted, copies = lambda: self._running[launch].wanted, self._copies or tuple
        chosen = self._places.choose(self._placed_so_far, wanted, copies)
        if not self._running[launch].wanted:
            raise _NotWantedError("it was cancelled before it began")
        if chosen is None:
            return self._context.parallelize([0], 1)
        with self._lock:
            self._running[launch].executor = chosen.id
            self._running[launch].host = chosen.host
        if self._copies is not None:
            self._copies.taken(chosen.host)
        return _prefer(self._context, chosen.place)

    def _placed_so_far(self) -> list[str]:
        with self._lock:
            return [each.executor for each in self._running.values()]

    def crowded(self) -> list[int]:
        """Launches whose workers would be better elsewhere. May take seconds."""
        launches = self._places.crowded(self._actual_places())
        self._crowded = set(launches)
        return launches

    def _actual_places(self) -> dict[int, str]:
        """Where the tasks run now: Spark may have moved one when it tried it again."""
        found = {}
        for launch in self.running():
            place = self._executor_of(self._tag(launch))
            if place:
                found[launch] = place
        return found

    def _executor_of(self, tag: str) -> str:
        tracker, store = self._context.statusTracker(), self._context._jsc.sc().statusStore()
        for job in self._context._jsc.sc().statusTracker().getJobIdsForTag(tag):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                tasks = store.taskList(stage, 0, 100)
                running = [tasks.apply(i) for i in range(tasks.size())]
                here = [str(t.executorId()) for t in running if str(t.status()) == "RUNNING"]
                if here:
                    return here[0]
        return ""

    def _tag(self, launch: int | None = None) -> str:
        tag = f"penstock-{self._job_id}".replace(",", "_")
        return tag if launch is None else f"{tag}-launch-{launch}"

    def _cancel_tag(self, tag: str) -> None:
        def cancel() -> None:
            if not is_stopped(self._context):
                self._context.cancelJobsWithTag(tag)

        threading.Thread(
            target=_quietly, args=(cancel,), name="penstock-cancel", daemon=True
        ).start()

    def _explain(self, launch: int, error: BaseException) -> JobEnded:
        text = _text_of(error)
        if is_stopped(self._context):
            return JobEnded(
                launch, f"the SparkContext was stopped ({_first_line(text)})", fatal=True
            )
        if "PYTHON_VERSION_MISMATCH" in text or "No module named" in text:
            return JobEnded(
                launch, f"the executors' Python does not fit: {_telling(text)}", fatal=True
            )
        if text.startswith(_CANCELLED):
            return JobEnded(
                launch, f"its Spark job was cancelled ({_without_codes(text)})", cancelled=True
            )
        return JobEnded(launch, f"the Spark job failed: {text[:_REASON_CHARS_MAX]}")


def _python(context: Any) -> str:
    """The interpreter for our workers. Where nobody chose one Spark takes the `python3` of the PATH; on this machine
    that of the program is the better guess: it may run from a virtual environment that is not activated."""
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    return sys.executable if is_local(context) and not chosen else str(context.pythonExec)


class _NotWantedError(Exception):
    """Nobody waits for this launch any more."""


def _outcome(launch: int, results: list[str]) -> JobEnded:
    """What the task itself handed back."""
    told = results[0] if results else LEFT
    if told.startswith(FATAL):
        return JobEnded(launch, told.removeprefix(FATAL), fatal=True)
    return JobEnded(launch, told.removeprefix(LATER))


def _prefer(context: Any, place: str) -> Any:
    """An RDD of one row with a preferred location, which only the JVM's interface can say."""
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    jvm = context._jvm
    row = jvm.scala.Tuple2(bytearray(b"0"), _scala_list(jvm, [place]))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    made = context._jsc.sc().makeRDD(_scala_list(jvm, [row]), tag)
    return RDD(made.toJavaRDD(), context, NoOpSerializer())


def _scala_list(jvm: Any, items: list[Any]) -> Any:
    java = jvm.java.util.ArrayList()
    for item in items:
        java.add(item)
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(java)


def _text_of(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    try:
        return str(java.getMessage()) if java is not None else f"{type(error).__name__}: {error}"
    except Exception:  # the JVM is gone, and the message with it
        return f"{type(error).__name__}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:400]


def _without_codes(text: str) -> str:
    """Spark's sentence alone: `Job 3 cancelled as part of cancellation of all jobs`."""
    return _first_line(text).removeprefix(_CANCELLED).partition("SQLSTATE")[0].strip()


def _telling(text: str) -> str:
    """The line that names the version or the module."""
    lines = [line.strip() for line in text.splitlines()]
    marks = ("PYTHON_VERSION_MISMATCH", "No module named")
    return next((line for line in lines if any(mark in line for mark in marks)), lines[0])[:400]


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:  # cancelling what is gone already, with a JVM that may be gone, too
        return
