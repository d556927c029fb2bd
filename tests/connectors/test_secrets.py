"""Files behind URLs with passwords and tokens: they are used, and never shown or stored."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import penstock as pen
from penstock import redaction
from penstock.connectors.base import SinkContext, SourceContext
from penstock.engine.spec import JobSpec
from penstock.engine.worker.worker import Worker
from penstock.errors import ConfigError, PenstockError
from penstock.plan.physical import make_plan
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.messages import Deploy, Failed, Start
from penstock.storage.memory import MemoryStore
from tests.engine.kit import HeldBackground, ListDriver, ManualClock, NoHost

SECRETS = ("hunter2", "qwertz12")
USER = "memory://me:hunter2@host"
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty store, and a process that was given no secret yet."""
    monkeypatch.setattr(redaction, "_known", redaction._Known())
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield memory
    memory.store.clear()


def place() -> SourceContext:
    return SourceContext("files", 0, 1, 128, lambda: 0.0)


def has_no_secret(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


def whole(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def forgetful(source: Any) -> Any:
    """The source as a worker gets it, in a process of its own."""
    data = pickle.dumps(source)
    redaction._known.secrets = {}
    return pickle.loads(data)


def test_a_token_behind_a_file_is_used_and_is_in_no_checkpoint(files: Any) -> None:
    """Security, S9: the position names the file without what stands behind it."""
    files.pipe("/host/a.csv?token=qwertz12", b"id\n1\n2\n")
    source = pen.FileSource("memory://host/a.csv?token=qwertz12", "csv", "id BIGINT")
    reader = source.reader(place(), {})
    assert reader.poll(1).to_pylist() == [{"id": 1}]  # type: ignore[union-attr]
    stored = json.dumps(dict(reader.positions()))
    assert '"file": "a.csv"' in stored
    assert has_no_secret(stored + reader.describe() + repr(source))


def test_a_token_that_was_replaced_does_not_make_it_another_file(files: Any) -> None:
    """I22: rows that were read with the old token are not read again with the new one."""
    for token in ("old", "new"):
        files.pipe(f"/host/a.csv?token={token}", b"id\n1\n2\n")
    source = lambda token: pen.FileSource(f"memory://host/a.csv?token={token}", "csv", "id BIGINT")
    first = source("old").reader(place(), {})
    first.poll(1)
    second = source("new").reader(place(), first.positions())
    assert second.poll(10).to_pylist() == [{"id": 2}]  # type: ignore[union-attr]


BAD_FILES = {
    "csv": (b"id\nx\n", "line 2"),
    "json": (b"[1]\n", "line 1"),
    "parquet": (b"PAR1, not really", "cannot be read as Parquet"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_an_error_about_a_file_has_no_password(files: Any, kind: str) -> None:
    data, problem = BAD_FILES[kind]
    files.pipe(f"/me:hunter2@host/in/a.{kind}", data)
    source = forgetful(pen.FileSource(f"{USER}/in", kind, "id BIGINT"))
    with pytest.raises(PenstockError, match=problem) as caught:
        source.reader(place(), {}).poll(10)
    assert has_no_secret(whole(caught.value))
    assert "@host/in/a." in str(caught.value), "where it is stays readable"


def test_an_error_about_a_folder_has_no_password(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, empty, changed, or refused by the store in words of its own."""
    with pytest.raises(PenstockError, match="there is no such file or folder") as missing:
        forgetful(pen.FileSource(f"{USER}/in", "csv", "id BIGINT")).reader(place(), {})
    files.pipe("/me:hunter2@host/in/_hidden", b"x")
    with pytest.raises(PenstockError, match="there is no file in") as empty:
        _ = pen.FileSource(f"{USER}/in", "csv").schema
    files.pipe("/me:hunter2@host/in/a.csv", b"id\n1\n")
    reader = pen.FileSource(f"{USER}/in", "csv", "id BIGINT").reader(place(), {})
    files.pipe("/me:hunter2@host/in/a.csv", b"id\n1\n2\n")
    with pytest.raises(PenstockError, match="bytes now") as changed:
        reader.poll(10)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("403 for user me, password hunter2")

    monkeypatch.setattr(MemoryFileSystem, "find", refuse)
    with pytest.raises(PenstockError, match="403 for user me") as refused:
        forgetful(pen.FileSource(f"{USER}/in", "csv", "id BIGINT")).reader(place(), {})
    for caught in (missing, empty, changed, refused):
        assert has_no_secret(whole(caught.value))


def test_a_url_that_nobody_knows_is_refused_without_its_password() -> None:
    for connector in (
        pen.FileSource("xyz://me:hunter2@h/x", "csv", "id BIGINT"),
        pen.FileSink("xyz://me:hunter2@h"),
    ):
        with pytest.raises(ConfigError, match="Protocol not known: xyz") as caught:
            connector.check_access()
        assert has_no_secret(whole(caught.value) + repr(connector))


def test_a_sink_with_parameters_behind_its_folder_is_refused() -> None:
    """A file name would stand behind them."""
    with pytest.raises(ConfigError, match=r"out\?token=\*\*\* .*storage_options") as caught:
        pen.FileSink("memory://host/out?token=qwertz12")
    assert has_no_secret(str(caught.value))


def test_what_a_sink_stores_and_says_has_no_password() -> None:
    """Security, E2: the transaction goes into the checkpoint, the error to the user."""
    sink = pen.FileSink(f"{USER}/out", storage_options={"token": "qwertz12"})
    context = SinkContext("job", "out", 0, 1, 1, SCHEMA, lambda item: None)
    writer = sink.writer(context)
    writer.write(pa.record_batch({"id": [1]}, schema=SCHEMA))
    seal = writer.prepare(1)
    assert callable(seal)
    transaction = seal()
    assert isinstance(transaction, dict)
    assert has_no_secret(json.dumps(transaction) + repr(sink))
    redaction._known.secrets = {}
    with pytest.raises(PenstockError, match="a completed checkpoint promises") as caught:
        sink.committer(context).commit(transaction | {"bytes": 1})
    assert has_no_secret(whole(caught.value))


def test_a_failure_that_a_worker_reports_has_no_password() -> None:
    """Security: message, traceback and journal, whatever a library put into its error."""

    def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            raise OSError("cannot reach s3://me:hunter2@host/x?token=qwertz12")
        except OSError as error:
            raise RuntimeError("login with hunter2 failed at https://me:hunter2@host") from error

    redaction.remember("s3://me:hunter2@host")
    graph = pen.from_rows([(1,)], SCHEMA).map_batches(refuse).to(pen.BlackholeSink()).graph()
    spec = JobSpec("job", make_plan(graph, 1, 8), buffer_timeout_ms=0.0, open_store=MemoryStore)
    driver = ListDriver()
    worker = Worker(lambda: spec, driver, NoHost(), ManualClock(), HeldBackground())
    one = AttemptId(1)
    driver.inbox.extend([Deploy(one, SlotId(0), CheckpointId(0), ()), Start(one, {})])
    worker.step()
    (failed,) = [message for message in driver.sent if isinstance(message, Failed)]
    assert has_no_secret(repr(failed))
    assert "login with *** failed at https://***@host" in failed.message
    assert "cannot reach s3://***@host/x?token=***" in failed.traceback
