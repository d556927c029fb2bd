"""Faults that tests put into user code: raised in a worker at a chosen place, once or always."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as pen
from tests.spark import jobs

PLACES = ("write", "prepare", "durable", "commit")
AFTER_COMMIT = "after the commit"


def once(flag: Path | str) -> bool:
    """True for the first caller only, over all processes and attempts."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Fault:
    """Raises when it is reached: the first time only, or always."""

    def __init__(self, flag: Path, always: bool = False) -> None:
        self.flag = str(flag)
        self.always = always

    def reached(self, where: str) -> None:
        if once(self.flag) or self.always:
            raise ValueError(f"the {where} hit a bump")

    @property
    def happened(self) -> bool:
        return Path(self.flag).exists()


class FirstTimes(Fault):
    """Raises the first few times that it is reached."""

    def __init__(self, flag: Path, times: int) -> None:
        super().__init__(flag)
        self.times = times

    def reached(self, where: str) -> None:
        if any(once(f"{self.flag}-{n}") for n in range(self.times)):
            raise ValueError(f"the {where} hit a bump")


class Death(Fault):
    """The process kills itself, once."""

    def reached(self, where: str) -> None:
        if once(self.flag):
            os.kill(os.getpid(), signal.SIGKILL)


class Dawdle(Fault):
    """Takes its time, always: a kill at a random moment often comes in between."""

    def reached(self, where: str) -> None:
        time.sleep(0.08)


class Hang(Fault):
    """Never comes back, once."""

    def reached(self, where: str) -> None:
        if once(self.flag):
            threading.Event().wait()


class BumpyMap:
    """A function of batches that raises when it meets row 500."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if 500 in batch.column("i").to_pylist():
            self.fault.reached("map")
        return batch


class BumpyOpen(jobs.Nth):
    """Numbers rows. When `after` has happened, opening raises: the fault is met while state is restored."""

    def __init__(self, fault: Fault, after: Fault | None) -> None:
        self.fault = fault
        self.after = after

    def open(self, ctx: Any) -> None:
        super().open(ctx)
        if self.after is None or self.after.happened:
            self.fault.reached("open")


class BumpySink(pen.CollectSink):
    """Collects rows, with a fault in one of PLACES, or AFTER_COMMIT."""

    def __init__(self, place: str, fault: Fault) -> None:
        super().__init__()
        self.place = place
        self.fault = fault

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "place": self.place, "fault": self.fault}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.place, self.fault = state["place"], state["fault"]

    def writer(self, context: pen.SinkContext) -> pen.SinkWriter:
        return _Writer(super().writer(context), self)

    def committer(self, context: pen.SinkContext) -> pen.SinkCommitter:
        return _Committer(super().committer(context), self)

    def reached(self, place: str) -> None:
        if place == self.place:
            self.fault.reached(place)


class _Writer(pen.SinkWriter):
    def __init__(self, inner: pen.SinkWriter, sink: BumpySink) -> None:
        self.inner = inner
        self.sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        self.sink.reached("write")
        self.inner.write(batch)

    def prepare(self, checkpoint: int) -> Any:
        self.sink.reached("prepare")
        made = self.inner.prepare(checkpoint)

        def durable() -> Any:
            self.sink.reached("durable")
            return made() if callable(made) else made

        return durable if made is not None else None

    def close(self) -> None:
        self.inner.close()


class _Committer(pen.SinkCommitter):
    def __init__(self, inner: pen.SinkCommitter, sink: BumpySink) -> None:
        self.inner = inner
        self.sink = sink

    def commit(self, transaction: Any) -> None:
        self.sink.reached("commit")
        self.inner.commit(transaction)
        self.sink.reached(AFTER_COMMIT)

    def abort_others(self, keep: Any) -> None:
        self.inner.abort_others(keep)

    def close(self) -> None:
        self.inner.close()


class Unsendable:
    """Cannot be pickled, like a lock or an open connection."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a connection")
