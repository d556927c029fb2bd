"""How long a job stands still after a fault: from the fault to the first batch that is processed after it.

A function behind the aggregate writes a line with the time and its process for the first batch of every attempt. So
what is timed has been through the restored source, the channels and the restored state.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as pen
from bench.figures import Figure, middle, within
from bench.sizes import Sizes
from bench.waiting import wait_for
from bench.workload import INT_SCHEMA, aggregates, rows_function

PARALLELISM = 2
RATE = 200_000
EXCEPTION_S, KILL_S, SPARE_S = 0.3, 1.2, 0.3


class FirstBatch:
    """Writes `first <seconds> <pid>` for the first batch of an attempt. When the file `fault` appears, whoever
    removes it writes `fault <seconds> <pid>` and raises."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen = False

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._seen:
            self._seen = True
            self._write("first")
        try:
            Path(self._folder, "fault").unlink()
        except FileNotFoundError:
            return batch
        self._write("fault")
        raise ValueError("a fault that the benchmark ordered")

    def _write(self, what: str) -> None:
        with Path(self._folder, "log").open("a", encoding="ascii") as file:
            file.write(f"{what} {time.monotonic()} {os.getpid()}\n")


@dataclass(frozen=True)
class Line:
    what: str
    time_s: float
    pid: int


class Patient:
    """A running job that faults are made in."""

    def __init__(
        self,
        folder: str,
        spare_workers: int = 0,
        totals: pen.Stream | None = None,
        **options: Any,
    ) -> None:
        """`totals`: what it has for state, if not a few keys; `options` of its checkpoints."""
        self._folder = folder
        self._workers = PARALLELISM + spare_workers
        totals = totals or _few_keys()
        watched = totals.map_batches(FirstBatch(folder), schema=totals.schema).named("watched")
        self.job = watched.to(pen.BlackholeSink()).start(
            name="bench-recovery",
            parallelism=PARALLELISM,
            checkpoint=pen.CheckpointConfig(f"{folder}/chk", **{"every": "500 ms", **options}),
            restore="fresh",
            spare_workers=spare_workers,
            buffer_timeout="5 ms",
            # As after a first failure, every time: the default strategy would wait longer after each.
            restart=pen.FixedDelay(attempts=1_000, delay="50 ms"),
        )

    def lines(self) -> list[Line]:
        log = Path(self._folder, "log")
        if not log.exists():
            return []
        complete = log.read_text("ascii").rpartition("\n")[0]
        parts = [line.split() for line in complete.splitlines()]
        return [Line(what, float(time_s), int(pid)) for what, time_s, pid in parts]

    def wait_until_well(self, since_s: float) -> list[Line]:
        """Every subtask has processed since then, a checkpoint after that is complete, all workers are there."""

        def firsts() -> list[Line]:
            found = [e for e in self.lines() if e.what == "first" and e.time_s > since_s]
            return found if len(found) >= PARALLELISM else []

        found = wait_for("every subtask to process rows", firsts, self.job)
        done = self._completed()
        wait_for("a checkpoint", lambda: self._completed() > done, self.job)
        wait_for(
            "all workers",
            lambda: self.job.metrics()["penstock_workers"] >= self._workers,
            self.job,
        )
        return found

    def _completed(self) -> float:
        return self.job.metrics()["penstock_checkpoints_completed_total"]


def _few_keys() -> pen.Stream:
    source = pen.GeneratorSource(rows_function("int", 10_000), INT_SCHEMA, rate=RATE)
    return pen.from_source(source).key_by("key").agg(**aggregates()).named("totals")


def raise_in_user_code(
    patient: Patient, folder: str, running: list[Line]
) -> tuple[float, set[int]]:
    """When the function raised, and the processes that must go on."""
    before = len([line for line in patient.lines() if line.what == "fault"])
    Path(folder, "fault").touch()

    def faults() -> list[Line]:
        return [line for line in patient.lines() if line.what == "fault"][before:]

    (fault,) = wait_for("the exception", faults, patient.job)
    return fault.time_s, {line.pid for line in running}


def kill_a_worker(patient: Patient, folder: str, running: list[Line]) -> tuple[float, set[int]]:
    victim, *others = sorted({line.pid for line in running})
    fault_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    return fault_s, set(others)


Fault = Callable[[Patient, str, list[Line]], tuple[float, set[int]]]


@dataclass
class Healing:
    first_s: list[float]
    """To the first batch of any subtask."""
    all_s: list[float]
    """Until every subtask has processed one."""
    kept: bool = True
    """The processes that were not hit worked on."""


def measure(fault: Fault, sizes: Sizes, spare_workers: int = 0) -> Healing:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        patient = Patient(folder, spare_workers)
        try:
            return healed(patient, folder, fault, sizes.faults)
        finally:
            patient.job.cancel(timeout=30)


def healed(patient: Patient, folder: str, fault: Fault, times: int) -> Healing:
    healing, running = Healing([], []), patient.wait_until_well(0.0)
    for _ in range(times):
        fault_s, survivors = fault(patient, folder, running)
        running = patient.wait_until_well(fault_s)
        took_s = [line.time_s - fault_s for line in running]
        healing.first_s.append(min(took_s))
        healing.all_s.append(max(took_s))
        healing.kept &= survivors <= {line.pid for line in running}
    return healing


def run(sizes: Sizes) -> list[Figure]:
    cases: list[tuple[str, Fault, int, float]] = [
        ("exception in user code", raise_in_user_code, 0, EXCEPTION_S),
        ("SIGKILL of a worker", kill_a_worker, 0, KILL_S),
        ("SIGKILL, a spare worker waits", kill_a_worker, 1, SPARE_S),
    ]
    figures = []
    for name, fault, spares, target_s in cases:
        healing = measure(fault, sizes, spares)
        figures.append(within("recovery", f"{name}: first batch", healing.first_s, "s", target_s))
        every = middle(healing.all_s)
        reference = middle(healing.first_s)
        figures.append(
            Figure("recovery", f"{name}: all subtasks", every, "s", "the first", reference)
        )
        kept = float(healing.kept)
        figures.append(
            Figure(
                "recovery",
                f"{name}: survivors keep pids",
                kept,
                "yes = 1",
                "all",
                1.0,
                at_least=1.0,
            )
        )
    return figures
