"""Spark's progress bar in a terminal, which would show Penstock's workers for ever.

Workers are Spark stages that end with the job. The bar shows the three oldest stages that run, so it would show them
and never a query of the user's, again and again over what is being typed. It cannot leave stages out, so it is switched
off while a job runs on the session. Afterwards Spark gets a new one: the old one cannot be started again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.shells.spark.session import is_stopped

log = logging.getLogger("penstock")
_lock = threading.Lock()
_hidden_for: dict[str, set[str]] = {}
"""By application, the jobs that its progress bar is off for; only those that have one."""


def hide(context: Any, holder: str) -> Callable[[], None]:
    """Switches the bar of this Spark off, if it has one. What is returned is called when the job has ended: with the
    last job the bar comes back."""
    application = str(context.applicationId)
    with _lock:
        if application not in _hidden_for and _stop(context):
            _hidden_for[application] = set()
        _hidden_for.get(application, set()).add(holder)
    return partial(_show_again, context, application, holder)


def _show_again(context: Any, application: str, holder: str) -> None:
    with _lock:
        holders = _hidden_for.get(application, set())
        holders.discard(holder)
        if not holders and _hidden_for.pop(application, None) is not None:
            _start(context)


def _stop(context: Any) -> bool:
    """Whether there was one. What it has drawn is wiped off the line."""
    try:
        bar = context._jsc.sc().progressBar()
        if bar.isEmpty():
            return False
        bar.get().finishAll()
        bar.get().stop()
    except Exception:  # Spark's own parts, which may change: a bar too many is no reason to fail
        log.debug("Spark's progress bar could not be switched off", exc_info=True)
        return False
    return True


def _start(context: Any) -> None:
    if is_stopped(context):
        return
    try:
        spark, jvm = context._jsc.sc(), context._jvm
        made = jvm.org.apache.spark.ui.ConsoleProgressBar(spark)
        field = spark.getClass().getDeclaredField("_progressBar")
        field.setAccessible(True)
        field.set(spark, jvm.scala.Option.apply(made))
    except Exception:  # as above
        log.debug("Spark's progress bar could not be switched on again", exc_info=True)
