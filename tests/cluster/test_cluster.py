"""A job on a real cluster: Spark's standalone master and workers on hosts of their own, with networks that are cut and
hosts that crash. The hosts do not have Penstock: they get it from the archive that was submitted with the job.

What took how long is told, and is no reason to fail: a busy machine is slower. `CLUSTER_FIGURES=file` collects it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.cluster.hosts import Hosts, why_not
from tests.cluster.standalone import LIMIT_S, SOURCES, Cluster, Submitted, shared_folder
from tests.cluster.strangers import Strangers
from tests.spark.ends import until

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(4 * LIMIT_S)]

REASON = why_not()
if REASON:
    pytestmark.append(pytest.mark.skip(reason=REASON))

ROOT = Path(__file__).parents[2]
STRANGERS_S = float(os.environ.get("CLUSTER_STRANGERS_S", "5"))


@contextmanager
def a_cluster(*names: str) -> Iterator[Cluster]:
    """A driver's host, and these with executors; only the driver's has Penstock's sources."""
    shared = shared_folder()
    hidden = {name: [SOURCES.parent] for name in names}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, shared, ignore_errors=True)
        kept = [ROOT, Path(sys.prefix)]
        hosts = stack.enter_context(Hosts(["driver", *names], hidden, kept))
        cluster = Cluster(hosts, shared)
        stack.callback(cluster.close)
        yield cluster


@contextmanager
def submitted(cluster: Cluster, *settings: str, **options: Any) -> Iterator[Submitted]:
    job = cluster.submit(options, *settings)
    try:
        yield job
    finally:
        job.end()


def figure(what: str, since_s: float, state: dict[str, Any]) -> None:
    line = f"{what}: {state['time'] - since_s:.1f} s"
    print(line)
    if target := os.environ.get("CLUSTER_FIGURES"):
        with open(target, "a") as file:
            file.write(f"{line}\n")


def assert_numbered(folder: Path) -> None:
    """I1, I2: every row once, and the rows of each key numbered without a gap or a repeat."""
    files = sorted(str(path) for path in folder.glob("part-*"))
    table: pa.Table = ds.dataset(files).to_table()
    repeated = [i for i, n in Counter(table["i"].to_pylist()).items() if n > 1]
    assert not repeated, f"{len(repeated)} rows are there more than once: {repeated[:5]}"
    by_key: dict[int, list[int]] = {}
    for key, nth in zip(table["k"].to_pylist(), table["nth"].to_pylist(), strict=True):
        by_key.setdefault(key, []).append(nth)
    assert by_key
    for key, nths in by_key.items():
        assert sorted(nths) == list(range(1, len(nths) + 1)), f"key {key}: gaps or repeats"


def kill_worker(job: Submitted) -> None:
    pid, host = job.worker(0)
    job.cluster.hosts[host].kill(pid)


def kill_executor(job: Submitted) -> None:
    _, name = job.worker(0)
    host = job.cluster.hosts[name]
    backends = [pid for pid, text in host.processes() if "CoarseGrainedExecutorBackend" in text]
    assert backends
    for pid in backends:
        host.kill(pid)


def crash_host(job: Submitted) -> None:
    _, host = job.worker(0)
    job.cluster.hosts.crash(host)


def recovers(job: Submitted, what: str, fault: Callable[[Submitted], None]) -> dict[str, Any]:
    before, began_s = job.now, time.time()
    fault(job)
    state = job.until_recovered(before)
    figure(what, began_s, state)
    return state


def test_a_job_survives_what_clusters_do_to_it() -> None:
    """R1, R5, E1, I1, I2: a network that is cut between workers, a driver that stands still, strangers at every port, a
    killed worker, and a host that is gone in one moment."""
    with a_cluster("a", "b") as cluster, submitted(cluster, every="1 second") as job:
        began_s = time.time()
        figure("start", began_s, job.until_rows_flow())
        hosts = cluster.hosts
        assert {host for _, _, host in job.now["workers"]} == {"a", "b"}, "one worker on each host"

        began_s, before = time.time(), job.now
        hosts.cut("a", "b")
        noticed = job.until("noticed the cut", lambda s: s["status"] != "running")
        figure("cut between workers, noticed", began_s, noticed)
        told = job.until("told who is cut off", lambda s: "NetworkCut" in str(s["exceptions"]))
        assert "gets no answer from" in str(told["exceptions"])
        assert told["status"] == "restarting"
        began_s = time.time()
        hosts.heal()
        healed = job.until_recovered(before)
        figure("cut between workers, healed after its end", began_s, healed)
        assert healed["restarts"] == before["restarts"] + 1, "one failure, however long it lasts"

        pids = sorted(job.now["workers"])
        recovers(job, "driver that stood still, after its end", stand_still)
        assert sorted(job.now["workers"]) == pids, "no process was lost"

        before = job.now
        with Strangers(hosts, STRANGERS_S) as strangers:
            pass
        assert strangers.knocks > 100
        assert job.until("alive", lambda s: s["checkpoints"] > before["checkpoints"])
        assert job.now["restarts"] == before["restarts"], "strangers cost nobody a restart"

        recovers(job, "worker killed", kill_worker)
        recovers(job, "host crashed", crash_host)
        assert job.stop()["status"] == "stopped"
        assert_numbered(cluster.shared / "out")
        assert not list((cluster.shared / "out/_staging").glob("shared-*"))


def stand_still(job: Submitted) -> None:
    """The driver's Python, until every worker has given up its connection."""
    host = job.cluster.driver
    pids = [
        pid
        for pid, text in host.processes()
        if "python" in text.split()[0] and "program.py" in text
    ]
    (pid,) = pids
    workers = host.callers()
    assert workers
    host.kill(pid, "STOP")
    try:
        until(lambda: not workers & host.callers(), within_s=LIMIT_S)
    finally:
        host.kill(pid, "CONT")


def test_an_executor_that_is_lost_and_a_host_that_cannot_reach_the_driver_are_replaced() -> None:
    """R1, I1: with three workers on three hosts, which were spread although the first executor had room for more; and
    a job that was stopped goes on where it stood when it is submitted again."""
    with a_cluster("a", "b", "c") as cluster:
        options: dict[str, Any] = {"parallelism": 3, "every": "1 second"}
        with submitted(cluster, **options) as job:
            job.until_rows_flow()
            assert {host for _, _, host in job.now["workers"]} == {"a", "b", "c"}
            recovers(job, "executor killed", kill_executor)
            _, host = job.worker(1)
            recovers(job, "host cut from the driver", lambda j: cluster.hosts.cut(host, "driver"))
            assert host not in {name for _, _, name in job.now["workers"]}
            cluster.hosts.heal()
            assert job.stop()["status"] == "stopped"
        with submitted(cluster, **options) as again:
            again.until_rows_flow()
            assert again.stop()["status"] == "stopped"
        assert_numbered(cluster.shared / "out")


@pytest.mark.parametrize("unshared", ["checkpoints", "out"])
def test_a_folder_that_hosts_do_not_share_is_told_before_anything_runs(unshared: str) -> None:
    """Every host has a /tmp of its own here."""
    with (
        a_cluster("a") as cluster,
        submitted(cluster, **{unshared: "/tmp/own"}, parallelism=1) as job,
    ):
        failed = job.until("failed", lambda s: s["status"] == "failed")
        told = json.dumps(failed["exceptions"])
        what = "the checkpoint directory" if unshared == "checkpoints" else "the folder of sink"
        assert what in told and "not the same folder on a as on driver" in told
        assert failed["rows"] == 0
