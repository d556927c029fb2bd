"""A worker whose driver is not heard of any more comes back to it, if it is still there.

A driver that stands still for a while (a long pause of its machine, a debugger) and a network that is cut look the same
from here: nobody answers. The worker has dropped its attempt, and knocks again and again. Where nobody listens any more
the driver's process is gone, and so is the worker, soon.
"""

from __future__ import annotations

import socket as sockets
import time
from typing import Any

from penstock.errors import LaunchError
from penstock.ports.control import DriverLost
from penstock.shells.spark.control_client import Refused, endpoint_for, register
from penstock.shells.spark.invitation import Invitation
from penstock.shells.spark.sockets import Watch
from penstock.shells.spark.versions import versions

GONE_AFTER_S = 2.0
"""A driver whose address is closed for so long is gone."""
KNOCK_EVERY_S = 0.2
ANSWER_WITHIN_MS = 2_000


def rejoin(context: Any, invitation: Invitation, process: str, why: str) -> tuple[Any, Watch]:
    """A new connection to the driver. DriverLost when it is gone, or silent for too long; Refused when it does not
    want this worker any more."""
    try:
        endpoint = endpoint_for(invitation)[0]
    except LaunchError:  # the driver has taken its address away
        raise DriverLost(why) from None
    end_s, gone_s = time.monotonic() + invitation.driver_timeout_s, float("inf")
    while time.monotonic() < min(end_s, gone_s):
        if is_closed(endpoint):
            gone_s = min(gone_s, time.monotonic() + GONE_AFTER_S)
        else:
            gone_s = float("inf")
            try:
                return register(context, invitation, versions(), ANSWER_WITHIN_MS, process)
            except Refused:
                raise
            except LaunchError:
                pass
        time.sleep(KNOCK_EVERY_S)
    raise DriverLost(why)


def is_closed(endpoint: str) -> bool:
    """True when the host answers that nobody listens there. Silence is no such answer."""
    kind, _, address = endpoint.partition("://")
    try:
        if kind == "ipc":
            with sockets.socket(sockets.AF_UNIX) as probe:
                probe.settimeout(1.0)
                probe.connect(address)
        else:
            host, _, port = address.rpartition(":")
            sockets.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:
        return False
    return False
