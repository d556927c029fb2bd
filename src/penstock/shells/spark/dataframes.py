"""What can be known of a DataFrame before anything runs: its columns as Arrow has them, whether it can be read again,
whether its rows lie in files that can be read in place."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors.base import Source, SourceContext, SourceReader
from penstock.errors import ConfigError, PlanError, SchemaError
from penstock.protocol.snapshot import Plain
from penstock.redaction import redacted
from penstock.shells.spark.session import is_connect

WATERMARK = "spark.watermarkDelayMs"
"""Where Spark keeps the delay that `withWatermark` was given: in the metadata of the column."""
_NOT_AGAIN = ("socket", "text-socket")
"""Sources that give their rows once: after a failure they are gone."""
_CARRIED = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_OWN_WAY = ("ignorecorruptfiles", "ignoremissingfiles", "datetimerebasemode", "int96rebasemode")
"""Options of a reader with which it gives other rows, or other values, than lie in the files."""
_USUAL_WAY = {
    "spark.sql.files.ignoreCorruptFiles": "FALSE",
    "spark.sql.files.ignoreMissingFiles": "FALSE",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96TimestampConversion": "FALSE",
    "spark.sql.parquet.fieldId.read.enabled": "FALSE",
}
"""The same for a whole session."""
_INSTEAD = {
    "void": "give it a type: CAST(NULL AS STRING)",
    "variant": "make it a text: to_json(...), or take columns out of it with variant_get(...)",
    "interval": "make it a number of seconds, or a DayTimeIntervalType",
    "yearmonthinterval": "make it a number of months: CAST(... AS INT)",
    "time": "make it a text or a number: CAST(... AS STRING)",
}


@dataclass(frozen=True)
class Watermark:
    """What `withWatermark` said of the DataFrame."""

    column: str
    delay_ms: int


class DataFrameSource(Source):
    """A DataFrame in a pipeline, until the job starts: then it is staged, and `StagedSource` takes its place."""

    def __init__(self, frame: Any, *, interval: str | None = None) -> None:
        _require_dataframe(frame)
        self.frame = frame
        self.interval = interval
        """How often Spark looks for new rows; None: as often as it can."""
        self.bounded = not frame.isStreaming
        self._schema = arrow_schema(frame)
        self.watermark = watermark_of(frame)
        if self.bounded and interval is not None:
            raise ConfigError(
                "from_dataframe: processingTime is for streaming DataFrames; this one is read once, so leave it out"
            )
        if not self.bounded:
            require_append(frame)
            require_again(frame)

    def __repr__(self) -> str:
        kind = "streaming " if not self.bounded else ""
        return f"DataFrameSource({kind}{self.frame!r})"

    def __reduce__(self) -> Any:
        raise PlanError(
            "a DataFrame stays in the program that made it: it can be started on Spark, and neither copied nor"
            " simulated. In a test give the pipeline pen.from_rows(...) instead"
        )

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def reader(self, context: SourceContext, positions: Mapping[int, Plain]) -> SourceReader:
        raise PlanError("a DataFrame is staged before it is read")


def _require_dataframe(frame: Any) -> None:
    from pyspark.sql import DataFrame

    module = type(frame).__module__
    if is_connect(frame):
        raise ConfigError(
            "from_dataframe: this DataFrame is of Spark Connect, on which Penstock cannot run; make it with a session"
            " of this program: SparkSession.builder.master(...).getOrCreate()"
        )
    if isinstance(frame, DataFrame):
        return
    hint = ""
    if module.startswith("pandas."):
        hint = "; make it one with spark.createDataFrame(...)"
    elif module.startswith("pyarrow."):
        hint = (
            "; give a table to pen.from_rows(table.to_pylist(), table.schema), or write it to files"
        )
    raise ConfigError(f"from_dataframe: {type(frame).__name__} is not a DataFrame of PySpark{hint}")


# ---- columns


def arrow_schema(frame: Any) -> pa.Schema:
    """The columns, or SchemaError for the first one that cannot be carried."""
    fields = frame.schema.fields
    if not fields:
        raise SchemaError("from_dataframe: the DataFrame has no columns")
    names = [field.name for field in fields]
    folded = [name.lower() for name in names]
    for name in names:
        if folded.count(name.lower()) > 1:
            raise SchemaError(
                f"from_dataframe: there are several columns {name!r}; give each its own name with select or"
                " withColumnRenamed"
            )
    return pa.schema(
        [
            pa.field(each.name, arrow_type(each.dataType, each.name), each.nullable)
            for each in fields
        ]
    )


def arrow_type(kind: Any, path: str) -> pa.DataType:
    """`path` leads to it: `order.items.element`."""
    from pyspark.sql import types as spark

    if isinstance(kind, spark.UserDefinedType):
        return arrow_type(kind.sqlType(), path)
    if isinstance(kind, spark.StructType):
        return pa.struct(
            [pa.field(f.name, arrow_type(f.dataType, f"{path}.{f.name}")) for f in kind.fields]
        )
    if isinstance(kind, spark.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType, f"{path}.element")))
    if isinstance(kind, spark.MapType):
        key = arrow_type(kind.keyType, f"{path}.key")
        return pa.map_(key, arrow_type(kind.valueType, f"{path}.value"))
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.DayTimeIntervalType):
        return pa.duration("us")
    carried = _CARRIED.get(kind.typeName())
    if carried is None:
        instead = _INSTEAD.get(kind.typeName(), "cast it to another type, or leave it out")
        raise SchemaError(
            f"from_dataframe: column {path!r} is {kind.simpleString()}, which cannot be carried; {instead}"
        )
    return carried


def watermark_of(frame: Any) -> Watermark | None:
    for field in frame.schema.fields:
        if WATERMARK in field.metadata:
            return Watermark(field.name, int(field.metadata[WATERMARK]))
    return None


# ---- streams


def require_append(frame: Any) -> None:
    """Rows that are there stay there: results that Spark would write again cannot be taken back from a stream."""
    from pyspark.errors import AnalysisException

    jvm = frame.sparkSession._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    try:
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), append)
    except AnalysisException as error:
        raise PlanError(
            "from_dataframe: this streaming DataFrame would change rows that it has given (output mode update or"
            " complete), and a stream takes rows in append mode only. Give it a watermark, or let Penstock do the"
            f" aggregate: pen.from_dataframe(rows).key_by(...).agg(...). Spark says: {first_line(error)}"
        ) from None


def require_again(frame: Any) -> None:
    """A source that gives its rows once loses them when anything fails."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    for leaf in (leaves.apply(i) for i in range(leaves.size())):
        kind = leaf.getClass().getSimpleName()
        name = leaf.sourceName() if kind.startswith("StreamingRelation") else ""
        if str(name).lower() in _NOT_AGAIN:
            raise PlanError(
                f"from_dataframe: the source {name!r} gives its rows only once, so a failure would lose them; write"
                " them to files or to Kafka first, and read those"
            )


# ---- batches


def query_digest(frame: Any) -> str:
    """The same for the same query over the same files, in every run of a program. Empty where nobody can tell: rows
    that the program has made, functions of its own, tables of other systems, plans that Spark shows in part only."""
    plan = frame._jdf.queryExecution().analyzed()
    files, shown = _files_read(plan), str(plan.canonicalized().toString())
    if files is None or " more field" in shown or _has_more_than_it_shows(frame, plan):
        return ""
    told = "\n".join([shown, frame.schema.json(), *files])
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def _files_read(plan: Any) -> list[str] | None:
    """With their sizes and times, as Spark's own list has them; None where rows come from something else, too."""
    leaves, found = plan.collectLeaves(), []
    for leaf in (leaves.apply(i) for i in range(leaves.size())):
        if _class(leaf) in ("Range", "OneRowRelation"):
            continue
        if _class(leaf) != "LogicalRelation" or _class(leaf.relation()) != "HadoopFsRelation":
            return None
        location = leaf.relation().location()
        if _class(location) != "InMemoryFileIndex":
            return None
        listed = str(location.allFiles().mkString("\n"))
        found += sorted(re.sub(r"access_time=\d+", "", listed).split("\n"))
    return found


def _has_more_than_it_shows(frame: Any, plan: Any) -> bool:
    """Of a function a plan has the name alone; and a query within an expression reads files of its own."""
    kinds = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    hidden = (kinds.PYTHON_UDF(), kinds.SCALA_UDF(), kinds.PLAN_EXPRESSION())
    return any(plan.containsPattern(kind) for kind in hidden)


def files_in_place(frame: Any) -> list[str] | None:
    """The Parquet files that hold just these columns of just these rows; None where Spark has something to do."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    if _class(plan) == "Project" and _only_columns(plan.projectList()):
        plan = plan.child()
    if _class(plan) != "LogicalRelation" or _class(plan.relation()) != "HadoopFsRelation":
        return None
    relation = plan.relation()
    if _class(relation.fileFormat()) != "ParquetFileFormat":
        return None
    if not relation.partitionSchema().isEmpty() or _is_read_otherwise(frame, relation):
        return None
    files = sorted(_local_or_url(file) for file in relation.location().inputFiles())
    return files if files and all(files) and _each_once(files) else None


def _is_read_otherwise(frame: Any, relation: Any) -> bool:
    """Whether Spark was told to read files in a way of its own."""
    options = str(relation.options().keys().mkString("\n")).lower().split("\n")
    conf = frame.sparkSession.conf
    return any(key in options for key in _OWN_WAY) or any(
        conf.get(key, usual).upper() != usual for key, usual in _USUAL_WAY.items()
    )


def _each_once(files: list[str]) -> bool:
    """A path may be given to Spark twice, which then reads its files twice."""
    return len(set(files)) == len(files)


def _only_columns(projected: Any) -> bool:
    kinds = {_class(projected.apply(i)) for i in range(projected.size())}
    return kinds <= {"AttributeReference"}


def _class(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())


def _local_or_url(file: str) -> str:
    """As fsspec spells it; empty where it may not know the scheme."""
    scheme, _, rest = file.partition(":")
    if scheme == "file":
        from urllib.parse import unquote

        return "/" + unquote(rest).lstrip("/")
    if scheme in ("s3", "s3a"):
        return f"s3:{rest}"
    return file if scheme in ("hdfs", "gs", "abfs", "abfss") else ""


def first_line(error: BaseException) -> str:
    """What went wrong, in one line, without passwords. Java wraps exceptions in each other; the innermost says it."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    with suppress(Exception):  # the JVM may be gone, and the text with it
        while java is not None and java.getCause() is not None:
            java = java.getCause()
        if java is not None:
            told = f"{java.getClass().getSimpleName()}: {java.getMessage()}"
            return redacted(told.strip().partition("\n")[0])
    return redacted(str(error).strip().partition("\n")[0])
