"""The operators of one task, run as one: rows go from link to link by function calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import pyarrow as pa

from penstock.engine.operators.base import FrozenOperator, Operator, OperatorContext
from penstock.engine.operators.connect import SinkOperator, SourceOperator
from penstock.engine.tracebacks import place_of
from penstock.errors import InvariantBroken, SchemaError
from penstock.plan.physical import Task
from penstock.protocol.messages import SnapshotOrder

Emit = Callable[[int, pa.RecordBatch], None]
"""Takes the number of an edge and the rows that leave the task by it."""


def _nowhere(edge: int, batch: pa.RecordBatch) -> None:
    raise InvariantBroken(
        f"{batch.num_rows} rows for edge {edge} before the outputs were connected"
    )


class Chain:
    """Knows which operator is at work, so that a failure can be told by its name."""

    def __init__(self, task: Task) -> None:
        self._links = task.links
        self._names = [link.node.name for link in task.links]
        self._operators: list[Operator] = [link.node.create() for link in task.links]
        head = self._operators[0]
        self.source = head if isinstance(head, SourceOperator) else None
        self.emit: Emit = _nowhere
        """Set when the task's outputs are there."""
        self.current = self._names[0]
        self.rows_in = [0] * len(task.links)
        self.rows_out = [0] * len(task.links)

    @property
    def head_name(self) -> str:
        return self._names[0]

    @property
    def sinks(self) -> list[tuple[str, SinkOperator]]:
        pairs = zip(self._names, self._operators, strict=True)
        return [(name, op) for name, op in pairs if isinstance(op, SinkOperator)]

    def open(self, context_for: Callable[[str], OperatorContext]) -> None:
        for name, operator in zip(self._names, self._operators, strict=True):
            self.current = name
            operator.open(context_for(name))

    def process(self, batch: pa.RecordBatch, port: int) -> None:
        try:
            self._run(0, batch, port)
        except SchemaError as error:
            self._point_at_function(error)
            raise

    def finish(self) -> None:
        """All input has ended: every operator, first to last, gives its last rows."""
        for number, operator in enumerate(self._operators):
            self.current = self._names[number]
            self._hand_on(number, operator.finish())

    def hold_nothing_back(self) -> None:
        for name, operator in zip(self._names, self._operators, strict=True):
            self.current = name
            operator.hold_nothing_back()

    def freeze(self, order: SnapshotOrder) -> dict[str, FrozenOperator]:
        frozen = {}
        for name, operator in zip(self._names, self._operators, strict=True):
            self.current = name
            frozen[name] = operator.freeze(order)
        return frozen

    def counts(self) -> list[tuple[str, int, int]]:
        """Per operator its name, the rows that went in and the rows that came out."""
        return list(zip(self._names, self.rows_in, self.rows_out, strict=True))

    def close(self) -> None:
        """Every operator is closed, whatever the others do: what one raises here changes nothing any more."""
        for operator in self._operators:
            with suppress(Exception):
                operator.close()

    def _point_at_function(self, error: SchemaError) -> None:
        """What a function returned is refused when it is not running any more: no traceback leads to it."""
        function = self._operators[self._names.index(self.current)].function
        if function is not None and (place := place_of(function)):
            error.add_note(f"the function of {self.current!r} is in {place}")

    def _run(self, number: int, batch: pa.RecordBatch, port: int) -> None:
        self.current = self._names[number]
        self.rows_in[number] += batch.num_rows
        self._hand_on(number, self._operators[number].process(batch, port))

    def _hand_on(self, number: int, batches: Iterable[pa.RecordBatch]) -> None:
        link = self._links[number]
        for batch in batches:
            if batch.num_rows == 0:
                continue
            self.rows_out[number] += batch.num_rows
            for child in link.children:
                self._run(child, batch, 0)
            for edge in link.edges:
                self.emit(edge, batch)
            self.current = self._names[number]
