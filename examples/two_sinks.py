"""One stream, two sinks, one job: all rows into Parquet files, the suspicious ones into JSON.

python examples/two_sinks.py
"""

from pathlib import Path

import penstock as pen

PAYMENTS = [("ann", 12.5), ("bob", 9_000.0), ("ann", 3.0), ("eve", 20_000.0)]


def pipeline(folder: str) -> pen.Pipeline:
    payments = pen.from_rows(PAYMENTS, "user STRING, amount DOUBLE").select(
        "user",
        "amount",
        size=pen.when(pen.col("amount") > 1_000, "large").otherwise("usual"),
    )
    large = payments.filter(pen.col("size") == "large")
    return pen.Pipeline(
        payments.to(pen.FileSink(f"{folder}/all", format="parquet"), name="all"),
        large.to(pen.FileSink(f"{folder}/large", format="json"), name="large"),
    )


def main() -> None:
    plan = pipeline("two-sinks-out")
    print(plan.explain())
    job = plan.start(
        name="two-sinks",
        checkpoint=pen.CheckpointConfig("two-sinks-out/checkpoints", every="1 second"),
    )
    job.await_termination()
    for path in sorted(Path("two-sinks-out/large").glob("*.json")):
        print(path, path.read_text(), sep="\n")


if __name__ == "__main__":
    main()
