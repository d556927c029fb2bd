"""Passwords and tokens: what is hidden, what stays readable, and in which texts."""

from __future__ import annotations

import traceback

import pytest

import penstock as pen
from penstock import redaction
from penstock.api.pipeline import job_settings
from penstock.engine.history.history import History
from penstock.engine.history.records import ExceptionInfo
from penstock.engine.reading.stored import open_stored
from penstock.errors import ConfigError, PenstockError, StorageError
from penstock.plan.physical import make_plan
from penstock.redaction import errors_without_secrets, redacted, remember
from penstock.storage.filesystem import FilesystemStore, open_job


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins in a process that was given no secret."""
    monkeypatch.setattr(redaction, "_known", redaction._Known())


HIDDEN = {
    "s3://me:hunter2@bucket/in": "s3://***@bucket/in",
    "s3://AKIA:ab/cd+e=@bucket/in: denied": "s3://***@bucket/in: denied",
    "cannot open 's3://me:p@ss@host/x'": "cannot open 's3://***@host/x'",
    "https://host/a.csv?token=abc": "https://host/a.csv?token=***",
    "https://host/a.csv?X-Amz-Signature=ab.cd&v=1: gone": "https://host/a.csv?X-Amz-Signature=***&v=***: gone",
    "https://host/a#access_token=abc": "https://host/a#access_token=***",
    "simplecache::ftp://me:pw@host/x": "simplecache::ftp://***@host/x",
    "(ftp://a:b@c/x, ftp://d:e@f/y)": "(ftp://***@c/x, ftp://***@f/y)",
}
SHOWN = (
    "/data/in/part-0.csv",
    "s3://bucket/in/year=2024/part-?.csv",
    "http://host:9000/bucket/in",
    "abfs://container@account.dfs.core.windows.net/in",
    "at a?b=c and x@y: 3",
)


@pytest.mark.parametrize(("text", "shown"), HIDDEN.items())
def test_what_is_secret_in_a_url_is_hidden_wherever_it_stands(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert redacted(text) == text


def test_a_secret_that_was_given_is_hidden_without_its_url() -> None:
    """A library's error spells a password alone, unquoted, or in a path that lost its scheme."""
    remember("sftp://me:hunter%2F2@host/in?sig=qwertz12")
    text = "login of me with hunter/2 failed; me:hunter%2F2@host/in; signature qwertz12"
    assert redacted(text) == "login of me with *** failed; ***@host/in; signature ***"


def test_of_storage_options_only_those_are_hidden_everywhere_that_sound_secret() -> None:
    options = {"client_kwargs": {"aws_secret_access_key": "zzzzzz"}, "region": "us-east-1"}
    remember("s3://bucket", options)
    assert redacted("zzzzzz in us-east-1") == "*** in us-east-1"


def test_no_more_secrets_are_kept_than_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_KNOWN_MAX", 10)
    for number in range(100):
        remember(f"s3://me:password-{number}@bucket")
    assert len(redaction._known.secrets) == 10
    assert redacted("password-99") == "***"


def test_an_error_of_a_library_loses_its_secret_and_keeps_its_sense() -> None:
    remember("s3://me:hunter2@bucket")
    with pytest.raises(StorageError) as caught, errors_without_secrets("cannot list s3://bucket"):
        raise OSError("403 for me:hunter2@bucket")
    text = "".join(traceback.format_exception(caught.value))
    assert "cannot list s3://bucket: OSError: 403 for ***@bucket" in text
    assert "OSError: 403 for me" not in text, "the cause is not shown, either"


def test_an_error_without_a_secret_stays_what_it_is() -> None:
    with pytest.raises(TimeoutError), errors_without_secrets("cannot list"):
        raise TimeoutError("slow")


URL = "memory://me:hunter2@host/place"


def test_a_checkpoint_directory_is_shown_without_its_password() -> None:
    """Security: the settings, the store, what it says of itself, and its errors."""
    config = pen.CheckpointConfig(
        "s3://me:hunter2@host/place", storage_options={"token": "qwertz12"}
    )
    settings = job_settings(
        name="a", parallelism=1, checkpoint=config, restart=None, restore=f"{URL}/a/chk-1"
    )
    store = open_job(URL, "totals")
    shown = f"{config!r} {settings!r} {store!r} {store.root}"
    for secret in ("hunter2", "qwertz12"):
        assert secret not in shown
    assert "memory://***@host/place" in shown and "s3://***@host/place" in shown


@pytest.mark.parametrize(
    "path", [URL, f"{URL}/chk-1", f"{URL}?token=hunter2", "hdfs://me:hunter2@host"]
)
def test_an_error_about_a_stored_job_has_no_password(path: str) -> None:
    with pytest.raises(PenstockError) as caught:
        open_stored(path)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("restore", [f"{URL}/other", f"{URL}/chk-7?token=hunter2", f"{URL}/chk-7"])
def test_an_error_about_restore_has_no_password(restore: str) -> None:
    stream = pen.from_rows([(1,)], "a BIGINT").to(pen.BlackholeSink())
    for checkpoint in (None, pen.CheckpointConfig("memory:")):
        with pytest.raises(PenstockError) as caught:
            stream.start(name="a", checkpoint=checkpoint, restore=restore)
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_directory_with_parameters_is_refused_without_showing_them() -> None:
    with pytest.raises(ConfigError, match=r"place\?token=\*\*\*: .* storage_options"):
        FilesystemStore("memory://host/place?token=hunter2")


def test_what_a_job_keeps_of_its_failures_has_no_password() -> None:
    """Security: whoever reported it."""
    graph = pen.from_rows([(1,)], "a BIGINT").to(pen.BlackholeSink()).graph()
    history = History(make_plan(graph, 1, 8))
    history.failed(ExceptionInfo(0.0, 1, "OSError", f"lost {URL}", traceback=f"at {URL}"))
    assert "hunter2" not in f"{history.exceptions[0].message} {history.exceptions[0].traceback}"
