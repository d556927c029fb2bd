"""`python -m tests.mutants`: puts every known bug into the code, one at a time, and shows what catches it."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.mutants.hunt import (
    SEEDS_MAX,
    Finding,
    failing_without_any_bug,
    from_the_beginning,
    from_the_last,
    judge,
    remember,
)
from tests.mutants.known import MUTANTS


def main() -> int:
    options = _options()
    names = [name for name in MUTANTS if not options.names or name in options.names]
    if options.only_tests:
        names = [name for name in names if MUTANTS[name].tests]
    console = Console(width=None if sys.stdout.isatty() else 120)
    findings = list(_hunt(names, options, console))
    if options.remember:
        remember(findings)
    console.print(_table(findings))
    useless = _useless_tests(names)
    return _summary(findings, useless, console)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these mutants")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many schedules to try")
    parser.add_argument("--last", action="store_true", help="begin with the seed that worked last")
    parser.add_argument("--remember", action="store_true", help="write down which seeds worked")
    parser.add_argument("--only-tests", action="store_true", help="only those that tests catch")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def _hunt(names: list[str], options: argparse.Namespace, console: Console) -> Iterator[Finding]:
    """One process per mutant: nothing of one can reach the next."""
    look = partial(_judge, seeds_max=options.seeds, last=options.last)
    with multiprocessing.get_context("fork").Pool(options.processes, maxtasksperchild=1) as pool:
        for number, found in enumerate(pool.imap_unordered(look, names), start=1):
            if console.is_terminal:
                console.print(
                    f"{number} of {len(names)}: {found.mutant}", end="\r", highlight=False
                )
            yield found


def _judge(name: str, seeds_max: int, last: bool) -> Finding:
    seeds = from_the_last(name, seeds_max) if last else from_the_beginning(seeds_max)
    return judge(name, seeds)


def _useless_tests(names: list[str]) -> list[str]:
    tests = sorted({test for name in names for test in MUTANTS[name].tests})
    if not tests:
        return []
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(failing_without_any_bug, (tests,))


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None)
    table.add_column("mutant", no_wrap=True)
    table.add_column("caught by", overflow="ellipsis")
    table.add_column("seeds", no_wrap=True)
    table.add_column("seconds", no_wrap=True)
    order = list(MUTANTS)
    for found in sorted(findings, key=lambda each: order.index(each.mutant)):
        by = escape(found.by) or "[bold red]SURVIVED[/]"
        seeds = str(found.tries) if found.tries else ""
        table.add_row(found.mutant, by, seeds, f"{found.seconds:.1f}")
    return table


def _summary(findings: list[Finding], useless: list[str], console: Console) -> int:
    survivors = [found for found in findings if not found.by]
    for found in survivors:
        console.print(
            f"\n{found.mutant}: {MUTANTS[found.mutant].bug}\n  {found.remark}", markup=False
        )
    for test in useless:
        console.print(f"{test} fails without any bug: it proves nothing", markup=False)
    seconds = sum(found.seconds for found in findings)
    caught = len(findings) - len(survivors)
    console.print(f"\n{caught} of {len(findings)} caught, {seconds:.0f} s of work", highlight=False)
    return 1 if survivors or useless else 0


if __name__ == "__main__":
    sys.exit(main())
