"""What the tests of whole jobs on real Spark share: input, reference results, worker processes, and traces.

Everything here can run in a worker, too: functions are sent to workers by the name of this module.
"""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as ds

import penstock as pen
from tests.spark.ends import PATIENCE_S, until

SCHEMA = "i BIGINT, k BIGINT, v BIGINT"
NUMBERED = "k BIGINT, i BIGINT, nth BIGINT"
KEYS = 17


# ---- input and what must come of it


def numbers(start: int, n: int) -> pa.RecordBatch:
    """Rows i, a key of i, a value of i."""
    return rows_of(np.arange(start, start + n, dtype=np.int64))


def rows_of(i: Any) -> pa.RecordBatch:
    columns = [pa.array(i), pa.array(key_of(i)), pa.array(value_of(i))]
    return pa.RecordBatch.from_arrays(columns, names=["i", "k", "v"])


def key_of(i: Any) -> Any:
    return (i * 7919) % KEYS


def value_of(i: Any) -> Any:
    return (i * 31) % 1000


def source(rows: int | None, rate: float | None = None) -> pen.Stream:
    return pen.from_source(pen.GeneratorSource(numbers, SCHEMA, rows=rows, rate=rate), "numbers")


class Nth:
    """Numbers the rows of each key: state that is lost or applied twice shows in the output."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.value_state("seen", "n BIGINT")

    def process(self, key: Any, rows: Iterable[Any], ctx: Any) -> Iterator[tuple[int, int, int]]:
        n = (self.seen.get() or (0,))[0]
        for row in rows:
            n += 1
            yield (key.k, row.i, n)
        self.seen.update((n,))


def count_up(stream: pen.Stream) -> pen.Stream:
    return stream.key_by("k").process(Nth(), NUMBERED).named("nth")


def totals(stream: pen.Stream) -> pen.Stream:
    return stream.key_by("k").agg(n=pen.count(), total=pen.sum("v")).named("totals")


def to_files(folder: Path, stream: pen.Stream) -> pen.Pipeline:
    """The program that several drivers run: numbered rows into files."""
    return count_up(stream).to(pen.FileSink(str(folder)), name="files")


def fold(rows: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Count and sum per key, computed by hand."""
    result: dict[int, tuple[int, int]] = {}
    for i in rows:
        n, total = result.get(key_of(i), (0, 0))
        result[key_of(i)] = (n + 1, total + value_of(i))
    return result


# ---- checks


def assert_each_once(found: Iterable[int], rows: int) -> None:
    """I1: every row is there once."""
    counts = Counter(found)
    missing = sorted(set(range(rows)) - set(counts))
    repeated = sorted(i for i, n in counts.items() if n > 1)
    beyond = sorted(set(counts) - set(range(rows)))
    assert not missing and not repeated and not beyond, (
        f"missing {len(missing)} {missing[:5]}, repeated {len(repeated)} {repeated[:5]}, "
        f"beyond the input {beyond[:5]}"
    )


def assert_numbered(table: pa.Table, rows: int) -> None:
    """I1, I2: every row once, and the rows of each key numbered 1, 2, 3 without a gap or a repeat."""
    assert_each_once(table["i"].to_pylist(), rows)
    given: dict[int, list[int]] = {}
    for row in table.to_pylist():
        assert row["k"] == key_of(row["i"])
        given.setdefault(row["k"], []).append(row["nth"])
    for key, nths in given.items():
        assert sorted(nths) == list(range(1, len(nths) + 1)), f"key {key}"


def assert_totals(table: pa.Table, rows: int) -> None:
    """I2: no update of a key twice, and the last one of each key is the fold of its whole input."""
    updates = [(row["k"], row["n"]) for row in table.to_pylist()]
    assert len(updates) == len(set(updates)), "an update is there twice"
    newest: dict[int, tuple[int, int]] = {}
    for row in table.to_pylist():
        if row["n"] > newest.get(row["k"], (0, 0))[0]:
            newest[row["k"]] = (row["n"], row["total"])
    assert newest == fold(range(rows))


def read_parts(folder: Path, format: str = "parquet") -> pa.Table:
    """What a plain reader sees in the folder of a FileSink."""
    files = sorted(str(each) for each in folder.glob(f"part-*.{format}"))
    return ds.dataset(files, format=format).to_table() if files else pa.table({"i": []})


# ---- waiting for a job


def config(path: Path, every: str = "150 ms", **options: Any) -> pen.CheckpointConfig:
    return pen.CheckpointConfig(path, every=every, **options)


AT_ONCE = pen.FixedDelay(attempts=1000, delay="0 seconds")


def completed(job: pen.Job) -> int:
    return int(job.metrics()["penstock_checkpoints_completed_total"])


def restarts(job: pen.Job) -> int:
    return int(job.metrics()["penstock_restarts_total"])


def only_lost_workers(job: pen.Job) -> bool:
    """Nothing but killed workers was told of: by the driver, or first by a worker that had a channel to one."""
    told = {each.error for each in job.exceptions}
    return "WorkerLost" in told and told <= {"WorkerLost", "ChannelLost"}


def rows_in(job: pen.Job, operator: str) -> float:
    """The rows that an operator took in this attempt, as far as its workers have told."""
    return job.metrics().get(f'penstock_records_in_total{{operator="{operator}"}}', 0)


def finish(job: pen.Job, within_s: float = PATIENCE_S) -> None:
    """Waits for the end; a job that does not come to it is cancelled and described."""
    if job.await_termination(within_s):
        return
    told = f"{job!r} after {within_s} s; {job.metrics()}; {job.exceptions[:3]}; {job.checkpoints()[:3]}"
    job.cancel(PATIENCE_S)
    raise AssertionError(told)


def more_checkpoints(job: pen.Job, n: int = 1, within_s: float = PATIENCE_S) -> None:
    """Waits until n more checkpoints of this job are complete."""
    wanted = completed(job) + n
    until_job(job, lambda: completed(job) >= wanted, within_s)


def until_job(job: pen.Job, condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Waits for a condition, not longer than the job runs."""
    until(lambda: condition() or ended(job), within_s)
    if not condition():
        job.await_termination()  # raises, where it has failed
        raise AssertionError(f"{job!r} ended first: {job.exceptions[:2]}")


def ended(job: pen.Job) -> bool:
    return job.status in ("finished", "failed", "cancelled", "stopped")


@contextmanager
def running(job: pen.Job) -> Iterator[pen.Job]:
    """Cancels the job at the end, whatever happens in between."""
    try:
        yield job
    finally:
        if not ended(job):
            job.cancel(PATIENCE_S)


# ---- worker processes


def workers(of: int | None = None) -> list[int]:
    """The pids of the worker processes under this program, or under another one."""
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            if is_worker(process):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
    return sorted(found)


def is_worker(process: psutil.Process) -> bool:
    """Forked by a daemon of our workers: Spark's own Python tasks have another environment."""
    if process.status() == psutil.STATUS_ZOMBIE:
        return False
    parent = process.parent()
    return parent is not None and is_ours(process) and is_ours(parent)


def is_ours(process: psutil.Process) -> bool:
    return process.environ().get("PENSTOCK_WORKER") == "1"


def runs(pid: int) -> bool:
    try:
        return str(psutil.Process(pid).status()) != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def kill(pid: int, with_signal: int = signal.SIGKILL) -> None:
    """A process that is gone by now is none to kill."""
    with suppress(ProcessLookupError):
        os.kill(pid, with_signal)


def let_pass(seconds: float) -> None:
    """Lets time pass, where what happens when is the very thing that is drawn."""
    end_s = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end_s)


# ---- traces


class Traces:
    """What was there before a job, to be compared with what is there after it."""

    def __init__(self) -> None:
        self.files = len(os.listdir("/proc/self/fd"))
        self.sockets = sockets()

    def none_left(self, files_more: int = 6) -> None:
        """I26, bug-I5: no process, thread, socket or temporary file of a job stays behind."""
        until(lambda: not workers())
        until(lambda: not threads())
        until(lambda: not abandoned())
        until(lambda: sockets() <= self.sockets)
        until(lambda: len(os.listdir("/proc/self/fd")) <= self.files + files_more)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]


def sockets() -> set[str]:
    """The sockets in temporary directories that any process under this one listens on."""
    found = set()
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):
            found |= {c.laddr for c in process.net_connections("unix") if "/penstock-" in c.laddr}
    return found


def abandoned() -> list[Path]:
    """Directories of sockets that nobody who is alive holds. Other programs on this machine have some, too."""
    return [p for p in Path(tempfile.gettempdir()).glob("penstock-*") if is_unlocked(p / "lock")]


def is_unlocked(lock: Path) -> bool:
    try:
        with lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
