"""What Spark knows of its executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Executor:
    id: str
    host: str
    port: int
    cores: int
    running: int
    """Tasks, of whomever."""

    @property
    def place(self) -> str:
        """How Spark calls it as a preferred location."""
        return f"executor_{self.host}_{self.id}"


def executors(context: Any) -> list[Executor]:
    """The live executors that run tasks, as far as Spark knows them; empty when it does not tell."""
    try:
        summaries = context._jsc.sc().statusStore().executorList(True)
        found = [_executor(summaries.apply(i)) for i in range(summaries.size())]
    except Exception:  # Spark's internal view: without it placing and error texts are poorer
        return []
    return [each for each in found if each.cores > 0]


def _executor(summary: Any) -> Executor:
    host, _, port = str(summary.hostPort()).rpartition(":")
    cores, running = int(summary.totalCores()), int(summary.activeTasks())
    return Executor(str(summary.id()), host, int(port), cores, running)


def slots_of(context: Any) -> int:
    """The tasks that this Spark can run at once, as far as it knows its executors."""
    return sum(each.cores for each in executors(context)) or int(context.defaultParallelism)
