"""What runs inside the Spark task, from its first line to its last.

`make_task` gives the function that Spark ships: it is defined inside another one, so it travels by value and
needs nothing of Penstock before its own `try`. It never reads its input, for then Spark does not keep the
process for other tasks. It hands back one line of text: how it ended.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import resource
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigError, LaunchError
from penstock.ports.control import DriverLost
from penstock.shells.spark.background import ThreadBackground
from penstock.shells.spark.clock import RealClock
from penstock.shells.spark.control_client import ControlClient, local_address, register
from penstock.shells.spark.host import SparkHost
from penstock.shells.spark.invitation import Invitation
from penstock.shells.spark.network import TcpData
from penstock.shells.spark.rejoining import rejoin
from penstock.shells.spark.sockets import Watch, new_context
from penstock.shells.spark.versions import versions

DEFAULT_BODY = "penstock.shells.spark.body:make_worker"
LEFT = "the worker left, as it was told"
FATAL = "fatal "
LATER = "later "
"""How a task ended: as it should; it can never run here; it could not this time."""

_OPEN_FILES_WANTED = 65_536


def make_task(invitation: bytes, payload: bytes) -> Callable[[Iterable[Any]], Iterator[str]]:
    """The function for `mapPartitions`."""

    def task(_unread: Iterable[Any]) -> Iterator[str]:
        try:
            from penstock.shells.spark.entry import run_worker
        except ImportError as error:
            import socket
            import sys

            return iter(
                [
                    f"fatal {sys.executable} on {socket.gethostname()} cannot import Penstock: {error}."
                    " Install penstock and what it needs there, or let PYSPARK_PYTHON name an"
                    " environment that has them."
                ]
            )
        return iter([run_worker(invitation, payload)])

    return task


def run_worker(invitation_bytes: bytes, payload: bytes) -> str:
    """Joins the driver, runs the body until it is told to leave, and frees all that it opened."""
    invitation = Invitation.from_bytes(invitation_bytes)
    tune_process()
    context = new_context()
    try:
        return _join_and_run(context, invitation, payload)
    except LaunchError as error:
        return f"{LATER}{error}"
    except DriverLost as error:
        return f"{LATER}the worker left: {error}"
    except ImportError as error:
        return f"{FATAL}a worker cannot import what the job needs: {error}. Ship it with spark.submit.pyFiles."
    finally:
        context.destroy(linger=0)
        _stop_zmq_thread()


def _join_and_run(context: Any, invitation: Invitation, payload: bytes) -> str:
    """A driver that is lost for a while finds this process again, with nothing of what it did before."""
    process = secrets.token_hex(8)
    joined = register(context, invitation, versions(), process=process)
    while True:
        try:
            _run(context, joined, invitation, payload)
        except DriverLost as error:
            joined = rejoin(context, invitation, process, str(error))
        else:
            return LEFT


def _run(context: Any, joined: tuple[Any, Watch], invitation: Invitation, payload: bytes) -> None:
    host = SparkHost(context, _tcp(invitation))
    driver = ControlClient(*joined, host.wake)
    background = ThreadBackground(threads=2, wake=host.wake)
    try:
        load_body(invitation.body)(payload, driver, host, RealClock(), background).run()
    except Exception as error:
        if not isinstance(error, DriverLost):
            driver.say_goodbye(f"its process failed: {type(error).__name__}: {error}")
        raise
    finally:
        background.close()
        host.close()
        driver.close()  # last: its watchdog watches over the rest


def load_body(name: str) -> Any:
    """What `module:name` stands for."""
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(f"the body of a worker is written module:name, not {name!r}")
    return getattr(importlib.import_module(module), attribute)


def tune_process() -> None:
    """Settings of the whole process that the hot path wants; the process is this worker's alone."""
    os.environ["OMP_NUM_THREADS"] = "1"
    pa.set_cpu_count(1)
    pa.set_io_thread_count(2)
    sys.setswitchinterval(0.0001)
    gc.freeze()
    _keep_freed_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(_OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _keep_freed_memory() -> None:
    """glibc gives the pages of every large temporary back to the kernel, unless told not to."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
        libc.mallopt(-2, 64 << 20)  # M_TOP_PAD


def _tcp(invitation: Invitation) -> TcpData | None:
    if not (invitation.data_by_tcp or invitation.only_tcp):
        return None
    ports = invitation.data_ports
    return TcpData(
        address=local_address(invitation),
        ports=range(ports[0], ports[1] + 1) if ports else None,
        only=invitation.only_tcp,
    )


def _stop_zmq_thread() -> None:
    """The binding's own thread for memory that was sent without a copy."""
    from zmq.utils.garbage import gc as sent

    sent.stop()
