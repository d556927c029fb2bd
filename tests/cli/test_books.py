"""The demo's audit believes nothing: each kind of wrong file is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli import books

ROWS = 5_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of a job that made no mistake: two of each kind."""
    booked = books.entries(books.transfers(0, ROWS))
    half = booked.num_rows // 2
    write(tmp_path / "entries/part-a.parquet", pa.Table.from_batches([booked.slice(0, half)]))
    write(tmp_path / "entries/part-b.parquet", pa.Table.from_batches([booked.slice(half)]))
    balance, count = books.expected(ROWS)
    early = pa.table({"account": [0, 1], "entries": [1, 1], "balance": [-5, 5]})
    last = pa.table({"account": range(books.ACCOUNTS), "entries": count, "balance": balance})
    write(tmp_path / "balances/part-a.parquet", early)
    write(tmp_path / "balances/part-b.parquet", last)
    return tmp_path


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path)


def changed(path: Path, column: str, row: int, by: int) -> None:
    table = pq.read_table(path)
    values = table.column(column).to_numpy().copy()
    values[row] += by
    index = table.schema.get_field_index(column)
    pq.write_table(table.set_column(index, column, pa.array(values)), path)


def test_right_books_pass(folder: Path) -> None:
    found = books.audit(folder, ROWS)
    assert (found.books_balance, found.exactly_once) == (True, True)
    assert found.entries_found == 2 * ROWS
    assert found.updates_found == books.ACCOUNTS + 2


def test_staged_files_are_not_read(folder: Path) -> None:
    (folder / "entries/_staging").mkdir()
    shutil.copy(folder / "entries/part-a.parquet", folder / "entries/_staging/part-c.parquet")
    assert books.audit(folder, ROWS).exactly_once


def test_a_missing_file_of_entries_is_noticed(folder: Path) -> None:
    (folder / "entries/part-b.parquet").unlink()
    found = books.audit(folder, ROWS)
    assert (found.exactly_once, found.entries_missing) == (False, ROWS)


def test_entries_that_are_there_twice_are_noticed(folder: Path) -> None:
    shutil.copy(folder / "entries/part-a.parquet", folder / "entries/part-c.parquet")
    found = books.audit(folder, ROWS)
    assert (found.exactly_once, found.entries_repeated) == (False, ROWS)


@pytest.mark.parametrize("column", ["account", "cents"])
def test_a_changed_entry_is_noticed(folder: Path, column: str) -> None:
    changed(folder / "entries/part-b.parquet", column, 17, 1)
    found = books.audit(folder, ROWS)
    assert (found.exactly_once, found.entries_wrong) == (False, 1)


def test_an_entry_that_nobody_made_is_noticed(folder: Path) -> None:
    changed(folder / "entries/part-b.parquet", "entry", 17, 10 * ROWS)
    found = books.audit(folder, ROWS)
    assert (found.entries_wrong, found.entries_missing) == (1, 1)


def test_a_wrong_balance_is_noticed(folder: Path) -> None:
    changed(folder / "balances/part-b.parquet", "balance", 3, 1)
    found = books.audit(folder, ROWS)
    assert (found.books_balance, found.accounts_wrong, found.balances_sum) == (False, 1, 1)


def test_two_wrong_balances_that_cancel_out_are_noticed(folder: Path) -> None:
    changed(folder / "balances/part-b.parquet", "balance", 3, 1)
    changed(folder / "balances/part-b.parquet", "balance", 4, -1)
    found = books.audit(folder, ROWS)
    assert (found.books_balance, found.accounts_wrong, found.balances_sum) == (False, 2, 0)


def test_an_update_of_a_balance_that_is_there_twice_is_noticed(folder: Path) -> None:
    shutil.copy(folder / "balances/part-a.parquet", folder / "balances/part-c.parquet")
    found = books.audit(folder, ROWS)
    assert (found.exactly_once, found.updates_repeated) == (False, 2)


def test_a_job_that_wrote_nothing_does_not_pass(tmp_path: Path) -> None:
    found = books.audit(tmp_path, ROWS)
    assert (found.books_balance, found.exactly_once) == (False, False)


def test_a_transfer_depends_on_its_number_alone() -> None:
    """E1: what is replayed is what was read before."""
    whole = books.transfers(0, 1_000)
    cut = pa.concat_batches([books.transfers(0, 333), books.transfers(333, 667)])
    assert whole.equals(cut)
    assert not np.any(whole.column("payer").to_numpy() == whole.column("payee").to_numpy())
