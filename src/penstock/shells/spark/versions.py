"""What must be the same on both ends of the control plane."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping

import pyarrow as pa


def versions() -> dict[str, str]:
    """The versions that the handshake compares."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "pyarrow": str(pa.__version__),
        "penstock": _penstock(),
    }


def difference(driver: Mapping[str, str], worker: Mapping[str, str], host: str) -> str:
    """Empty, or what a person has to change."""
    parts = [
        f"{name} {worker.get(name, 'of unknown version')} (the driver has {driver[name]})"
        for name in sorted(driver)
        if worker.get(name) != driver[name]
    ]
    if not parts:
        return ""
    return (
        f"the Python of the worker on {host} has {', '.join(parts)}. Install the driver's versions on the"
        " executors, or let PYSPARK_PYTHON name an environment that has them."
    )


def _penstock() -> str:
    try:
        return importlib.metadata.version("penstock")
    except importlib.metadata.PackageNotFoundError:
        return "not installed, from its source tree"
