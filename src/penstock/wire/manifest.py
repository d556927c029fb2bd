"""The manifest of a checkpoint, `chk-<n>/_metadata`: all that is needed to restore it, except the state itself.

It is written last, in one atomic act: a checkpoint exists if and only if its manifest does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import CheckpointCorrupt, InvariantBroken
from penstock.protocol.ids import NO_CHECKPOINT, AttemptId, CheckpointId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.snapshot import (
    ALL_GROUPS,
    NO_SOURCE,
    Block,
    OperatorSnapshot,
    Segment,
    SubtaskSnapshot,
)
from penstock.wire import document, paths

VERSION = 1
MAX_PARALLELISM_MAX = 32768

_KIND = "penstock-checkpoint"


@dataclass(frozen=True, slots=True)
class ManifestOperator:
    """An operator of the plan that took the checkpoint: what state is matched by, and shown to people."""

    name: str
    kind: str
    task: int = 0
    role: str = "operator"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A completed checkpoint as it lies in storage."""

    job: str
    """The job's id, as in its path."""
    checkpoint: CheckpointId
    attempt: AttemptId
    kind: SnapshotKind
    trigger_ms: float
    completed_ms: float
    parallelism: int
    max_parallelism: int
    operators: tuple[ManifestOperator, ...]
    snapshots: tuple[SubtaskSnapshot, ...]
    ids_until: CheckpointId = NO_CHECKPOINT
    """Ids up to this one may be in use; whoever restores begins above it."""
    version: int = VERSION

    @property
    def files(self) -> tuple[str, ...]:
        """Every state file that this checkpoint needs, sorted."""
        return tuple(sorted({segment.file for segment in _segments(self) if segment.file}))

    @property
    def bytes_total(self) -> int:
        return sum(segment.bytes_total for segment in _segments(self))


_MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def encode(manifest: Manifest) -> bytes:
    """The bytes to store. A manifest that could not be read back is refused here: `InvariantBroken`."""
    problem = _first_problem(manifest)
    if problem:
        raise InvariantBroken(f"checkpoint {manifest.checkpoint} cannot be recorded: {problem}")
    return document.write(manifest, _KIND, VERSION)


def decode(data: bytes, name: str) -> Manifest:
    """The manifest in these bytes, wholly checked; `name` says where they are from, for errors."""
    manifest: Manifest = document.read(data, _KIND, {VERSION: Manifest}, name)
    problem = _first_problem(manifest)
    if problem:
        raise CheckpointCorrupt(f"{name}: not a valid manifest: {problem}")
    named = paths.metadata_of(name)
    if named is not None and named != manifest.checkpoint:
        raise CheckpointCorrupt(
            f"{name}: holds checkpoint {manifest.checkpoint}: files were swapped"
        )
    return manifest


# ---- what types alone do not say


def _segments(manifest: Manifest) -> Iterator[Segment]:
    for snapshot in manifest.snapshots:
        yield from snapshot.segments


def _first_problem(manifest: Manifest) -> str | None:
    return next(_problems(manifest), None)


def _problems(manifest: Manifest) -> Iterator[str]:
    yield from _head_problems(manifest)
    known = {operator.name for operator in manifest.operators}
    if len(known) != len(manifest.operators):
        yield "operators: the same name twice"
    seen = set()
    for i, snapshot in enumerate(manifest.snapshots):
        if snapshot.subtask in seen:
            yield f"snapshots[{i}]: subtask {snapshot.subtask} twice"
        seen.add(snapshot.subtask)
        yield from _snapshot_problems(snapshot, known, manifest, f"snapshots[{i}]")


def _head_problems(manifest: Manifest) -> Iterator[str]:
    if manifest.version != VERSION:
        yield f"version: {manifest.version} in a file of version {VERSION}"
    if not paths.is_job_id(manifest.job):
        yield f"job: {manifest.job[:100]!r} is not a job id"
    if manifest.checkpoint < 1:
        yield f"checkpoint: {manifest.checkpoint}; ids begin at 1"
    if manifest.attempt < 0 or manifest.ids_until < 0:
        yield "attempt, ids_until: must not be negative"
    if not 1 <= manifest.max_parallelism <= MAX_PARALLELISM_MAX:
        yield f"max_parallelism: {manifest.max_parallelism} is not in 1..{MAX_PARALLELISM_MAX}"
    if not 1 <= manifest.parallelism <= manifest.max_parallelism:
        yield f"parallelism: {manifest.parallelism} is not in 1..{manifest.max_parallelism}"


def _snapshot_problems(
    snapshot: SubtaskSnapshot, known: set[str], manifest: Manifest, where: str
) -> Iterator[str]:
    if not 0 <= snapshot.subtask.index < manifest.parallelism or snapshot.subtask.task < 0:
        yield f"{where}: there is no subtask {snapshot.subtask}"
    for name, operator in snapshot.operators.items():
        below = f"{where}.operators.{name}"
        if name not in known:
            yield f"{below}: not in the list of operators"
        yield from _operator_problems(operator, manifest.max_parallelism, below)
    for i, inflight in enumerate(snapshot.inflight):
        below = f"{where}.inflight[{i}]"
        if inflight.operator not in snapshot.operators:
            yield f"{below}: to operator {inflight.operator!r}, which this subtask does not have"
        if inflight.port < 0 or not NO_SOURCE <= inflight.source < manifest.parallelism:
            yield f"{below}: there is no such channel"
        yield from _segment_problems(inflight.segment, manifest.max_parallelism, below)


def _operator_problems(operator: OperatorSnapshot, groups: int, where: str) -> Iterator[str]:
    for lane in operator.lanes:
        if not 0 <= lane < groups:
            yield f"{where}.lanes: there is no lane {lane}"
    for i, segment in enumerate(operator.segments):
        yield from _segment_problems(segment, groups, f"{where}.segments[{i}]")


def _segment_problems(segment: Segment, groups: int, where: str) -> Iterator[str]:
    if (segment.inline is None) != bool(segment.file):
        yield f"{where}: state is in a file or inline, not in both or neither"
    if segment.file:
        try:
            paths.segment_file(segment.file)
        except CheckpointCorrupt as error:
            yield f"{where}.file: {error}"
    if segment.member and not _MEMBER.fullmatch(segment.member):
        yield f"{where}.member: {segment.member[:100]!r} is not the name of a file of a floor"
    first, end_group = segment.groups
    if not 0 <= first <= end_group <= ALL_GROUPS[1]:
        yield f"{where}.groups: {first}..{end_group} are no key groups"
    end = None if segment.inline is None else len(segment.inline)
    for i, block in enumerate(segment.blocks):
        yield from _block_problems(block, groups, end, f"{where}.blocks[{i}]")


def _block_problems(block: Block, groups: int, end: int | None, where: str) -> Iterator[str]:
    if not 0 <= block.first_group <= block.last_group < groups:
        yield f"{where}: key groups {block.first_group}..{block.last_group} of {groups}"
    if block.offset < 0 or block.length < 0 or block.rows < 0:
        yield f"{where}: offset, length and rows must not be negative"
    if end is not None and block.offset + block.length > end:
        yield f"{where}: ends behind its {end} inline bytes"
    if not 1 <= len(block.checksum) <= 128:
        yield f"{where}: no checksum"
