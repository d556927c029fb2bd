"""Bugs that others had, or that are easy to make, each put into the running engine by one function.

`MUTANTS` has them by name. Every one is a function that replaces something for as long as it is entered; what the
simulator says about a system with that bug is the test of the simulator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.base import END
from penstock.engine import checkpoint_files, committing, outputs, partition
from penstock.engine.attempt import Attempt
from penstock.engine.checkpoint_files import CheckpointFiles
from penstock.engine.inputs import Input
from penstock.engine.manager import JobManager
from penstock.engine.operators.base import FrozenOperator
from penstock.engine.operators.connect import SinkOperator, SourceOperator
from penstock.engine.outputs import Outputs
from penstock.engine.subtask import Subtask, Taken
from penstock.engine.worker import Worker
from penstock.errors import StorageError
from penstock.ports.channel import Barrier, Batch, End
from penstock.protocol import recovery
from penstock.protocol.alignment import Alignment
from penstock.protocol.commit import covered
from penstock.protocol.coordinator import Coordinator, Discard, Persist, Persisting, Subsume
from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId
from penstock.protocol.messages import Notify
from penstock.shells.sim.outside import _SimWriter
from penstock.wire import manifest as manifests
from penstock.wire import paths

Mutant = Callable[[], AbstractContextManager[None]]
MUTANTS: dict[str, Mutant] = {}


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Has another value for an attribute while it is entered."""
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def mutant(make: Mutant) -> Mutant:
    MUTANTS[make.__name__] = make
    return make


# ---- barriers


@mutant
def no_alignment() -> AbstractContextManager[None]:
    """Channels that have delivered their barrier are read on."""
    return swapped(Alignment, "blocked", property(lambda self: frozenset()))


@mutant
def snapshot_after_the_next_batch() -> AbstractContextManager[None]:
    """The barrier goes out, one more batch is processed, then the state is frozen."""

    def take(self: Subtask, checkpoint: CheckpointId) -> None:
        if not self.finished:
            self.outputs.barrier(checkpoint)
            _one_more_batch(self)
        operators = self.chain.freeze(checkpoint)
        self.news.append(Taken(self.id, checkpoint, operators, self.finished, 0.0, 0.0))

    return swapped(Subtask, "_take", take)


def _one_more_batch(task: Subtask) -> None:
    if task.chain.source is not None:
        rows = task.chain.source.poll(10)
        if rows is not END:
            task.chain.process(rows, 0)
        return
    for entry in task._inputs:
        frame = entry.take()
        if isinstance(frame, Batch):
            task.chain.process(frame.data, entry.port)
            return
        if frame is not None:
            entry.queue.appendleft(frame)


@mutant
def barrier_overtakes_waiting_output() -> AbstractContextManager[None]:
    """A barrier does not wait behind rows that wait for room."""

    def barrier(self: Outputs, checkpoint: CheckpointId) -> None:
        for output in self._all:
            output.waiting.appendleft(Barrier(checkpoint))
            output.flush()

    return swapped(Outputs, "barrier", barrier)


@mutant
def rest_of_a_cut_batch_goes_to_the_end() -> AbstractContextManager[None]:
    """What a slice leaves of a batch is taken after what came behind it in the channel."""

    def put_back(self: Input, rest: pa.RecordBatch) -> None:
        self.put(Batch(rest))

    return swapped(Input, "put_back", put_back)


@mutant
def only_sources_hear_of_triggers() -> AbstractContextManager[None]:
    """A subtask whose inputs have ended waits for a barrier that cannot come."""
    original = Attempt.trigger

    def trigger(self: Attempt, checkpoint: CheckpointId, kind: Any) -> None:
        everyone = self.subtasks
        self.subtasks = [task for task in everyone if task.chain.source is not None]
        try:
            original(self, checkpoint, kind)
        finally:
            self.subtasks = everyone

    return swapped(Attempt, "trigger", trigger)


@mutant
def end_is_lost_in_a_full_channel() -> AbstractContextManager[None]:
    def end(self: Outputs) -> None:
        for output in self._all:
            output.channel.try_send(End())

    return swapped(outputs.Outputs, "end", end)


@mutant
def counting_where_aligning_was_asked_for() -> AbstractContextManager[None]:
    """An exactly-once job counts barriers, as an at-least-once job does."""
    from penstock.engine import attempt
    from penstock.protocol.counting import Counting

    return swapped(attempt, "Alignment", Counting)


# ---- sources, keys, state


@mutant
def source_position_off_by_one() -> AbstractContextManager[None]:
    original = SourceOperator.freeze

    def freeze(self: SourceOperator, checkpoint: CheckpointId) -> FrozenOperator:
        frozen = original(self, checkpoint)
        lanes = {lane: max(0, at - 1) for lane, at in frozen.lanes.items()}  # type: ignore[operator]
        return replace(frozen, lanes=lanes)

    return swapped(SourceOperator, "freeze", freeze)


@mutant
def keys_by_pythons_hash() -> AbstractContextManager[None]:
    """Every process has its own PYTHONHASHSEED: two of them send the same key to different subtasks."""
    processes = itertools.count()

    def by_key(keys: tuple[str, ...], targets: int, max_parallelism: int) -> Any:
        seed = next(processes)

        def split(batch: Any) -> Any:
            columns = [batch.column(key).to_pylist() for key in keys]
            owners = [hash((seed, *key)) % targets for key in zip(*columns, strict=True)]
            ordered = batch.take(np.argsort(owners, kind="stable"))
            return partition._slices(ordered, np.bincount(owners, minlength=targets))

        return split

    return swapped(partition, "_by_key", by_key)


@mutant
def an_attempt_leaves_its_rows_to_the_next() -> AbstractContextManager[None]:
    """Worker reuse: the state of the old attempt is still there in the new one."""
    original = Worker._on_deploy

    def on_deploy(self: Worker, message: Any) -> None:
        if self.attempt is not None or self._newest:
            message = replace(message, snapshots=())
        original(self, message)

    return swapped(Worker, "_on_deploy", on_deploy)


# ---- the coordinator


@mutant
def acks_are_counted() -> AbstractContextManager[None]:
    """A second acknowledgement of one subtask counts for somebody else."""
    original = Coordinator.acked

    def acked(self: Coordinator, attempt: Any, checkpoint: Any, parts: Any, now_ms: float) -> Any:
        pending = self.unfinished.get(checkpoint)
        actions = original(self, attempt, checkpoint, parts, now_ms)
        still = self.unfinished.get(checkpoint)
        if pending is not still or pending is None or isinstance(pending, Persisting):
            return actions
        owed = frozenset(sorted(pending.owed)[len(list(parts)) :])
        if owed:
            self.unfinished[checkpoint] = replace(pending, owed=owed)
            return []
        acks = pending.acks
        self.unfinished[checkpoint] = Persisting(
            checkpoint, pending.kind, pending.triggered_ms, acks
        )
        return [Persist(checkpoint, pending.kind, pending.triggered_ms, acks)]

    return swapped(Coordinator, "acked", acked)


@mutant
def notify_before_metadata() -> AbstractContextManager[None]:
    """Workers hear of a checkpoint, and commit, before its metadata is durable."""
    original = JobManager._persist

    def persist(self: JobManager, action: Persist) -> None:
        self._tell_running(lambda attempt: Notify(attempt, action.checkpoint))
        original(self, action)

    return swapped(JobManager, "_persist", persist)


@mutant
def a_kept_checkpoint_is_deleted() -> AbstractContextManager[None]:
    def retire(self: Coordinator) -> list[Any]:
        excess = self.completed[: -self.config.keep + 1] if self.config.keep > 1 else self.completed
        self.completed = [n for n in self.completed if n not in excess]
        return [Subsume(tuple(excess))] if excess else []

    return swapped(Coordinator, "_retire", retire)


@mutant
def older_snapshots_stay_pending() -> AbstractContextManager[None]:
    """Completing n leaves what is older and pending alone."""
    original = Coordinator.persisted

    def persisted(self: Coordinator, attempt: Any, checkpoint: Any, now_ms: float) -> Any:
        older = {n: p for n, p in self.unfinished.items() if n < checkpoint}
        for n in older:
            del self.unfinished[n]
        actions = original(self, attempt, checkpoint, now_ms)
        self.unfinished.update(older)
        return actions

    return swapped(Coordinator, "persisted", persisted)


@mutant
def files_of_a_persisting_snapshot_are_discarded() -> AbstractContextManager[None]:
    """An attempt that ends takes the files of what is just being persisted with it."""
    original = Coordinator.attempt_ended

    def attempt_ended(self: Coordinator, now_ms: float) -> Any:
        persisting = [n for n, p in self.unfinished.items() if isinstance(p, Persisting)]
        return [*original(self, now_ms), *[Discard(n) for n in persisting]]

    return swapped(Coordinator, "attempt_ended", attempt_ended)


# ---- sinks


@mutant
def commit_at_prepare() -> AbstractContextManager[None]:
    """A sink makes its rows visible with the snapshot, not after the metadata."""
    original = SinkOperator.freeze

    def freeze(self: SinkOperator, checkpoint: CheckpointId) -> FrozenOperator:
        frozen = original(self, checkpoint)
        for entry in frozen.transactions:
            if self._committer is not None:
                self._committer.commit(entry.get())
        return frozen

    return swapped(SinkOperator, "freeze", freeze)


@mutant
def notify_lost_on_restart() -> AbstractContextManager[None]:
    """What the restored checkpoint had pre-committed is not committed again."""
    original = SinkOperator.open

    def open_(self: SinkOperator, context: Any) -> None:
        original(self, replace(context, restored=()))

    return swapped(SinkOperator, "open", open_)


@mutant
def ack_lists_only_its_own_transaction() -> AbstractContextManager[None]:
    original = SinkOperator.freeze

    def freeze(self: SinkOperator, checkpoint: CheckpointId) -> FrozenOperator:
        frozen = original(self, checkpoint)
        own = [entry.transaction for entry in self._pending if entry.checkpoint == checkpoint]
        return replace(frozen, transactions=tuple(own))

    return swapped(SinkOperator, "freeze", freeze)


@mutant
def abort_forgets_transactions() -> AbstractContextManager[None]:
    """Aborting a snapshot throws away the transaction that was pre-committed with it."""
    original = Subtask.abort

    def abort(self: Subtask, checkpoint: CheckpointId) -> None:
        original(self, checkpoint)
        for _, sink in self.chain.sinks:
            sink._pending = tuple(p for p in sink._pending if p.checkpoint != checkpoint)

    return swapped(Subtask, "abort", abort)


@mutant
def commit_covers_too_much() -> AbstractContextManager[None]:
    """Completing n commits everything that is pre-committed, newer snapshots included."""
    from penstock.engine.operators import connect

    return swapped(connect, "covered", lambda pending, checkpoint: covered(pending, 2**62))


@mutant
def commit_covers_only_its_own() -> AbstractContextManager[None]:
    """Completing n leaves the transactions of older, aborted snapshots uncommitted."""
    from penstock.engine.operators import connect

    def own(pending: Any, checkpoint: CheckpointId) -> Any:
        return tuple(entry for entry in pending if entry.checkpoint == checkpoint)

    return swapped(connect, "covered", own)


@mutant
def a_failed_commit_is_skipped() -> AbstractContextManager[None]:
    def try_again(self: committing.Commits, sink: Any, error: BaseException) -> None:
        sink.operator.commit_done(self._wanted)

    return swapped(committing.Commits, "_try_again", try_again)


@mutant
def prepare_does_not_sync() -> AbstractContextManager[None]:
    """A transaction is acknowledged before it would outlive its process."""
    return swapped(_SimWriter, "sync", lambda self, name: name)


@mutant
def a_lost_transaction_is_tolerated_for_ever() -> AbstractContextManager[None]:
    """Rows that could not be made durable are declined again and again."""
    return swapped(Attempt, "step", _without_check(Attempt.step))


def _without_check(step: Any) -> Any:
    def unchecked(self: Attempt) -> bool:
        self._broken = None
        return bool(step(self))

    return unchecked


# ---- storage and recovery


@mutant
def tombstone_is_skipped() -> AbstractContextManager[None]:
    """A write of metadata that failed is taken to have had no effect."""

    def persist(self: CheckpointFiles, manifest: Any) -> bool:
        try:
            self._store.create(paths.metadata(manifest.checkpoint), manifests.encode(manifest))
        except StorageError:
            return False
        self._check_owner(self._claimed_attempts())
        return True

    return swapped(CheckpointFiles, "persist", persist)


@mutant
def a_fenced_driver_goes_on() -> AbstractContextManager[None]:
    """Nobody looks whether another driver has taken the job over."""
    return swapped(CheckpointFiles, "_check_owner", lambda self, claimed: None)


@mutant
def metadata_is_written_over() -> AbstractContextManager[None]:
    def persist(self: CheckpointFiles, manifest: Any) -> bool:
        name = paths.metadata(manifest.checkpoint)
        self._store.write(name, [manifests.encode(manifest)])
        return True

    return swapped(CheckpointFiles, "persist", persist)


@mutant
def a_void_checkpoint_is_restored() -> AbstractContextManager[None]:
    return swapped(recovery, "is_void", lambda found, claims: False)


@mutant
def an_older_checkpoint_is_restored() -> AbstractContextManager[None]:
    """Of several checkpoints not the newest is taken."""
    return swapped(recovery, "_by_id", lambda found: -found.checkpoint)


@mutant
def claim_looks_before_it_claims() -> AbstractContextManager[None]:
    """The list of checkpoints is older than the claim: what completed in between is missed."""
    original = CheckpointFiles._claim_next

    def claim(
        self: CheckpointFiles,
        wish: Any,
        *,
        may_fall_back: bool,
        damaged: Any,
        next_id: CheckpointId,
        misfit: Any,
    ) -> Any:
        names = getattr(self, "_stale_names", None) or self._store.list()
        self._stale_names = names  # type: ignore[attr-defined]
        attempt = original(self)
        facts, found = self._facts(names, damaged)
        seen, _ = self._facts(self._store.list(), damaged)
        first_id = max(next_id, recovery.first_free_id(seen))
        decision = recovery.decide(facts, may_fall_back=may_fall_back)
        point = self._decided(attempt, decision, facts, found, first_id)
        self._record(point)
        return point

    return swapped(CheckpointFiles, "claim", claim)


@mutant
def ids_start_again() -> AbstractContextManager[None]:
    """A new driver counts from what it restored, not from what was reserved."""

    def first(facts: Any) -> CheckpointId:
        return CheckpointId(max((f.checkpoint for f in facts.found), default=NO_CHECKPOINT) + 1)

    return swapped(recovery, "first_free_id", first)


@mutant
def files_go_before_the_metadata() -> AbstractContextManager[None]:
    def delete(self: CheckpointFiles, checkpoint: CheckpointId) -> None:
        names = self._store.list(paths.checkpoint_folder(checkpoint))
        for name in sorted(names, key=lambda name: paths.metadata_of(name) is not None):
            self._store.delete(name)

    return swapped(CheckpointFiles, "delete_checkpoint", delete)


@mutant
def damage_goes_unnoticed() -> AbstractContextManager[None]:
    """A damaged newest checkpoint is passed over although the sinks have committed it."""
    original = recovery.decide
    return swapped(
        recovery, "decide", lambda facts, may_fall_back: original(facts, may_fall_back=True)
    )


@mutant
def nothing_is_swept() -> AbstractContextManager[None]:
    return swapped(checkpoint_files.CheckpointFiles, "sweep", lambda self, kept, before: None)
