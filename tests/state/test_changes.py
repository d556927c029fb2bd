"""Increments: a checkpoint writes what changed, on a chain that stays short, and only on files that others may use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.snapshot import Segment
from penstock.state.changes import INTERVALS_MAX
from penstock.state.frozen_table import FrozenTable
from penstock.state.merging import merged
from penstock.wire.paths import WorkerFile, shared_file, worker_file
from tests.state.helpers import MAX_PARALLELISM, Kept, inline_out, read_segment

KEYS = pa.schema([("k", pa.int64())])
VALUES = pa.schema([("n", pa.int64()), ("t", pa.string())])
ALL = range(MAX_PARALLELISM)


def kept_with(rows: int) -> Kept:
    kept = Kept(KEYS, VALUES, incremental=True)
    put(kept, range(rows), 0)
    return kept


def put(kept: Kept, keys: Any, number: int) -> None:
    cells = kept.space.upsert([pa.array(list(keys), pa.int64())]).cells
    rows = {"n": [number] * len(cells), "t": [f"text {number}"] * len(cells)}
    kept.table.put(cells, pa.RecordBatch.from_pydict(rows, VALUES))


def written(frozen: FrozenTable) -> tuple[tuple[Segment, ...], int]:
    """The chain, and how many rows were written for it."""
    out = inline_out()
    rows = []

    class Counting:
        def put(self, state: str, schema: pa.Schema, batches: Any, **how: Any) -> Segment:
            made = out.put(state, schema, batches, **how)
            rows.append(sum(block.rows for block in made.blocks))
            return made

    return frozen.write(Counting()), sum(rows)


def contents(chain: tuple[Segment, ...], schema: pa.Schema) -> dict[int, int]:
    batches = (batch for segment in chain for batch in read_segment(segment, ALL))
    found = [row for batch in merged(schema, batches) for row in batch.to_pylist()]
    return {row["key.k"]: row["value.n"] for row in found}


def test_a_checkpoint_writes_what_changed_since_its_base() -> None:
    """S6, bug-D12: rows that are new, changed and gone, each once, however large the rest is."""
    kept = kept_with(1_000)
    first, rows = written(kept.freeze(0, 1))
    assert (len(first), rows) == (1, 1_000)
    put(kept, [1, 2, 5_000], 7)
    put(kept, [1], 8)
    kept.remove([pa.array([3, 4])])
    chain, rows = written(kept.freeze(1, 2))
    assert rows == 3 + 2
    assert [segment.delta for segment in chain] == [False, True]
    model = dict.fromkeys(range(1_000), 0) | {1: 8, 2: 7, 5_000: 7}
    del model[3], model[4]
    assert contents(chain, kept.schema) == model
    assert chain[-1].rows_after == len(model) == len(kept)


def test_nothing_changed_is_nothing_written() -> None:
    kept = kept_with(100)
    written(kept.freeze(0, 1))
    _, rows = written(kept.freeze(1, 2))
    assert rows == 0


def test_a_chain_stays_short_and_its_rows_right() -> None:
    """S6: deltas take the place of several before them; a key that comes, goes and comes again is as it was last."""
    kept, base, model = kept_with(2_000), 0, dict.fromkeys(range(2_000), 0)
    rng, longest, total = np.random.default_rng(3), 0, 0
    for checkpoint in range(1, 150):
        changed = rng.integers(0, 2_000, 10).tolist()
        put(kept, changed, checkpoint)
        model |= dict.fromkeys(changed, checkpoint)
        gone = [int(key) for key in rng.integers(0, 2_000, 3) if key in model]
        kept.remove([pa.array(gone, pa.int64())])
        for key in gone:
            model.pop(key, None)
        chain, rows = written(kept.freeze(base, checkpoint))
        longest, total = max(longest, len(chain)), total + rows
        assert contents(chain, kept.schema) == model, f"checkpoint {checkpoint}"
        base = checkpoint
    assert 2 < longest <= 15
    assert total < 150 * 2_000 / 5, "a fifth of writing all rows each time, at the very most"


def test_a_base_that_is_not_the_last_one_has_all_that_came_after_it() -> None:
    """B6, C4: snapshots that were given up, or are under way together, build on the same one."""
    kept = kept_with(100)
    written(kept.freeze(0, 1))
    put(kept, [1], 1)
    kept.freeze(1, 2).release()
    put(kept, [2], 2)
    third = kept.freeze(1, 3)
    put(kept, [3], 3)
    fourth = kept.freeze(1, 4)
    for frozen, changed in ((fourth, 3), (third, 2)):
        chain, rows = written(frozen)
        assert rows == changed
        expected = dict.fromkeys(range(100), 0) | {n: n for n in range(1, changed + 1)}
        assert contents(chain, kept.schema) == expected


def test_where_most_has_changed_all_rows_are_written() -> None:
    kept = kept_with(100)
    written(kept.freeze(0, 1))
    put(kept, range(51), 1)
    chain, rows = written(kept.freeze(1, 2))
    assert (len(chain), rows) == (1, 100)


def test_what_nobody_may_refer_to_is_not_built_on() -> None:
    """T4, I12: files of one checkpoint alone go with it."""
    kept = kept_with(100)
    (segment,), _ = written(kept.freeze(0, 1))
    place = WorkerFile(CheckpointId(1), SlotId(0), AttemptId(1), "state")
    own, shared = worker_file(place.checkpoint, place.slot, place.attempt), shared_file(place)
    assert kept.table.changes is not None
    for file, built_on in ((own, False), (shared, True)):
        stored = replace(segment, inline=None, file=file)
        kept.table.changes.restored(1, (stored,), ALL)
        put(kept, [1], 1)
        chain, _ = written(kept.freeze(1, 2))
        assert any(each.file == file for each in chain) is built_on


def test_what_has_rows_of_others_is_not_built_on() -> None:
    """R6, I15: after a change of parallelism a subtask has a part of what one wrote. To refer to that would mean that
    everybody who goes on from there reads all of it, as often as there are subtasks."""
    kept = kept_with(1_000)
    (segment,), _ = written(kept.freeze(0, 1))
    half = range(MAX_PARALLELISM // 2)
    again = Kept(KEYS, VALUES, incremental=True)
    for batch in read_segment(segment, half):
        again.load(batch)
    assert again.table.changes is not None
    again.table.changes.restored(1, (segment,), half)
    chain, rows = written(again.freeze(1, 2))
    assert rows == len(again) == len(contents(chain, again.schema)) < len(kept)
    assert [each.delta for each in chain] == [False]


def test_what_has_rows_of_its_own_alone_is_built_on() -> None:
    """R6, T4: after a change of parallelism to less, and where others' segments are among those that were restored."""
    kept = kept_with(1_000)
    (segment,), _ = written(kept.freeze(0, 1))
    theirs = replace(segment, groups=(200, 300))
    assert kept.table.changes is not None
    kept.table.changes.restored(1, (segment, theirs), ALL)
    chain, rows = written(kept.freeze(1, 2))
    assert rows == 0 and [each.delta for each in chain] == [False, True]
    assert len(contents(chain, kept.schema)) == len(kept)


@pytest.mark.parametrize("base", [0, 1])
def test_memory_is_bounded_while_no_checkpoint_completes(base: int) -> None:
    """I26: a store may be out for long."""
    kept = kept_with(100)
    written(kept.freeze(0, 1))
    for checkpoint in range(2, 3 * INTERVALS_MAX):
        put(kept, [checkpoint % 100], checkpoint)
        kept.freeze(base, checkpoint).release()
    changes: Any = kept.table.changes
    assert len(changes._intervals) <= INTERVALS_MAX
    chain, rows = written(kept.freeze(base, 1_000))
    assert (len(chain), rows) == (1, 100), "nobody knows any more what changed since"
