"""Clusters of Spark on this one machine, for programs of their own: executors are Java processes beside the driver's.

Java is told to start quickly rather than to run fast in the long term: most of such a program's time is its start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.shells.spark.executors import executors
from tests.spark.ends import until

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTOR_MB = 512
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": f"{EXECUTOR_MB}m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.log.level": "OFF",
}


def session(master: str, settings: Mapping[str, str] | None = None) -> Any:
    """A session of the program's own, as a user would make one."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master)
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def local_cluster(count: int, settings: Mapping[str, str] | None = None, *, cores: int = 2) -> Any:
    """So many executors of so many cores each, all of them there."""
    made = session(f"local-cluster[{count},{cores},1024]", settings)
    until(lambda: len(executors(made.sparkContext)) == count)
    return made


def cluster_of_hosts(
    hosts: Sequence[str], work: str, settings: Mapping[str, str] | None = None
) -> Any:
    """Spark's standalone cluster with one executor of two cores on each of these addresses of this machine.

    In `local-cluster` all executors have one host name, and Spark starts no second copy of a task on a host that
    has one. The master and the workers of the cluster live in the driver's own Java process."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    given = {**SETTINGS, "spark.driver.host": "127.0.0.1", **(settings or {})}
    conf = SparkConf().setAll(list(given.items())).setAppName("hosts")
    SparkContext._ensure_initialized(conf=conf)
    conf.setMaster(_start_cluster(SparkContext._jvm, hosts, work))
    made = SparkSession(SparkContext(conf=conf))
    until(lambda: len(executors(made.sparkContext)) == len(hosts))
    return made


def _start_cluster(jvm: Any, hosts: Sequence[str], work: str) -> str:
    """The address of the new cluster's master."""
    from pyspark import SparkContext

    deploy, conf = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf()
    master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)
    url = f"spark://127.0.0.1:{master._1().address().port()}"
    urls = SparkContext._gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    nothing = jvm.scala.Option.empty()
    for number, host in enumerate(hosts):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host,
            0,
            0,
            2,
            2 * EXECUTOR_MB,
            urls,
            work,
            jvm.scala.Option.apply(number),
            conf,
            nothing,
        )
    return url
