"""Mistakes that a type checker must find before anything runs: every line with `# wrong` and no other.

Never run or imported: `test_types.py` gives it to mypy.
"""

from collections.abc import Iterator

import pyarrow as pa

import penstock as pen
from penstock import testing
from penstock.testing import fail_before


class Counts:
    """As a function with state should be."""

    def open(self, ctx: pen.ProcessContext) -> None:
        self.seen: pen.ValueState = ctx.value_state("seen", "n BIGINT")
        ctx.lists_state("all", "n BIGINT")  # wrong

    def process(
        self, key: pen.Row, rows: list[pen.Row], ctx: pen.ProcessContext
    ) -> Iterator[tuple[str, int]]:
        before = self.seen.get()
        n = len(rows) + (before.n if before is not None else 0)
        self.seen.update((n,))
        self.seen.put((n,))  # wrong
        yield key.user, n


class CountsBatches:
    def process_batch(self, batch: pa.RecordBatch, ctx: pen.ProcessContext) -> pa.RecordBatch:
        return batch


class Nothing:
    def proces(self, key: pen.Row, rows: list[pen.Row], ctx: pen.ProcessContext) -> list[int]:
        return []


class TooFew:
    def process(self, key: pen.Row, rows: list[pen.Row]) -> list[int]:
        return []


orders = pen.from_rows([("ann", 3)], "user STRING, amount BIGINT")
by_user = orders.key_by("user")

# ---- names that there are not

stream: pen.Strem = orders  # wrong
testing.simulat(orders)  # wrong
pen.average("amount")  # wrong
orders.groupBy("user")  # wrong
orders.withColumn("twice", pen.col("amount") * 2)  # wrong
by_user.count()  # wrong
by_user.filter(pen.col("amount") > 0)  # wrong
pen.col("amount").isNull()  # wrong

# ---- arguments that cannot be meant

orders.with_columns(twice=pen.col("amount") * 2).select("*")
orders.with_columns(pen.col("amount") * 2)  # wrong
by_user.agg(n=pen.count(), total=pen.sum("amount"))
by_user.agg(pen.count())  # wrong
by_user.agg(n=3)  # wrong
by_user.process(Counts(), "user STRING, n BIGINT")
by_user.process(Counts, "user STRING, n BIGINT")
by_user.process(CountsBatches(), "user STRING, amount BIGINT")
by_user.process(Nothing(), "user STRING, n BIGINT")  # wrong
by_user.process(TooFew(), "user STRING, n BIGINT")  # wrong
by_user.process(lambda key, rows, ctx: rows, "user STRING")  # wrong
orders.to("out/")  # wrong
orders.take("3")  # wrong
orders.filter("amount > 0")  # wrong

# ---- words that are not among those to choose from

pen.CheckpointConfig("chk/", mode="at_least_once", retain="never_retain")
pen.CheckpointConfig("chk/", mode="exactly_onc")  # wrong
pen.CheckpointConfig("chk/", retain="always")  # wrong
pen.CheckpointConfig("chk/", backend="rocks")  # wrong
pen.CheckpointConfig("chk/", evry="1 second")  # wrong
pen.FileSource("in/", "csv", bad_records="column")
pen.FileSource("in/", "cvs")  # wrong
pen.FileSource("in/", "csv", bad_records="skip")  # wrong
pen.FileSink("out/", format="parquet")
pen.FileSink("out/", format="parqet")  # wrong
fail_before("prepare")
fail_before("prepair")  # wrong

# ---- a job

job = orders.to(pen.FileSink("out/")).start(name="orders", restart=pen.FixedDelay(attempts=3))
if job.status == "finished":
    job.stop()
if job.status == "finishd":  # wrong
    job.stop()
job.awaitTermination()  # wrong
orders.to(pen.FileSink("out/")).start(paralellism=2)  # wrong
orders.to(pen.FileSink("out/")).start(restart="always")  # wrong
