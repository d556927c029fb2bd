"""The files of a table by their names alone: what is in them, and which others they make superfluous.

    rows-<lowest>-<highest>-<subtask>-<attempt>-<rows>-<id>.parquet                  of one transaction
    rows-<lowest>-<highest>-<subtask>-<attempt>-<rows>-<id>-of-<id>.<id>....parquet  merged from these files

`lowest` and `highest` are versions of rows. Ids are random, so no two files have the same name in any two lives of a
job. A file whose id is in the name of another one is superseded: the other one has its rows, or newer ones of the same
keys.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.connectors.sinks.folder import Folder

ROWS = "_rows"
SOURCES_MAX = 8
"""So many files are merged into one at most: their ids must fit into a name of 255 bytes."""
_ID = "[0-9a-f]{16}"
_NAME = re.compile(
    r"rows-(\d{1,18})-(\d{1,18})-(\d{1,5})-(\d{1,10})-(\d{1,12})"
    rf"-(?P<id>{_ID})(?:-of-(?P<sources>{_ID}(?:\.{_ID})*))?\.parquet"
)


@dataclass(frozen=True, slots=True)
class TableFile:
    """What the name of a file says."""

    lowest: int
    highest: int
    index: int
    """Of the subtask that made it."""
    attempt: int
    rows: int
    id: str
    sources: tuple[str, ...] = ()
    """The ids of the files that it was merged from."""

    @property
    def name(self) -> str:
        numbers = (self.lowest, self.highest, self.index, self.attempt, self.rows)
        merged = f"-of-{'.'.join(self.sources)}" if self.sources else ""
        return f"rows-{'-'.join(map(str, numbers))}-{self.id}{merged}.parquet"

    @property
    def path(self) -> str:
        """Below the table's folder."""
        return f"{ROWS}/{self.name}"


def new_id() -> str:
    return uuid.uuid4().hex[:16]


def parse(name: str) -> TableFile | None:
    """None for a name that is not exactly as it would be written."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    lowest, highest, index, attempt, rows = map(int, match.groups()[:5])
    sources = tuple(match["sources"].split(".")) if match["sources"] else ()
    file = TableFile(lowest, highest, index, attempt, rows, match["id"], sources)
    return file if file.name == name else None


def list_files(folder: Folder) -> list[TableFile]:
    """All files of a table, superseded ones included."""
    found = (parse(name) for name in folder.list(ROWS))
    return [file for file in found if file is not None]


def without_gaps(first: list[TableFile], second: list[TableFile]) -> list[TableFile]:
    """What can be taken of the second of two listings, which was begun when the first was over. A listing takes a
    while: it may miss a file that appears meanwhile, and find a later one of the same writer. So a file counts if the
    first listing had it, or a later one: the second has all that came before those."""
    seen = set(first)
    newest: dict[tuple[int, int], int] = {}
    for file in first:
        writer = (file.attempt, file.index)
        newest[writer] = max(newest.get(writer, -1), file.highest)
    return [
        file
        for file in second
        if file in seen or file.highest <= newest.get((file.attempt, file.index), -1)
    ]


def look(folder: Folder) -> list[TableFile]:
    """The files that have all rows of the table as it is now: for each writer, of its transactions up to some one."""
    first = list_files(folder)
    return live(without_gaps(first, list_files(folder)))


def live(files: Iterable[TableFile]) -> list[TableFile]:
    """Without those that another one of them supersedes."""
    files = list(files)
    superseded = {source for file in files for source in file.sources}
    return [file for file in files if file.id not in superseded]
