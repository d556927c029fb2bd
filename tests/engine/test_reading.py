"""Reading the state of a checkpoint as tables: what people see of it, cut into pieces, filtered, damaged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.base import Hold
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import FrozenOperator
from penstock.engine.operators.held_rows import HeldRows
from penstock.engine.operators.process import Process
from penstock.engine.reading import tables
from penstock.engine.reading.borrowing import Borrowed, borrow
from penstock.engine.reading.keyed import StateTable
from penstock.engine.reading.request import make_request
from penstock.engine.worker.inputs import ChannelRows
from penstock.errors import CheckpointCorrupt, ConfigError
from penstock.plan.keyhash import key_groups, key_hashes
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.state import aggregates as agg
from penstock.state.segments import GROUP_FIELD
from penstock.storage.local import LocalStore
from penstock.storage.memory import MemoryStore
from penstock.wire import paths
from penstock.wire.tombstones import tombstone
from tests.engine.reading_kit import (
    borrower,
    checkpoint,
    context,
    fed,
    numbered,
    request,
    rows_of,
)
from tests.state.helpers import plain_fold, same

N1 = CheckpointId(1)


class Watched(MemoryStore):
    """Keeps what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, int]] = []

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self.reads.append((name, offset))
        return super().read(name, offset, length)


def totals(
    store: MemoryStore | LocalStore, rows: int, parallelism: int = 2, max_parallelism: int = 128
) -> None:
    """A checkpoint with a running aggregate of so many keys."""
    make = partial(RunningAggregate, ("k",), {"n": agg.count(), "total": agg.sum("v")})
    subtasks = fed(make, numbered(rows), ["k"], parallelism, max_parallelism)
    frozen = [each.freeze(SnapshotOrder(N1)) for each in subtasks]
    checkpoint(store, {"totals": frozen}, max_parallelism=max_parallelism)


def borrowed(store: MemoryStore | LocalStore, **wanted: str) -> Borrowed:
    return borrow(store, request(**wanted), borrower())


def table_of(store: MemoryStore | LocalStore, **wanted: str) -> StateTable:
    table = borrowed(store, **wanted).table
    assert isinstance(table, StateTable)
    return table


# ---- what people see


AGGREGATES = {
    "rows": agg.count(),
    "prices": agg.count("price"),
    "total": agg.sum("price"),
    "n": agg.sum("v"),
    "ratio": agg.sum("r"),
    "mean": agg.avg("v"),
    "low": agg.min("r"),
    "high": agg.max("v"),
    "name": agg.max("t"),
    "oldest": agg.first("t"),
    "newest": agg.last("price"),
    "day": agg.min("d"),
}
TYPES = pa.schema(
    [
        ("user", pa.string()),
        ("kind", pa.int32()),
        ("v", pa.int64()),
        ("r", pa.float64()),
        ("price", pa.decimal128(20, 4)),
        ("t", pa.string()),
        ("d", pa.date32()),
    ]
)


def typed(i: int) -> dict[str, Any]:
    """Nulls in every column, keys included, and keys with nothing but nulls."""
    empty = i % 7 == 3
    return {
        "user": [None, "", "zoë", "a" * 200, f"user-{i % 11}"][i % 5],
        "kind": None if i % 13 == 0 else i % 7,
        "v": None if empty or i % 3 == 0 else i * 1_000_003,
        "r": None if empty or i % 4 == 0 else i / 8,
        "price": None if empty or i % 5 == 0 else Decimal(i * (-1) ** i).scaleb(-2),
        "t": None if empty or i % 6 == 0 else f"text {i}",
        "d": None if empty else date(2024, 1, 1 + i % 28),
    }


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism"), [(1, 128), (3, 128), (5, 7), (2, 4096)]
)
def test_a_running_aggregate_is_shown_with_the_results_that_the_job_emits(
    parallelism: int, max_parallelism: int
) -> None:
    """P5: keys, then results, then the key group; no limbs of decimals and no counts of averages."""
    rows = [typed(i) for i in range(700)]
    batch = pa.RecordBatch.from_pylist(rows, TYPES)
    store, keys = MemoryStore(), ("user", "kind")
    make = partial(RunningAggregate, keys, AGGREGATES)
    subtasks = fed(make, batch, keys, parallelism, max_parallelism)
    frozen = [each.freeze(SnapshotOrder(N1)) for each in subtasks]
    checkpoint(store, {"totals": frozen}, max_parallelism=max_parallelism)
    schema = table_of(store).schema
    assert schema.names == [*keys, *AGGREGATES, "key_group"]
    assert schema.field("total").type == pa.decimal128(30, 4)
    found = {tuple(row[key] for key in keys): row for row in rows_of(store)}
    of_key: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        of_key.setdefault(tuple(row[key] for key in keys), []).append(row)
    assert found.keys() == of_key.keys()
    for key, row in found.items():
        wanted = {name: plain_fold(each, of_key[key]) for name, each in AGGREGATES.items()}
        assert all(same(row[name], wanted[name]) for name in wanted), (row, wanted)
        columns = [pa.array([key[0]], pa.string()), pa.array([key[1]], pa.int32())]
        assert row["key_group"] == key_groups(key_hashes(columns)[0], max_parallelism)[0]


class LastAmount:
    """Keeps the last amount of each user, and forgets those that paid nothing."""

    def open(self, ctx: Any) -> None:
        self.last = ctx.value_state("last", "user STRING, amount INT, key_group BIGINT")
        self.empty = ctx.value_state("empty", "x INT")

    def process(self, key: Any, rows: list[Any], ctx: Any) -> Iterator[Any]:
        self.empty.get()
        self.last.update(("somebody", rows[-1].amount, 7))
        if rows[-1].amount == 0:
            self.last.clear()
        yield from ()


def test_the_state_of_a_function_is_shown_without_keys_that_have_none() -> None:
    """P5, S2: cleared keys, and keys that were only asked for. Two columns of one name get two names."""
    schema = pa.schema([("user", pa.string()), ("amount", pa.int32())])
    rows = [{"user": f"u{i}", "amount": i % 3} for i in range(30)]
    store = MemoryStore()
    make = partial(Process, LastAmount(), ("user",), schema)
    subtasks = fed(make, pa.RecordBatch.from_pylist(rows, schema), ["user"], 2, 128)
    checkpoint(store, {"fn": [each.freeze(SnapshotOrder(N1)) for each in subtasks]})
    found = rows_of(store, state="last")
    assert list(found[0]) == ["user", "_user", "amount", "key_group", "_key_group"]
    assert {row["user"]: row["amount"] for row in found} == {
        row["user"]: row["amount"] for row in rows if row["amount"]
    }
    assert {(row["_user"], row["key_group"]) for row in found} == {("somebody", 7)}
    assert rows_of(store, state="empty") == []
    with pytest.raises(ConfigError, match=r"name the state of operator 'fn'.*'last', 'empty'"):
        rows_of(store)


def test_rows_that_wait_for_a_sink_are_shown_as_they_came() -> None:
    """P5: they are state, too."""
    schema = pa.schema([("user", pa.string()), ("tags", pa.list_(pa.string()))])
    rows = [{"user": "a", "tags": ["x", None]}, {"user": None, "tags": None}]
    frozen = []
    for index in range(2):
        held = HeldRows(Hold(bytes_max=1 << 30, wait_ms=1e9))
        held.open(context(schema, index, 2))
        held.add(pa.RecordBatch.from_pylist(rows, schema))
        frozen.append(FrozenOperator(tables=held.freeze()))
    store = MemoryStore()
    checkpoint(store, {"out": frozen})
    assert rows_of(store) == [{**row, "key_group": group} for group in (0, 64) for row in rows]


def test_state_of_a_layout_that_nobody_knows_is_refused() -> None:
    """I24."""
    schema = pa.schema([GROUP_FIELD, pa.field("k", pa.int64())])
    rows = pa.RecordBatch.from_pydict({"__kg": [0], "k": [1]}, schema=schema)

    class Odd:
        def write(self, out: Any) -> Any:
            return (out.put("odd", schema, [rows]),)

    store = MemoryStore()
    checkpoint(store, {"op": [FrozenOperator(tables=(Odd(),))]})  # type: ignore[arg-type]
    with pytest.raises(CheckpointCorrupt, match="no state of this Penstock has the columns k"):
        rows_of(store)


def test_what_the_metadata_says_is_a_table_too() -> None:
    """P5: positions by lane as JSON; operators with their columns as DDL; no file is read for that."""
    store = Watched()
    make = partial(RunningAggregate, ("k",), {"n": agg.count()})
    totals = [each.freeze(SnapshotOrder(N1)) for each in fed(make, numbered(10), ["k"], 2, 8)]
    lanes = [{0: {"file": "zoë", "at": 5}, 1: None}, {5: [1, 2.5]}]
    sources = [FrozenOperator(lanes=each) for each in lanes]
    checkpoint(store, {"numbers": sources, "totals": totals}, max_parallelism=8)
    assert rows_of(store, kind="positions") == [
        {"operator": "numbers", "lane": 0, "position": '{"at": 5, "file": "zoë"}'},
        {"operator": "numbers", "lane": 1, "position": "null"},
        {"operator": "numbers", "lane": 5, "position": "[1, 2.5]"},
    ]
    (row,) = rows_of(store, kind="operators", operator="totals")
    ddl = "k BIGINT, n BIGINT NOT NULL, key_group INT NOT NULL"
    assert (row["operator"], row["state"], row["rows"]) == ("totals", "aggregate", 10)
    assert row["schema"] == ddl and row["bytes"] > 0
    assert {name for name, _ in store.reads} == {"chk-1/_metadata"}
    assert store.list() == ["chk-1/0-1", "chk-1/1-1", "chk-1/_metadata", "job.json"], "no lease"


def test_rows_in_flight_are_shown_by_channel_and_in_order() -> None:
    """P5, B7."""
    store = MemoryStore()
    batches = [numbered(3), numbered(2)]
    channels = [[ChannelRows(0, 1, batches), ChannelRows(1, -1, [numbered(1)])], []]
    frozen = [FrozenOperator(), FrozenOperator()]
    checkpoint(store, {"nth": frozen}, inflight={"nth": channels})
    found = rows_of(store, kind="inflight", state="input 0")
    assert [row["k"] for row in found] == [0, 1, 2, 0, 1]
    assert {(row["subtask"], row["source"]) for row in found} == {(0, 1)}
    assert rows_of(store, kind="inflight", state="input 1") == [
        {"k": 0, "v": 0, "subtask": 0, "source": None}
    ]
    with pytest.raises(ConfigError, match="name the state of operator 'nth'.*'input 0', 'input 1'"):
        rows_of(store, kind="inflight")


# ---- in pieces


@pytest.mark.parametrize(("most", "groups"), [(1, 128), (2, 128), (3, 128), (7, 128), (9, 3)])
def test_pieces_have_every_row_once_and_read_every_block_once(most: int, groups: int) -> None:
    """P5: one partition per range of key groups. Of three groups each is longer than a block."""
    store = Watched()
    totals(store, 400_000, parallelism=3, max_parallelism=groups)
    parts = borrowed(store).pieces(most)
    assert min(most, groups, 2) <= len(parts) <= most
    store.reads.clear()
    keys: Counter[int] = Counter()
    for part in parts:
        for batch in part.read(store, borrower()):
            keys.update(batch.column("k").to_pylist())
    assert keys == Counter(range(400_000))
    assert Counter(store.reads).most_common(1)[0][1] == 1


def test_a_state_without_rows_is_one_empty_piece() -> None:
    """P5: its columns are known all the same."""
    store = MemoryStore()
    totals(store, 0)
    (part,) = borrowed(store).pieces(8)
    assert list(part.read(store, borrower())) == []
    assert table_of(store).schema.names == ["k", "n", "total", "key_group"]


def test_shares_are_of_nearly_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PIECE_ROWS_LEAST", 10)
    assert tables.shares([10] * 6, 3) == [(0, 2), (2, 4), (4, 6)]
    assert tables.shares([10] * 5, 2) == [(0, 3), (3, 5)]
    assert tables.shares([1] * 5, 4) == [(0, 5)], "too few rows for more"
    assert tables.shares([100], 4) == [(0, 1)]
    assert tables.shares([0, 0, 100], 2) == [(0, 3)]
    assert tables.shares([], 3) == [(0, 0)]


# ---- conditions on the key


def only(store: Watched, **where: str) -> tuple[list[dict[str, Any]], set[tuple[str, int]]]:
    """The rows that meet them, and the blocks that were read for them."""
    found = borrow(store, make_request("job", where=where), borrower())
    store.reads.clear()
    rows = [row for batch in found.read(store, borrower()) for row in batch.to_pylist()]
    return rows, set(store.reads)


def test_a_condition_on_the_key_reads_nothing_but_the_blocks_of_its_subtask() -> None:
    """P5: shown by what is read."""
    store = Watched()
    totals(store, 400_000, max_parallelism=16)
    parts = [len(segment.blocks) for segment in table_of(store).segments]
    for key in (0, 7, 123_456, 399_999):
        found, reads = only(store, k=str(key))
        assert [(row["k"], row["n"], row["total"]) for row in found] == [(key, 1, key * 3)]
        group = found[0]["key_group"]
        assert len(reads) == parts[group // 8] < sum(parts)
        assert only(store, K=str(key), key_group=str(group))[0] == found
        assert only(store, k=str(key), key_group=str(group + 1)) == ([], set())
    assert only(store, k="400000")[0] == []
    rows, _ = only(store, key_group="3")
    assert len(rows) > 10_000 and {row["key_group"] for row in rows} == {3}
    assert only(store, key_group="99") == only(store, key_group="-1") == ([], set())


def test_a_condition_on_a_part_of_the_key_is_right_though_all_groups_are_read() -> None:
    """The key group is that of the whole key."""
    store = Watched()
    batch = pa.RecordBatch.from_pylist([typed(i) for i in range(700)], TYPES)
    make = partial(RunningAggregate, ("user", "kind"), {"n": agg.count()})
    subtasks = fed(make, batch, ["user", "kind"], 2, 128)
    checkpoint(store, {"totals": [each.freeze(SnapshotOrder(N1)) for each in subtasks]})
    every = rows_of(store)
    some, _ = only(store, user="zoë")
    assert some == [row for row in every if row["user"] == "zoë"] != []
    one, reads = only(store, user="zoë", kind="2")
    assert one == [row for row in every if (row["user"], row["kind"]) == ("zoë", 2)] != []
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int32(), -5, "-5"),
        (pa.uint64(), 2**64 - 1, "18446744073709551615"),
        (pa.bool_(), True, "true"),
        (pa.string(), "a=b, c ", "a=b, c "),
        (pa.large_string(), "", ""),
        (pa.binary(), b"zo\xc3\xab", "zoë"),
        (pa.date32(), date(2024, 2, 29), "2024-02-29"),
        (
            pa.timestamp("us", "UTC"),
            datetime(2024, 2, 29, 12, 0, 1, 5, UTC),
            "2024-02-29T12:00:01.000005Z",
        ),
        (pa.timestamp("us"), datetime.fromisoformat("2024-02-29"), "2024-02-29 00:00:00"),
        (pa.decimal128(20, 4), Decimal("-12.5000"), "-12.5"),
    ],
    ids=str,
)
def test_a_key_of_any_type_is_found_by_its_text(kind: pa.DataType, value: Any, text: str) -> None:
    """P5, I15: its key group is that of the value, whatever the batch was that brought it."""
    schema = pa.schema([("key", kind), ("v", pa.int64())])
    rows = [{"key": key, "v": 1} for key in (None, value)]
    store = Watched()
    make = partial(RunningAggregate, ("key",), {"n": agg.count()})
    batch = pa.RecordBatch.from_pylist(rows, schema)
    checkpoint(
        store, {"t": [each.freeze(SnapshotOrder(N1)) for each in fed(make, batch, ["key"], 2, 128)]}
    )
    (row,), reads = only(store, key=text)
    assert row["key"] == value and len(reads) == 1


def test_a_condition_that_a_person_got_wrong_is_explained() -> None:
    """U4."""
    store = Watched()
    totals(store, 10)
    with pytest.raises(ConfigError, match=r"'n' is no column of the key.*'k', 'key_group'"):
        only(store, n="5")
    with pytest.raises(ConfigError, match="k='ada' is no value of BIGINT"):
        only(store, k="ada")
    with pytest.raises(ConfigError, match="go with the kind 'state' only"):
        borrow(store, make_request("job", kind="positions", where={"lane": "1"}), borrower())


# ---- damage


def test_a_damaged_block_is_told_with_its_file_and_place_and_the_others_are_read(
    tmp_path: Path,
) -> None:
    """I24, P5."""
    store = LocalStore(str(tmp_path / "job"))
    totals(store, 200_000, parallelism=2, max_parallelism=16)
    table = table_of(store)
    segment = table.segments[1]
    block = segment.blocks[0]
    path = tmp_path / "job" / segment.file
    data = bytearray(path.read_bytes())
    data[block.offset + block.length // 2] ^= 1
    path.write_bytes(bytes(data))
    place = f"{segment.file}.{block.offset}:.{block.length}"
    with pytest.raises(CheckpointCorrupt, match=place):
        rows_of(store)
    for batch in table.within(range(block.first_group)).read(store):
        assert batch.num_rows


def test_a_file_that_is_cut_short_or_gone_is_told(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "job"))
    totals(store, 1_000)
    path = tmp_path / "job/chk-1/0-1"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointCorrupt, match=r"chk-1/0-1 has 100 bytes"):
        rows_of(store)
    path.unlink()
    with pytest.raises(CheckpointCorrupt, match=r"chk-1/0-1 is missing"):
        rows_of(store)


def test_decimals_without_their_type_and_unknown_words_are_damage() -> None:
    from penstock.state.results import results_of

    limbs = [pa.field(f"total.sum{i}", pa.int64()) for i in range(4)]
    with pytest.raises(CheckpointCorrupt, match="does not say which decimal"):
        results_of(limbs)
    wrong = [limb.with_metadata({b"penstock.sum": b"99,2"}) for limb in limbs]
    with pytest.raises(CheckpointCorrupt, match="does not say which decimal"):
        results_of(wrong)
    with pytest.raises(CheckpointCorrupt, match=r"kept in the columns x\.median"):
        results_of([pa.field("x.median", pa.int64())])


# ---- which one is meant


def test_what_is_meant_must_be_clear_and_be_there() -> None:
    """U4: the error lists what there is, and the likeliest."""
    store = MemoryStore()
    make = partial(RunningAggregate, ("k",), {"n": agg.count()})
    frozen = [each.freeze(SnapshotOrder(N1)) for each in fed(make, numbered(10), ["k"], 1, 128)]
    more = [each.freeze(SnapshotOrder(N1)) for each in fed(make, numbered(10), ["k"], 1, 128)]
    checkpoint(store, {"totals": frozen, "others": more}, number=3)
    wrong: dict[str, dict[str, str]] = {
        r"name the operator that is meant, as in operator='totals'; there are: 'totals', 'others'": {},
        r"operator 'totalz' \(did you mean 'totals'\?\); there are": {"operator": "totalz"},
        r"state 'agregate' of operator 'totals' \(did you mean 'aggregate'\?\)": {
            "operator": "totals",
            "state": "agregate",
        },
        r"there is no 'positionz' \(did you mean 'positions'\?\)": {"kind": "positionz"},
        r"state='x' does not go with kind='positions'": {"kind": "positions", "state": "x"},
        r"no positions of operator 'totals'; there are none": {
            "kind": "positions",
            "operator": "totals",
        },
        r"has no rows in flight: only unaligned": {"kind": "inflight"},
        r"job has no checkpoint 5; there are checkpoints 3": {"checkpoint": "5"},
        r"checkpoint='newest' is no checkpoint": {"checkpoint": "newest"},
    }
    for message, wanted in wrong.items():
        with pytest.raises(ConfigError, match=message):
            rows_of(store, **wanted)
    assert len(rows_of(store, operator="others", checkpoint="3")) == 10


def test_the_newest_counts_and_one_that_was_given_up_does_not() -> None:
    store = MemoryStore()
    totals(store, 5)
    for number in (2, 4):
        frozen = fed(
            partial(RunningAggregate, ("k",), {"n": agg.count()}), numbered(number), ["k"], 1, 128
        )
        checkpoint(store, {"totals": [frozen[0].freeze(SnapshotOrder(N1))]}, number=number)
    store.write("chk-9/_metadata", [tombstone(CheckpointId(9))])
    assert len(rows_of(store)) == 4
    assert len(rows_of(store, checkpoint="1")) == 5
    with pytest.raises(ConfigError, match=r"no checkpoint 9; there are checkpoints 1, 2, 4$"):
        rows_of(store, checkpoint="9")


def test_a_newest_checkpoint_that_is_damaged_is_an_error_and_no_older_one_is_shown() -> None:
    """I24: what somebody reads is what they asked for."""
    store = MemoryStore()
    totals(store, 5)
    store.write("chk-2/_metadata", [b"{}"])
    with pytest.raises(CheckpointCorrupt, match=r"chk-2/_metadata.*there are checkpoints 1"):
        rows_of(store)
    assert len(rows_of(store, checkpoint="1")) == 5


def test_a_folder_that_is_no_job_s_is_explained() -> None:
    store = MemoryStore()
    with pytest.raises(ConfigError, match="is not the folder of a Penstock job"):
        rows_of(store)
    store.write("totals/job.json", [b"{}"])
    with pytest.raises(
        ConfigError, match=r"is a checkpoint directory; name a job in it: job/totals"
    ):
        rows_of(store)
    store.write(paths.JOB, [b"{}"])
    with pytest.raises(ConfigError, match="job has no completed checkpoint"):
        rows_of(store)


def test_positions_are_valid_json() -> None:
    store = MemoryStore()
    checkpoint(store, {"numbers": [FrozenOperator(lanes={0: 'quote " and \u2028'})]})
    (row,) = rows_of(store, kind="positions")
    assert json.loads(row["position"]) == 'quote " and \u2028'
