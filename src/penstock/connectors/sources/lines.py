"""Files made of lines, a record each: read in blocks of whole lines, so that every line has a number and a
place to come back to, and one bad line can be told from its neighbours."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors.location import may_pass
from penstock.connectors.sources.chunks import Chunk, Mark
from penstock.connectors.sources.listing import Listing
from penstock.errors import DataError
from penstock.redaction import redacted

BLOCK_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20
BAD_RECORD = "_bad_record"
_SHOWN_CHARACTERS = 200


class Unparsable(Exception):
    """These lines, or one of them, are not what they should be."""


Parse = Callable[[bytes], pa.RecordBatch]
"""Whole lines to rows; raises `Unparsable`."""


@dataclass(frozen=True)
class Block:
    """Whole lines; the first one is number `line` (from 1) and starts at byte `offset`."""

    data: bytes
    offset: int
    line: int
    last: bool


class BadLines:
    """What becomes of a line that does not parse."""

    def __init__(self, schema: pa.Schema, *, keep: bool) -> None:
        self._schema = schema
        self._keep = keep

    def row(self, where: str, line: int, data: bytes, problem: str) -> pa.RecordBatch:
        text = data.decode("utf-8", errors="replace").rstrip("\r\n")
        if not self._keep:
            raise DataError(
                f"{where}, line {line}: {problem}: {text[:_SHOWN_CHARACTERS]!r}; correct the file, or use"
                f' bad_records="column" to get such lines in the column {BAD_RECORD}'
            )
        columns = [pa.nulls(1, field.type) for field in self._schema if field.name != BAD_RECORD]
        return pa.RecordBatch.from_arrays([*columns, pa.array([text])], schema=self._schema)


def read_lines(
    listing: Listing, name: str, at: Mark, parse: Parse, bad: BadLines
) -> Iterator[Chunk]:
    """The rows of a file from a mark on, a chunk per block."""
    where = listing.shown(name)
    with closing(listing.open_bytes(name)) as handle:
        for block in line_blocks(handle, at, where):
            batches = list(_rows(block.data, block.line, parse, bad, where))
            batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            yield Chunk(batch, (block.offset, block.line), 0, block.last)


def line_blocks(handle: Any, at: Mark, where: str) -> Iterator[Block]:
    """The rest of a file, from the byte and line of `at`, in blocks that end with a line."""
    offset, line = at[0], max(1, at[1])
    rest = b""
    last = False
    try:
        handle.seek(offset)
        while not last:
            fresh = _read_fully(handle, BLOCK_BYTES)
            last = len(fresh) < BLOCK_BYTES
            data = rest + fresh
            cut = len(data) if last else data.rfind(b"\n") + 1
            data, rest = data[:cut], data[cut:]
            if len(rest) > LINE_BYTES_MAX:
                raise DataError(f"{where}, line {line}: longer than {LINE_BYTES_MAX} bytes")
            if data:
                yield Block(data, offset, line, last)
            offset, line = offset + len(data), line + data.count(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        if may_pass(error):
            raise
        raise DataError(
            f"{where}: cannot be read behind line {line} ({redacted(str(error))})"
        ) from None


def _read_fully(handle: Any, bytes_wanted: int) -> bytes:
    """As many bytes as asked for; fewer only at the end of the file."""
    parts: list[bytes] = []
    missing = bytes_wanted
    while missing and (part := handle.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _rows(
    data: bytes, line: int, parse: Parse, bad: BadLines, where: str
) -> Iterator[pa.RecordBatch]:
    """Parses lines together; where that fails, half and half, down to the single line that is at fault."""
    try:
        yield parse(data)
    except Unparsable as error:
        lines = data.splitlines(keepends=True) if b"\r" not in data else _split(data)
        if len(lines) == 1:
            yield bad.row(where, line, data, str(error))
            return
        half = len(lines) // 2
        yield from _rows(b"".join(lines[:half]), line, parse, bad, where)
        yield from _rows(b"".join(lines[half:]), line + half, parse, bad, where)


def _split(data: bytes) -> list[bytes]:
    """Lines end with a line feed only."""
    parts = data.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def records(data: bytes) -> int:
    """How many lines are not empty."""
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    if b"\n\n" not in data and b"\r\n\r\n" not in data and not data.startswith((b"\n", b"\r\n")):
        return lines
    return sum(1 for each in data.split(b"\n") if each.strip())
