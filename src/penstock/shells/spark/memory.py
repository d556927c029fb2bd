"""Whether the workers of a job get the memory they need: looked at once, when it starts; too little is a warning.

Two limits end a Python worker without a word of explanation. `spark.executor.pyspark.memory` limits the address space
of each process, of which a worker reserves far more than it uses. A container's limit (cgroup) is shared by all that
run in it, and who exceeds it is killed. Both are only warned of: a job with little state may do with less.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from penstock.shells.spark.session import is_local

WORKER_BYTES = 512 << 20
"""A worker with little state uses 0.2 GiB (measured); the rest is room for state and for batches on their way."""
WORKER_ADDRESSES_BYTES = 3 << 30
"""A worker with little state reserves 2 GiB of addresses (measured); the rest is room for state."""
DRIVER_BYTES = 256 << 20
"""The program's own Python, beside Spark's Java process."""
_LIMIT = "spark.executor.pyspark.memory"
_UNITS = {"": 20, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
_CGROUPS = Path("/sys/fs/cgroup")

log = logging.getLogger("penstock")


def warn_of_little_memory(context: Any, job_name: str, workers: int) -> None:
    """Logs a warning for each limit that is lower than what so many workers need."""
    found = [_too_few_addresses(context)]
    if is_local(context):
        found.append(_too_small_container(context, workers, container_limit()))
    for text in found:
        if text:
            log.warning("job %s: %s", job_name, text)


def container_limit(group: str | None = None, root: Path = _CGROUPS) -> int | None:
    """The lowest memory limit in bytes of the groups that this process is in; None where there is none."""
    limits = []
    for folder in _folders(_own_groups() if group is None else group, root):
        for name in _LIMIT_FILES:
            text = _read(folder / name)
            if text.isdigit() and int(text) < 1 << 60:  # a huge number is how version 1 says "none"
                limits.append(int(text))
    return min(limits, default=None)


def size_in_bytes(text: str) -> int | None:
    """A size as Spark's memory settings write it (512m, 2g; a number alone is MiB); None when it is none."""
    found = re.fullmatch(r"(\d+)([kmgtp]?)(b?)", text.strip().lower())
    if found is None:
        return None
    number, unit, plain = found.groups()
    return int(number) << _UNITS[unit or plain]


def _too_few_addresses(context: Any) -> str:
    conf = context.getConf()
    whole = size_in_bytes(conf.get(_LIMIT, "") or "")
    if not whole:
        return ""
    cores = int(conf.get("spark.executor.cores", "1") or 1)
    each = whole // cores
    if each >= WORKER_ADDRESSES_BYTES:
        return ""
    return (
        f"{_LIMIT}={conf.get(_LIMIT)} leaves each of {cores} Python processes {_gib(each)} of address space, and a"
        f" worker reserves up to {_gib(WORKER_ADDRESSES_BYTES)} (it uses far less). Workers may fail with"
        f" MemoryError. Leave that setting out, or set it to {_gib(WORKER_ADDRESSES_BYTES * cores)} or more."
    )


def _too_small_container(context: Any, workers: int, limit: int | None) -> str:
    heap = size_in_bytes(context.getConf().get("spark.driver.memory", "") or "1g") or 1 << 30
    needed = workers * WORKER_BYTES + heap + DRIVER_BYTES
    if limit is None or limit >= needed:
        return ""
    return (
        f"this machine or container may use {_gib(limit)} of memory (cgroup), and {workers} workers"
        f" ({_gib(WORKER_BYTES)} each), Spark's Java process ({_gib(heap)}) and this program need about"
        f" {_gib(needed)}. The kernel may kill workers. Raise the limit, or lower parallelism or"
        " spark.driver.memory."
    )


def _folders(groups: str, root: Path) -> list[Path]:
    """Where the limits of these groups may stand, for both versions of cgroups: each group and all above it.

    Inside a container a path may be the host's and not exist; then the root is the container's own."""
    found: dict[Path, None] = {}
    for line in groups.splitlines():
        number, controllers, path = [*line.split(":", 2), "", "", ""][:3]
        if number != "0" and "memory" not in controllers.split(","):
            continue
        base = root if number == "0" else root / "memory"
        group = base / path.lstrip("/")
        found |= dict.fromkeys([group, *[up for up in group.parents if up.is_relative_to(base)]])
    return list(found)


def _own_groups() -> str:
    return _read(Path("/proc/self/cgroup"))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # another kernel, or not ours to read
        return ""


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.3g} GiB"
