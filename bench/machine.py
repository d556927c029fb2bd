"""What was measured on: the machine, the versions, the time and the command."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("penstock", "pyspark", "pyarrow", "numpy", "pandas", "pyzmq")


def about(command: list[str]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(command),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
            "memory_gib": round(_memory_bytes() / 2**30, 1),
            "system": f"{platform.system()} {platform.release()}",
            "load_at_start": round(os.getloadavg()[0], 2),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "git": _commit(),
    }


def lines(facts: dict[str, Any]) -> list[str]:
    machine = facts["machine"]
    return [
        f"{facts['date']}   $ {facts['command']}   commit {facts['git'] or 'unknown'}",
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB,"
        f" {machine['system']}, load {machine['load_at_start']}",
        ", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
    ]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _commit() -> str:
    """The commit that the working tree is based on, read from git's own files."""
    git = Path(__file__).parents[1] / ".git"
    try:
        head = (git / "HEAD").read_text("ascii").strip()
        if head.startswith("ref: "):
            head = (git / head.removeprefix("ref: ")).read_text("ascii").strip()
    except OSError:
        return ""
    return head[:12]


def command_line() -> list[str]:
    return ["python", "-m", "bench", *sys.argv[1:]]
