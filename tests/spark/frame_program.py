"""A program whose job reads a streaming DataFrame for ever, started by tests that kill it.

python frame_program.py <folder> <kind of DataFrame>

Rows go to <folder>/out, checkpoints to <folder>/chk. It stops with a last checkpoint when <folder>/stop is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.spark import frames, jobs
from tests.spark.clusters import session
from tests.spark.ends import PATIENCE_S, until


def main(folder: Path, kind: str) -> None:
    spark = session("local[4,1000]")
    job = frames.start(frames.FRAMES[kind](spark, folder), folder)
    seen = frames.rows_out(folder)
    until(lambda: frames.rows_out(folder) > seen or jobs.ended(job), within_s=600)
    print("pids", *jobs.workers(), flush=True)
    until(lambda: (folder / "stop").exists() or jobs.ended(job), within_s=3600)
    frames.wait_for_every_row(job, folder)
    print("ended", job.stop(timeout=PATIENCE_S), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
