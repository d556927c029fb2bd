"""State as a DataFrame on real Spark: of a running job that deletes what is being read, of checkpoints with damage, by
filters, and of every kind."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.engine.operators.aggregate import RunningAggregate
from penstock.engine.operators.base import FrozenOperator
from penstock.engine.reading.borrowing import borrow
from penstock.engine.reading.keyed import StateTable
from penstock.engine.worker.inputs import ChannelRows
from penstock.errors import CheckpointCorrupt
from penstock.protocol.ids import CheckpointId
from penstock.protocol.messages import SnapshotOrder
from penstock.shells.spark.state_source import StateSource
from penstock.state import aggregates as agg
from penstock.storage.filesystem import FilesystemStore
from penstock.storage.local import LocalStore
from penstock.wire import paths
from tests.engine.reading_kit import borrower, checkpoint, fed, numbered, request
from tests.spark import jobs
from tests.spark.taps import Tap

pytestmark = pytest.mark.spark
KEYS = 3_000
"""So many that their state is in files."""
ROWS = 200_000
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def load(spark: Any, path: Path, **options: str) -> Any:
    return spark.read.format("penstock").options(**options).load(str(path))


def by_key(rows: Any) -> dict[int, tuple[int, int]]:
    return {row["key"]: (row["n"], row["total"]) for row in rows}


def folded(rows: int) -> dict[int, tuple[int, int]]:
    result: dict[int, tuple[int, int]] = {}
    for i in range(rows):
        n, total = result.get(i % KEYS, (0, 0))
        result[i % KEYS] = (n + 1, total + jobs.value_of(i))
    return result


def test_the_newest_checkpoint_of_a_running_job_is_read_though_it_is_deleted_meanwhile(
    spark: Any, tmp_path: Path
) -> None:
    """P5, I12: a checkpoint every 200 ms, two are kept, and every read begins when its checkpoint has been deleted.
    What is read is what the job has emitted; in the end it is the fold of all input."""
    tap = Tap(tmp_path / "end", rate=4_000, held=ROWS // 2)
    keyed = tap.stream().with_columns(key=pen.col("i") % KEYS).key_by("key")
    totals = keyed.agg(n=pen.count(), total=pen.sum("v")).named("totals")
    chk = jobs.config(tmp_path / "chk", every="200 ms", keep=2)
    pipeline = totals.to(pen.FileSink(str(tmp_path / "out")), name="files")
    job = pipeline.start(spark, name="totals", parallelism=2, checkpoint=chk)
    folder = tmp_path / "chk/totals"
    reads: list[dict[int, tuple[int, int]]] = []
    with jobs.running(job):
        jobs.until_job(job, lambda: jobs.rows_in(job, "totals") > 2 * KEYS)
        jobs.more_checkpoints(job, 2)
        for _ in range(3):
            rows = load(spark, folder, operator="totals")
            assert rows.columns == ["key", "n", "total", "key_group"]
            jobs.more_checkpoints(job, 4)
            reads.append(by_key(rows.collect()))
            assert rows.selectExpr("sum(n)").first()[0] == sum(n for n, _ in reads[-1].values())
        leased = {n for name in FilesystemStore(str(folder)).list() if (n := paths.lease_of(name))}
        assert len(leased) == 3
        assert not any((folder / f"chk-{n}/_metadata").exists() for n in leased)
        tap.end(ROWS)
        jobs.finish(job)
    emitted = {
        (row["key"], row["n"], row["total"])
        for row in jobs.read_parts(tmp_path / "out").to_pylist()
    }
    for found in reads:
        assert len(found) == KEYS
        assert {(key, *values) for key, values in found.items()} <= emitted
    counts = [sum(n for n, _ in found.values()) for found in reads]
    assert counts == sorted(set(counts)), "each is newer than the one before"
    assert by_key(load(spark, folder).collect()) == folded(ROWS)


# ---- checkpoints without a job


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Checkpoint 7 of a job: a source, an aggregate by a number, and rows in flight to it."""
    store = LocalStore(str(tmp_path / "job"))
    make = partial(RunningAggregate, ("k",), {"n": agg.count(), "total": agg.sum("v")})
    totals = fed(make, numbered(300_000), ["k"], 2, 16)
    checkpoint(
        store,
        {
            "numbers": [FrozenOperator(lanes={i: [i, "zoë"]}) for i in range(2)],
            "totals": [each.freeze(SnapshotOrder(CheckpointId(7))) for each in totals],
        },
        number=7,
        max_parallelism=16,
        inflight={"totals": [[ChannelRows(0, 1, [numbered(3)])], []]},
    )
    return tmp_path / "job"


def damage_all_but(root: Path, group: int) -> None:
    """Every block that has no row of this key group."""
    store = LocalStore(str(root))
    table = borrow(store, request(), borrower()).table
    assert isinstance(table, StateTable)
    for segment in table.segments:
        data = bytearray((root / segment.file).read_bytes())
        for block in segment.blocks:
            if not block.first_group <= group <= block.last_group:
                data[block.offset + block.length // 2] ^= 1
        (root / segment.file).write_bytes(bytes(data))


def test_partitions_are_ranges_of_key_groups_and_every_kind_can_be_read(
    spark: Any, root: Path
) -> None:
    """P5: state, positions, rows in flight, and what there is; also by hand instead of by its name."""
    rows = load(spark, root / "chk-7")
    assert rows.rdd.getNumPartitions() > 1
    told = rows.selectExpr("count(*)", "sum(n)", "sum(total)", "count(distinct k)").first()
    assert tuple(told) == (300_000, 300_000, 3 * sum(range(300_000)), 300_000)
    positions = load(spark, root, kind="positions").orderBy("lane").collect()
    assert [tuple(row) for row in positions] == [
        ("numbers", 0, '[0, "zoë"]'),
        ("numbers", 1, '[1, "zoë"]'),
    ]
    flying = load(spark, root, kind="inflight", operator="totals").collect()
    assert [row.asDict() for row in flying] == [
        {"k": k, "v": 3 * k, "subtask": 0, "source": 1} for k in range(3)
    ]
    (row,) = load(spark, root, kind="operators", checkpoint="7").collect()
    assert (row["operator"], row["rows"]) == ("totals", 300_000)
    assert row["schema"].startswith("k BIGINT, n BIGINT NOT NULL, total BIGINT")
    spark.dataSource.register(StateSource)
    assert load(spark, root, **{"where.k": "7"}).first()["total"] == 21


def test_a_condition_on_the_key_reads_only_the_blocks_of_its_key_group(
    spark: Any, root: Path
) -> None:
    """P5, I24: all other blocks are damaged, and the answer is right. Without the condition the damage is told, here
    as a task sees it: this Spark tries a task that fails a thousand times."""
    (row,) = load(spark, root, **{"where.k": "123456"}).collect()
    assert tuple(row) == (123_456, 1, 3 * 123_456, row["key_group"])
    damage_all_but(root, row["key_group"])
    assert load(spark, root, **{"where.K": "123456"}).collect() == [row]
    assert load(spark, root, **{"where.key_group": str(row["key_group"])}).count() > 10_000
    whole = StateSource({"path": str(root)})
    reader = whole.reader(whole.schema())
    with pytest.raises(
        CheckpointCorrupt, match=r"chk-7/[01]-1\[\d+:\+\d+\]: the checksum is wrong"
    ):
        for partition in reader.partitions():
            list(reader.read(partition))


def test_filters_of_a_dataframe_are_right_whether_spark_pushes_them_or_not(
    spark: Any, root: Path
) -> None:
    """P5: Spark 4 uses what it has planned for a pushed filter for the next query, too, and loses rows of a source that
    has read less because of it. See the other one on conditions."""
    spark.conf.set(PUSHDOWN, True)
    try:
        rows = load(spark, root, **{"where.key_group": "3"})
        (first, *_), count = rows.take(1), rows.count()
        one = rows.filter(rows.k == first["k"])
        assert (one.count(), rows.count(), one.union(rows).count()) == (1, count, 1 + count)
    finally:
        spark.conf.unset(PUSHDOWN)


def test_mistakes_are_told_at_load_with_what_there_is(spark: Any, root: Path) -> None:
    """U4."""
    wrong: dict[str, dict[str, str]] = {
        "there is no option 'oprator' (did you mean 'operator'?)": {"oprator": "totals"},
        "operator 'total' (did you mean 'totals'?); there are: 'totals'": {"operator": "total"},
        "has no checkpoint 8; there are checkpoints 7": {"checkpoint": "8"},
    }
    for message, options in wrong.items():
        with pytest.raises(Exception) as caught:
            load(spark, root, **options)
        assert "penstock.errors.ConfigError: " in str(caught.value)
        assert message in str(caught.value)
    with pytest.raises(Exception, match=r"leave out \.schema"):
        spark.read.format("penstock").schema("k INT").load(str(root)).collect()
    with pytest.raises(Exception, match="name a job in it: .*/job"):
        load(spark, root.parent)
