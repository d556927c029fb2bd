"""Streams: the graph they build, and every mistake reported while the pipeline is written."""

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.connect import SinkOperator, SourceOperator
from penstock.plan.graph import Broadcast, Forward, Hash, Rebalance
from penstock.plan.schema import to_ddl


def orders() -> pen.Stream:
    return pen.from_rows([("a", 1, 2.5)], "user STRING, n BIGINT, amount DOUBLE")


# ---- the graph


def test_a_pipeline_becomes_a_graph_with_inputs_before_their_readers() -> None:
    pipeline = (
        orders()
        .filter(pen.col("amount") > 0)
        .map(lambda row: (row.user, row.n), "user STRING, n BIGINT")
        .key_by("user")
        .agg(total=pen.sum("n"))
        .named("totals")
        .to(pen.CollectSink())
    )
    nodes = pipeline.graph().nodes
    assert [node.name for node in nodes] == [
        "rows-source-1",
        "filter-2",
        "map-3",
        "totals",
        "collect-sink-5",
    ]
    assert [node.role for node in nodes] == ["source", "operator", "operator", "operator", "sink"]
    assert [edge.partitioning for node in nodes for edge in node.inputs] == [
        Forward(),
        Forward(),
        Hash(("user",), ("user", "n")),
        Forward(),
    ]
    assert to_ddl(nodes[3].schema) == "user STRING, total BIGINT"


def test_sources_and_sinks_are_made_by_factories_that_pickle() -> None:
    source, *_, sink = orders().to(pen.CollectSink()).graph().nodes
    assert isinstance(pickle.loads(pickle.dumps(source.create))(), SourceOperator)
    assert isinstance(pickle.loads(pickle.dumps(sink.create))(), SinkOperator)
    assert isinstance(source.connector, pen.Source)
    assert isinstance(sink.connector, pen.CollectSink)


def test_the_driver_s_own_copy_of_a_sink_is_the_object_the_user_holds() -> None:
    sink = pen.CollectSink()
    assert orders().to(sink).graph().nodes[-1].connector is sink


def test_a_stream_may_be_consumed_several_times_and_is_computed_once() -> None:
    totals = orders().key_by("user").agg(n=pen.count())
    both = pen.Pipeline(
        totals.to(pen.CollectSink(), name="all"),
        totals.filter(pen.col("n") > 1).to(pen.CollectSink(), name="many"),
    )
    names = [node.name for node in both.graph().nodes]
    assert names == ["rows-source-1", "agg-2", "all", "filter-4", "many"]
    assert both.graph().node("filter-4").inputs[0].operator == "agg-2"


def test_automatic_names_are_the_same_for_the_same_program() -> None:
    def names() -> list[str]:
        left, right = orders(), orders().filter(pen.col("n") > 0)
        return [node.name for node in left.union(right).to(pen.BlackholeSink()).graph().nodes]

    assert names() == names()
    assert names() == ["rows-source-1", "rows-source-2", "filter-3", "union-4", "blackhole-sink-5"]


def test_rebalance_and_broadcast_change_the_edge_to_what_comes_next() -> None:
    for stream, edge in ((orders().rebalance(), Rebalance()), (orders().broadcast(), Broadcast())):
        node = stream.filter(pen.col("n") > 0).graph().nodes[-1]
        assert node.inputs[0].partitioning == edge


@pytest.mark.parametrize("method", ["key_by", "rebalance", "broadcast"])
@pytest.mark.parametrize(
    "copied",
    [
        lambda: orders().broadcast(),
        lambda: orders().broadcast().select("n"),
        lambda: orders().broadcast().filter(pen.col("n") > 0).select("n", "user"),
        lambda: orders().union(orders().broadcast()),
        lambda: orders().broadcast().union(orders()).map(lambda row: row),
    ],
)
def test_copies_of_a_broadcast_are_never_sent_on_as_rows(copied: Any, method: str) -> None:
    """They would count once per subtask, or the broadcast would be dropped without a word."""
    keys = ("n",) if method == "key_by" else ()
    stream = copied()
    with pytest.raises(pen.PlanError) as caught:
        getattr(stream, method)(*keys)
    assert f"{method} behind {stream._step.label}: a broadcast leads here" in str(caught.value)
    assert "Leave" in str(caught.value)


def test_what_does_not_come_from_a_broadcast_is_not_touched_by_it() -> None:
    plain = orders()
    plain.broadcast().to(pen.CollectSink())
    assert plain.key_by("user").agg(n=pen.count()).take(1) == [("a", 1)]
    assert plain.rebalance().broadcast().graph().nodes[-1].name == "rows-source-1"


def test_a_first_look_has_one_subtask_so_a_broadcast_row_shows_once() -> None:
    assert orders().broadcast().select("n").take(5) == [(1,)]


def test_a_very_long_pipeline_needs_no_deep_recursion() -> None:
    stream = orders()
    for _ in range(1_500):
        stream = pen.Stream(
            type(stream._step)("map", lambda: None, ((stream._step, Forward()),), stream.schema)
        )
    assert len(stream.graph().nodes) == 1_501


def test_explain_shows_every_operator_with_its_inputs_and_schema() -> None:
    text = orders().key_by("user").agg(n=pen.count()).explain()
    assert text.splitlines() == [
        "rows-source-1  user STRING, n BIGINT, amount DOUBLE",
        "agg-2          from rows-source-1 (hash by user); user STRING, n BIGINT NOT NULL",
    ]


def test_streams_and_pipelines_have_a_readable_repr() -> None:
    assert repr(orders()) == "Stream[user STRING, n BIGINT, amount DOUBLE]"
    assert repr(orders().key_by("user")) == "KeyedStream[by user]"
    assert repr(orders().to(pen.CollectSink())) == "Pipeline[rows-source-1 | collect-sink-2]"


# ---- names


def test_two_operators_of_one_name_are_refused_and_both_are_named() -> None:
    stream = orders().filter(pen.col("n") > 0).named("same")
    with pytest.raises(
        pen.PlanError, match=r"'same': operator 2 \(filter\) and operator 3 \(select\).*\.named\("
    ):
        stream.select("user").named("same").to(pen.CollectSink())


def test_two_pipelines_that_share_a_name_are_refused_when_they_are_put_together() -> None:
    one, two = (orders().to(pen.CollectSink(), name="out") for _ in range(2))
    with pytest.raises(
        pen.PlanError, match=r"two operators have the name 'out'.*\.to\(sink, name="
    ):
        pen.Pipeline(one, two)


def test_a_given_name_that_equals_an_automatic_one_is_refused() -> None:
    with pytest.raises(pen.PlanError, match="'rows-source-1'"):
        orders().filter(pen.col("n") > 0).named("rows-source-1").to(pen.CollectSink())


@pytest.mark.parametrize("name", ["", " x", "a/b", "../x", "ü", "x" * 101, "a\n", 3, None])
def test_a_name_must_be_plain(name: Any) -> None:
    with pytest.raises(pen.PlanError, match="not a name for an operator"):
        orders().named(name)


def test_an_operator_has_one_name_only() -> None:
    stream = orders().named("a").named("a")
    with pytest.raises(pen.PlanError, match="'a' cannot be named 'b' as well"):
        stream.named("b")


# ---- schemas and columns


def test_select_takes_names_expressions_and_new_columns() -> None:
    stream = orders().select("user", pen.col("n").cast("INT"), twice=pen.col("amount") * 2)
    assert to_ddl(stream.schema) == "user STRING, n INT, twice DOUBLE"


def test_select_keeps_what_is_not_null() -> None:
    stream = pen.from_rows([(1,)], "n INT NOT NULL").select("n", m=pen.col("n") + 1)
    assert [field.nullable for field in stream.schema] == [False, True]


def test_map_keeps_the_schema_where_none_is_given() -> None:
    assert orders().map(lambda row: row).schema.equals(orders().schema)


class Column:
    """Looks to Penstock as PySpark's Column does."""

    __module__ = "pyspark.sql.classic.column"

    def __init__(self, text: str = "n") -> None:
        self.text = text

    def __str__(self) -> str:
        return f"Column<'{self.text}'>"


SPARK = Column()


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.filter(SPARK),
        lambda s: s.filter(pen.col("n") > SPARK),
        lambda s: s.select(SPARK),
        lambda s: s.select(x=SPARK),
        lambda s: s.key_by(SPARK),
        lambda s: s.key_by("user").agg(total=pen.sum(SPARK)),
    ],
)
def test_a_pyspark_column_is_refused_wherever_a_column_is_meant(use: Any) -> None:
    with pytest.raises(pen.SchemaError, match=r"PySpark Column.*pen\.col"):
        use(orders())


@pytest.mark.parametrize(
    ("spark", "ours"),
    [
        ("sum(n)", 'pen.sum("n")'),
        ("count(1)", "pen.count()"),
        ("stddev(n)", 'pen.sum("x")'),
    ],
)
def test_a_spark_aggregate_is_refused_with_the_same_one_of_ours(spark: str, ours: str) -> None:
    keyed = orders().key_by("user")
    with pytest.raises(pen.SchemaError, match=r"agg-2: .*PySpark Column") as named:
        keyed.agg(total=Column(spark))  # type: ignore[arg-type]
    assert f"total={ours}" in str(named.value)
    with pytest.raises(pen.SchemaError, match=r"agg-2: .*PySpark Column") as unnamed:
        keyed.agg(Column(spark))
    assert f"agg(n={ours})" in str(unnamed.value)


@pytest.mark.parametrize(
    ("use", "where"),
    [
        (lambda s: s.filter(pen.col("amuont") > 0), "filter-2"),
        (lambda s: s.select("user", "amuont"), "select-2"),
        (lambda s: s.select(x=pen.col("amuont") + 1), "select-2"),
        (lambda s: s.key_by("amuont"), "key_by behind rows-source-1"),
        (lambda s: s.key_by("user").agg(x=pen.sum("amuont")), "agg-2"),
    ],
)
def test_an_unknown_column_names_the_operator_the_likeliest_and_all_columns(
    use: Any, where: str
) -> None:
    with pytest.raises(pen.SchemaError, match="amuont") as caught:
        use(orders())
    assert str(caught.value).startswith(where)
    assert "'amount'" in str(caught.value)
    assert "user, n, amount" in str(caught.value)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda s: s.key_by("user").agg(x=pen.sum("user")), "agg-2: .*user"),
        (lambda s: s.key_by("user").agg(x=pen.avg("user")), "agg-2: .*user"),
        (lambda s: s.key_by("user").agg(user=pen.count()), "agg-2: 'user' is a key column already"),
        (lambda s: s.key_by("amount"), "'amount' .*cannot be a key"),
        (lambda s: s.key_by("user", "user"), "'user' is given twice"),
        (lambda s: s.filter(pen.col("n") + 1), r"filter-2: .*\(n \+ 1\) is BIGINT"),
        (lambda s: s.filter(pen.col("user") > 1), r"filter-2: .*user STRING"),
        (lambda s: s.select("n", n=pen.col("n") + 1), "select-2: two columns are called 'n'"),
        (lambda s: s.select(x=pen.lit(None)), "select-2: .*has no type"),
        (lambda s: s.map(lambda row: row, "user STRIN"), "map-2: .*position 6.*STRING"),
        (lambda s: s.map(lambda row: row, pa.schema([])), "map-2: the schema has no columns"),
    ],
)
def test_a_type_or_schema_that_does_not_fit_is_refused_at_once(use: Any, message: str) -> None:
    with pytest.raises(pen.SchemaError, match=message):
        use(orders())


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (
            lambda s: s.key_by(),
            pen.PlanError,
            "give at least one column; they are: user, n, amount",
        ),
        (
            lambda s: s.key_by("user").agg(x=pen.sum(pen.col("n") + 1)),
            pen.PlanError,
            r"no plain column.*\.with_columns",
        ),
        (lambda s: s.key_by(3), pen.ConfigError, "no column name"),
        (lambda s: s.key_by("user").agg(), pen.PlanError, "agg-2: give at least one aggregate"),
        (lambda s: s.key_by("user").agg(n=3), pen.ConfigError, "agg-2: n=3 is no aggregate"),
        (lambda s: s.key_by("user").agg(n=sum), pen.ConfigError, "is no aggregate"),
        (lambda s: s.key_by("user").process(print, "a INT"), pen.ConfigError, "process-2: "),
        (lambda s: s.map("x", "a INT"), pen.ConfigError, r"map-2: 'x' \(str\) is not a function"),
        (lambda s: s.filter("n > 0"), pen.ConfigError, "filter-2: .*pen.col"),
        (lambda s: s.select(), pen.PlanError, "select-2: give at least one column"),
        (lambda s: s.select(3), pen.ConfigError, r"select-2: 3 \(int\) is no column.*pen.lit"),
        (lambda s: s.union(), pen.PlanError, "at least one other"),
        (lambda s: s.union(3), pen.ConfigError, "is not a stream"),
        (lambda s: s.to("out/"), pen.ConfigError, r"'out/' is not a sink.*pen\.FileSink\('out/'\)"),
        (
            lambda s: s.to(pen.FileSink),
            pen.ConfigError,
            r"is the class.*\.to\(FileSink\(\.\.\.\)\)",
        ),
        (
            lambda s: s.key_by("user").agg(pen.count()),
            pen.PlanError,
            r"agg-2: .*needs a name.*agg\(n=pen\.count\(\)\)",
        ),
        (
            lambda s: s.key_by("user").agg(pen.sum("n"), x=pen.count()),
            pen.PlanError,
            r"agg-2: .*agg\(n=pen\.sum\(\"n\"\)\)",
        ),
        (lambda s: s.key_by("user").agg("n"), pen.ConfigError, r"agg-2: 'n'.*agg\(n=pen\.count"),
        (lambda s: s.take(0), pen.ConfigError, "n: 0 is out of range"),
        (
            lambda s: s.filter((pen.col("n") > 1) and (pen.col("n") < 3)),
            pen.ConfigError,
            "use & for",
        ),
    ],
)
def test_a_wrong_argument_is_refused_at_once_with_what_to_do(
    use: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        use(orders())


def test_a_column_expression_is_as_good_as_its_name_where_a_column_is_meant() -> None:
    stream = orders().key_by(pen.col("user")).agg(total=pen.sum(pen.col("n")))  # type: ignore[arg-type]
    assert to_ddl(stream.schema) == "user STRING, total BIGINT"


def test_a_union_of_different_schemas_is_refused_with_the_differences() -> None:
    other = pen.from_rows([("a", 1, 2)], "user STRING, n BIGINT, amount INT")
    with pytest.raises(
        pen.SchemaError, match="union-3: stream 2.*'amount' is INT, expected DOUBLE"
    ):
        orders().union(other)


def test_a_union_column_is_not_null_only_where_all_agree() -> None:
    strict = pen.from_rows([(1,)], "n INT NOT NULL")
    loose = pen.from_rows([(1,)], "n INT")
    assert not strict.union(strict).schema.field("n").nullable
    assert strict.union(loose).schema.field("n").nullable


def test_a_sink_is_asked_whether_it_can_write_the_schema() -> None:
    nested = orders().map(lambda row: row, "xs ARRAY<INT>")
    with pytest.raises(pen.SchemaError, match="file-sink-3: .*xs"):
        nested.to(pen.FileSink("unused", format="csv"))


@pytest.mark.parametrize("source", [pen.GeneratorSource, "kafka", None])
def test_something_that_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(pen.ConfigError, match="is not a source"):
        pen.from_source(source)


# ---- the operators that the factories make, run by hand as one subtask


def run(stream: pen.Stream) -> list[dict[str, Any]]:
    graph = stream.graph()
    operators = {node.name: node.create() for node in graph.nodes}
    for node in graph.nodes:
        schemas = tuple(graph.node(edge.operator).schema for edge in node.inputs)
        place = replace(CONTEXT, operator=node.name, input_schemas=schemas)
        operators[node.name].open(place)
    rows: list[dict[str, Any]] = []

    def push(name: str, batch: pa.RecordBatch) -> None:
        assert batch.schema.equals(graph.node(name).schema)
        rows.extend(batch.to_pylist() if name == graph.nodes[-1].name else [])
        for node in graph.nodes:
            for port, edge in enumerate(node.inputs):
                if edge.operator == name:
                    for out in operators[node.name].process(batch, port):
                        push(node.name, out)

    for node in graph.nodes:
        while node.role == "source" and isinstance(
            batch := operators[node.name].poll(2), pa.RecordBatch
        ):
            push(node.name, batch)
    return rows


CONTEXT = OperatorContext(
    job="job",
    operator="",
    index=0,
    parallelism=1,
    max_parallelism=16,
    attempt=1,
    input_schemas=(),
    now_ms=lambda: 0.0,
    wall_ms=lambda: 0.0,
    restored=(),
    read_segments=lambda segments, groups: (),
    to_driver=lambda item: None,
)


def test_the_operators_of_a_stream_do_what_was_asked() -> None:
    rows = pen.from_rows([("a", 1), ("b", 0), ("c", 3)], "user STRING, n BIGINT")
    assert run(rows.filter(pen.col("n") > 0).select("user", big=pen.col("n") * 10)) == [
        {"user": "a", "big": 10},
        {"user": "c", "big": 30},
    ]


def test_a_stream_united_with_itself_gives_every_row_twice() -> None:
    rows = pen.from_rows([("a", 1)], "user STRING, n BIGINT")
    totals = rows.union(rows).key_by("user").agg(total=pen.sum("n"))
    assert run(totals)[-1] == {"user": "a", "total": 2}


def test_rows_batches_and_flat_maps_follow_each_other() -> None:
    stream = (
        pen.from_rows([("a", 2), ("b", 1)], "user STRING, n BIGINT")
        .flat_map(lambda row: [row] * row.n)
        .map(lambda row: {"n": row.n + 1, "user": row.user.upper()})
        .map_batches(lambda batch: batch.select(["user"]), "user STRING")
        .key_by("user")
        .agg(n=pen.count())
    )
    assert {row["user"]: row["n"] for row in run(stream)} == {"A": 2, "B": 1}


@pytest.mark.parametrize(("name", "meant"), [("start", r"\.to\(sink\)"), ("groupBy", "key_by")])
def test_a_name_from_spark_gets_a_hint(name: str, meant: str) -> None:
    stream = pen.from_rows([(1,)], "n BIGINT")
    with pytest.raises(AttributeError, match=meant):
        getattr(stream, name)
