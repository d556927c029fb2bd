"""One deployment of the job on one worker: its subtasks, channels, state and open transactions.

An attempt owns all that it opens and is thrown away whole; nothing is reset in place.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.connectors.answer import Answer
from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.floors import StateFloors
from penstock.engine.spec import JobSpec, Mode
from penstock.engine.worker.chain import Chain
from penstock.engine.worker.committing import Commits
from penstock.engine.worker.inputs import Input
from penstock.engine.worker.loading import Loading
from penstock.engine.worker.local_channel import LocalChannel
from penstock.engine.worker.metrics import attempt_metrics
from penstock.engine.worker.outputs import Output, Outputs
from penstock.engine.worker.partition import make_partitioner
from penstock.engine.worker.restoring import restore_inflight
from penstock.engine.worker.snapshots import Assembler, WriteWork, release_all
from penstock.engine.worker.state_files import StateFiles
from penstock.engine.worker.subtask import GivenUp, Subtask, Taken
from penstock.engine.worker.writing_ahead import WritingAhead
from penstock.errors import CommitError, ConfigError
from penstock.plan.graph import Broadcast, Forward, carried
from penstock.plan.physical import Task
from penstock.ports.background import Background
from penstock.ports.channel import InputChannel, OutputChannel
from penstock.ports.clock import Clock
from penstock.ports.control import Network
from penstock.ports.floor import Floors
from penstock.ports.store import CheckpointStore
from penstock.protocol.alignment import Alignment
from penstock.protocol.counting import Counting
from penstock.protocol.ids import AttemptId, ChannelId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import (
    Ack,
    Collected,
    Committed,
    Connected,
    Decline,
    Deploy,
    Finished,
    FromWorker,
    SnapshotKind,
    SnapshotOrder,
    Status,
    Sync,
)
from penstock.protocol.snapshot import OperatorSnapshot, Plain, SubtaskSnapshot
from penstock.redaction import redacted
from penstock.state.floored import Budget
from penstock.storage.local_copies import LocalCopies

SYNCS_PATIENCE = 4
"""After so many syncs an answer is said again, then after twice as many, and so on."""


class Attempt:
    def __init__(
        self,
        spec: JobSpec,
        deploy: Deploy,
        network: Network,
        stores: tuple[CheckpointStore | None, CheckpointStore | None],
        clock: Clock,
        background: Background,
        send: Callable[[FromWorker], None],
        copies: LocalCopies | None = None,
    ) -> None:
        """`stores` are the job's own and the one that the restored files are in. `copies` are of the job's own."""
        self.id: AttemptId = deploy.attempt
        self.slot: SlotId = deploy.slot
        self.running = False
        self.connecting = False
        self.unreached: tuple[str, ...] = ()
        """Who has not answered yet, while it connects."""
        self.subtasks: list[Subtask] = []
        self._spec = spec
        self._plan = spec.plan
        self._deploy = deploy
        self._network = network
        self._files = StateFiles(deploy, *stores, copies, background)
        self._clock = clock
        self._background = background
        self._ahead = self._writing_ahead()
        self._send = send
        self._outbox: deque[Collected] = deque()
        """What committers have for the driver, from their own threads; goes out before anything newer."""
        self._answers: dict[CheckpointId, tuple[Ack | Decline, int]] = {}
        """What was said about snapshots, and how many syncs ago."""
        self._broken: CommitError | None = None
        """Rows of a sink that will never be durable: no later snapshot could do without them."""
        self._closed = False
        self._settled = False
        self._local: dict[ChannelId, LocalChannel] = {}
        self._chains: dict[int, Chain] = {}
        self._at_work: Chain | None = None
        self._assembler = Assembler(SubtaskId(t.number, deploy.slot) for t in self._plan.tasks)
        self._floors: Floors | None = None
        self._loading = Loading(
            deploy, self._files.fetch, background, clock, self._say, self._open_floors
        )
        self._state_floors = self._make_state_floors()
        self._commits: Commits | None = None
        self._finished: tuple[SubtaskId, ...] = ()

    @property
    def current_operator(self) -> str:
        """The operator that is, or was last, at work: where a failure comes from."""
        if self._commits is not None and self._commits.failure is not None:
            return self._commits.failed_operator
        return self._at_work.current if self._at_work is not None else ""

    @property
    def current_position(self) -> str:
        """Where the rows at work came from, as far as a source of this chain can tell."""
        source = self._at_work.source if self._at_work is not None else None
        return source.describe() if source is not None else ""

    # ---- coming to life

    def prepare(self) -> dict[str, str]:
        """Restores everything and opens the input channels; the endpoints are for the other slots."""
        remote = [
            (channel, edge.schema)
            for edge in self._plan.edges
            for channel in self._plan.into(edge, self.slot)
            if channel.source != self.slot
        ]
        endpoints = self._network.bind(remote)
        for task in self._plan.tasks:
            chain = Chain(task)
            self._chains[task.number] = self._at_work = chain
            chain.open(partial(self._context, task))
        self._say(None)
        return endpoints

    def connect(self, endpoints: Mapping[int, Mapping[str, str]]) -> None:
        """Begins to connect to the other slots."""
        self.connecting = True
        self._network.connect(
            [
                (channel, endpoints[channel.target][str(channel)])
                for edge in self._plan.edges
                for channel in self._plan.out_of(edge, self.slot)
                if channel.target != self.slot
            ]
        )

    def start(self) -> bool:
        """Lets the subtasks run, if all other slots have answered; False: not yet."""
        self.unreached = tuple(self._network.unreached())
        if self.unreached:
            return False
        self.subtasks = [self._make_subtask(task) for task in self._plan.tasks]
        sinks = [sink for subtask in self.subtasks for sink in subtask.chain.sinks]
        self._commits = Commits(sinks, self._background, self._clock, self._on_committed)
        self.connecting = False
        self.running = True
        return True

    def connected(self) -> Connected:
        """What it says when it runs."""
        return Connected(self.id, *self._files.restored_bytes)

    def _context(self, task: Task, operator: str) -> OperatorContext:
        node = next(link.node for link in task.links if link.node.name == operator)
        schemas = {link.node.name: link.node.schema for t in self._plan.tasks for link in t.links}
        snapshots = self._deploy.snapshots
        return OperatorContext(
            job=self._spec.job,
            operator=operator,
            index=self.slot,
            parallelism=self._plan.parallelism,
            max_parallelism=self._plan.max_parallelism,
            attempt=self.id,
            input_schemas=tuple(
                carried(entry.partitioning, schemas[entry.operator]) for entry in node.inputs
            ),
            now_ms=self._clock.monotonic_ms,
            wall_ms=self._clock.wall_ms,
            restored=_restored(snapshots, operator),
            read_segments=self._loading.read,
            to_driver=partial(self._collect, operator),
            restored_id=0 if self._deploy.origin else self._deploy.restored,
            incremental=self._spec.incremental,
            log=self._ahead,
            allow_non_restored_state=self._spec.allow_non_restored_state,
            ask=self._ask,
            floors=self._state_floors,
        )

    def _writing_ahead(self) -> WritingAhead | None:
        spec, store = self._spec, self._files.store
        if spec.changelog is None or store is None:
            return None
        around = (self._clock, self._background, spec.inline_bytes_max, spec.compression)
        return WritingAhead(spec.changelog, self._deploy, store, *around)

    def _make_state_floors(self) -> StateFloors | None:
        memory_bytes = self._spec.floor_memory_bytes
        if memory_bytes is None:
            return None
        return StateFloors(
            self._open_floors(),
            Budget(memory_bytes, strict=self._spec.floor_memory_is_strict),
            self._loading.pieces,
        )

    def _open_floors(self) -> Floors:
        """Where state is all in memory there are some only if that of a snapshot was not."""
        if self._floors is None:
            if self._spec.open_floors is None:
                raise ConfigError("there is no place for state outside of memory here")
            self._floors = self._spec.open_floors()
        return self._floors

    def _ask(self, work: Callable[[], Any]) -> Answer[Any]:
        """In the background; the answer is there when the loop has heard of it."""
        answer: Answer[Any] = Answer()
        self._background.submit(work, answer.set, answer.fail)
        return answer

    def _make_subtask(self, task: Task) -> Subtask:
        subtask = SubtaskId(task.number, self.slot)
        channels = self._plan.inputs(subtask)
        inputs = [Input(c, self._plan.edges[c.edge].port, self._input(c)) for c in channels]
        restored = (self._deploy.snapshots, inputs, self._plan, self.slot, self._files.fetch)
        rescued = restore_inflight(task.head.name, *restored)
        edges = {}
        for number in (number for link in task.links for number in link.edges):
            outputs = [Output(c, self._output(c)) for c in self._plan.outputs(subtask, number)]
            partitioner = make_partitioner(
                self._plan.edges[number].partitioning,
                len(outputs),
                self._plan.max_parallelism,
                first=self.slot,
            )
            edges[number] = (partitioner, outputs)
        return Subtask(
            subtask,
            self._chains[task.number],
            inputs,
            Outputs(edges),
            self._barriers(channels),
            self._clock,
            self._spec.buffer_timeout_ms,
            self._spec.inflight_bytes_max,
            rescued,
        )

    def _barriers(self, channels: tuple[ChannelId, ...]) -> Alignment | Counting:
        if self._spec.mode is not Mode.EXACTLY_ONCE:
            return Counting(frozenset(channels))
        edges = self._plan.edges
        pointwise = [
            c for c in channels if isinstance(edges[c.edge].partitioning, Broadcast | Forward)
        ]
        return Alignment(frozenset(channels), pointwise=frozenset(pointwise))

    def _input(self, channel: ChannelId) -> InputChannel:
        if channel.source == channel.target:
            return self._local.setdefault(channel, LocalChannel())
        return self._network.input(channel)

    def _output(self, channel: ChannelId) -> OutputChannel:
        if channel.source == channel.target:
            return self._local.setdefault(channel, LocalChannel())
        return self._network.output(channel)

    # ---- the loop

    def step(self) -> bool:
        """Lets every subtask do one piece of work; False when none could."""
        if self._broken is not None:
            raise self._broken
        self._network.check()
        self._say(None)
        progressed = self._move_rows_in_flight()
        for subtask in self.subtasks:
            self._at_work = subtask.chain
            progressed |= subtask.step()
            if subtask.news:
                self._carry_on(subtask)
        if self._ahead is not None:
            self._ahead.step()
        self._report_finished()
        if self._commits is not None:
            self._commits.step()
            if self._commits.failure is not None:
                raise self._commits.failure
        return progressed

    def _move_rows_in_flight(self) -> bool:
        """While they are recorded moving frames comes before working on them: how long the snapshot takes must not
        depend on how long one piece of work does."""
        progressed = False
        while any(subtask.barriers.aside for subtask in self.subtasks):
            moved = False
            for subtask in self.subtasks:
                moved |= subtask.move()
                self._carry_on(subtask)
            if not moved:
                break
            progressed = True
        return progressed

    def _carry_on(self, subtask: Subtask) -> None:
        news, subtask.news = subtask.news, []
        for item in news:
            if isinstance(item, Taken):
                self._on_taken(item)
            elif isinstance(item, GivenUp):
                decline = Decline(self.id, item.checkpoint, item.reason, overflow=item.overflow)
                self._answer(decline)

    def _report_finished(self) -> None:
        finished = tuple(subtask.id for subtask in self.subtasks if subtask.finished)
        if finished != self._finished:
            self._finished = finished
            self._say(Finished(self.id, finished))

    def reading(self) -> list[ChannelId]:
        """Channels that bring something: frames to a reader, confirmations to a writer."""
        wanted = [c for s in self.subtasks for c in (*s.reading(), *s.outputs.awaiting())]
        return [c for c in wanted if c.source != c.target]

    def wanting_room(self) -> list[ChannelId]:
        return [c for s in self.subtasks for c in s.outputs.wanting_room() if c.source != c.target]

    def wake_ms(self) -> float | None:
        times = [subtask.wake_ms() for subtask in self.subtasks]
        times.append(self._commits.wake_ms() if self._commits is not None else None)
        return min((time for time in times if time is not None), default=None)

    # ---- snapshots

    def trigger(self, order: SnapshotOrder) -> None:
        if self._commits is not None and order.kind is not SnapshotKind.CHECKPOINT:
            self._commits.last = order.id
        for subtask in self.subtasks:
            self._at_work = subtask.chain
            subtask.trigger(order)
            self._carry_on(subtask)

    def abort(self, checkpoint: CheckpointId) -> None:
        for subtask in self.subtasks:
            subtask.abort(checkpoint)
        self._assembler.forget(only=checkpoint)

    def completed(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete: older ones that are still being collected never will be."""
        self._assembler.forget(upto=checkpoint)
        self._files.completed(checkpoint, self._ahead.held if self._ahead is not None else ())
        if self._commits is not None:
            self._commits.wanted(checkpoint)

    def sync(self, message: Sync) -> None:
        """The coordinator's table: what it does not list any more is dead, what is new here is triggered. There is one
        only when every slot runs."""
        if not self._settled:
            self._settled = True
            self._network.settled()
        live = {order.id for order in message.live}
        for subtask in self.subtasks:
            for checkpoint in sorted(subtask.barriers.pending - live):
                if checkpoint <= message.newest:
                    self.abort(checkpoint)
        for order in message.live:
            self.trigger(order)
        if message.completed:
            self.completed(message.completed)
        self._answer_again(live, message.newest)

    def _answer(self, answer: Ack | Decline) -> None:
        self._answers[answer.checkpoint] = (answer, 0)
        self._say(answer)

    def _answer_again(self, live: set[CheckpointId], newest: CheckpointId) -> None:
        """A snapshot that is still waited for although it was answered long ago: the answer was lost."""
        for checkpoint, (answer, syncs) in sorted(self._answers.items()):
            if checkpoint not in live and checkpoint <= newest:
                del self._answers[checkpoint]
                continue
            self._answers[checkpoint] = (answer, syncs + 1)
            if syncs >= SYNCS_PATIENCE and syncs.bit_count() == 1:
                self._say(answer)

    def status(self) -> Status:
        self._say(None)
        committed = self._commits.committed if self._commits is not None else CheckpointId(0)
        metrics = attempt_metrics(self.subtasks) | self._files.metrics()
        metrics |= self._ahead.metrics() if self._ahead is not None else {}
        return Status(self.id, self.slot, self._finished, committed, metrics)

    def _on_taken(self, taken: Taken) -> None:
        together = self._assembler.add(taken)
        if together is None:
            return
        work = WriteWork(
            self._files.store,
            self.slot,
            self.id,
            taken.checkpoint,
            together,
            self._clock,
            self._spec.inline_bytes_max,
            self._spec.compression,
            self._spec.in_driver,
        )

        def written(snapshots: tuple[SubtaskSnapshot, ...]) -> None:
            self._files.acked(taken.checkpoint, snapshots)
            self._answer(Ack(self.id, taken.checkpoint, snapshots))

        def failed(error: BaseException) -> None:
            release_all(together)
            if isinstance(error, CommitError):
                self._broken = error
                return
            problem = redacted(f"{type(error).__name__}: {error}")
            reason = f"writing the snapshot failed: {problem}"
            where = redacted("".join(traceback.format_exception(error)))
            self._answer(Decline(self.id, taken.checkpoint, reason, where))

        submit = partial(self._background.submit, work, written, failed)
        if self._ahead is None:
            submit()
        else:
            self._ahead.when_cut(submit)

    def _on_committed(self, checkpoint: CheckpointId) -> None:
        if all(subtask.finished for subtask in self.subtasks):
            self._say(self.status())  # the job may end with this commit: its last numbers go first
        self._say(Committed(self.id, self.slot, checkpoint))

    def _collect(self, operator: str, item: Plain) -> None:
        self._outbox.append(Collected(self.id, operator, item))

    def _say(self, message: FromWorker | None) -> None:
        """An attempt that is closed says nothing any more."""
        while self._outbox and not self._closed:
            self._send(self._outbox.popleft())
        if message is not None and not self._closed:
            self._send(message)

    # ---- the end

    def close(self) -> None:
        """Gives up everything; what other threads still finish for this attempt is not heard any more."""
        self._closed = True
        self.running = self.connecting = False
        self._assembler.close()
        self._loading.close()
        if self._ahead is not None:
            self._ahead.close()
        for subtask in self.subtasks:
            subtask.close()
        for chain in self._chains.values():
            chain.close()
        self._network.close()
        if self._floors is not None:
            self._floors.close()


def _restored(
    snapshots: tuple[SubtaskSnapshot, ...], operator: str
) -> tuple[OperatorSnapshot, ...]:
    """This operator's part of every old subtask, in the order of their indices."""
    having = [s for s in snapshots if operator in s.operators]
    return tuple(s.operators[operator] for s in sorted(having, key=lambda s: s.subtask))
