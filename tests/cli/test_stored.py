"""What the commands say about checkpoints in storage: whole ones, damaged ones, and paths that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

import penstock as pen
from penstock.cli.app import app
from penstock.cli.past import show_past
from penstock.engine.history.files import HistoryFiles
from penstock.engine.history.records import Totals
from penstock.engine.worker.segment_files import SegmentFiles
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId, SubtaskId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.snapshot import InFlight, OperatorSnapshot, SubtaskSnapshot
from penstock.state.segments import GROUP_FIELD
from penstock.storage.filesystem import FilesystemStore, open_job
from penstock.wire import manifest as manifests
from penstock.wire.manifest import Manifest, ManifestOperator
from penstock.wire.paths import WorkerFile
from penstock.wire.tombstones import tombstone

SCHEMA = pa.schema([GROUP_FIELD, pa.field("k", pa.int64())])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A job's folder with the checkpoints 3 and 7, and a checkpoint 5 that was given up."""
    store = open_job(str(tmp_path), "totals", created_ms=1.0)
    for checkpoint in (3, 7):
        store_checkpoint(store, checkpoint)
    store.create("chk-5/_metadata", tombstone(CheckpointId(5)))
    return tmp_path / "totals"


def store_checkpoint(store: FilesystemStore, checkpoint: int, flying: bool = True) -> None:
    groups = pa.array([0, 0, 1], pa.uint16())
    batch = pa.RecordBatch.from_arrays([groups, pa.array([1, 2, 3])], schema=SCHEMA)
    place = WorkerFile(CheckpointId(checkpoint), SlotId(0), AttemptId(1))
    large, small = SegmentFiles(store, place, 0), SegmentFiles(store, place, 1 << 20)
    segments = (large.put("agg", SCHEMA, [batch]), small.put("small", SCHEMA, [batch]))
    large.finish()
    moving = small.put_rows([pa.RecordBatch.from_pydict({"k": [1, 2]})])
    manifest = Manifest(
        job="totals",
        checkpoint=CheckpointId(checkpoint),
        attempt=AttemptId(1),
        kind=SnapshotKind.CHECKPOINT,
        trigger_ms=1_700_000_000_000.0,
        completed_ms=1_700_000_000_040.0,
        parallelism=1,
        max_parallelism=2,
        operators=(
            ManifestOperator("numbers", "generator"),
            ManifestOperator("totals", "agg", 1),
            ManifestOperator("out", "files", 1, "sink"),
        ),
        snapshots=(
            SubtaskSnapshot(SubtaskId(0, 0), {"numbers": OperatorSnapshot(lanes={0: 5, 1: 6})}),
            SubtaskSnapshot(
                SubtaskId(1, 0),
                {"totals": OperatorSnapshot(segments), "out": OperatorSnapshot(transactions=(1,))},
                inflight=(InFlight("totals", 0, 0, moving),) if flying else (),
            ),
        ),
    )
    store.create(f"chk-{checkpoint}/_metadata", manifests.encode(manifest))


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def call_json(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def flip_a_bit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_completed_checkpoints_are_listed_newest_first(root: Path) -> None:
    """C6: id, kind, time, size and operators, without those that were given up."""
    found = call_json("checkpoints", str(root))
    assert [each["id"] for each in found["checkpoints"]] == [7, 3]
    newest = found["checkpoints"][0]
    assert newest["kind"] == "checkpoint"
    assert newest["completed"] == "2023-11-14T22:13:20.040+00:00"
    assert newest["duration_ms"] == 40.0
    assert newest["operators"] == ["numbers", "totals", "out"]
    assert newest["bytes"] > 0
    assert newest["path"] == str(root / "chk-7")
    assert "11-14 22:13:20" in call("checkpoints", str(root))


def test_the_history_is_told_with_what_failed_and_why(root: Path) -> None:
    """C6: read from the job's folder, whether or not the job runs."""
    files = HistoryFiles(FilesystemStore(str(root)))
    subtask = pen.SubtaskInfo(("totals",), 0, 1.0, 2.0, 3.0, 100, 50)
    infos = [
        pen.CheckpointInfo(
            7, "checkpoint", "completed", 1e12, 40.0, 100, 100, 50, subtasks=(subtask,)
        ),
        pen.CheckpointInfo(
            8,
            "checkpoint",
            "aborted",
            1e12,
            9.0,
            failure="a subtask declined it: [disk full]",
            mode="expedited",
            subtasks=(subtask,),
            owed=2,
            owing=("totals", "out"),
        ),
    ]
    files.add(AttemptId(1), infos, Totals(5, 1, 2, f"{root}/chk-3"))
    found = call_json("checkpoints", str(root))
    assert [(each["id"], each["status"]) for each in found["history"]] == [
        (8, "aborted"),
        (7, "completed"),
        (3, "completed"),
    ]
    assert found["history"][1]["subtasks"][0]["alignment_ms"] == 1.0
    assert (found["summary"]["completed"], found["summary"]["restored"]) == (5, 2)
    assert found["summary"]["duration_ms"]["p99"] == 40.0
    text = call("checkpoints", str(root))
    assert "[disk full]" in text.replace("\n", " ") or "[disk" in text
    assert found["history"][0]["mode"] == "expedited"
    assert (found["history"][0]["acknowledged"], found["history"][0]["owed"]) == (1, 2)
    assert "5 completed, 1 were given up, went on from a checkpoint 2 times" in text


def test_who_kept_a_failed_checkpoint_waiting_is_told(tmp_path: Path) -> None:
    """C6: where the table is wide enough to show it."""
    files = HistoryFiles(open_job(str(tmp_path), "totals"))
    late = pen.CheckpointInfo(
        1, "checkpoint", "aborted", 1e12, 9.0, failure="late", owed=2, owing=("totals", "out")
    )
    files.add(AttemptId(1), [late], Totals(0, 1))
    found = call_json("checkpoints", str(tmp_path / "totals"))
    console = Console(record=True, width=200)
    show_past(found, console)
    assert "late; 0 of 2 acknowledged, owed by totals, out" in console.export_text()


def test_checkpoints_that_no_driver_wrote_down_are_in_the_history(root: Path) -> None:
    """C6: their driver was killed within the second; they are counted, and so are those before them."""
    found = call_json("checkpoints", str(root))
    assert [(each["id"], each["mode"]) for each in found["history"]] == [
        (7, "unaligned"),
        (3, "unaligned"),
    ]
    assert found["summary"]["completed"] == 2
    written = pen.CheckpointInfo(3, "checkpoint", "completed", 1e12, 40.0, mode="expedited")
    HistoryFiles(FilesystemStore(str(root))).add(AttemptId(1), [written], Totals(40))
    found = call_json("checkpoints", str(root))
    assert [(each["id"], each["mode"]) for each in found["history"]] == [
        (7, "unaligned"),
        (3, "expedited"),
    ]
    assert found["summary"]["completed"] == 41
    assert found["history"][0]["path"] == str(root / "chk-7")


def test_a_checkpoint_whose_page_of_the_history_is_gone_is_not_counted_twice(root: Path) -> None:
    """C6: it is older than all that is left, so it was counted when it completed."""
    newer = pen.CheckpointInfo(9, "checkpoint", "aborted", 1e12, 9.0, failure="timeout")
    HistoryFiles(FilesystemStore(str(root))).add(AttemptId(1), [newer], Totals(40, 1))
    found = call_json("checkpoints", str(root))
    assert [each["id"] for each in found["history"]] == [9, 7, 3]
    assert found["summary"]["completed"] == 40


def test_a_job_none_of_whose_checkpoints_completed_has_a_history(tmp_path: Path) -> None:
    """C6."""
    files = HistoryFiles(open_job(str(tmp_path), "totals"))
    failed = pen.CheckpointInfo(1, "checkpoint", "aborted", 1e12, 9.0, failure="timeout")
    files.add(AttemptId(1), [failed], Totals(0, 1))
    found = call_json("checkpoints", str(tmp_path / "totals"))
    assert (found["checkpoints"], found["history"][0]["failure"]) == ([], "timeout")
    assert found["summary"]["duration_ms"] is None
    assert "timeout" in call("checkpoints", str(tmp_path / "totals"))


def test_one_checkpoint_is_shown_by_its_parts(root: Path) -> None:
    found = call_json("inspect", str(root / "chk-3"))
    assert (found["id"], found["job"], found["files"]) == (3, "totals", ["chk-3/0-1"])
    numbers, totals, out = found["parts"]
    assert (out["operator"], out["transactions"]) == ("out", 1)
    assert (numbers["operator"], numbers["source_lanes"]) == ("numbers", 2)
    assert [each["state"] for each in totals["segments"]] == ["agg", "small"]
    assert (totals["rows"], totals["segments"][0]["blocks"]) == (6, 1)
    assert "checkpoint 3 of job totals" in call("inspect", f"{root}/chk-3/")


def test_rows_in_flight_are_shown_at_the_operator_they_were_going_to(root: Path) -> None:
    """B7: and what is shown adds up to the whole."""
    found = call_json("inspect", str(root / "chk-3"))
    numbers, totals, out = found["parts"]
    assert (numbers["inflight_rows"], numbers["inflight_bytes"]) == (0, 0)
    assert (out["inflight_rows"], out["inflight_bytes"]) == (0, 0), (
        "it is not the first of its chain"
    )
    assert totals["inflight_rows"] == 2 and totals["inflight_bytes"] > 0
    assert (found["rows_total"], found["inflight_rows_total"]) == (6, 2)
    assert found["inflight_bytes_total"] == totals["inflight_bytes"]
    assert found["bytes_total"] + found["inflight_bytes_total"] == found["bytes"]
    shown = call("inspect", str(root / "chk-3"))
    assert f"of state and 2 rows in flight ({totals['inflight_bytes']} bytes)" in shown


def test_a_checkpoint_without_rows_in_flight_says_nothing_about_them(tmp_path: Path) -> None:
    store = open_job(str(tmp_path), "totals", created_ms=1.0)
    store_checkpoint(store, 3, flying=False)
    found = call_json("inspect", str(tmp_path / "totals"))
    assert found["bytes_total"] == found["bytes"]
    assert "in flight" not in call("inspect", str(tmp_path / "totals"))


def test_of_a_job_the_newest_checkpoint_is_shown(root: Path) -> None:
    assert call_json("inspect", str(root))["id"] == 7


def test_whole_checkpoints_verify(root: Path) -> None:
    """I24: states and rows in flight."""
    result = call_json("verify", str(root))
    assert (result["checkpoints"], result["blocks"], result["problems"]) == (2, 6, [])


def test_a_flipped_bit_in_a_state_file_is_found_and_the_file_named(root: Path) -> None:
    """T5, bug-H6: every block is read and its checksum compared."""
    path = root / "chk-7/0-1"
    flip_a_bit(path, path.stat().st_size - 30)
    result = call_json("verify", str(root), code=1)
    assert [each["file"] for each in result["problems"]] == ["chk-7/0-1"]
    assert "checksum" in result["problems"][0]["reason"]
    assert call_json("verify", str(root / "chk-3"))["problems"] == []
    assert "damaged chk-7/0-1" in call("verify", str(root), code=1)


@pytest.mark.parametrize("damage", ["empty", "gone"])
def test_a_state_file_that_is_cut_or_gone_is_found(root: Path, damage: str) -> None:
    """T5, bug-H6"""
    path = root / "chk-3/0-1"
    path.write_bytes(b"") if damage == "empty" else path.unlink()
    result = call_json("verify", str(root), code=1)
    assert [each["file"] for each in result["problems"]] == ["chk-3/0-1"]


def test_a_damaged_manifest_is_found_and_does_not_hide_the_others(root: Path) -> None:
    """T5"""
    flip_a_bit(root / "chk-7/_metadata", 200)
    result = call_json("verify", str(root), code=1)
    assert [each["file"] for each in result["problems"]] == ["chk-7/_metadata"]
    listed = call_json("checkpoints", str(root))
    assert [each["id"] for each in listed["checkpoints"]] == [3]
    assert [each["file"] for each in listed["damaged"]] == ["chk-7/_metadata"]
    assert "CheckpointCorrupt" in call("inspect", str(root / "chk-7"), code=1)


@pytest.mark.parametrize("command", ["checkpoints", "inspect", "verify"])
def test_a_folder_that_is_no_job_gets_a_hint(command: str, root: Path, tmp_path: Path) -> None:
    assert f"name a job in it: {root}" in call(command, str(root.parent), code=1)
    nowhere = tmp_path / "nowhere"
    assert "is not the folder of a Penstock job" in call(command, str(nowhere), code=1)
    assert not nowhere.exists(), "looking must not make anything"
    assert "no completed checkpoint" in call(command, str(root / "chk-4"), code=1)


def test_a_newest_checkpoint_that_cannot_be_read_is_not_passed_over_in_silence(root: Path) -> None:
    """T5: an older one is shown, and it is said that it is one."""
    flip_a_bit(root / "chk-7/_metadata", 200)
    found = call_json("inspect", str(root))
    assert found["id"] == 3
    assert [each["id"] for each in found["damaged"]] == [7]
    shown = call("inspect", str(root))
    assert "damaged chk-7/_metadata" in shown
    assert "not the newest checkpoint: 1 newer cannot be read. Shown is 3" in shown
    assert call_json("inspect", str(root / "chk-3"))["damaged"] == []


def test_an_older_damaged_checkpoint_does_not_make_the_newest_an_old_one(root: Path) -> None:
    flip_a_bit(root / "chk-3/_metadata", 200)
    assert call_json("inspect", str(root))["damaged"] == []
    assert "not the newest" not in call("inspect", str(root))


# ---- errors for programs


@pytest.mark.parametrize("command", ["checkpoints", "inspect", "verify"])
def test_an_error_is_a_json_object_where_json_was_asked_for(command: str, root: Path) -> None:
    told = call_json(command, str(root / "chk-4"), code=1)
    assert told["kind"] == "ConfigError"
    assert "no completed checkpoint" in told["error"]


def test_wrong_use_is_a_json_object_too_where_json_was_asked_for() -> None:
    told = call_json("inspect", code=2)
    assert "PATH" in told["error"]
    told = call_json("inspekt", code=2)
    assert "inspekt" in told["error"]
    assert '"error"' not in call("inspect", code=2)


def test_an_error_nobody_thought_of_is_a_json_object_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str) -> dict[str, Any]:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("penstock.cli.stored.list_checkpoints", broken)
    told = call_json("checkpoints", str(root), code=1)
    assert told["error"] == "ZeroDivisionError: of ours"
    assert "Traceback" in call("checkpoints", str(root), code=1)


@pytest.mark.parametrize("command", ["checkpoints", "inspect", "state", "verify"])
def test_checkpoints_in_a_drivers_memory_are_nothing_to_read(command: str) -> None:
    """T1: says so, instead of looking for a folder of that name."""
    result = CliRunner().invoke(app, [command, "memory:"])
    assert result.exit_code == 1
    assert "in the memory of the driver that runs the job" in result.output.replace("\n", " ")
