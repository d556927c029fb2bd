"""The commands. Each does its work elsewhere; here is what a person types and what comes back.

With `--json` the last line on standard output is one JSON object, and everything else goes to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import penstock
from penstock.errors import PenstockError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Exactly-once stateful streaming in Python, on Spark.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
INTERRUPTED = 130


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.command()
def demo(
    rows: Annotated[int, typer.Option(min=1, help="Transfers to process.")] = 900_000,
    rate: Annotated[float, typer.Option(min=1.0, help="Transfers per second.")] = 100_000.0,
    kills: Annotated[int, typer.Option(min=0, help="Workers to kill with SIGKILL.")] = 2,
    parallelism: Annotated[int, typer.Option(min=1, help="Workers.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Keep accounts while workers are killed, and prove that the books balance."""
    from penstock.cli.demo import Options, run_demo

    console = _console(as_json)
    with _clean_errors(console):
        result = run_demo(Options(rows, rate, kills, parallelism), console)
    if as_json:
        _print_json(result)
    if not (result["books_balance"] and result["exactly_once"]):
        raise typer.Exit(1)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=True,
)
def run(
    context: typer.Context,
    program: Annotated[Path, typer.Argument(help="A Python file that starts a job.")],
) -> None:
    """Run a program. What follows its name is passed on to it."""
    from penstock.cli.program import run_program

    with _clean_errors(Console(stderr=True)):
        run_program(program, list(context.args))


@app.command()
def checkpoints(
    path: Annotated[str, typer.Argument(help="A job's folder: <checkpoint directory>/<job>.")],
    as_json: AsJson = False,
) -> None:
    """List the completed checkpoints of a job."""
    from penstock.cli.stored import list_checkpoints, show_checkpoints

    console = _console(as_json)
    with _clean_errors(console):
        found = list_checkpoints(path)
    show_checkpoints(found, console)
    if as_json:
        _print_json(found)


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="A checkpoint (.../chk-7), or a job's folder.")],
    as_json: AsJson = False,
) -> None:
    """Show what is in one checkpoint: operators, subtasks, state and its size."""
    from penstock.cli.stored import describe_checkpoint, show_checkpoint

    console = _console(as_json)
    with _clean_errors(console):
        found = describe_checkpoint(path)
    show_checkpoint(found, console)
    if as_json:
        _print_json(found)


@app.command()
def verify(
    path: Annotated[str, typer.Argument(help="A checkpoint (.../chk-7), or a job's folder.")],
    as_json: AsJson = False,
) -> None:
    """Read every block of state and check it. Exit code 1 when anything is damaged."""
    from penstock.cli.verify import verify_path

    console = _console(as_json)
    with _clean_errors(console):
        result = verify_path(path)
    for problem in result["problems"]:
        console.print(
            f"[bold red]damaged[/] {problem['file']}: {problem['reason']}", soft_wrap=True
        )
    console.print(
        f"{result['checkpoints']} checkpoints, {result['blocks']} blocks, {result['bytes']:,} bytes: "
        f"{len(result['problems'])} problems"
    )
    if as_json:
        _print_json(result)
    if result["problems"]:
        raise typer.Exit(1)


# ---- helpers


def _console(as_json: bool) -> Console:
    return Console(stderr=as_json, highlight=False)


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


@contextmanager
def _clean_errors(console: Console) -> Iterator[None]:
    """An error that a user can mend is a message, not a traceback."""
    try:
        yield
    except PenstockError as error:
        console.print(f"{type(error).__name__}: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        console.print("interrupted; everything was cleaned up")
        raise typer.Exit(INTERRUPTED) from None
