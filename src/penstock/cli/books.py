"""The demo's books: transfers between accounts, the job that keeps them, and an audit that does not trust it.

A transfer is computed from its number alone. The job turns each into a debit and a credit, writes every entry, and
keeps a running balance per account. `audit` computes all of it again, in NumPy, and reads what the job has written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

import penstock as pen

ACCOUNTS = 1_000
AMOUNT_MAX = 10_000
TRANSFERS = "id BIGINT, payer BIGINT, payee BIGINT, cents BIGINT"
ENTRIES = "entry BIGINT, account BIGINT, cents BIGINT"
STRIDE = 262_144
"""Rows that the audit looks at in one go."""

Numbers = npt.NDArray[np.int64]


# ---- the job


def transfers(start: int, n: int) -> pa.RecordBatch:
    """Transfers `start .. start + n - 1` of an endless sequence that is always the same."""
    number = np.arange(start, start + n, dtype=np.int64)
    mixed = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(31)
    payer = (mixed % np.uint64(ACCOUNTS)).astype(np.int64)
    away = ((mixed >> np.uint64(17)) % np.uint64(ACCOUNTS - 1)).astype(np.int64) + 1
    cents = ((mixed >> np.uint64(40)) % np.uint64(AMOUNT_MAX)).astype(np.int64) + 1
    columns = [number, payer, (payer + away) % ACCOUNTS, cents]
    return pa.RecordBatch.from_arrays(
        [pa.array(column) for column in columns], names=["id", "payer", "payee", "cents"]
    )


def entries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Each transfer as two entries: a debit with an even number, a credit with the odd one behind it."""
    number, payer, payee, cents = (batch.column(i).to_numpy() for i in range(4))
    columns = [
        _alternating(2 * number, 2 * number + 1),
        _alternating(payer, payee),
        _alternating(-cents, cents),
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column) for column in columns], names=["entry", "account", "cents"]
    )


def pipeline(folder: Path, rows: int, rate: float) -> pen.Pipeline:
    """One job with two sinks: the entries, and the running balance of each account."""
    source = pen.GeneratorSource(transfers, TRANSFERS, rows=rows, rate=rate)
    booked = pen.from_source(source, "transfers").map_batches(entries, ENTRIES).named("entries")
    balances = booked.key_by("account").agg(balance=pen.sum("cents"), entries=pen.count())
    return pen.Pipeline(
        booked.to(pen.FileSink(str(folder / "entries")), name="entry-files"),
        balances.named("balances").to(pen.FileSink(str(folder / "balances")), name="balance-files"),
    )


def _alternating(first: Numbers, second: Numbers) -> Numbers:
    both = np.empty(2 * len(first), dtype=np.int64)
    both[0::2], both[1::2] = first, second
    return both


# ---- the audit


@dataclass(frozen=True)
class Audit:
    """What the files say, against what they must say."""

    entries_found: int
    entries_missing: int
    entries_repeated: int
    entries_wrong: int
    updates_found: int
    updates_repeated: int
    accounts: int
    accounts_wrong: int
    balances_sum: int

    @property
    def books_balance(self) -> bool:
        """Every account has the balance that was computed without the engine, and together they are zero."""
        return self.accounts_wrong == 0 and self.balances_sum == 0

    @property
    def exactly_once(self) -> bool:
        """Every entry is there once and right, and no update of a balance was written twice."""
        bad = self.entries_missing + self.entries_repeated + self.entries_wrong
        return bad + self.updates_repeated == 0


def audit(folder: Path, rows: int) -> Audit:
    """Reads all files and compares. Nothing of the engine is used for it."""
    balance, count = expected(rows)
    found, updates_found, updates_repeated = _last_balances(folder / "balances")
    wrong = [a for a in range(ACCOUNTS) if found.get(a, (0, 0)) != (count[a], balance[a])]
    times, entries_wrong, entries_found = _entries(folder / "entries", rows)
    return Audit(
        entries_found=entries_found,
        entries_missing=int(np.count_nonzero(times == 0)),
        entries_repeated=int(np.count_nonzero(times > 1)),
        entries_wrong=entries_wrong,
        updates_found=updates_found,
        updates_repeated=updates_repeated,
        accounts=ACCOUNTS,
        accounts_wrong=len(wrong) + sum(account not in range(ACCOUNTS) for account in found),
        balances_sum=sum(cents for _, cents in found.values()),
    )


def expected(rows: int) -> tuple[list[int], list[int]]:
    """Balance and number of entries of each account after so many transfers."""
    balance = np.zeros(ACCOUNTS, dtype=np.int64)
    count = np.zeros(ACCOUNTS, dtype=np.int64)
    for start in range(0, rows, STRIDE):
        _, payer, payee, cents = _columns(transfers(start, min(STRIDE, rows - start)))
        np.subtract.at(balance, payer, cents)
        np.add.at(balance, payee, cents)
        count += np.bincount(payer, minlength=ACCOUNTS) + np.bincount(payee, minlength=ACCOUNTS)
    return balance.tolist(), count.tolist()


def _last_balances(folder: Path) -> tuple[dict[int, tuple[int, int]], int, int]:
    """Per account the number of entries and the balance of its last update; how many updates there are, and how
    many of them twice: an account's count of entries only ever grows."""
    table = _table(folder, ["account", "entries", "balance"])
    account, count, balance = _columns(table)
    order = np.lexsort((count, account))
    account, count, balance = account[order], count[order], balance[order]
    same = (account[1:] == account[:-1]) & (count[1:] == count[:-1])
    ends = np.flatnonzero(np.append(account[1:] != account[:-1], len(account) > 0))
    last = {int(account[i]): (int(count[i]), int(balance[i])) for i in ends}
    return last, len(account), int(np.count_nonzero(same))


def _entries(folder: Path, rows: int) -> tuple[npt.NDArray[np.uint8], int, int]:
    """How often each entry is there, how many are not what they should be, and how many there are."""
    times = np.zeros(2 * rows, dtype=np.uint8)
    wrong = total = 0
    for batch in _table(folder, ["entry", "account", "cents"]).to_batches(STRIDE):
        entry, account, cents = _columns(batch)
        known = (entry >= 0) & (entry < 2 * rows)
        numbers = entry[known]
        np.add.at(times, numbers, 1)
        payer, payee, amount = _of_transfers(numbers // 2)
        credit = numbers % 2 == 1
        right = (account[known] == np.where(credit, payee, payer)) & (
            cents[known] == np.where(credit, amount, -amount)
        )
        wrong += len(entry) - int(np.count_nonzero(right))
        total += len(entry)
    return times, wrong, total


def _of_transfers(numbers: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Payer, payee and cents of these transfers, whichever they are."""
    if not len(numbers):
        return numbers, numbers, numbers
    first = int(numbers.min())
    _, payer, payee, cents = _columns(transfers(first, int(numbers.max()) - first + 1))
    at = numbers - first
    return payer[at], payee[at], cents[at]


def _table(folder: Path, columns: list[str]) -> pa.Table:
    """What a plain reader of the folder sees: no file whose name begins with `_`."""
    files = [str(path) for path in sorted(folder.glob("part-*.parquet"))]
    if not files:
        return pa.table({name: pa.array([], pa.int64()) for name in columns})
    return ds.dataset(files, format="parquet").to_table(columns=columns)


def _columns(table: Any) -> list[Numbers]:
    return [column.to_numpy() for column in table.columns]
