"""Storage names: one spelling each, read back strictly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CheckpointCorrupt, ConfigError, InvariantBroken
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.retention import Role, SharedFile
from penstock.storage.memory import MemoryStore
from penstock.wire import paths
from penstock.wire.paths import WorkerFile

NUMBERS = st.integers(min_value=1, max_value=10**9)
FILE = paths.WorkerFile(CheckpointId(7), SlotId(0), AttemptId(2))


def test_names_are_as_the_layout_says() -> None:
    """T2: the layout of a job's folder."""
    assert paths.metadata(CheckpointId(12)) == "chk-12/_metadata"
    assert paths.worker_file(CheckpointId(12), SlotId(0), AttemptId(3)) == "chk-12/0-3"
    assert paths.owner(AttemptId(3)) == "owner/0000000003"
    assert paths.restored(AttemptId(3)) == "owner/0000000003-restored"
    assert paths.history(AttemptId(3), 12) == "history/0000000003-0000000012"
    assert paths.is_history("history/0000000003-0000000012")
    assert not paths.is_history("history/0000000003-12")
    assert paths.is_known("history/0000000003-0000000012")
    assert paths.lease(CheckpointId(12), "5f2c" * 8) == f"chk-12/lease-{'5f2c' * 8}"
    assert paths.shared_file(replace(FILE, part="state")) == "shared/7-0-2-state"
    assert paths.taskowned("staged/0-1.parquet") == "taskowned/staged/0-1.parquet"
    assert paths.job_directory("chk/", "totals") == paths.job_directory("chk", "totals")
    assert paths.job_directory("s3://bucket/x", "totals") == "s3://bucket/x/totals"


@given(NUMBERS, NUMBERS, NUMBERS)
def test_every_name_is_read_back(checkpoint: int, slot: int, attempt: int) -> None:
    c, s, a = CheckpointId(checkpoint), SlotId(slot), AttemptId(attempt)
    assert paths.metadata_of(paths.metadata(c)) == c
    assert paths.checkpoint_of(paths.metadata(c)) == c
    assert paths.checkpoint_of(paths.worker_file(c, s, a)) == c
    assert paths.worker_file_of(paths.worker_file(c, s, a)) == WorkerFile(c, s, a)
    assert paths.lease_of(paths.lease(c, f"{slot:032x}")) == c
    assert paths.owner_of(paths.owner(a)) == a
    assert paths.restored_of(paths.restored(a)) == a


@given(st.lists(NUMBERS, unique=True))
def test_owner_names_sort_like_attempts(attempts: list[int]) -> None:
    names = [paths.owner(AttemptId(attempt)) for attempt in sorted(attempts)]
    assert sorted(names) == names


STRANGE = [
    "", "chk-", "chk-0/_metadata", "chk-01/_metadata", "chk-1/_metadata/", "chk-1/_metadata\n",
    "chk--1/_metadata", "chk-1", "chk-1/", "x/chk-1/_metadata", "chk-1/../chk-2/_metadata",
    "chk-1/0-01", "chk-1/00-1", "chk-1/0", "chk-1/0-1-2", "chk-1/-1-2", "chk-\u0661/_metadata",
    "chk-1/_Metadata", "chk-99999999999999999999999/_metadata", "owner/3", "owner/00000000003",
    "owner/000000000a", "owner/0000000003-", "owner/0000000003-restored2", "owner/0000000003/x",
    "chk-1/lease-", "chk-1/lease-5f2c", f"chk-01/lease-{'0' * 32}", f"chk-1/lease-{'G' * 32}", "lease-1",
    "shared/", "shared/../x", "shared/a/b", "shared/.hidden",
    "shared/a", "shared/1-0-1", "shared/01-0-1-a", "taskowned/../x", "job.json2",
]  # fmt: skip


LEASE = f"chk-1/lease-{'0' * 32}"


@pytest.mark.parametrize("name", STRANGE)
def test_a_name_that_is_not_exactly_ours_means_nothing(name: str) -> None:
    """Clean-up deletes only what it knows; parsers answer None and never raise."""
    readers = (
        paths.checkpoint_of, paths.metadata_of, paths.worker_file_of, paths.owner_of,
        paths.restored_of, paths.shared_of, paths.lease_of,
    )  # fmt: skip
    assert [reader(name) for reader in readers] == [None] * len(readers)
    assert not paths.is_known(name)


@given(st.text())
def test_no_text_makes_a_parser_raise(name: str) -> None:
    for reader in (paths.checkpoint_of, paths.owner_of, paths.restored_of, paths.shared_of):
        reader(name)


def test_known_names_are_known() -> None:
    for name in (
        "job.json", "chk-1/_metadata", "chk-1/0-1", "owner/0000000001", "shared/1-0-1-a",
        "owner/0000000001-restored", "taskowned/a/b", f"chk-1/lease-{'0f' * 16}",
    ):  # fmt: skip
        assert paths.is_known(name)


@pytest.mark.parametrize("name", ["chk-3/0-1", "shared/3-0-1-000012.sst"])
def test_a_state_file_of_a_manifest_is_accepted(name: str) -> None:
    assert paths.segment_file(name) == name


@pytest.mark.parametrize(
    "name", [*STRANGE, "job.json", "chk-1/_metadata", "owner/0000000001", LEASE]
)
def test_any_other_name_in_a_manifest_means_that_it_is_damaged(name: str) -> None:
    """I24, security: a path out of a metadata file is validated before it is used."""
    with pytest.raises(CheckpointCorrupt, match="is not the name of a state file"):
        paths.segment_file(name)


def test_numbers_that_cannot_be_are_refused() -> None:
    for make in (
        lambda: paths.metadata(CheckpointId(0)),
        lambda: paths.worker_file(CheckpointId(1), SlotId(-1), AttemptId(0)),
        lambda: paths.owner(AttemptId(-1)),
        lambda: paths.owner(AttemptId(10**10)),
        lambda: paths.lease(CheckpointId(1), "../../x"),
        lambda: paths.lease(CheckpointId(0), "0" * 32),
        lambda: paths.shared_file(replace(FILE, part="../x")),
        lambda: paths.shared_file(replace(FILE, part="a/b")),
        lambda: paths.shared_file(FILE),
        lambda: paths.taskowned("a//b"),
    ):
        with pytest.raises(InvariantBroken):
            make()


# ---- job ids


@pytest.mark.parametrize("name", ["totals", "Totals_2", "a.b-c", "x" * 100])
def test_a_safe_name_is_its_own_id(name: str) -> None:
    assert paths.job_id(name) == name


def test_an_unsafe_name_stays_readable_and_gets_a_hash() -> None:
    assert paths.job_id("my totals").startswith("my_totals-")
    assert paths.job_id("..").startswith("_.-")
    assert paths.job_id("../../etc").startswith("_._.._etc-")


@given(st.text(min_size=1).filter(str.strip))
def test_every_name_makes_a_safe_id(name: str) -> None:
    job = paths.job_id(name)
    assert paths.is_job_id(job)
    assert len(job) <= 100
    assert not job.startswith(".")
    MemoryStore().write(f"{job}/x", [b""])


def test_different_names_have_different_ids() -> None:
    """bug-E15: two jobs never share a folder by accident, not even by naming one like another's id."""
    names = [
        "a b",
        "a/b",
        "a_b",
        "a\tb",
        "a b ",
        ".a",
        "_a",
        "x" * 101,
        "x" * 102,
        "\u00e4",
        "\u00f6",
    ]
    names += [paths.job_id(name) for name in names if paths.job_id(name) != name]
    assert len({paths.job_id(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["", "   ", "\n", None, 7])
def test_a_job_without_a_name_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="a job needs a name"):
        paths.job_id(name)  # type: ignore[arg-type]


def test_what_is_written_ahead_is_told_by_its_name() -> None:
    """S7: retention knows nothing else of it."""
    place = WorkerFile(CheckpointId(3), SlotId(1), AttemptId(2), paths.ahead_part(Role.BASE, 4, 17))
    name = paths.shared_file(place)
    assert name == "shared/3-1-2-base-4-17"
    expected = SharedFile(CheckpointId(3), AttemptId(2), name, Role.BASE, "1-4", 17)
    assert paths.shared_among([name, "shared/3-1-2-log-4"]) == {
        expected,
        SharedFile(CheckpointId(3), AttemptId(2), "shared/3-1-2-log-4"),
    }
