"""The invariants, watched from outside: the checkers see storage, messages and the external table, never the machines'
own opinion of themselves.

Each check names the invariant it belongs to; the first violation ends the run.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.engine.checkpoint_files import TOMBSTONE
from penstock.protocol.ids import CheckpointId, WorkerId
from penstock.protocol.lifecycle import Outcome
from penstock.protocol.messages import Deploy, Notify, ToWorker, Trigger
from penstock.shells.sim.outside import Transaction, row
from penstock.state.segments import read_blocks
from penstock.wire import manifest as manifests
from penstock.wire import paths, records
from penstock.wire.manifest import Manifest

if TYPE_CHECKING:
    from penstock.shells.sim.world import DriverProcess, Process, World


class Checkers:
    def __init__(self, world: World) -> None:
        self._world = world
        self._manifests: dict[CheckpointId, Manifest] = {}
        """Every checkpoint that ever came to exist, also those deleted since."""
        self._restored: dict[int, CheckpointId] = {}
        """Per attempt, what it recorded to have restored."""
        self._triggered: dict[CheckpointId, int] = {}
        self._notified = CheckpointId(0)

    @property
    def completed(self) -> int:
        return len(self._manifests)

    @property
    def newest_attempt(self) -> int:
        return max(self._restored, default=0)

    def _void(self, manifest: Manifest) -> bool:
        """Whether a later attempt went back behind this checkpoint."""
        return any(
            attempt > manifest.attempt and restored < manifest.checkpoint
            for attempt, restored in self._restored.items()
        )

    # ---- storage

    def on_created(self, name: str, data: bytes) -> None:
        checkpoint = paths.metadata_of(name)
        attempt = paths.restored_of(name)
        if attempt is not None:
            self._restored[attempt] = records.decode_restored(data, name).checkpoint
        if checkpoint is None or data == TOMBSTONE:
            return
        manifest = manifests.decode(data, name)
        self._manifests[checkpoint] = manifest
        self._check_complete(manifest)
        self._check_state(manifest)

    def on_deleted(self, name: str) -> None:
        """I12: a file goes only when no checkpoint that still exists needs it."""
        checkpoint = paths.checkpoint_of(name)
        if checkpoint is None or paths.metadata_of(name) is not None:
            return
        disk = self._world.disk
        if paths.metadata(checkpoint) in disk.list(paths.checkpoint_folder(checkpoint)):
            if disk.read(paths.metadata(checkpoint)) != TOMBSTONE:
                self._violation("I12", f"{name} is deleted while checkpoint {checkpoint} exists")

    def _check_complete(self, manifest: Manifest) -> None:
        """I5: every subtask is in it once, and every file it names is there and is what it says."""
        subtasks = Counter(snapshot.subtask for snapshot in manifest.snapshots)
        if subtasks != Counter(self._world.plan.subtasks):
            self._violation("I5", f"checkpoint {manifest.checkpoint} has the subtasks {subtasks}")
        present = set(self._world.disk.list())
        missing = sorted(set(manifest.files) - present)
        if missing:
            self._violation("I5", f"checkpoint {manifest.checkpoint} lacks {missing}")

    def _check_state(self, manifest: Manifest) -> None:
        """I2: the state of every aggregate is the fold of just the rows before the sources' positions."""
        covered: Counter[int] = Counter()
        for snapshot in manifest.snapshots:
            for name, part in snapshot.operators.items():
                source = self._world.scenario.sources.get(name)
                if source is not None:
                    covered.update(source.covered(part.lanes))
        for aggregate, ids in self._world.scenario.aggregates.values():
            want: dict[int, tuple[int, int]] = {}
            for id in covered:
                times = ids.get(id, 0)
                if times:
                    _, key, value = row(id)
                    n, total = want.get(key, (0, 0))
                    want[key] = (n + times, total + times * value)
            got = self._state(manifest, aggregate)
            if got != want:
                if self._world.exactly_once or not _at_least(got, want):
                    self._violation(
                        "I2",
                        f"checkpoint {manifest.checkpoint}, {aggregate}: state {got}, fold {want}",
                    )

    def _state(self, manifest: Manifest, operator: str) -> dict[int, tuple[int, int]]:
        groups = range(manifest.max_parallelism)
        state: dict[int, tuple[int, int]] = {}
        for snapshot in manifest.snapshots:
            part = snapshot.operators.get(operator)
            for segment in part.segments if part is not None else ():
                whole = segment.inline
                if whole is None:
                    whole = self._world.disk.read(paths.segment_file(segment.file))
                data = whole
                for batch in read_blocks(
                    segment, groups, lambda at, n, data=data: data[at : at + n]
                ):  # type: ignore[misc]
                    columns = [batch.column(i).to_pylist() for i in range(1, 4)]
                    for key, n, total in zip(*columns, strict=True):
                        if key in state:
                            self._violation("I15", f"key {key} is in two subtasks")
                        state[key] = (n, total)
        return state

    # ---- messages

    def on_sent(self, driver: int, worker: WorkerId, message: ToWorker) -> None:
        if isinstance(message, Trigger):
            owner = self._triggered.setdefault(message.checkpoint, driver)
            if owner != driver:
                self._violation("I7", f"id {message.checkpoint} triggered by two drivers")
            newer = [n for n, d in self._triggered.items() if d == driver]
            if message.checkpoint < max(newer) and message.checkpoint not in newer:
                self._violation("I7", f"id {message.checkpoint} after {max(newer)}")
        elif isinstance(message, Notify):
            self._on_notify(message)
        elif isinstance(message, Deploy):
            self._on_deploy(message)

    def _on_notify(self, message: Notify) -> None:
        """I9: nobody hears of a checkpoint that is not durable."""
        if message.checkpoint not in self._manifests:
            self._violation("I9", f"checkpoint {message.checkpoint} is notified and not durable")
        self._notified = max(self._notified, message.checkpoint)

    def _on_deploy(self, message: Deploy) -> None:
        """I7: what is restored is the newest that anybody was told of, or a newer one that exists."""
        visible = [t.checkpoint for t in self._world.table.visible.values()]
        if message.restored < max([self._notified, *visible]):
            self._violation(
                "I7",
                f"attempt {message.attempt} restores {message.restored} below {self._notified}",
            )

    # ---- the external table

    def on_commit(self, name: str, transaction: Transaction) -> None:
        """I9, I18: a transaction becomes visible only if a completed checkpoint of a lineage that is still alive
        lists it."""
        listed = [n for n, m in self._manifests.items() if _lists(m, name)]
        if not listed:
            self._violation("I9", f"{name} is committed and no completed checkpoint lists it")
            return
        if all(self._void(self._manifests[n]) for n in listed):
            self._violation(
                "I18", f"{name} is committed though a later attempt went back behind it"
            )

    def after_driver(self, driver: DriverProcess) -> None:
        """I8, I26: what is pending is within its limits and newer than what is complete."""
        coordinator = driver.manager.coordinator
        pending = [n for n, _ in coordinator.live()]
        if len(pending) > coordinator.config.max_concurrent:
            self._violation("I26", f"{len(pending)} snapshots are pending")
        if pending and min(pending) < coordinator.newest_completed:
            self._violation("I8", f"{pending} pending below {coordinator.newest_completed}")

    def after_process(self, process: Process) -> None:
        attempt = process.worker.attempt
        for subtask in attempt.subtasks if attempt is not None else ():
            subtask.check()

    def at_end(self) -> None:
        self._check_output()
        self._check_storage()
        ends = [(d.manager.outcome, d.manager.reason) for d in self._world.drivers if d.alive]
        if not any(outcome is Outcome.FINISHED for outcome, _ in ends):
            self._violation("I27", f"the job did not finish: {ends}")
        final = [n for n, m in self._manifests.items() if m.kind == "final" and not self._void(m)]
        if len(final) != 1:
            self._violation("I27", f"final checkpoints: {final}")
        table = self._world.table
        dangling = [name for name, t in table.prepared.items() if not t.by_zombie]
        if dangling:
            self._violation("I11", f"transactions neither committed nor aborted: {dangling}")
        alive = [p.name for p in self._world.processes.values() if p.alive and not p.lost]
        if alive:
            self._violation("I26", f"processes left behind: {alive}")

    def _check_output(self) -> None:
        table, exactly_once = self._world.table, self._world.exactly_once
        for sink, want in self._world.scenario.expected.items():
            got = Counter(entry[0] for entry in table.rows(sink))
            wrong = {
                i for i in got | want if got[i] < want[i] or (exactly_once and got[i] != want[i])
            }
            if wrong:
                some = {i: (got[i], want[i]) for i in sorted(wrong)[:5]}
                self._violation("I1", f"{sink}: {len(wrong)} rows wrong (seen, wanted): {some}")
        for sink, (_, ids) in self._world.scenario.aggregates.items():
            self._check_aggregate(sink, ids)

    def _check_aggregate(self, sink: str, ids: Counter[int]) -> None:
        """The last row of every key has all of its rows, and no count is seen twice."""
        want: dict[int, tuple[int, int]] = {}
        for id, times in ids.items():
            _, key, value = row(id)
            n, total = want.get(key, (0, 0))
            want[key] = (n + times, total + times * value)
        rows = self._world.table.rows(sink)
        got: dict[int, tuple[int, int]] = {}
        for key, n, total in rows:
            got[key] = max(got.get(key, (0, 0)), (n, total))
        if self._world.exactly_once:
            seen = Counter((key, n) for key, n, _ in rows)
            twice = sorted(entry for entry, times in seen.items() if times > 1)
            if got != want or twice:
                self._violation("I1", f"{sink}: last rows {got}, wanted {want}; twice: {twice[:5]}")
        elif not _at_least(got, want):
            self._violation("I1", f"{sink}: last rows {got}, wanted at least {want}")

    def _check_storage(self) -> None:
        """I13: what lies in storage is what the kept checkpoints need, and the claims."""
        disk = self._world.disk
        kept: set[str] = set()
        for name in disk.list():
            if paths.metadata_of(name) is not None and disk.read(name) != TOMBSTONE:
                kept |= {name, *manifests.decode(disk.read(name), name).files}
        leaked = [
            name
            for name in disk.list()
            if name not in kept and paths.owner_of(name) is None and paths.restored_of(name) is None
        ]
        if leaked and not self._world.faults_touch_storage:
            self._violation("I13", f"files that nothing refers to: {leaked}")

    def _violation(self, invariant: str, what: str) -> None:
        self._world.violation(invariant, what)


def _lists(manifest: Manifest, transaction: str) -> bool:
    return any(
        transaction in part.transactions
        for snapshot in manifest.snapshots
        for part in snapshot.operators.values()
    )


def _at_least(got: dict[int, tuple[int, int]], want: dict[int, tuple[int, int]]) -> bool:
    return all(key in got and got[key][0] >= n for key, (n, _) in want.items())
