"""Spark's standalone cluster on hosts of their own, and a job on it that was given to `spark-submit`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyspark

import penstock
from tests.cluster.hosts import Host, Hosts

PROGRAM = Path(__file__).with_name("program.py")
SPARK = Path(pyspark.__file__).parent
SOURCES = Path(next(iter(penstock.__path__)))
CORES = 2
LIMIT_S = 240.0
"""No test waits longer for anything: a busy machine is no reason to fail."""
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Cluster:
    """A driver's host and so many hosts with an executor of two cores each. Only the driver's host has Penstock: the
    others get it from the job's archive."""

    def __init__(self, hosts: Hosts, shared: Path) -> None:
        self.hosts = hosts
        self.shared = shared
        self.driver = hosts["driver"]
        self._servers: list[subprocess.Popen[str]] = []
        self._logs = shared / "logs"
        self._logs.mkdir()
        self.archive = shutil.make_archive(
            str(shared / "penstock"), "zip", SOURCES.parent, "penstock"
        )
        self._serve(self.driver, "master.Master", "--host", self.driver.address, "--port", "7077")
        for host in hosts:
            if host is not self.driver:
                self.add_worker(host)

    def add_worker(self, host: Host) -> None:
        size = ("--cores", str(CORES), "--memory", "1g", "--work-dir", "/tmp/work")
        self._serve(host, "worker.Worker", self.master, "--host", host.address, *size)

    @property
    def master(self) -> str:
        return f"spark://{self.driver.address}:7077"

    def submit(self, options: Mapping[str, Any], *settings: str) -> Submitted:
        given = {
            "spark.driver.host": self.driver.address,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _JAVA,
            "spark.driver.extraJavaOptions": _JAVA,
            "spark.ui.enabled": "false",
            **dict(setting.split("=", 1) for setting in settings),
        }
        conf = [part for pair in given.items() for part in ("--conf", "=".join(pair))]
        submit = [str(SPARK / "bin/spark-submit"), "--master", self.master, *conf]
        files = ["--py-files", self.archive, str(PROGRAM), str(self.shared), json.dumps(options)]
        with (self._logs / "driver").open("w") as log:
            process = self.driver.start(
                [*submit, *files],
                env=_environment(self.driver),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        return Submitted(process, self)

    def close(self) -> None:
        for server in self._servers:
            server.kill()
            server.wait()

    def log_of(self, name: str) -> str:
        return (self._logs / name).read_text()

    def _serve(self, host: Host, name: str, *arguments: str) -> None:
        command = [str(SPARK / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        with (self._logs / f"{host.name}-{name}").open("w") as log:
            given = {"env": _environment(host), "stdout": log, "stderr": subprocess.STDOUT}
            self._servers.append(host.start(command, **given))


class Submitted:
    """A job that runs on the cluster, as its own program tells of it."""

    def __init__(self, process: subprocess.Popen[str], cluster: Cluster) -> None:
        self.process = process
        self.cluster = cluster
        self.seen: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                with self._changed:
                    self.seen.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def now(self) -> dict[str, Any]:
        return self.seen[-1]

    def until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first state from now on for which it holds."""
        begin = max(0, len(self.seen) - 1)
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found.extend(state for state in self.seen[begin:] if holds(state))
            return bool(found) or self.process.poll() is not None

        with self._changed:
            self._changed.wait_for(look, LIMIT_S)
        assert found, f"never {what}: {self.seen[-1:]} {self.cluster.log_of('driver')[-3000:]}"
        return found[0]

    def until_rows_flow(self) -> dict[str, Any]:
        """Rows arrive at the sink now."""
        runs = self.until("running", lambda s: s["status"] == "running")
        return self.until("rows that flow", lambda s: s["rows"] != runs["rows"] and s["rows"] > 0)

    def until_recovered(self, before: dict[str, Any]) -> dict[str, Any]:
        """The first state in which rows flow again, in an attempt after that one."""
        runs = self.until(
            "running again",
            lambda s: s["status"] == "running" and s["restarts"] > before["restarts"],
        )
        return self.until(
            "rows that flow again",
            lambda s: s["restarts"] >= runs["restarts"] and s["rows"] > runs["rows"],
        )

    def worker(self, slot: int) -> tuple[int, str]:
        """The number of its process on its host, and the host's name."""
        return next((pid, host) for number, pid, host in self.now["workers"] if number == slot)

    def stop(self) -> dict[str, Any]:
        (self.cluster.shared / "stop").touch()
        return self.until("stopped", lambda s: s["status"] in {"stopped", "finished", "failed"})

    def end(self) -> None:
        """All processes of the program: `spark-submit` is Java, which started Python."""
        for pid, text in self.cluster.driver.processes():
            if PROGRAM.name in text:
                with contextlib.suppress(RuntimeError):  # gone with the one before
                    self.cluster.driver.kill(pid)
        self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _environment(host: Host) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    return {
        **kept,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": host.address,
        "SPARK_DAEMON_JAVA_OPTS": _JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def shared_folder() -> Path:
    """Not below /tmp, which every host has for itself."""
    return Path(tempfile.mkdtemp(prefix="penstock-cluster-", dir="/var/tmp"))
