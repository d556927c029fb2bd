"""A disk that is full after so many bytes: a write is cut short before the next one fails."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT = resource.RLIMIT_FSIZE


@contextmanager
def small_disk(bytes_max: int) -> Iterator[None]:
    """No file may become longer than this. Python has the signal for it switched off, so the write fails instead."""
    soft, hard = resource.getrlimit(LIMIT)
    resource.setrlimit(LIMIT, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(LIMIT, (soft, hard))
