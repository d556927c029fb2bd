"""One file of a table: written in the order of key groups, and read piece by piece in that order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.sinks.folder import Folder
from penstock.connectors.sinks.formats import ROW_GROUP_BYTES, ParquetEncoder
from penstock.connectors.tables import ledger as ledgers
from penstock.connectors.tables.ledger import Ledger
from penstock.connectors.tables.names import TableFile
from penstock.connectors.tables.rows import GROUP
from penstock.errors import DataError

BATCH_ROWS = 32_768


def write(
    folder: Folder, path: str, schema: pa.Schema, ledger: Ledger, pieces: Iterable[pa.Table]
) -> tuple[int, int]:
    """Writes pieces that are in order, and makes the file durable; how many rows and bytes it has. Of one that could
    not be written nothing is left."""
    noted = schema.with_metadata({ledgers.KEY: ledgers.encode(ledger)})
    try:
        rows, written = _write(folder.create(path), noted, pieces)
        there = folder.seal(path)
        if there != written:
            raise OSError(f"{path}: {written} bytes were written and {there} are there")
    except BaseException:
        with suppress(OSError):
            folder.delete(path)
        raise
    return rows, written


def _write(handle: Any, schema: pa.Schema, pieces: Iterable[pa.Table]) -> tuple[int, int]:
    rows = 0
    encoder = ParquetEncoder(handle, schema, ROW_GROUP_BYTES)
    try:
        for piece in pieces:
            rows += piece.num_rows
            for batch in conform(piece, schema).to_batches(max_chunksize=BATCH_ROWS):
                encoder.write(batch)
        encoder.finish()
        return rows, handle.tell()
    except BaseException:
        with suppress(pa.ArrowException, OSError, ValueError):
            encoder.finish()
        raise
    finally:
        handle.close()


class RowsFile:
    """An open file of a table. `columns` are those that are wanted; the file may have been written before some of them
    were added."""

    def __init__(
        self, folder: Folder, file: TableFile, columns: Sequence[str] | None = None, start: int = 0
    ) -> None:
        self._handle = folder.open(file.path)
        try:
            self._parquet = _parquet(self._handle, file)
        except BaseException:
            self._handle.close()
            raise
        self._name = file.name
        kept = pa.schema(
            f for f in self._parquet.schema_arrow if columns is None or f.name in columns
        )
        self.schema = kept.remove_metadata()
        self._start = start
        self._parts = self._parts_from(start)
        """The parts that have not been read yet, the next one last, each with its lowest group."""
        self._rest = self.schema.empty_table()

    @property
    def ledger(self) -> Ledger:
        return ledgers.decode(self._parquet.schema_arrow.metadata, self._name)

    @property
    def rows(self) -> int:
        return int(self._parquet.metadata.num_rows)

    def before(self, end: int) -> pa.Table:
        """The next rows, up to this group. What was read is not read again."""
        pieces = [self._rest]
        while self._parts and self._parts[-1][0] < end:
            pieces.append(self._read(self._parts.pop()[1]))
        rows = pa.concat_tables(pieces)
        first, last = np.searchsorted(_groups(rows), [self._start, end]).tolist()
        self._rest = rows.slice(last)
        return rows.slice(first, last - first)

    def close(self) -> None:
        self._handle.close()

    def _parts_from(self, start: int) -> list[tuple[int, int]]:
        metadata = self._parquet.metadata
        place = [column.path for column in self._parquet.schema].index(GROUP.name)
        parts = []
        for number in reversed(range(metadata.num_row_groups)):
            groups = metadata.row_group(number).column(place).statistics
            if groups.max >= start:
                parts.append((groups.min, number))
        return parts

    def _read(self, part: int) -> pa.Table:
        names = self.schema.names
        read = self._parquet.read_row_group(part, columns=names, use_threads=False)
        return read.select(names).replace_schema_metadata()


def _parquet(handle: Any, file: TableFile) -> Any:
    try:
        found = pq.ParquetFile(handle)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk or the network, and not of what is in the file
        raise DataError(f"{file.path}: not a whole Parquet file ({error})") from error
    if found.metadata.num_rows != file.rows:
        raise DataError(f"{file.path} has {found.metadata.num_rows} rows: it is another file")
    return found


def _groups(rows: pa.Table) -> Any:
    return rows.column(GROUP.name).to_numpy()


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with these columns: those that they do not have are null, and Parquet's types are the table's own."""
    columns = [
        _cast(rows.column(field.name), field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: Any, kind: pa.DataType) -> Any:
    return column if column.type == kind else column.cast(kind)
