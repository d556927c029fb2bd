"""The checkpoint manifest: read for ever, and never read wrongly."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CheckpointCorrupt, InvariantBroken
from penstock.protocol.ids import AttemptId, CheckpointId, SubtaskId
from penstock.protocol.snapshot import Block, OperatorSnapshot, Segment, SubtaskSnapshot
from penstock.wire import document, manifest, records
from penstock.wire.manifest import Manifest
from tests.wire.examples import IN_FILE, INLINE, MANIFEST, UNALIGNED

NAME = "chk-7/_metadata"
GOLDEN = Path(__file__).parent / "golden"


def test_a_manifest_is_read_as_it_was_written() -> None:
    """T2: the file in `golden` changes when the format does, and only on purpose."""
    assert manifest.decode((GOLDEN / "manifest-1.json").read_bytes(), NAME) == UNALIGNED


def test_a_manifest_is_written_the_same_way_every_time() -> None:
    """One spelling: sorted keys, whatever order things were put in."""
    assert manifest.encode(UNALIGNED) == (GOLDEN / "manifest-1.json").read_bytes()
    shuffled = dataclasses.replace(MANIFEST, snapshots=tuple(map(upside_down, MANIFEST.snapshots)))
    assert manifest.encode(shuffled) == manifest.encode(MANIFEST)


def upside_down(snapshot: SubtaskSnapshot) -> SubtaskSnapshot:
    """The same snapshot with its operators and lanes put in the other way round."""
    operators = {
        name: dataclasses.replace(operator, lanes=dict(reversed(operator.lanes.items())))
        for name, operator in reversed(snapshot.operators.items())
    }
    return dataclasses.replace(snapshot, operators=operators)


def test_a_manifest_is_json_that_anyone_can_open() -> None:
    """S9: data, never code."""
    opened = json.loads(manifest.encode(MANIFEST))
    assert opened["format"] == "penstock-checkpoint"
    assert opened["version"] == 1
    assert opened["body"]["snapshots"][0]["operators"]["orders"]["lanes"][0] == [0, {"at": 41}]


def test_every_single_byte_change_is_found() -> None:
    """I24: each byte in turn is changed in three ways."""
    data = manifest.encode(MANIFEST)
    for at in range(len(data)):
        for change in (1, 0x20, 0x80):
            broken = bytearray(data)
            broken[at] ^= change
            with pytest.raises(CheckpointCorrupt, match="chk-7/_metadata"):
                manifest.decode(bytes(broken), NAME)


def test_every_truncation_and_any_addition_is_found() -> None:
    """I24, bug-H6: cut anywhere, empty, zero-filled, or with bytes behind it."""
    data = manifest.encode(MANIFEST)
    for broken in (*(data[:n] for n in range(len(data))), data + b"\n", data + data, b"\0" * 99):
        with pytest.raises(CheckpointCorrupt, match="chk-7/_metadata"):
            manifest.decode(broken, NAME)


def test_a_manifest_under_another_checkpoints_name_is_found() -> None:
    """I24: swapped files."""
    with pytest.raises(CheckpointCorrupt, match="holds checkpoint 7: files were swapped"):
        manifest.decode(manifest.encode(MANIFEST), "chk-8/_metadata")


def test_another_document_is_not_taken_for_a_manifest() -> None:
    other = records.encode_job(records.JobRecord("totals"))
    with pytest.raises(CheckpointCorrupt, match="this is a penstock-job"):
        manifest.decode(other, NAME)


def test_a_manifest_of_a_later_version_says_what_to_do() -> None:
    later = document.write(MANIFEST, "penstock-checkpoint", 2)
    with pytest.raises(CheckpointCorrupt, match=r"version 2; this Penstock reads up to 1.*newer"):
        manifest.decode(later, NAME)


def test_the_files_of_a_checkpoint_are_known_by_name() -> None:
    """T4: what retention counts."""
    assert MANIFEST.files == ("chk-7/0-3", "shared/5-0-3-state")
    assert MANIFEST.bytes_total == 640 + 512 + 3 + 9


# ---- a body that is well-formed JSON with a right digest, and still wrong


def rewritten(change: Callable[[Any], None]) -> bytes:
    """The example with its JSON changed and the digest made to fit again: a forger's file."""
    body = json.loads(manifest.encode(MANIFEST))["body"]
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    digest = document._digest("penstock-checkpoint", 1, text)
    tail = f',"digest":"{digest}","format":"penstock-checkpoint","version":1}}\n'
    return b'{"body":' + text + tail.encode()


def set_at(*way: Any, to: Any) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        for step in way[:-1]:
            body = body[step]
        body[way[-1]] = to

    return change


SEGMENT = ("snapshots", 1, "operators", "totals", "segments")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_at("checkpoint", to="7"), "checkpoint: expected an integer, got str"),
        (set_at("checkpoint", to=True), "checkpoint: expected an integer, got bool"),
        (set_at("checkpoint", to=2**70), "checkpoint: an integer of more than 64 bits"),
        (set_at("checkpoint", to=0), "checkpoint: 0; ids begin at 1"),
        (set_at("attempt", to=-1), "must not be negative"),
        (set_at("kind", to="evil"), "kind: 'evil' is not a SnapshotKind"),
        (set_at("job", to="../x"), "'../x' is not a job id"),
        (set_at("extra", to=1), "unknown field 'extra'"),
        (lambda body: body.pop("job"), "the field 'job' is missing"),
        (set_at("parallelism", to=0), "parallelism: 0 is not in 1..128"),
        (set_at("parallelism", to=129), "parallelism: 129 is not in 1..128"),
        (set_at("max_parallelism", to=2**40), "max_parallelism: 1099511627776"),
        (set_at("trigger_ms", to="now"), "trigger_ms: expected a number, got str"),
        (set_at("version", to=3), "version: 3 in a file of version 1"),
        (set_at("operators", to={}), "operators: expected list, got dict"),
        (set_at("operators", 0, "name", to="other"), "orders: not in the list of operators"),
        (set_at("operators", 0, "name", to="out"), "operators: the same name twice"),
        (set_at("snapshots", 0, "subtask", "index", to=2), "there is no subtask 0.2"),
        (set_at("snapshots", 0, "subtask", to={"task": 1, "index": 1}), "subtask 1.1 twice"),
        (
            set_at("snapshots", 0, "operators", "orders", "lanes", 0, 0, to=128),
            "there is no lane 128",
        ),
        (
            set_at("snapshots", 0, "operators", "orders", "lanes", 1, 0, to=0),
            "lanes: the same key twice",
        ),
        (set_at(*SEGMENT, 0, "file", to="../../etc/passwd"), "is not the name of a state file"),
        (set_at(*SEGMENT, 0, "file", to="chk-7/_metadata"), "is not the name of a state file"),
        (set_at(*SEGMENT, 0, "file", to=""), "in a file or inline"),
        (set_at(*SEGMENT, 1, "file", to="shared/a"), "in a file or inline"),
        (set_at(*SEGMENT, 1, "inline", to="?"), "expected bytes as base64 text"),
        (set_at(*SEGMENT, 1, "inline", to=7), "expected bytes as base64 text"),
        (set_at(*SEGMENT, 1, "inline", to="AA=="), "ends behind its 1 inline bytes"),
        (set_at(*SEGMENT, 0, "blocks", 0, "offset", to=-1), "must not be negative"),
        (set_at(*SEGMENT, 0, "blocks", 0, "last_group", to=128), "key groups 0..128 of 128"),
        (set_at(*SEGMENT, 0, "blocks", 0, "first_group", to=32), "key groups 32..31"),
        (set_at(*SEGMENT, 0, "blocks", 0, "checksum", to=""), "no checksum"),
    ],
)
def test_every_field_is_checked_and_the_error_says_where(
    change: Callable[[Any], None], message: str
) -> None:
    """I24, T5: what comes from storage is not trusted, even with a digest that fits."""
    with pytest.raises(CheckpointCorrupt) as caught:
        manifest.decode(rewritten(change), NAME)
    assert message in str(caught.value)
    assert str(caught.value).startswith(NAME)


def test_the_forged_example_without_a_change_is_read() -> None:
    """So that the test above fails for its own reasons only."""
    assert manifest.decode(rewritten(lambda body: None), NAME) == MANIFEST


def test_a_deeply_nested_body_is_refused() -> None:
    nested: Any = 1
    for _ in range(200):
        nested = [nested]
    with pytest.raises(CheckpointCorrupt, match="nested deeper than 32 levels"):
        manifest.decode(
            rewritten(set_at("snapshots", 1, "operators", "out", "transactions", to=[nested])), NAME
        )
    text = b"[" * 200_000
    tail = f',"digest":"{document._digest("penstock-checkpoint", 1, text)}"'.encode()
    with pytest.raises(CheckpointCorrupt, match="is not JSON"):
        manifest.decode(
            b'{"body":' + text + tail + b',"format":"penstock-checkpoint","version":1}\n', NAME
        )


def test_a_huge_file_is_refused_before_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "DOCUMENT_BYTES_MAX", 100)
    with pytest.raises(CheckpointCorrupt, match="bytes are too many"):
        manifest.decode(b"x" * 2000, NAME)
    with pytest.raises(InvariantBroken, match="the limit is 100"):
        manifest.encode(MANIFEST)


def with_segment(segment: Segment) -> Manifest:
    operators = {"totals": OperatorSnapshot(segments=(segment,))}
    return dataclasses.replace(MANIFEST, snapshots=(SubtaskSnapshot(SubtaskId(1, 0), operators),))


@pytest.mark.parametrize(
    "wrong",
    [
        dataclasses.replace(MANIFEST, checkpoint=CheckpointId(0)),
        dataclasses.replace(MANIFEST, job="a/b"),
        dataclasses.replace(MANIFEST, trigger_ms=float("nan")),
        dataclasses.replace(MANIFEST, snapshots=MANIFEST.snapshots * 2),
        with_segment(dataclasses.replace(IN_FILE, file="/tmp/x")),
        with_segment(dataclasses.replace(INLINE, inline=None)),
        with_segment(dataclasses.replace(INLINE, blocks=(Block(0, 0, 1, 0, 5, "c"),))),
    ],
)
def test_what_could_not_be_read_back_is_not_written(wrong: Manifest) -> None:
    """I5: a completed checkpoint can be restored."""
    with pytest.raises(InvariantBroken, match="cannot be"):
        manifest.encode(wrong)


def test_the_small_records_are_read_for_ever_and_checked_like_manifests() -> None:
    """I18, I24: who claimed the job, what they restored, who reads."""
    job = records.JobRecord("my totals", 1.5)
    owner = records.OwnerRecord(AttemptId(4), "host:123", 2.5)
    first, origin, kept = CheckpointId(7), CheckpointId(9), (CheckpointId(3), CheckpointId(7))
    restored = records.RestoredRecord(
        AttemptId(4), first, CheckpointId(107), first, "/other/job", origin, kept
    )
    golden = {path.name: path.read_bytes() for path in GOLDEN.iterdir()}
    assert records.decode_job(golden["job-1.json"], "job.json") == job
    assert records.decode_owner(golden["owner-1.json"], "owner/0000000004") == owner
    assert records.decode_restored(golden["restored-1.json"], "r") == restored
    assert records.encode_restored(restored) == golden["restored-1.json"]
    assert records.encode_job(job) == golden["job-1.json"]
    assert records.encode_owner(owner) == golden["owner-1.json"]
    lease = records.LeaseRecord(
        CheckpointId(7), 1_700_000_600_000.5, "host/123", ("shared/5-0-3-state",)
    )
    assert records.decode_lease(golden["lease-1.json"], "l") == lease
    assert records.encode_lease(lease) == golden["lease-1.json"]
    for at in range(len(golden["owner-1.json"])):
        broken = bytearray(golden["owner-1.json"])
        broken[at] ^= 1
        with pytest.raises(CheckpointCorrupt, match="owner/0000000004"):
            records.decode_owner(bytes(broken), "owner/0000000004")


def test_records_with_negative_numbers_are_refused() -> None:
    owner = records.encode_owner(records.OwnerRecord(AttemptId(-1), "host"))
    with pytest.raises(CheckpointCorrupt, match="attempt is -1"):
        records.decode_owner(owner, "o")
    restored = records.encode_restored(records.RestoredRecord(AttemptId(1), CheckpointId(-2)))
    with pytest.raises(CheckpointCorrupt, match="checkpoint is -2"):
        records.decode_restored(restored, "r")
    kept = records.RestoredRecord(AttemptId(1), CheckpointId(2), kept=(CheckpointId(-1),))
    with pytest.raises(CheckpointCorrupt, match="kept is -1"):
        records.decode_restored(records.encode_restored(kept), "r")
