"""Every benchmark runs, with sizes so small that only whether it works can be told."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import BENCHES, PARTS
from bench.figures import Figure, as_json, within
from bench.latency import LatencySink, LatencyWriter
from bench.peers import folder
from bench.state.parts import PARTS as STATE_PARTS
from bench.throughput import PLAIN, WITH, Rates
from bench.workload import INT_SCHEMA, int_rows, text_rows

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(1800)


def run_bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """What one run of everything prints."""
    ended = run_bench("--tiny")
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    return ended.stdout.splitlines()


@pytest.fixture(scope="module")
def result(printed: list[str]) -> dict[str, Any]:
    return dict(json.loads(printed[-1]))


@pytest.mark.spark
def test_the_last_line_is_one_json_object_with_every_benchmark(result: dict[str, Any]) -> None:
    found = " ".join(figure["bench"] for figure in result["figures"])
    for name in (
        "W1 ",
        "W1s",
        "W3",
        "recovery",
        "snapshot",
        "transport",
        "engine",
        "back pressure",
        "kind of",
        "reading the state",
        "W1 on RocksDB",
        "keys, 1% change",
        "keys, all change",
        "changelog",
        "state: snapshot of",
        "of 100 B, kill -9",
        "larger than its memory",
        "cost per row",
        "own functions",
        "DataFrame, ",
        "DataFrame, streaming",
    ):
        assert name in found
    assert len(BENCHES) == 12
    assert set(PARTS) == {f"state_{name}" for name in STATE_PARTS}


@pytest.mark.spark
def test_every_figure_is_a_ratio_to_something_of_the_same_run(result: dict[str, Any]) -> None:
    for figure in result["figures"]:
        assert figure["against"], figure
        assert math.isfinite(figure["ratio"]) and figure["ratio"] > 0, figure
        assert math.isfinite(figure["value"]) and figure["value"] > 0, figure


@pytest.mark.spark
def test_workers_that_were_not_hit_keep_their_processes(result: dict[str, Any]) -> None:
    """bug-I1: a fault in one worker leaves the others in their processes."""
    kept = [f["value"] for f in result["figures"] if "survivors keep pids" in f["what"]]
    assert kept == [1.0, 1.0, 1.0]


@pytest.mark.spark
def test_machine_versions_date_and_command_are_printed(
    printed: list[str], result: dict[str, Any]
) -> None:
    head = "\n".join(printed[:3])
    for fact in (result["date"], "python -m bench --tiny", result["versions"]["pyarrow"]):
        assert fact in head
    assert f"{result['machine']['cores']} cores" in head


def test_an_unknown_benchmark_is_refused_with_the_names_there_are() -> None:
    ended = run_bench("w9")
    assert ended.returncode == 2
    assert "no benchmark 'w9'" in ended.stderr and "recovery" in ended.stderr


def test_missing_peers_are_skipped_with_a_line_that_says_so(tmp_path: Path) -> None:
    ended = run_bench("--tiny", "--peers", "1", "engine", PENSTOCK_PEERS=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert "peers: skipped" in ended.stdout
    assert json.loads(ended.stdout.splitlines()[-1])["figures"]


def test_peers_are_looked_for_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PEERS", str(tmp_path))
    assert folder() is None
    (tmp_path / "setup").touch()
    assert folder() == tmp_path


# ---- the parts that figures depend on


def test_generated_rows_do_not_depend_on_how_they_are_cut() -> None:
    for rows in (int_rows, text_rows):
        whole = rows(1_000, 500, 300)
        assert whole.slice(100, 50).equals(rows(1_000, 600, 50))
        whole.validate(full=True)


def test_keys_are_uniform_and_repeat_as_if_drawn_at_random() -> None:
    keys = int_rows(1_000, 7, 100_000).column("key").to_numpy()
    counts = [(keys == key).sum() for key in range(0, 1_000, 100)]
    assert keys.min() == 0 and keys.max() == 999
    assert all(60 < count < 140 for count in counts), counts
    distinct = len(set(keys[:1_000].tolist()))
    assert 580 < distinct < 690, "1,000 draws from 1,000 keys hit about 632 of them"


def test_a_figure_meets_its_target_by_its_ratio() -> None:
    assert within("b", "w", [1.0, 5.0, 3.0], "ms", 3.0).met is True
    assert within("b", "w", [1.0, 5.0, 3.1], "ms", 3.0).met is False
    assert Figure("b", "w", 24.0, "rows/s", "peer", 2.0, at_least=12.0).met is True
    assert Figure("b", "w", 23.9, "rows/s", "peer", 2.0, at_least=12.0).met is False
    assert Figure("b", "w", 1.0, "rows/s", "peer", 2.0).met is None
    shown = json.loads(as_json([Figure("b", "w", 1.0, "s", "peer", 2.0)], {"date": "today"}))
    assert shown["date"] == "today" and shown["figures"][0]["ratio"] == 0.5


def test_the_cost_of_checkpoints_is_taken_from_runs_that_were_neighbours() -> None:
    rates = Rates()
    for plain, with_them in ((10.0, 9.0), (20.0, 19.0), (4.0, 3.0)):
        rates.add(PLAIN, plain)
        rates.add(WITH, with_them)
    assert rates.ratios(WITH, PLAIN) == [0.9, 0.95, 0.75]


def test_latency_is_counted_from_the_scheduled_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """98 rows are 2 ms late and two 80 ms; rows that were due in the warm-up do not count."""
    clock = {"s": 100.0}
    monkeypatch.setattr("bench.latency.time.monotonic", lambda: clock["s"])
    schema = INT_SCHEMA.set(1, INT_SCHEMA.field("value").with_name("due_ms"))
    writer = LatencyWriter(0, schema, warm_s=1.0)
    sink = LatencySink(1.0)
    clock["s"] = 102.0
    for late_ms, count in ((2.0, 98), (80.0, 2), (1_500.0, 50)):
        due = [102_000.0 - late_ms] * count
        batch = int_rows(10, 0, count).to_pydict() | {"due_ms": due}
        writer.write(_batch(schema, batch))
    first = writer.prepare(1)
    sink.receive(first)
    sink.receive(first)
    assert sink.rows == 100
    assert sink.percentile_ms(50) == pytest.approx(2.0, rel=0.03)
    assert sink.percentile_ms(99) == pytest.approx(80.0, rel=0.03)
    assert sink.max_ms == pytest.approx(80.0)
    assert writer.prepare(2) is None


def _batch(schema: Any, columns: dict[str, list[Any]]) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names}, schema=schema)
