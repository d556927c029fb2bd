"""A program with a Spark Connect session of its own, which starts jobs: on it, and without one."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as pen


def main(folder: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    print("session", type(spark).__module__, spark.range(3).count())
    config = pen.CheckpointConfig(f"{folder}/chk")
    for given in (spark, None):
        pipeline = pen.from_rows([(1,)], "n BIGINT").to(pen.FileSink(f"{folder}/out"))
        try:
            pipeline.start(given, checkpoint=config)
        except pen.LaunchError as error:
            print("refused", error)
    print("made", sorted(path.name for path in Path(folder).iterdir()))
    print("rows", spark.range(5).count())
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
