"""How many rows a restore makes room for."""

from __future__ import annotations

from dataclasses import replace

from penstock.engine.operators.keyed import expected_rows
from penstock.protocol.snapshot import Block, OperatorSnapshot, Segment
from tests.engine.test_states import CONTEXT


def segment(rows: int, groups: tuple[int, int] = (0, 1 << 16), *, delta: bool = False) -> Segment:
    block = Block(0, CONTEXT.max_parallelism - 1, rows, 0, 1, "")
    return Segment("value", b"", (block,), groups=groups, delta=delta)


def test_room_is_made_for_the_rows_that_are_this_subtasks() -> None:
    """R4, I26: its share of what one subtask wrote, and of a part that counts; not those that changed later."""
    end = CONTEXT.max_parallelism
    parts = [
        OperatorSnapshot((segment(8_000), segment(500, delta=True))),
        OperatorSnapshot((segment(8_000, (0, end // 2)), segment(8_000, (end // 2, end)))),
    ]
    for parallelism, rows in ((1, 16_000), (2, 8_000), (4, 4_000)):
        for index in range(parallelism):
            context = replace(CONTEXT, index=index, parallelism=parallelism, restored=tuple(parts))
            assert expected_rows(context, "value") == rows
            assert expected_rows(context, "another") == 0
