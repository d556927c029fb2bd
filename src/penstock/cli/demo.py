"""`penstock demo`: the books must balance, whatever is killed."""

from __future__ import annotations

import logging
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import penstock as pen
from penstock.cli import books
from penstock.cli.views import Lines, open_view
from penstock.cli.watching import Watch

LOOK_EVERY_S = 0.05
CANCEL_WITHIN_S = 10.0
SHARE_BEFORE_KILL = 0.7
"""Of the time between two kills if they were spread evenly: what is killed must still have work to do."""


@dataclass(frozen=True)
class Options:
    rows: int
    rate: float
    kills: int
    parallelism: int


def run_demo(options: Options, console: Console) -> dict[str, Any]:
    """Runs the job, kills its workers, audits the books. Nothing is left behind, also after Ctrl-C."""
    console.print(
        f"{options.rows:,} transfers between {books.ACCOUNTS:,} accounts, {options.parallelism} workers, "
        f"a checkpoint every 0.5 s, {options.kills} times kill -9.",
        soft_wrap=True,
    )
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name, _quiet_log(), _sigterm():
        folder = Path(name)
        with open_view(console) as view:
            watch = _run(options, folder, view)
            view.say("all input is processed and committed; auditing the books")
            found = books.audit(folder, options.rows)
        result = _result(options, watch, found)
    _tell(result, found, console)
    return result


def _run(options: Options, folder: Path, view: Lines) -> Watch:
    view.say("starting a local Spark and the workers")
    job = books.pipeline(folder, options.rows, options.rate).start(
        name="demo",
        parallelism=options.parallelism,
        checkpoint=pen.CheckpointConfig(folder / "checkpoints", every="500 ms"),
    )
    every_s = SHARE_BEFORE_KILL * options.rows / options.rate / (options.kills + 1)
    watch = Watch(job, view, options.kills, every_s)
    try:
        while not job.await_termination(LOOK_EVERY_S):
            watch.look()
    except BaseException:
        with suppress(pen.PenstockError):
            job.cancel(CANCEL_WITHIN_S)
        raise
    watch.finish()
    if job.status == "stopped":
        raise KeyboardInterrupt
    return watch


def _result(options: Options, watch: Watch, found: books.Audit) -> dict[str, Any]:
    numbers = watch.job.metrics()
    began_s, ended_s = watch.first_row_s or 0.0, watch.last_row_s or 0.0
    seconds = max(ended_s - began_s, 1e-3)
    return {
        "rows_in": options.rows,
        "rows_out": found.entries_found,
        "balance_updates": found.updates_found,
        "accounts": found.accounts,
        "kills": watch.kills,
        "restarts": int(numbers["penstock_restarts_total"]),
        "checkpoints_completed": int(numbers["penstock_checkpoints_completed_total"]),
        "recovery_seconds": [round(each, 3) for each in watch.recovery_s],
        "rows_per_second": round(options.rows / seconds),
        "seconds": round(seconds, 3),
        "books_balance": found.books_balance,
        "exactly_once": found.exactly_once,
    }


def _tell(result: dict[str, Any], found: books.Audit, console: Console) -> None:
    say = partial(console.print, soft_wrap=True)
    say()
    say(
        f"entries     {found.entries_found:,} of {2 * result['rows_in']:,} written: "
        f"{found.entries_missing} missing, {found.entries_repeated} twice, {found.entries_wrong} wrong"
    )
    say(
        f"accounts    {found.accounts:,} checked against an independent computation: "
        f"{found.accounts_wrong} wrong"
    )
    say(f"balances    sum of all: {found.balances_sum}")
    healing = ", ".join(f"{each:.2f} s" for each in result["recovery_seconds"]) or "none needed"
    say(f"survived    {result['kills']} kills; healing took {healing}")
    good = found.books_balance and found.exactly_once
    verdict = (
        "[bold green]The books balance.[/]" if good else "[bold red]The books do NOT balance.[/]"
    )
    say(verdict)


@contextmanager
def _quiet_log() -> Iterator[None]:
    """The demo tells about failures itself."""
    logger = logging.getLogger("penstock")
    before, logger.level = logger.level, logging.CRITICAL
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _sigterm() -> Iterator[None]:
    """A plain `kill` cleans up like Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
