"""What a type checker tells the user of a pipeline: nothing where it is right, and every typo."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TYPOS = Path(__file__).with_name("typos.py")
ERROR = re.compile(r"^(?P<path>[^:]+):(?P<line>\d+): error: ", re.MULTILINE)


def mypy(*paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_examples_have_no_type_errors() -> None:
    run = mypy(*sorted((ROOT / "examples").glob("*.py")))
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_typo_is_an_error_and_nothing_else_is() -> None:
    """Names that there are not, words that are not among those to choose from, functions without the right method."""
    run = mypy(TYPOS)
    lines = TYPOS.read_text().splitlines()
    wanted = {number for number, line in enumerate(lines, start=1) if line.endswith("# wrong")}
    found = {int(match["line"]) for match in ERROR.finditer(run.stdout)}
    missed = [lines[number - 1] for number in sorted(wanted - found)]
    assert not missed, f"mypy does not see these: {missed}"
    assert found == wanted, run.stdout
    assert len(wanted) >= 30
