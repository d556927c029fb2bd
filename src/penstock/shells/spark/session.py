"""Spark sessions: which one a job runs on, what it is set to, starting a quiet local one, and checking a user's.

A job that is given no session runs on the one that its program has made, or on that of `spark-submit`, with the master
that was named there. A plain `python app.py` without a session gets a local Spark of Penstock's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.api.keys import PREFIX
from penstock.errors import LaunchError
from penstock.shells.spark.executors import slots_of

DAEMON = "penstock.shells.spark.daemon"
TASK_FAILURES_MAX = 1000
"""How often Spark itself restarts a worker of a local session before its job counts as failed."""
SPARK_SLOTS_LEFT = 2
"""Slots of a local session that a job leaves free besides those of its workers, so that other queries find room."""
_OURS = f"{PREFIX}local"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_used: dict[str, int] = {}
"""Slots of the local session by who holds them: something that no other start has, a space, and the job's name."""


def local_session(slots: int, holder: str) -> Any:
    """The session for a job that was given none. A local Spark has at least so many free slots; an own one that is
    too small is replaced when no job runs on it. A session of the program itself is taken as it is."""
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    if not is_on_own_spark():
        return _session_of_program()
    _used.pop(holder, None)
    if active is not None and slots_of(active) < slots + sum(_used.values()):
        _stop_unused(active, slots)
        active = None
    session = _start(slots) if active is None else _session_of_program()
    _used[holder] = slots
    return session


def is_on_own_spark() -> bool:
    """Whether a job that is given no session gets a local Spark of ours: the program has no other one."""
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    if active is None:
        return not _is_submitted()
    return bool(active.getConf().get(_OURS, ""))


def settings_of(spark: Any) -> dict[str, str]:
    """All that Spark is set to, for a job on this session or, with None, on the one that it will get. With what the
    program has set by `spark.conf.set`."""
    from pyspark import SparkContext

    if spark is None and SparkContext._active_spark_context is None:
        return _settings_before_session()
    session = _session_of_program() if spark is None else spark
    check_session(session)
    return dict(session.conf.getAll)


def release_session(holder: str) -> None:
    """The job has ended. The session stays for the next one and ends with the program."""
    _used.pop(holder, None)


def refuse_connect(spark: Any) -> None:
    """Raises LaunchError for a Spark Connect session, or where there is one and a local Spark is wanted beside it.
    Asks nothing of the session: one of Connect does not have what others have."""
    from pyspark.sql.utils import is_remote

    if is_remote() if spark is None else is_connect(spark):
        raise LaunchError(
            "this program uses Spark Connect, and Penstock cannot run on it: its workers are Spark tasks that live as"
            " long as the job and connect back to the program that started it. Run the job in a program of its own,"
            " without .remote(...) and SPARK_REMOTE: with .start() it gets a local Spark, and with"
            " .start(SparkSession.builder.master(...).getOrCreate()) it runs on a cluster."
        )


def is_connect(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def check_session(spark: Any) -> None:
    """Raises LaunchError when Penstock cannot run on this session."""
    refuse_connect(spark)
    context = spark.sparkContext
    if is_stopped(context):
        raise LaunchError("this SparkSession is stopped. Give a running one, or spark=None.")
    conf = context.getConf()
    kills = conf.get("spark.python.worker.killOnIdleTimeout", "false").strip().lower() == "true"
    if kills and conf.get("spark.python.worker.idleTimeoutSeconds", "0").strip(" s") != "0":
        raise LaunchError(
            "spark.python.worker.killOnIdleTimeout would end Penstock's workers, which run as long as the job"
            " and return no rows to Spark. Set it to false, or spark.python.worker.idleTimeoutSeconds to 0."
        )


def is_stopped(context: Any) -> bool:
    if context._jsc is None:
        return True
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:  # the JVM itself is gone
        return True


def is_local(context: Any) -> bool:
    """True when every executor runs on the driver's own machine."""
    return str(context.master).startswith("local")


def is_one_process(context: Any) -> bool:
    """True when driver and executor are one Java process: there is only one place for a task."""
    master = str(context.master)
    return master == "local" or master.startswith("local[")


def worker_environment(session_path: str = "") -> dict[str, str]:
    """Environment of our Python workers. It differs from other tasks', so they get a daemon of their own."""
    return {
        "PENSTOCK_WORKER": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": _python_path(session_path),
    }


def _python_path(session_path: str = "") -> str:
    """Where workers import from: Penstock's own place, so that a source tree that is not installed works; the
    program's, so that the modules beside it are found; then what was set before."""
    import penstock

    own = str(Path(next(iter(penstock.__path__))).parent)
    program = sys.path[0] if sys.path and sys.path[0] else str(Path.cwd())
    before = [*session_path.split(os.pathsep), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(path for path in [own, program, *before] if path))


def _is_submitted() -> bool:
    """Whether `spark-submit` has started this program: its Java process waits for it to make a session."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _settings_before_session() -> dict[str, str]:
    """What a session would be set to that is made now. Java knows, and under `spark-submit` it is there. Otherwise it
    is started here only where there may be keys: without, a program learns what is wrong with it before any Spark."""
    from pyspark import SparkConf, SparkContext

    is_there = SparkContext._gateway is not None or _is_submitted()
    if not is_there and not _may_have_keys():
        return {}
    conf = SparkConf(loadDefaults=False).setMaster("local").setAll(list(_settings().items()))
    with _own_python():
        SparkContext._ensure_initialized(conf=conf)
    return dict(SparkConf().getAll())


def _may_have_keys() -> bool:
    """Whether any stand where Spark looks for the settings of a program that `python` has started."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf") / "spark-defaults.conf"
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if PREFIX in arguments or "--properties-file" in arguments:
        return True
    return defaults.is_file() and PREFIX in defaults.read_text("utf-8", errors="replace")


def _start(slots: int) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{slots},{TASK_FAILURES_MAX}]").appName("Penstock")
    for name, value in {_OURS: "true", **_settings()}.items():
        builder = builder.config(name, value)
    with _own_python():
        return builder.getOrCreate()


def _settings() -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.daemon.module": DAEMON,
        "spark.executorEnv.PYTHONPATH": _python_path(),
        "spark.sql.session.timeZone": "UTC",
    }


def _session_of_program() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def _stop_unused(context: Any, slots: int) -> None:
    if _used:
        jobs = ", ".join(sorted({repr(holder.partition(" ")[2] or holder) for holder in _used}))
        raise LaunchError(
            f"the local Spark of this program has {slots_of(context)} slots, {sum(_used.values())} of them used"
            f" by {jobs}; this job needs {slots} more: {slots - SPARK_SLOTS_LEFT} for its workers, one each, and"
            f" {SPARK_SLOTS_LEFT} that every job leaves free, so that Spark can still run queries of this program."
            " Stop those jobs first, or start all of them on a session of your own with enough slots, as in"
            ' SparkSession.builder.master("local[16]").getOrCreate().'
        )
    _session_of_program().stop()


@contextmanager
def _own_python() -> Iterator[None]:
    """Workers on this machine run the Python of the program."""
    values = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
