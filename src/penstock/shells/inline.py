"""`take` and `show`: a stream's first rows, computed in this very process."""

from __future__ import annotations

import pyarrow as pa

from penstock.engine.worker import inline
from penstock.plan.graph import LogicalGraph
from penstock.shells.spark.background import ThreadBackground
from penstock.shells.spark.clock import RealClock
from penstock.shells.spark.feeds import for_a_look


def run_inline(graph: LogicalGraph, limit: int) -> pa.Table:
    feeds = for_a_look(graph)
    background = ThreadBackground(threads=1)
    try:
        return inline.run_inline(feeds.graph, limit, RealClock(), background)
    finally:
        background.close()
        feeds.close()
