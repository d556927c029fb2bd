"""`penstock run`: the program runs as it would on its own, and its errors are readable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import penstock


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


def test_a_program_finds_its_arguments_and_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/beside.py").write_text("ROWS = [('a', 1)]\n")
    (tmp_path / "app/main.py").write_text(
        "import sys, beside\nimport penstock as pen\n"
        "pen.from_rows(beside.ROWS, 'k STRING, v BIGINT').show()\n"
        "print(__name__, sys.argv[1:])\n"
    )
    done = run("run", "app/main.py", "--fast", "7", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "__main__ ['--fast', '7']"
    assert "a" in done.stdout


def test_an_error_of_the_user_s_is_a_message_and_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "import penstock as pen\npen.from_rows([(1,)], 'v BIGINT').key_by('w')\n"
    )
    done = run("run", "bad.py", folder=tmp_path)
    assert done.returncode == 1
    assert "SchemaError" in done.stderr
    assert "'w'" in done.stderr
    assert "Traceback" not in done.stderr
    assert f'File "{tmp_path}/bad.py", line 2, in <module>' in done.stderr
    assert ".key_by('w')" in done.stderr
    assert "src/penstock" not in done.stderr and "runpy" not in done.stderr


def test_any_other_exception_is_shown_by_the_program_s_own_frames(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "import penstock as pen\n"
        "def divide(row):\n"
        "    return (1 // row.v,)\n"
        "pen.from_rows([(0,)], 'v BIGINT').map(divide).show()\n"
    )
    done = run("run", "bad.py", folder=tmp_path)
    assert done.returncode == 1
    frames = [line.strip() for line in done.stderr.splitlines() if line.startswith("  File")]
    assert frames == [
        f'File "{tmp_path}/bad.py", line 4, in <module>',
        f'File "{tmp_path}/bad.py", line 3, in divide',
    ]
    assert done.stderr.splitlines()[-1].startswith("ZeroDivisionError")


def test_a_schema_that_does_not_fit_is_shown_with_the_function_that_is_to_blame(
    tmp_path: Path,
) -> None:
    (tmp_path / "bad.py").write_text(
        "import penstock as pen\n"
        "def short(row):\n"
        "    return ()\n"
        "pen.from_rows([(0,)], 'v BIGINT').map(short).show()\n"
    )
    done = run("run", "bad.py", folder=tmp_path)
    assert done.returncode == 1
    assert "SchemaError: map-2: the function returned 0 values for 1 columns" in done.stderr
    assert (
        f"the function of 'map-2' is in File \"{tmp_path}/bad.py\", line 2, in short" in done.stderr
    )


def test_the_exit_code_of_the_program_is_that_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit(7)\n")
    assert run("run", "ends.py", folder=tmp_path).returncode == 7


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("run", "gone.py", folder=tmp_path)
    assert done.returncode == 1
    assert "gone.py is not a file" in done.stderr


def test_the_version_is_told_and_no_command_means_help(tmp_path: Path) -> None:
    assert run("--version", folder=tmp_path).stdout.strip() == f"penstock {penstock.__version__}"
    assert "demo" in run("--help", folder=tmp_path).stdout
