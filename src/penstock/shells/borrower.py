"""This process as a reader of checkpoints: its name, the machine's clock, and ids that nobody else has."""

from __future__ import annotations

import os
import socket
import time
from uuid import uuid4

from penstock.engine.checkpoints.leases import Borrower


def this_process() -> Borrower:
    return Borrower(
        who=f"{socket.gethostname()}/{os.getpid()}",
        wall_ms=lambda: time.time() * 1000.0,
        unique=lambda: uuid4().hex,
    )
