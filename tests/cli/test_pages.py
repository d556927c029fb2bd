"""The guide: what it shows really runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text("utf-8"))


def test_the_guide_s_code_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything but a job of its own: plans are built, streams are looked at."""
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks("docs/guide.md"):
        exec(compile(block, "docs/guide.md", "exec"), names)
    assert "totals-files" in capsys.readouterr().out
    assert [tuple(row) for row in names["taxed"].take(2)] == [("ann", 3.75), ("bob", 6.25)]
    assert [row.size for row in names["cleaned"].take(2)] == ["small", "large"]
    assert len(names["both"].take(5)) == 3
    assert names["words"].take(1)[0].letter == "a"
    assert names["generated"].take(1)[0].user == 0
