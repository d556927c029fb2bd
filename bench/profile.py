"""Where the time goes: W1 with a profiler inside one worker. `python -m bench.profile [int|text] [seconds]`."""

from __future__ import annotations

import contextlib
import cProfile
import os
import pstats
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import penstock as pen
from bench.sizes import FULL, Sizes
from bench.waiting import wait_for
from bench.workload import OPERATOR, SCHEMAS, aggregates, rows_function

RESULT = "profile"
ENTRIES = 40


class Profiler:
    """Hands batches on. In the first worker that calls it, it profiles the loop's thread for some seconds."""

    def __init__(self, folder: str, warm_s: float, seconds: float) -> None:
        self._folder = folder
        self._warm_s = warm_s
        self._seconds = seconds
        self._profile: cProfile.Profile | None = None
        self._chosen: bool | None = None
        self._began_s = 0.0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._chosen is None:
            self._chosen = self._choose()
            self._began_s = time.monotonic()
        if self._chosen:
            self._advance(time.monotonic() - self._began_s - self._warm_s)
        return batch

    def _choose(self) -> bool:
        """True for one worker only: whoever makes the file first."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(f"{self._folder}/chosen", os.O_CREAT | os.O_EXCL))
            return True
        return False

    def _advance(self, since_warm_s: float) -> None:
        if self._profile is None and since_warm_s >= 0:
            self._profile = cProfile.Profile()
            self._profile.enable()
        elif self._profile is not None and since_warm_s >= self._seconds:
            self._profile.disable()
            self._profile.dump_stats(f"{self._folder}/{RESULT}.part")
            Path(f"{self._folder}/{RESULT}.part").rename(f"{self._folder}/{RESULT}")
            self._chosen = False


def profile(kind: str, seconds: float, sizes: Sizes) -> pstats.Stats:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        source = pen.GeneratorSource(rows_function(kind, sizes.keys), SCHEMAS[kind])
        rows = pen.from_source(source)
        watched = rows.map_batches(Profiler(folder, sizes.warm_s, seconds), schema=rows.schema)
        totals = watched.key_by("key").agg(**aggregates()).named(OPERATOR)
        job = totals.to(pen.BlackholeSink()).start(
            name="bench-profile",
            parallelism=2,
            checkpoint=pen.CheckpointConfig(f"{folder}/chk", every="1 second"),
            restore="fresh",
        )
        try:
            result = Path(folder, RESULT)
            wait_for("the profile", result.exists, job, within_s=60 + sizes.warm_s + 2 * seconds)
            return pstats.Stats(str(result))
        finally:
            job.cancel(timeout=30)


def main(arguments: list[str]) -> None:
    kind = arguments[0] if arguments else "int"
    seconds = float(arguments[1]) if len(arguments) > 1 else 5.0
    profile(kind, seconds, FULL).sort_stats("tottime").print_stats(ENTRIES)


if __name__ == "__main__":
    main(sys.argv[1:])
