"""`penstock run` with real jobs: what a person reads when they fail, begin from scratch, or outlive the program."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import json, pathlib, sys
import penstock as pen

here = pathlib.Path(__file__).parent
rows = pen.from_rows([("a", 1), ("b", 2)], "k STRING, v BIGINT")
told = {}


def short(row):
    return (row.k,)


def bumpy(row):
    flag = here / "flag"
    if not flag.exists():
        flag.touch()
        raise ValueError("bump")
    return row


def fails(pipeline, **options):
    job = pipeline.start(parallelism=1, **options)
    try:
        job.await_termination()
    except pen.JobFailed as failed:
        return {"text": str(failed), "traceback": job.exceptions[0].traceback}


chk = pen.CheckpointConfig(here / "chk", every="1 second")
told["schema"] = fails(rows.map(short).to(pen.CollectSink()), name="schema", checkpoint=chk)
told["once"] = fails(rows.map(bumpy).named("bumpy").to(pen.CollectSink()), name="once")

(here / "flag").unlink()
sink = pen.CollectSink()
job = rows.map(bumpy).to(sink, name="out").start(
    name="again", parallelism=1, restart=pen.FixedDelay(attempts=1, delay="1 ms")
)
job.await_termination()
told["again"] = sorted(sink.to_table().column("v").to_pylist())
told["metrics"] = job.metrics()
print(json.dumps(told))


def numbers(start, n):
    import pyarrow as pa
    return pa.RecordBatch.from_pydict({"n": list(range(start, start + n))})


endless = pen.from_source(pen.GeneratorSource(numbers, "n BIGINT", rate=100))
endless.to(pen.BlackholeSink()).start(name="endless", parallelism=1, checkpoint=chk)
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("app")
    (folder / "app.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "penstock.cli", "run", "app.py"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_wrong_schema_in_a_running_job_points_at_the_function(told: dict[str, Any]) -> None:
    """The operator is named once, and none of our frames is shown."""
    text, trace = told["schema"]["text"], told["schema"]["traceback"]
    assert "SchemaError in operator 'map-2': the function returned 1 values for 2 columns" in text
    assert 'app.py", line 10, in short' in trace and trace in text
    assert "src/penstock" not in text and "Traceback" not in text


def test_without_checkpoints_a_failure_ends_the_job_with_what_would_have_helped(
    told: dict[str, Any],
) -> None:
    """B5: nothing can be restored, and how to turn it on."""
    text = told["once"]["text"]
    assert "ValueError in operator 'bumpy': bump" in text
    assert "nothing to restore" in text and "checkpoint=pen.CheckpointConfig(" in text
    assert 'app.py", line 18, in bumpy' in text and "src/penstock" not in text


def test_restarts_that_were_asked_for_begin_from_scratch_without_checkpoints(
    done: subprocess.CompletedProcess[str], told: dict[str, Any]
) -> None:
    """R2, B5."""
    assert told["again"] == [1, 2]
    assert "trying again in 0.001 s from scratch, because it takes no checkpoints" in done.stderr


def test_a_finished_job_still_has_its_numbers(told: dict[str, Any]) -> None:
    """U2."""
    assert told["metrics"]['penstock_records_in_total{operator="out"}'] == 2
    assert told["metrics"]["penstock_restarts_total"] == 1


def test_a_program_that_does_not_wait_for_its_job_is_told_so(
    done: subprocess.CompletedProcess[str],
) -> None:
    """R5."""
    assert "job 'endless' was still" in done.stderr
    assert "job.await_termination()" in done.stderr
    assert "Traceback" not in done.stderr
