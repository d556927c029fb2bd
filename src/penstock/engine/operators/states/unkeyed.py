"""State of a subtask that belongs to no key: a list of entries, each a row.

In a checkpoint every entry is there once, written by the subtask that owns it. After a restore at the same parallelism
every subtask owns what it had; at another one all entries, in the order of the old subtasks, are dealt out evenly. Of a
split list a subtask sees what it owns. Of a union list it sees, after a restore, the entries of all subtasks, and still
owns its share only: so an entry is never written twice, and one that its owner has forgotten is written by nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import pyarrow as pa

from penstock.engine.operators.evolution import evolved
from penstock.engine.operators.row import Row, RowsToBatch, batch_rows, make_row
from penstock.engine.operators.rows import checked_batch
from penstock.engine.operators.states.base import Place, nullable, required_columns
from penstock.protocol.messages import SnapshotOrder
from penstock.protocol.snapshot import ALL_GROUPS, Segment
from penstock.state.frozen import Frozen, Out
from penstock.state.segments import BLOCK_ROWS_MAX
from penstock.state.table import SPLIT_LIST, UNION_LIST, row_schema

_NO_KEY = pa.schema([])


class SplitListState:
    """Entries of this subtask, whatever the key. Made by `ctx.split_list_state(name, schema)`."""

    kind: ClassVar[str] = SPLIT_LIST

    def __init__(self, place: Place, schema: pa.Schema) -> None:
        self.schema = schema
        self._place = place
        self._names: tuple[str, ...] = tuple(schema.names)
        self._to_batch = RowsToBatch(schema, place.label, "it was given")
        self._stored = row_schema(self.kind, _NO_KEY, _NO_KEY, nullable(schema))
        self._own = _Batches()
        self._before, self._behind = _Batches(), _Batches()
        """Entries of others that are seen before and behind its own."""
        self._added: list[Row] = []
        """Own ones that are not in a batch yet."""
        self._rows: list[Row] | None = None
        """All that are seen, once somebody has asked."""
        self._restore()

    # ---- entry by entry

    def get(self) -> list[Row]:
        """All entries, in the order in which they were added."""
        if self._rows is None:
            self._rows = [row for batch in self._seen() for row in batch_rows(batch)]
        return list(self._rows)

    def add(self, value: Sequence[Any] | Mapping[str, Any]) -> None:
        """Adds an entry: a tuple, list, dict or Row."""
        row = self._row(value)
        self._added.append(row)
        if self._rows is not None:
            self._rows.insert(len(self._rows) - sum(b.num_rows for b in self._behind), row)

    def update(self, values: Iterable[Sequence[Any] | Mapping[str, Any]]) -> None:
        """Sets all entries."""
        rows = [self._row(value) for value in values]
        self.clear()
        self._added = rows

    def clear(self) -> None:
        """Forgets all entries."""
        self._before, self._own, self._behind = _Batches(), _Batches(), _Batches()
        self._added, self._rows = [], None

    # ---- whole batches

    def get_batch(self) -> pa.RecordBatch:
        """All entries, in the order in which they were added."""
        return _together(self._seen(), self.schema)

    def add_batch(self, values: pa.RecordBatch) -> None:
        """Adds entries."""
        checked = self._checked(values)
        self._flush()
        self._own.add(checked)
        self._rows = None

    def update_batch(self, values: pa.RecordBatch) -> None:
        """Sets all entries."""
        checked = self._checked(values)
        self.clear()
        self._own.add(checked)

    # ---- for the operator

    def end_batch(self) -> None:
        self._flush()

    def freeze(self, order: SnapshotOrder) -> Frozen:
        self._flush()
        index = self._place.context.index
        return FrozenEntries(self._place.name, self._stored, tuple(self._own), index)

    def _row(self, value: Sequence[Any] | Mapping[str, Any]) -> Row:
        return make_row(self._names, self._to_batch.values(value))

    def _checked(self, values: pa.RecordBatch) -> pa.RecordBatch:
        checked = checked_batch(values, self.schema, self._place.label)
        return pa.RecordBatch.from_arrays(checked.columns, schema=self.schema)

    def _flush(self) -> None:
        if self._added:
            added, self._added = self._added, []
            self._own.add(self._to_batch.batch(added))

    def _seen(self) -> list[pa.RecordBatch]:
        self._flush()
        return [*self._before, *self._own, *self._behind]

    # ---- after a restore

    def _restore(self) -> None:
        context = self._place.context
        parts = context.parts_of(self._place.name)
        mine = share([_rows(part) for part in parts], context.index, context.parallelism)
        segments = [segment for part in parts for segment in part]
        self._take_back(segments, mine)

    def _take_back(self, segments: Sequence[Segment], mine: range) -> None:
        self._own.extend(self._entries(segments, mine))

    def _entries(self, segments: Sequence[Segment], wanted: range) -> Iterator[pa.RecordBatch]:
        """Those with these numbers, counted through all segments; segments without any of them are not read."""
        behind = [0, *accumulate(_rows([segment]) for segment in segments)]
        needed = [
            number
            for number, (start, end) in enumerate(pairwise(behind))
            if start < wanted.stop and end > wanted.start
        ]
        at = behind[needed[0]] if needed else 0
        read = self._place.context.read_segments
        for batch in read([segments[number] for number in needed], range(*ALL_GROUPS)):
            first, end = max(wanted.start, at), min(wanted.stop, at + batch.num_rows)
            if first < end:
                yield self._evolved(batch.slice(first - at, end - first))
            at += batch.num_rows

    def _evolved(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        place = self._place
        rows = evolved(
            batch,
            self._stored,
            place.label,
            required=required_columns(self.schema),
            may_lose=place.context.allow_non_restored_state,
        )
        return pa.RecordBatch.from_arrays(rows.columns[1:], schema=self.schema)


class UnionListState(SplitListState):
    """Entries of this subtask, and after a restore those of all others, too: all subtasks see the same ones, in one
    order. Made by `ctx.union_list_state(name, schema)`.

    Seeing is not owning: a checkpoint has each entry once, from the one subtask that owns it. `update` and `clear` set
    all that this subtask sees and owns. So where entries are to be shared out in another way than evenly, every subtask
    calls `update` in `open` with those that it takes over."""

    kind: ClassVar[str] = UNION_LIST

    def _take_back(self, segments: Sequence[Segment], mine: range) -> None:
        seen = _Batches()
        seen.extend(self._entries(segments, range(_rows(segments))))
        everything = _together(seen, self.schema)
        self._before.add(everything.slice(0, mine.start))
        self._own.add(everything.slice(mine.start, len(mine)))
        self._behind.add(everything.slice(mine.stop))


def share(sizes: Sequence[int], index: int, parallelism: int) -> range:
    """Which entries a subtask owns, counted through those of all old subtasks, which had so many each. At the same
    parallelism just its own, also if it had none; else as many as any other, give or take one."""
    total = sum(sizes)
    if len(sizes) == parallelism:
        first = sum(sizes[:index])
        return range(first, first + sizes[index])
    return range(index * total // parallelism, (index + 1) * total // parallelism)


class FrozenEntries:
    """Batches never change, so there is nothing to copy. Meets the contract `Frozen`."""

    def __init__(
        self, state: str, schema: pa.Schema, batches: tuple[pa.RecordBatch, ...], index: int
    ) -> None:
        self._state = state
        self._schema = schema
        self._batches = batches
        self._index = index

    def write(self, out: Out) -> tuple[Segment, ...]:
        """There are no key groups here: the number of the subtask stands in their place, for readers."""
        rows = pa.Table.from_batches(self._batches).combine_chunks() if self._batches else None
        blocks = rows.to_batches(max_chunksize=BLOCK_ROWS_MAX) if rows is not None else ()
        return (out.put(self._state, self._schema, map(self._numbered, blocks)),)

    def release(self) -> None:
        self._batches = ()

    def _numbered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        index = pa.repeat(pa.scalar(self._index, pa.uint16()), batch.num_rows)
        return pa.RecordBatch.from_arrays([index, *batch.columns], schema=self._schema)


class _Batches(list[pa.RecordBatch]):
    """Few of them, however many are added: one that is not larger than the next is put together with it."""

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.append(batch)
        while len(self) > 1 and self[-2].num_rows <= self[-1].num_rows:
            self[-2:] = [pa.concat_batches(self[-2:])]


def _together(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    nothing = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
    return pa.concat_batches([nothing, *batches])


def _rows(segments: Iterable[Segment]) -> int:
    return sum(block.rows for segment in segments for block in segment.blocks)
