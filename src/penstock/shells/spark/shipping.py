"""How user code travels to the workers: pickled by value where a worker could not import it, as PySpark itself does."""

from __future__ import annotations

import io
from typing import Any

from pyspark import cloudpickle

from penstock.errors import PlanError


class Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """PySpark's own pickler. A simulation derives from it, so that both refuse the same things."""


def pack(thing: object) -> bytes:
    """The bytes that are sent; a PlanError where something cannot be sent."""
    target = io.BytesIO()
    pack_with(Packer(target), thing)
    return target.getvalue()


def pack_with(packer: Any, thing: object) -> None:
    try:
        packer.dump(thing)
    except Exception as error:
        raise PlanError(
            "the pipeline cannot be sent to the workers, because something that its functions refer to cannot "
            f"be pickled: {error}. Open connections, locks and files inside `open`, not outside."
        ) from error
