"""Aggregates that come back from a snapshot of other aggregates.

They are matched by the names of their results, in any order. One that is new begins empty for keys that were there, as
if it had seen no row of them: a count of 0, a null. (So `first` stays null for these keys: nobody knows their first row
any more.) One that is not there any more goes where the user has asked for it. Under the same name there must be the
same function of the same column, of the same type or a wider one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa

from penstock.engine.operators.base import OperatorContext
from penstock.engine.operators.evolution import (
    BEGIN_ANEW,
    LET_GO,
    can_widen,
    evolved,
    shown,
)
from penstock.engine.operators.keyed import expected_rows, keep_chain
from penstock.errors import SchemaError
from penstock.plan.keyhash import I64
from penstock.plan.schema import type_ddl
from penstock.state.folds import Fold
from penstock.state.keyed import Keyed
from penstock.state.results import Result, results_of
from penstock.state.table import VALUE_PREFIX, Table


def restore_folds(
    stored: Iterable[pa.RecordBatch],
    folds: Sequence[Fold],
    table: Table,
    keyed: Keyed,
    context: OperatorContext,
    label: str,
) -> None:
    """Fills the table that the folds are kept in with the rows of a snapshot."""
    may_lose = context.allow_non_restored_state
    keyed.space.expect(expected_rows(context, table.state))
    for batch in stored:
        _refuse_other_aggregates(batch.schema, table.schema, label, may_lose=may_lose)
        keyed.load(table, evolved(batch, table.schema, label, may_lose=True))
        if context.floors is not None:
            _restored(folds, table)
    keep_chain(table, context)
    _restored(folds, table)
    table.brought = partial(_brought, folds, table)


def _restored(folds: Sequence[Fold], table: Table) -> None:
    for fold in folds:
        fold.restored(table)


def _brought(folds: Sequence[Fold], table: Table, cells: I64) -> None:
    for fold in folds:
        fold.brought(table, cells)


def _refuse_other_aggregates(
    stored: pa.Schema, wanted: pa.Schema, label: str, *, may_lose: bool
) -> None:
    now = _results(wanted)
    for name, old in _results(stored).items():
        if name in now:
            _refuse_a_change(name, old, now[name], label)
        elif not may_lose:
            raise SchemaError(
                f"{label}: column {name!r} is {_told(old)} in the checkpoint and no longer among the aggregates; put it"
                f" back, or {LET_GO}, or {BEGIN_ANEW}"
            )


def _refuse_a_change(name: str, old: Result, new: Result, label: str) -> None:
    before, after = old.field.type, new.field.type
    if old.means != new.means or (before != after and not can_widen(before, after)):
        raise SchemaError(
            f"{label}: column {name!r} is {_told(old)} in the checkpoint and {_told(new)} now; give the new aggregate"
            f" another name, and the old one back, or {LET_GO}, or {BEGIN_ANEW}"
        )


def _results(schema: pa.Schema) -> dict[str, Result]:
    values = [field for field in schema if field.name.startswith(VALUE_PREFIX)]
    named = [field.with_name(shown(field.name)) for field in values]
    return {result.field.name: result for result in results_of(named)}


def _told(result: Result) -> str:
    return f"{result.means} of type {type_ddl(result.field.type)}"
