"""`penstock run app.py`: runs a program as `python app.py` would, with readable errors and a log of what happens."""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path

from penstock.errors import ConfigError


def run_program(program: Path, arguments: list[str]) -> None:
    """The program's folder comes first on the path, here and in the workers."""
    if not program.is_file():
        raise ConfigError(f"{program} is not a file: give the Python program that starts the job")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logger = logging.getLogger("penstock")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)  # such as: what the job goes on from
    path = str(program.resolve())
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).parent)
    runpy.run_path(path, run_name="__main__")
