"""Where rows go to."""

from penstock.connectors.sinks.blackhole import BlackholeSink
from penstock.connectors.sinks.collect import CollectSink
from penstock.connectors.sinks.files import FileSink

__all__ = ["BlackholeSink", "CollectSink", "FileSink"]
