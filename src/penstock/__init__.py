"""Penstock: asynchronous barrier snapshots for PySpark. `import penstock as pen`."""

from typing import TYPE_CHECKING

from penstock.api import hints as _hints
from penstock.api.config import (
    CheckpointConfig,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
)
from penstock.api.dataframe import from_dataframe
from penstock.api.job import Job
from penstock.api.keyed import KeyedStream
from penstock.api.pipeline import Pipeline
from penstock.api.records import (
    CheckpointInfo,
    CheckpointSummary,
    ExceptionInfo,
    Spread,
    SubtaskInfo,
    WorkerInfo,
)
from penstock.api.stream import Stream, from_rows, from_source
from penstock.connectors.base import (
    END,
    EndOfInput,
    Hold,
    Sink,
    SinkCommitter,
    SinkContext,
    SinkWriter,
    Source,
    SourceContext,
    SourceReader,
    Wait,
)
from penstock.connectors.sinks.blackhole import BlackholeSink
from penstock.connectors.sinks.collect import CollectSink
from penstock.connectors.sinks.files import FileSink
from penstock.connectors.sources.files import FileSource
from penstock.connectors.sources.generator import GeneratorSource
from penstock.connectors.tables.reader import read_table
from penstock.connectors.tables.sink import UpsertFileSink
from penstock.engine.operators.process import (
    BatchProcessFunction,
    ProcessContext,
    ProcessFunction,
)
from penstock.engine.operators.row import Row
from penstock.engine.operators.states.folded import AggregatingState, ReducingState
from penstock.engine.operators.states.lists import ListState
from penstock.engine.operators.states.maps import MapState
from penstock.engine.operators.states.unkeyed import SplitListState, UnionListState
from penstock.engine.operators.states.value import ValueState
from penstock.errors import (
    CheckpointCorrupt,
    CommitError,
    ConfigError,
    DataError,
    InvariantBroken,
    JobFailed,
    JobFenced,
    LaunchError,
    PenstockError,
    PlanError,
    SchemaError,
    StorageError,
)
from penstock.plan.expressions import Expression, coalesce, col, lit, when
from penstock.state.aggregates import Aggregate, avg, count, first, last, max, min, sum  # noqa: A004

__version__ = "0.1.0"

__all__ = [
    "END",
    "Aggregate",
    "AggregatingState",
    "BatchProcessFunction",
    "BlackholeSink",
    "CheckpointConfig",
    "CheckpointCorrupt",
    "CheckpointInfo",
    "CheckpointSummary",
    "CollectSink",
    "CommitError",
    "ConfigError",
    "DataError",
    "EndOfInput",
    "ExceptionInfo",
    "ExponentialDelay",
    "Expression",
    "FailureRate",
    "FileSink",
    "FileSource",
    "FixedDelay",
    "GeneratorSource",
    "Hold",
    "InvariantBroken",
    "Job",
    "JobFailed",
    "JobFenced",
    "KeyedStream",
    "LaunchError",
    "ListState",
    "MapState",
    "NoRestart",
    "PenstockError",
    "Pipeline",
    "PlanError",
    "ProcessContext",
    "ProcessFunction",
    "ReducingState",
    "Row",
    "SchemaError",
    "Sink",
    "SinkCommitter",
    "SinkContext",
    "SinkWriter",
    "Source",
    "SourceContext",
    "SourceReader",
    "SplitListState",
    "Spread",
    "StorageError",
    "Stream",
    "SubtaskInfo",
    "UnionListState",
    "UpsertFileSink",
    "ValueState",
    "Wait",
    "WorkerInfo",
    "avg",
    "coalesce",
    "col",
    "count",
    "first",
    "from_dataframe",
    "from_rows",
    "from_source",
    "last",
    "lit",
    "max",
    "min",
    "read_table",
    "sum",
    "when",
]

if not TYPE_CHECKING:  # type checkers are to know the names above and no others

    def __getattr__(name: str) -> object:
        """Only for names that there are not: what somebody who knows Spark may have meant."""
        raise _hints.missing("penstock", name, _hints.PENSTOCK)
