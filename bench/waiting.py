"""Waiting for a condition, with a deadline, and no longer than the job lives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import penstock as pen

T = TypeVar("T")


def wait_for(
    what: str, found: Callable[[], T], job: pen.Job, within_s: float = 180.0, every_s: float = 0.01
) -> T:
    """The first true value of `found`."""
    end_s = time.monotonic() + within_s
    while not (value := found()):
        if job.await_termination(0):
            raise RuntimeError(f"the job ended while {what} was waited for: {job.status}")
        if time.monotonic() > end_s:
            raise TimeoutError(f"waited {within_s:g} s for {what}")
        time.sleep(every_s)
    return value
