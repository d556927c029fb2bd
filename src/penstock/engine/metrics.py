"""Numbers for people, by the names they have on the Prometheus page.

Names that end in `_total` are counters: they only grow, also when an attempt fails and the next one begins. All others
are gauges. A worker counts what it does in one attempt; the driver adds up workers and attempts.
"""

from __future__ import annotations

ROWS_IN, ROWS_OUT = "penstock_records_in_total", "penstock_records_out_total"
BACK_PRESSURE, LAG = "penstock_back_pressure", "penstock_source_lag"
STATE_ROWS, STATE_BYTES = "penstock_state_rows", "penstock_state_bytes"

RESTORED_BYTES = "penstock_restored_bytes_total"
CHANGELOG_BYTES = "penstock_changelog_bytes_total"
COPIES_LOST = "penstock_local_copies_lost_total"


def series(name: str, **labels: object) -> str:
    """As Prometheus writes it: `name{label="value"}`."""
    shown = (f'{label}="{_escaped(str(value))}"' for label, value in labels.items())
    return f"{name}{{{','.join(shown)}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
