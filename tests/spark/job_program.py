"""Programs of their own around one job, started by tests that kill them or parts of them.

python job_program.py drive <folder> <rows>       runs the job on a local Spark to its end
python job_program.py unattended <folder> <rows>  starts the job and does something else for ever
python job_program.py cluster <folder> <rows>     the same on three executors, one of which is killed
python job_program.py stopped <folder> <rows>     stops Spark under the running job, then starts the job again

Rows go to <folder>/out, checkpoints to <folder>/chk; the last rows come when <folder>/end says so. What happened is
printed, one line each.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil

import penstock as pen
from tests.spark import jobs
from tests.spark.clusters import local_cluster, session
from tests.spark.ends import PATIENCE_S, until
from tests.spark.taps import Tap

RATE = 2_000


def say(*words: object) -> None:
    print(*words, flush=True)


def tap(folder: Path, rows: int) -> Tap:
    return Tap(folder / "end", RATE, held=rows - 500)


def start(spark: Any, folder: Path, rows: int) -> pen.Job:
    return jobs.to_files(folder / "out", tap(folder, rows).stream()).start(
        spark,
        name="program",
        parallelism=2,
        checkpoint=jobs.config(folder / "chk", every="200 ms"),
        restart=jobs.AT_ONCE,
    )


def drive(folder: Path, rows: int) -> None:
    job = start(None, folder, rows)
    until(lambda: jobs.completed(job) > 0 or jobs.ended(job))
    until(lambda: jobs.read_parts(folder / "out").num_rows > 0 or jobs.ended(job))
    say("pids", *jobs.workers())
    say_how(lambda: job.await_termination(PATIENCE_S))


def unattended(folder: Path, rows: int) -> None:
    job = start(None, folder, rows)
    until(lambda: jobs.completed(job) >= 2)
    say("pids", *jobs.workers())
    threading.Event().wait()


def say_how(run: Callable[[], object]) -> None:
    """How it ended, in one line."""
    try:
        told = f"returned {run()}"
    except Exception as error:
        told = f"{type(error).__name__}: {error}".replace("\n", " | ")
    say("ended", told)


# ---- an executor is killed


def cluster(folder: Path, rows: int) -> None:
    spark = local_cluster(3, cores=1)  # so that no two workers are on one
    job = start(spark, folder, rows)
    jobs.more_checkpoints(job, 2)
    before = jobs.workers()
    victim, lost = next((each, below) for each in executor_jvms() if (below := jobs.workers(each)))
    say("workers", len(before), "on the victim", len(lost))
    os.kill(victim, signal.SIGKILL)
    until(lambda: jobs.restarts(job) > 0)
    jobs.more_checkpoints(job)
    stayed = set(before) - set(lost)
    say("stayed", stayed <= set(jobs.workers()), len(stayed))
    tap(folder, rows).end(rows)
    say_how(lambda: job.await_termination(PATIENCE_S))
    until(lambda: not jobs.workers())
    say("left", len(jobs.workers()), len(jobs.threads()))
    spark.stop()


def executor_jvms() -> list[int]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


# ---- Spark is stopped


def stopped(folder: Path, rows: int) -> None:
    spark = session("local[4,1000]")
    job = start(spark, folder, rows)
    jobs.more_checkpoints(job, 1)
    pids = jobs.workers()
    spark.stop()
    say_how(lambda: job.await_termination(PATIENCE_S))
    until(lambda: not any(jobs.runs(pid) for pid in pids))
    say("left", len(jobs.workers()), len(jobs.threads()))
    say_how(lambda: start(spark, folder, rows))


if __name__ == "__main__":
    modes = {"drive": drive, "unattended": unattended, "cluster": cluster, "stopped": stopped}
    modes[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
