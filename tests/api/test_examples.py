"""The examples build valid plans, and their own code does what they say."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.operators.base import OperatorContext

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")


def test_the_quickstart_s_plan_has_a_name_for_its_state() -> None:
    graph = load("quickstart")["totals"]().graph()
    assert [node.name for node in graph.nodes] == ["generator-source-1", "filter-2", "totals"]


def test_the_two_sinks_share_one_source(tmp_path: Path) -> None:
    graph = load("two_sinks")["pipeline"](str(tmp_path)).graph()
    assert [node.role for node in graph.nodes].count("source") == 1
    assert [node.name for node in graph.nodes if node.role == "sink"] == ["all", "large"]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_own_function_finds_the_jump_however_the_rows_are_cut(size: int) -> None:
    example = load("own_function")
    graph = example["jumps"]().graph()
    schema = graph.nodes[0].schema
    context = replace(CONTEXT, operator="jumps", input_schemas=(schema,))
    operator = graph.node("jumps").create()
    operator.open(context)
    rows = [dict(zip(schema.names, row)) for row in example["READINGS"]]
    found = []
    for start in range(0, len(rows), size):
        batch = pa.RecordBatch.from_pylist(rows[start : start + size], schema=schema)
        found += [row for out in operator.process(batch, 0) for row in out.to_pylist()]
    assert found == [{"sensor": "door", "before": 20.5, "after": 35.0}]


CONTEXT = OperatorContext(
    job="job",
    operator="op",
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
