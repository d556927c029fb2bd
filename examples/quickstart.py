"""The first program: running totals per user, exactly once, with a checkpoint every second.

    python examples/quickstart.py

Kill one of the workers that it lists: it heals. Stop it half-way (Ctrl-C, or kill it) and start it again: it goes on
where it stood.
"""

import pyarrow as pa

import penstock as pen


def orders(start: int, n: int) -> pa.RecordBatch:
    """Orders `start` to `start + n` of an endless, repeatable sequence."""
    numbers = range(start, start + n)
    return pa.RecordBatch.from_pydict(
        {
            "user": [f"user-{number % 5}" for number in numbers],
            "amount": [float(number % 100) for number in numbers],
        }
    )


def totals() -> pen.Stream:
    source = pen.GeneratorSource(orders, "user STRING, amount DOUBLE", rows=200_000, rate=20_000)
    return (
        pen.from_source(source)
        .filter(pen.col("amount") > 0)
        .key_by("user")
        .agg(orders=pen.count(), total=pen.sum("amount"))
        .named("totals")
    )


def main() -> None:
    totals().show(5)
    job = (
        totals()
        .to(pen.FileSink("quickstart-out/totals", format="parquet"))
        .start(
            name="quickstart",
            parallelism=2,
            checkpoint=pen.CheckpointConfig("quickstart-out/checkpoints", every="1 second"),
        )
    )
    while not job.await_termination("1 second"):
        print(job, "workers:", [worker.pid for worker in job.workers])
    print(job)


if __name__ == "__main__":
    main()
