"""A program that says nothing but `start()`: what it runs on, and how, comes from `spark-submit` or Spark's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.spark.clusters import QUICK_JAVA

pytestmark = pytest.mark.spark
PROGRAM = Path(__file__).with_name("keys_program.py")
SPARK = Path(pyspark.__file__).parent


def told(command: list[str], mode: str, folder: Path, **environment: str) -> list[dict[str, Any]]:
    """What the program saw."""
    run = subprocess.run(
        [*command, str(PROGRAM), mode, str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": str(PROGRAM.parents[2] / "src"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=570,
    )
    said = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    return said


def keys(folder: Path) -> dict[str, str]:
    return {
        "spark.penstock.name": "by key",
        "spark.penstock.parallelism": "3",
        "spark.penstock.checkpoint.directory": str(folder / "of keys"),
        "spark.penstock.checkpoint.every": "200 ms",
        "spark.penstock.restart": "fixed_delay",
        "spark.penstock.restart.attempts": "2",
        "spark.penstock.restart.delay": "0 seconds",
    }


def spark_submit(settings: Mapping[str, str]) -> list[str]:
    given = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": QUICK_JAVA, **settings}
    conf = [part for pair in given.items() for part in ("--conf", "=".join(pair))]
    return [str(SPARK / "bin/spark-submit"), "--master", "local[4]", *conf]


@pytest.mark.timeout(600)
def test_a_submitted_program_without_options_runs_as_the_keys_say(tmp_path: Path) -> None:
    """U5, R2: on the master that was named; the code wins; what is wrong with a key is said before Spark is used."""
    said = told(spark_submit(keys(tmp_path)), "submitted", tmp_path)
    unknown, by_key, end_by_key, by_code, end_by_code, no_number, too_few = said
    assert unknown == {
        "refused": "spark.penstock.maxParallelism: there is no such key; did you mean"
        " spark.penstock.max_parallelism?",
        "has_spark": False,
    }
    assert by_key["master"] == by_code["master"] == "local[4]"

    assert (by_key["name"], by_key["workers"]) == ("by key", 3)
    assert by_key["path"].startswith(f"{tmp_path}/of keys/by_key")
    assert by_key["pause_ms"] < 5_000
    assert "failed 3 times; 2 restarts are allowed" in end_by_key["ended"]

    assert (by_code["name"], by_code["workers"]) == ("by code", 1)
    assert by_code["path"].startswith(f"{tmp_path}/of the code/by_code")
    assert by_code["pause_ms"] < 5_000, "it leaves `every` to the key"
    assert "restarts are switched off" in end_by_code["ended"]

    assert no_number["refused"] == "spark.penstock.parallelism: 'many' is not a whole number"
    assert "needs 9 workers" in too_few["too_few"] and "--master local[11]" in too_few["too_few"]


@pytest.mark.timeout(600)
def test_a_program_without_spark_submit_finds_the_keys_of_sparks_own_file(tmp_path: Path) -> None:
    """U5: the local Spark is as large as they say."""
    lines = [f"{key} {value}\n" for key, value in keys(tmp_path).items()]
    (tmp_path / "spark-defaults.conf").write_text("".join(lines))
    (by_key,) = told([sys.executable], "plain", tmp_path, SPARK_CONF_DIR=str(tmp_path))
    assert (by_key["name"], by_key["workers"]) == ("by key", 3)
    assert by_key["path"].startswith(f"{tmp_path}/of keys/by_key")
    assert by_key["master"] == "local[5,1000]"
