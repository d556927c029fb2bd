"""`penstock state`: rows of a checkpoint's state for people and for programs, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import FrozenOperator
from penstock.engine.worker.inputs import ChannelRows
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.state import aggregates as agg
from penstock.storage.local import LocalStore
from penstock.wire import paths
from tests.engine.reading_kit import checkpoint, fed, numbered

SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("ratio", pa.float64()),
    ]
)
NEWEST = {
    "price": agg.sum("price"),
    "day": agg.last("day"),
    "at": agg.last("at"),
    "raw": agg.last("raw"),
    "ratio": agg.last("ratio"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A job's folder with checkpoint 7: a source, an aggregate by user, and rows in flight to it."""
    store = LocalStore(str(tmp_path / "job"))
    rows = [
        {
            "user": f"user-{i % 30}",
            "price": Decimal(i).scaleb(-2),
            "day": date(2024, 1, 1),
            "at": datetime(2024, 1, 1, 12, 30, tzinfo=UTC),
            "raw": b"\x00\xff",
            "ratio": float("nan") if i % 2 else None,
        }
        for i in range(60)
    ]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    totals = fed(partial(RunningAggregate, ("user",), NEWEST), batch, ["user"], 2, 8)
    checkpoint(
        store,
        {
            "orders": [FrozenOperator(lanes={i: {"row": 30}}) for i in range(2)],
            "totals": [each.freeze(SnapshotOrder(CheckpointId(7))) for each in totals],
        },
        number=7,
        max_parallelism=8,
        inflight={"totals": [[ChannelRows(0, 1, [numbered(2)])], []]},
    )
    return tmp_path / "job"


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["state", *arguments], terminal_width=120)
    assert result.exit_code == 0, result.output
    return result.stdout


def call_json(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["state", *arguments, "--json"])
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_rows_of_the_newest_checkpoint_are_shown(root: Path) -> None:
    """P5: a table, and what there is beyond it."""
    shown = call(str(root), "--limit", "5")
    assert "state 'aggregate' of operator 'totals', checkpoint 7" in shown
    assert "the first 5 rows" in shown
    assert shown.count("user-") == 5 and "2024-01-01" in shown


def test_programs_get_one_json_object_with_rows_of_plain_values(root: Path) -> None:
    """P5: what JSON has no name for is text."""
    found = call_json(str(root / "chk-7"), "--operator", "totals", "--limit", "100")
    assert (found["checkpoint"], found["operator"], found["state"]) == (7, "totals", "aggregate")
    assert found["columns"]["price"] == "DECIMAL(20,2)" and found["columns"]["key_group"] == "INT"
    assert (len(found["rows"]), found["more"]) == (30, False)
    (row,) = (row for row in found["rows"] if row["user"] == "user-3")
    assert row == {
        "user": "user-3",
        "price": "0.36",
        "day": "2024-01-01",
        "at": "2024-01-01T12:30:00+00:00",
        "raw": "00ff",
        "ratio": "nan",
        "key_group": row["key_group"],
    }
    assert call_json(str(root), "--limit", "29")["more"] is True


def test_one_key_can_be_asked_for(root: Path) -> None:
    """P5: --where on the key."""
    (row,) = call_json(str(root), "--where", "user=user-4")["rows"]
    assert row["price"] == "0.38"
    group = row["key_group"]
    assert row in call_json(str(root), "--where", f"key_group={group}")["rows"]
    assert call_json(str(root), "--where", "user=nobody")["rows"] == []


def test_positions_operators_and_rows_in_flight_are_shown(root: Path) -> None:
    """P5, B7."""
    rows = call_json(str(root), "--kind", "positions")["rows"]
    assert rows[0] == {"operator": "orders", "lane": 0, "position": '{"row": 30}'}
    assert "position" in call(str(root), "--kind", "positions")
    (row,) = call_json(str(root), "--kind", "operators")["rows"]
    assert (row["operator"], row["state"], row["rows"]) == ("totals", "aggregate", 30)
    flying = call_json(str(root), "--kind", "inflight")
    assert flying["rows"][1] == {"k": 1, "v": 3, "subtask": 0, "source": 1}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--operator", "total"), "did you mean 'totals'?"),
        (("--checkpoint", "8"), "has no checkpoint 8; there are checkpoints 7"),
        (("--kind", "all"), "there is no 'all'"),
        (("--where", "user"), "write column=value"),
        (("--where", "user=a", "--where", "user=b"), "once for each column"),
        (("--where", "usr=a"), "did you mean 'user'?"),
        (("--kind", "positions", "--where", "lane=1"), "go with the kind 'state' only"),
    ],
)
def test_what_is_wrong_is_told_with_what_there_is(
    root: Path, arguments: tuple[str, ...], told: str
) -> None:
    """U4."""
    found = call_json(str(root), *arguments, code=1)
    assert told in found["error"] and found["kind"] == "ConfigError"


def test_a_damaged_block_is_told_and_no_lease_is_left_behind(root: Path) -> None:
    """I24, I13."""
    path = root / "chk-7/0-1"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert "chk-7/0-1[" in call_json(str(root), "--limit", "100", code=1)["error"]
    assert call_json(str(root), "--checkpoint", "8", code=1)
    assert not [name for name in LocalStore(str(root)).list() if paths.lease_of(name)]


def test_a_folder_that_is_no_job_s_is_explained(root: Path) -> None:
    assert "name a job in it" in call_json(str(root.parent), code=1)["error"]
