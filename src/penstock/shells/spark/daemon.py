"""Spark's Python daemon with the heavy modules imported before it forks: a new worker starts at once.

Only for sessions that Penstock itself starts. It imports and nothing else: no thread, no socket, no output.
"""

from __future__ import annotations

import os


def warm_up() -> None:
    """Imports what a worker needs. Whatever fails here fails again, with a better message, in the worker."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in (
        "numpy",
        "pandas",
        "pyarrow.compute",
        "pyarrow.ipc",
        "zmq",
        "msgpack",
        "xxhash",
        "fsspec",
        "pyspark.worker",
        "penstock",
        "penstock.shells.spark.entry",
        "penstock.shells.spark.body",
        "penstock.engine.worker.worker",
    ):
        try:
            __import__(name)
        except Exception:  # noqa: S112
            continue


if __name__ == "__main__":
    from pyspark.daemon import manager

    warm_up()
    manager()
