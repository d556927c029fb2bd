"""Other systems in the same run: their own scripts, each in an environment of its own, called from here.

The scripts are looked for where PENSTOCK_PEERS says, or beside the repository.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORKING = Path.home() / ".cache" / "penstock-peers"
NEEDED = ("flink", "spark")
RUN_WITHIN_S = 900
SETUP_WITHIN_S = 3600


@dataclass(frozen=True)
class Peer:
    """`times`: how many times its rate Penstock must make."""

    name: str
    environment: str
    arguments: tuple[str, ...]
    checkpoints: bool
    times: float

    def rows_per_second(self) -> float:
        return float(self._run()["rows_s"])

    def _run(self) -> dict[str, object]:
        python = WORKING / f"venv-{self.environment}" / "bin" / "python"
        ended = subprocess.run(
            [str(python), *self.arguments],
            cwd=WORKING,
            env=_clean_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_WITHIN_S,
        )
        answers = [line for line in ended.stdout.splitlines() if line.startswith("{")]
        if not answers:
            raise RuntimeError(
                f"{self.name} printed no result; its last words: {ended.stderr[-2000:]}"
            )
        return dict(json.loads(answers[-1]))


FLINK = ("flink_bench.py", "--w", "w1", "--mini", "1", "--obj", "1")
SPARK = ("spark_bench.py", "--w", "w1", "--op", "agg", "--prov", "hdfs")
W1_PEERS = (
    Peer("Flink SQL, heap, mini-batch", "flink", FLINK, False, 12.0),
    Peer("Flink SQL, every second", "flink", (*FLINK, "--cp", "1000"), True, 12.0),
    Peer("Spark, one batch", "spark", (*SPARK, "--files", "20"), False, 6.0),
    Peer("Spark, micro-batches", "spark", (*SPARK, "--files", "2"), True, 6.0),
)
ROCKSDB_PEERS = (
    Peer(
        "Flink SQL, RocksDB, mini-batch, every second",
        "flink",
        (*FLINK, "--cp", "1000", "--backend", "rocksdb"),
        True,
        10.0,
    ),
)


SMALL_SCRIPT = "flink_small.py"


def rocksdb_given(memory_bytes: int, keys: int, rows: int) -> Peer:
    """Flink with so much memory for the state of all its tasks: what its script gives it is replaced in a copy."""
    script = (WORKING / FLINK[0]).read_text("utf-8")
    given = "'taskmanager.memory.managed.size','1gb'"
    if script.count(given) != 1:
        raise RuntimeError(f"{FLINK[0]} does not say {given} once: look how it gives memory now")
    small = script.replace(given, f"'taskmanager.memory.managed.size','{memory_bytes >> 20}mb'")
    (WORKING / SMALL_SCRIPT).write_text(small, "utf-8")
    sized = ("--keys", str(keys), "--n", str(rows), "--warm", str(rows // 20))
    asked = (SMALL_SCRIPT, *FLINK[1:], "--cp", "5000", "--backend", "rocksdb", *sized)
    name = f"Flink SQL, RocksDB, {memory_bytes >> 20} MiB, rows without a text"
    return Peer(name, "flink", asked, True, 1.0)


def folder() -> Path | None:
    """Where the peers' scripts are; None when they are not on this machine."""
    given = os.environ.get("PENSTOCK_PEERS")
    found = Path(given) if given else ROOT.parent / "shared" / "peers"
    return found if (found / "setup").exists() else None


def prepare(scripts: Path) -> None:
    """Installs the peers where they are not installed yet: minutes, once."""
    subprocess.run(
        [str(scripts / "setup"), str(WORKING), *NEEDED],
        check=True,
        timeout=SETUP_WITHIN_S,
        env=_clean_environment(),
    )


def _clean_environment() -> dict[str, str]:
    """A peer must not find Penstock's Spark or packages."""
    hidden = ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in hidden}
