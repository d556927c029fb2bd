"""Tools to test pipelines, sources and sinks with: `from penstock.testing import simulate`.

What is named here is imported when it is used first: pytest loads the plugin of this package in every run, and a run
without a simulation should not wait for the simulator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.errors import SimulationFailed
    from penstock.shells.sim.faults import Faults
    from penstock.testing.compare import last_per
    from penstock.testing.conformance import sink_conformance, source_conformance
    from penstock.testing.faulty import FaultySink, FaultySource, fail_after, fail_before
    from penstock.testing.outside import MemoryTable, Outside, SimulatedFault, may_fail
    from penstock.testing.report import Report
    from penstock.testing.simulation import simulate
    from penstock.testing.swarm import FAULTS

__all__ = [
    "FAULTS",
    "Faults",
    "FaultySink",
    "FaultySource",
    "MemoryTable",
    "Outside",
    "Report",
    "SimulatedFault",
    "SimulationFailed",
    "fail_after",
    "fail_before",
    "last_per",
    "may_fail",
    "simulate",
    "sink_conformance",
    "source_conformance",
]

_HOMES = {
    "FAULTS": "penstock.testing.swarm",
    "Faults": "penstock.testing.arguments",
    "FaultySink": "penstock.testing.faulty",
    "FaultySource": "penstock.testing.faulty",
    "MemoryTable": "penstock.testing.outside",
    "Outside": "penstock.testing.outside",
    "Report": "penstock.testing.report",
    "SimulatedFault": "penstock.testing.outside",
    "SimulationFailed": "penstock.errors",
    "fail_after": "penstock.testing.faulty",
    "fail_before": "penstock.testing.faulty",
    "last_per": "penstock.testing.compare",
    "may_fail": "penstock.testing.outside",
    "simulate": "penstock.testing.simulation",
    "sink_conformance": "penstock.testing.conformance",
    "source_conformance": "penstock.testing.conformance",
}

if not TYPE_CHECKING:  # type checkers are to know the names above and no others

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
