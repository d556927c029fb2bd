"""Programs of their own around one job, started by tests that kill them or parts of them.

python job_program.py drive <folder> <rows>       runs the job on a local Spark to its end
python job_program.py cluster <folder> <rows>     the same on two executors, one of which is killed
python job_program.py stopped <folder> <rows>     stops Spark under the running job, then starts the job again

Rows go to <folder>/out, checkpoints to <folder>/chk. What happened is printed, one line each.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil

import penstock as pen
from tests.spark import jobs
from tests.spark.clusters import local_cluster, session
from tests.spark.ends import until

RATE = 2_000


def say(*words: object) -> None:
    print(*words, flush=True)


def start(spark: Any, folder: Path, rows: int) -> pen.Job:
    return jobs.to_files(folder / "out", rows, RATE).start(
        spark,
        name="program",
        parallelism=2,
        checkpoint=jobs.config(folder / "chk", every="200 ms"),
        restart=jobs.AT_ONCE,
    )


def drive(folder: Path, rows: int) -> None:
    job = start(None, folder, rows)
    until(lambda: jobs.completed(job) >= 2 or jobs.ended(job), within_s=60)
    say("pids", *jobs.workers())
    say_how(lambda: job.await_termination(60))


def say_how(run: Callable[[], object]) -> None:
    """How it ended, in one line, and how long it took."""
    began_s = time.monotonic()
    try:
        told = f"returned {run()}"
    except Exception as error:
        told = f"{type(error).__name__}: {error}".replace("\n", " | ")
    say("ended", round(time.monotonic() - began_s), told)


# ---- an executor is killed


def cluster(folder: Path, rows: int) -> None:
    spark = local_cluster(2)
    job = start(spark, folder, rows)
    jobs.more_checkpoints(job, 2, within_s=60)
    before = jobs.workers()
    victim, lost = next((each, below) for each in executor_jvms() if (below := jobs.workers(each)))
    say("workers", len(before), "on the victim", len(lost))
    os.kill(victim, signal.SIGKILL)
    until(lambda: jobs.restarts(job) > 0, within_s=40)
    jobs.more_checkpoints(job)
    stayed = set(before) - set(lost)
    say("stayed", stayed <= set(jobs.workers()), len(stayed))
    say_how(lambda: job.await_termination(60))
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
    say_how(lambda: job.await_termination(30))
    until(lambda: not any(jobs.runs(pid) for pid in pids))
    say("left", len(jobs.workers()), len(jobs.threads()))
    say_how(lambda: start(spark, folder, rows))


if __name__ == "__main__":
    {"drive": drive, "cluster": cluster, "stopped": stopped}[sys.argv[1]](
        Path(sys.argv[2]), int(sys.argv[3])
    )
