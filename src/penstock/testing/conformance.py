"""Suites that a source or a sink must pass to be exactly-once, shipped and users' own.

    source_conformance(lambda: MySource(...))
    sink_conformance(lambda: MySink(...), read_back=lambda sink: ...)

Each raises an `AssertionError` that says what was lost, repeated or seen too early. Call them from a test.
"""

from __future__ import annotations

from penstock.testing.sink_suite import sink_conformance
from penstock.testing.source_suite import source_conformance

__all__ = ["sink_conformance", "source_conformance"]
