"""The commands. Each does its work elsewhere; here is what a person types and what comes back (`answers`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import penstock
from penstock.cli.answers import FAILED, Commands, answering

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Exactly-once stateful streaming in Python, on Spark.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and no tables.")]
JobPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A job's folder: <checkpoint directory>/<job>. A job whose name does not fit a path has a folder with a"
        " similar name and a few digits: 'a/b' is in a_b-c14cddc0.",
    ),
]
CheckpointPath = Annotated[
    str, typer.Argument(metavar="PATH", help="A checkpoint (.../chk-7), or a job's folder.")
]


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

    with answering(as_json) as answer:
        result = run_demo(Options(rows, rate, kills, parallelism), answer.console)
        answer.give(result)
    if not (result["books_balance"] and result["exactly_once"]):
        raise typer.Exit(FAILED)


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

    with answering(stderr=True):
        run_program(program, list(context.args))


@app.command()
def checkpoints(path: JobPath, as_json: AsJson = False) -> None:
    """List the checkpoints of a job: those that can be restored, its history, and statistics."""
    from penstock.cli.stored import list_checkpoints, show_checkpoints

    _look(path, as_json, list_checkpoints, show_checkpoints)


@app.command()
def inspect(path: CheckpointPath, as_json: AsJson = False) -> None:
    """Show what is in one checkpoint: operators, subtasks, state and its size."""
    from penstock.cli.stored import describe_checkpoint, show_checkpoint

    _look(path, as_json, describe_checkpoint, show_checkpoint)


@app.command()
def state(
    path: CheckpointPath,
    operator: Annotated[
        str | None, typer.Option(help="Its name, where several have state.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--state", help="Which, where it has several.")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="Its id.")] = "latest",
    kind: Annotated[str, typer.Option(help="state, positions, inflight, operators.")] = "state",
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Rows of one key; repeat it for each column."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show rows of the state in a checkpoint, also of a job that runs."""
    from penstock.cli.state import conditions, read_state, show_state
    from penstock.engine.reading.request import make_request

    def find(given: str) -> dict[str, Any]:
        wanted = conditions(where or ())
        return read_state(make_request(given, checkpoint, kind, operator, name, wanted), limit)

    _look(path, as_json, find, show_state)


@app.command()
def verify(path: CheckpointPath, as_json: AsJson = False) -> None:
    """Read every block of state and check it. Exit code 1 when anything is damaged."""
    from penstock.cli.verify import show_verified, verify_path

    if _look(path, as_json, verify_path, show_verified)["problems"]:
        raise typer.Exit(FAILED)


@app.command()
def gc(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A job's folder, or a checkpoint directory with jobs."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List, and delete nothing.")] = False,
    older_than: Annotated[
        str, typer.Option(help="Only files that were written longer ago than this.")
    ] = "1 hour",
    as_json: AsJson = False,
) -> None:
    """Delete files that no checkpoint needs, also beside a job that runs. Exit code 1 when one cannot be deleted."""
    from penstock.cli.garbage import collect, show_garbage
    from penstock.plan.duration import parse_duration_ms

    def find(given: str) -> dict[str, Any]:
        return collect(given, parse_duration_ms(older_than, "--older-than"), dry_run=dry_run)

    if _look(path, as_json, find, show_garbage)["failed"]:
        raise typer.Exit(FAILED)


def _look(
    path: str,
    as_json: bool,
    find: Callable[[str], dict[str, Any]],
    show: Callable[[dict[str, Any], Console], None],
) -> dict[str, Any]:
    """What all commands do about a path: find, then show it to a person or give it to a program."""
    with answering(as_json) as answer:
        found = find(path)
        if not as_json:
            show(found, answer.console)
        answer.give(found)
    return found
