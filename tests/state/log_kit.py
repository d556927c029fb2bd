"""A table with a changelog and all that happens to it: rows, cuts, materializations, checkpoints that are written late,
given up or restored. What it must hold is a dictionary; which files may go is for `protocol.retention` to say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.retention import Retention, Role, Strays
from penstock.protocol.snapshot import Segment
from penstock.state.changelog import Changelog, Cut, Whole
from penstock.state.frozen_table import FrozenTable
from penstock.state.keyed import Keyed
from penstock.state.merging import merged
from penstock.state.table import Table
from penstock.wire import paths
from penstock.wire.paths import WorkerFile
from tests.state.helpers import MAX_PARALLELISM, inline_out, read_segment

KEYS = pa.schema([("k", pa.int64())])
VALUES = pa.schema([("n", pa.int64()), ("t", pa.string())])
ALL = range(MAX_PARALLELISM)


class Listed:
    """Meets the contract `Log`."""

    def __init__(self) -> None:
        self.admitted: list[tuple[Table, Changelog]] = []
        self._begun: list[tuple[Changelog, Cut | Whole, FrozenTable]] = []

    def admit(self, table: Table, changes: Changelog) -> None:
        self.admitted.append((table, changes))

    def begin(self, what: str) -> None:
        """Of every table, what changed ("cut") or all rows ("whole"), or both; nothing otherwise."""
        for table, changes in self.admitted:
            if "cut" in what and (cut := changes.cut()) is not None:
                self._begun.append((changes, cut, table.view(cut)))
            if "whole" in what:
                whole = changes.materialize()
                self._begun.append((changes, whole, table.view(whole)))

    def end(self) -> None:
        """All that was begun is durable."""
        begun, self._begun = self._begun, []
        for changes, plan, view in begun:
            changes.add(plan.links(view.write(inline_out())))


@dataclass
class Piece:
    """Something that is written in the background."""

    plan: Cut | Whole
    view: FrozenTable
    place: WorkerFile


@dataclass
class Snapshot:
    number: int
    base: int
    view: FrozenTable
    rows: dict[int, int]
    """What the table held then."""


class Files:
    """Meets the contract `Out`: rows stay in their segments, which have the names of files all the same."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        self.wholes = 0
        self._out = inline_out()

    def put(self, state: str, schema: pa.Schema, batches: Iterable[Any], **how: Any) -> Segment:
        made = self._out.put(state, schema, batches, **how)
        self.rows += sum(block.rows for block in made.blocks)
        self.wholes += not made.delta
        return replace(made, file=self.name)


class Logged:
    """One table, in one attempt, and the storage that its files are in."""

    def __init__(self, attempt: int = 1, there: set[str] | None = None, restored: int = 0) -> None:
        self.attempt = attempt
        self.there = there if there is not None else set()
        self.keyed = Keyed(KEYS, MAX_PARALLELISM, log=(log := Listed()))
        self.table = self.keyed.table("value", "state", VALUES)
        ((_, self.log),) = log.admitted
        self.model: dict[int, int] = {}
        self.newest = self.base = restored
        self.retention = Retention().claimed(AttemptId(attempt), {})
        self.chains: dict[int, tuple[Segment, ...]] = {}
        self.kept: dict[int, dict[int, int]] = {}

    # ---- rows

    def put(self, keys: Iterable[int], number: int) -> None:
        wanted = sorted(set(keys))
        cells = self.keyed.space.upsert([pa.array(wanted, pa.int64())]).cells
        rows = {"n": [number] * len(cells), "t": [f"text {number}"] * len(cells)}
        self.table.put(cells, pa.RecordBatch.from_pydict(rows, VALUES))
        self.model |= dict.fromkeys(wanted, number)

    def remove(self, keys: Iterable[int]) -> None:
        wanted = sorted(set(keys).intersection(self.model))
        cells = self.keyed.space.find([pa.array(wanted, pa.int64())])
        self.table.drop(cells)
        self.keyed.vacate(cells)
        for key in wanted:
            del self.model[key]

    # ---- ahead of checkpoints

    def cut(self) -> Piece | None:
        plan = self.log.cut()
        return None if plan is None else self._piece(plan, Role.LOG)

    def materialize(self) -> Piece:
        return self._piece(self.log.materialize(), Role.BASE)

    def _piece(self, plan: Cut | Whole, role: Role) -> Piece:
        number = CheckpointId(max(1, self.newest))
        part = paths.ahead_part(role, 0, plan.mark)
        place = WorkerFile(number, SlotId(0), AttemptId(self.attempt), part)
        return Piece(plan, self.table.view(plan), place)

    def end(self, piece: Piece) -> Files:
        """It is durable."""
        out = Files(paths.shared_file(piece.place))
        segments = piece.view.write(out)
        self.there.add(out.name)
        self.log.add(piece.plan.links(segments))
        return out

    def fail(self, piece: Piece, *, leaves_file: bool = False) -> None:
        piece.view.release()
        if leaves_file:
            self.there.add(paths.shared_file(piece.place))

    # ---- checkpoints

    def freeze(self) -> Snapshot:
        self.newest += 1
        self._trigger(self.newest, self.base)
        view = self.table.freeze(self.base, self.newest)
        return Snapshot(self.newest, self.base, view, dict(self.model))

    def _trigger(self, number: int, base: int) -> None:
        is_rebased = self.retention.is_rebased(CheckpointId(base))
        self.retention = self.retention.triggered(CheckpointId(number), CheckpointId(base))
        if is_rebased:
            self.sweep()

    def write(self, snapshot: Snapshot) -> tuple[tuple[Segment, ...], Files]:
        """Acknowledged: all that it refers to is there."""
        place = WorkerFile(CheckpointId(snapshot.number), SlotId(0), AttemptId(self.attempt), "own")
        out = Files(paths.shared_file(place))
        chain = snapshot.view.write(out)
        if any(segment.file == out.name for segment in chain):
            self.there.add(out.name)
        missing = {segment.file for segment in chain if segment.file} - self.there
        assert not missing, f"{snapshot.number} refers to {missing}"
        assert rows_in(chain, self.table.schema) == snapshot.rows
        number = CheckpointId(snapshot.number)
        self._turn(self.retention.acknowledged(number, shared_in(chain)))
        self.chains[snapshot.number] = chain
        self.kept[snapshot.number] = snapshot.rows
        return chain, out

    def complete(self, number: int, keep: int = 2) -> None:
        files = shared_in(self.chains[number])
        self._turn(self.retention.completed(CheckpointId(number), files))
        self.base = max(self.base, number)
        for old in sorted(self.retention.existing)[:-keep]:
            if not self.retention.is_pinned(old):
                self._turn(self.retention.deleted(old))

    def give_up(self, snapshot: Snapshot) -> None:
        snapshot.view.release()
        self._turn(self.retention.given_up(CheckpointId(snapshot.number)))
        self.sweep()

    # ---- storage

    def sweep(self) -> None:
        """Somebody lists what there is."""
        self._delete(self.retention.strays(paths.shared_among(self.there)))

    def _turn(self, turned: tuple[Retention, Strays]) -> None:
        self.retention, strays = turned
        self._delete(strays)
        for number in self.retention.existing:
            lost = {each.file for each in self.chains[number] if each.file} - self.there
            assert not lost, f"checkpoint {number} has lost {lost}"

    def _delete(self, strays: Strays) -> None:
        self.there -= {stray.name for stray in strays}

    # ---- another life

    def again(self, number: int, groups: range = ALL) -> Logged:
        """The next attempt, restored from this checkpoint; of these key groups only."""
        chain = self.chains[number]
        found = Logged(self.attempt + 1, self.there, number)
        for segment in chain:
            for batch in read_segment(segment, groups):
                found.keyed.load(found.table, batch)
        found.keyed.settle()
        found.log.restored(number, chain, groups)
        found.model = rows_in(chain, self.table.schema, groups)
        found.chains, found.kept = {number: chain}, {number: found.model}
        existing = {CheckpointId(number): shared_in(chain)}
        found.retention = Retention().claimed(AttemptId(found.attempt), existing)
        found.sweep()
        return found


def shared_in(chain: Iterable[Segment]) -> Any:
    return paths.shared_among(segment.file for segment in chain)


def rows_in(chain: Iterable[Segment], schema: pa.Schema, groups: range = ALL) -> dict[int, int]:
    batches = (batch for segment in chain for batch in read_segment(segment, groups))
    found = [row for batch in merged(schema, batches) for row in batch.to_pylist()]
    assert all(row["value.t"] == f"text {row['value.n']}" for row in found)
    return {row["key.k"]: row["value.n"] for row in found}
