"""What a worker is told at its launch, inside Spark's closure: where the driver listens and how to get in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import msgpack

REGISTER_BYTES_MAX = 64 << 10
GOODBYE = b"goodbye "
"""Starts the last words of a worker that fails; no control message starts like this."""
GOODBYE_CHARS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Invitation:
    """Everything except the payload. The token is this launch's secret; retries by Spark reuse it."""

    launch: int
    token: str
    ipc: str
    """Where the driver listens for workers of its own host; empty when it does not."""
    ipc_token: str
    tcp: str
    """Where it listens for all others; empty when every worker is on its host."""
    server_key: bytes
    body: str
    """Dotted name of what runs: `module:name`, called as (payload, driver, host, clock, background)."""
    data_by_tcp: bool = False
    """Channels to other hosts are possible."""
    only_tcp: bool = False
    """Never use `ipc://` for channels."""
    data_ports: tuple[int, int] | None = None
    """First and last port that channels may use."""
    driver_timeout_s: float = 30.0
    """How long a worker that has lost the driver tries to come back to it."""

    def to_bytes(self) -> bytes:
        packed: bytes = msgpack.packb(asdict(self))
        return packed

    @staticmethod
    def from_bytes(data: bytes) -> Invitation:
        raw = msgpack.unpackb(data)
        ports = raw["data_ports"]
        raw["data_ports"] = None if ports is None else (int(ports[0]), int(ports[1]))
        return Invitation(**{field.name: raw[field.name] for field in fields(Invitation)})
