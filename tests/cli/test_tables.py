"""What commands print fits the terminal that it is printed on, and is nothing but JSON where JSON was asked for."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import penstock as pen
from penstock.cli.app import app
from penstock.cli.tables import Column, print_table
from penstock.engine.history.files import HistoryFiles
from penstock.engine.history.records import Totals
from penstock.protocol.ids import AttemptId
from penstock.storage.filesystem import FilesystemStore, open_job
from tests.cli.test_stored import store_checkpoint

WHY = "a subtask declined it: OSError: no space left on the device"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A job's folder with two checkpoints and a history."""
    store = open_job(str(tmp_path), "totals", created_ms=1.0)
    for checkpoint in (3, 12_345):
        store_checkpoint(store, checkpoint)
    failed = pen.CheckpointInfo(12_346, "checkpoint", "aborted", 1e12, 9_999.0, failure=WHY)
    HistoryFiles(FilesystemStore(store.root)).add(AttemptId(1), [failed], Totals(5, 1))
    return tmp_path / "totals"


def call(*arguments: str, columns: int = 80) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [80, 99, 100, 160])
@pytest.mark.parametrize("command", ["checkpoints", "inspect"])
def test_tables_fit_the_terminal_and_nothing_in_them_is_cut(
    root: Path, command: str, columns: int
) -> None:
    """C6."""
    result = call(command, str(root), columns=columns)
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout
    framed = [line for line in result.stdout.splitlines() if line[:1] in "┏┃│└"]
    assert framed and max(map(len, framed)) <= columns


def test_a_narrow_terminal_shows_the_reason_of_a_failure_whole(root: Path) -> None:
    """C6: it goes on in the next lines."""
    shown = call("checkpoints", str(root)).stdout
    whys = [line.rsplit("│", 2)[-2].strip() for line in shown.splitlines() if line.count("│") == 7]
    assert WHY in " ".join(whys)


def test_a_wide_terminal_shows_every_column(root: Path) -> None:
    shown = call("checkpoints", str(root), columns=160).stdout
    assert "in flight" in shown and "mode" in shown and "2023-11-14 22:13:20" in shown


def test_a_column_for_wide_terminals_is_left_out_with_its_values() -> None:
    console = Console(width=60, record=True, file=StringIO())
    print_table(console, [Column("a"), Column("b", wide_only=True), Column("c")], [("1", "2", "3")])
    text = console.export_text()
    assert "b" not in text and "2" not in text
    assert "1" in text and "3" in text


@pytest.mark.parametrize("command", ["checkpoints", "inspect", "verify"])
def test_with_json_there_is_one_line_and_nothing_else(root: Path, command: str) -> None:
    result = call(command, str(root), "--json")
    assert result.stderr == ""
    (line,) = result.stdout.splitlines()
    assert json.loads(line)


@pytest.mark.parametrize("command", ["checkpoints", "inspect", "verify"])
def test_with_json_an_error_is_in_the_json_and_nowhere_else(tmp_path: Path, command: str) -> None:
    result = call(command, str(tmp_path), "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["kind"] == "ConfigError"


def test_the_help_says_where_a_job_with_an_unusual_name_is() -> None:
    assert "a_b-c14cddc0" in call("checkpoints", "--help", columns=160).stdout
