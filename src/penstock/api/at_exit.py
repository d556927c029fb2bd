"""What is said when a program ends while a job of it still runs: the job ends with it, and few expect that.

Nothing is stopped or cancelled here. A job whose program is gone is where one is whose driver was killed: its workers
leave by themselves, and it goes on from its newest checkpoint when it is started again. A cancel could delete
checkpoints, and a last checkpoint could take any time.
"""

from __future__ import annotations

import atexit
import logging
from functools import cache

from penstock.api.config import CheckpointConfig
from penstock.api.job import ENDED, NOT_BEGUN, Job, newest_checkpoint

log = logging.getLogger("penstock")
_started: list[tuple[Job, CheckpointConfig | None]] = []


def watch(job: Job, checkpoint: CheckpointConfig | None) -> None:
    """Remembers a job until the program ends. Those that have ended are forgotten."""
    _register()
    _started[:] = [each for each in _started if each[0].status not in ENDED]
    _started.append((job, checkpoint))


@cache
def _register() -> None:
    atexit.register(tell)


def tell() -> None:
    for job, checkpoint in _started:
        if job.status not in ENDED:
            log.warning("%s", _text(job, checkpoint))


def _text(job: Job, checkpoint: CheckpointConfig | None) -> str:
    newest = newest_checkpoint(job)
    if checkpoint is None:
        after = "What it had not committed yet is lost: it takes no checkpoints."
    elif checkpoint.in_memory:
        after = "Its checkpoints were in the memory of this program, and are lost with it."
    elif job.status in NOT_BEGUN:
        after = "Started again it goes on from its newest checkpoint, if it has one."
    elif newest is None:
        after = "It had no checkpoint of this run yet."
    else:
        after = f"Started again it goes on from checkpoint {newest}."
    doing = "starting" if job.status == "created" else job.status
    return (
        f"job {job.name!r} was still {doing} when the program ended, and has ended with it. Call"
        " job.await_termination() to wait for it, or job.stop() to end it with everything committed."
        f" {after}"
    )
