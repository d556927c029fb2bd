"""The workers of a job as the manager sees them: which processes they are, and telling all of an attempt something."""

from __future__ import annotations

from penstock.engine.history.records import WorkerInfo
from penstock.ports.control import Workers
from penstock.protocol.ids import AttemptId, WorkerId
from penstock.protocol.lifecycle import JobMachine
from penstock.protocol.messages import ToWorker


class Crew:
    def __init__(self, machine: JobMachine, workers: Workers) -> None:
        self.infos: tuple[WorkerInfo, ...] = ()
        """Replaced whole, so that other threads can read it at any time."""
        self._machine = machine
        self._workers = workers
        self._processes: dict[WorkerId, tuple[int, str]] = {}

    def joined(self, worker: WorkerId, pid: int, host: str) -> None:
        self._processes[worker] = (pid, host)

    def left(self, worker: WorkerId) -> None:
        self._processes.pop(worker, None)

    def name(self, worker: WorkerId) -> str:
        """Which one it is, for people: its part of the plan and its process, as far as they are known."""
        member = self._machine.members.get(worker)
        spare = member is None or member.slot is None
        part = (
            f"worker {worker}" if spare or member is None else f"the worker of slot {member.slot}"
        )
        process = self._processes.get(worker)
        return part if process is None else f"{part} (pid {process[0]} on {process[1]})"

    def publish(self) -> None:
        found = [
            WorkerInfo(member.slot, *self._processes[worker])
            for worker, member in sorted(self._machine.members.items())
            if worker in self._processes
        ]
        self.infos = tuple(sorted(found, key=lambda info: (info.slot is None, info.slot, info.pid)))

    def tell(self, attempt: AttemptId, message: ToWorker) -> None:
        """To every worker that was given this attempt and has not dropped it."""
        for worker, member in sorted(self._machine.members.items()):
            if member.attempt == attempt:
                self._workers.send(worker, message)
