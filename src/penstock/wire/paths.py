"""The names of everything a job stores. This is the only place that spells them.

    <dir>/<job-id>/                    one folder per job; all other names are relative to it
        job.json                       whose folder this is
        owner/<attempt>                claimed exclusively before an attempt does anything
        owner/<attempt>-restored       which checkpoint that attempt went on from
        chk-<n>/<slot>-<attempt>       state that belongs to checkpoint n alone, one file per worker
        chk-<n>/_metadata              written last: checkpoint n exists if and only if this does
        chk-<n>/lease-<id>             somebody reads checkpoint n: its files stay until this expires
        shared/<n>-<slot>-<attempt>-<part>  state that later checkpoints than n may refer to, too
          part: log-<table>-<mark>       changes that were written ahead, when n was the newest
          part: base-<table>-<mark>      all rows, written in the background since n was the newest
        taskowned/...                  files that the coordinator never deletes:
          <operator>/<set>/set.json      rows of a DataFrame, staged for this source
          <operator>/<set>/batch-<n>     the files of batch n: it is staged if and only if this exists
          <operator>/<set>/rows/<n>-...  those files
          <operator>/<set>/spark         the checkpoint of Spark's own query that stages them
        history/<attempt>-<page>       the past of the job, for people; nothing depends on it

Functions that read a name back are strict: a name that is not exactly as it would be written is None, so a
stray file in the folder is never mistaken for one of ours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import CheckpointCorrupt, ConfigError, InvariantBroken
from penstock.protocol.ids import AttemptId, CheckpointId, SlotId
from penstock.protocol.retention import Role, SharedFile

JOB = "job.json"
OWNER_FOLDER = "owner"
SHARED_FOLDER = "shared"
TASKOWNED_FOLDER = "taskowned"
HISTORY_FOLDER = "history"

_JOB_ID_CHARS_MAX = 100
_ATTEMPT_DIGITS = 10
_PAGE_DIGITS = 10

_NUMBER = r"0|[1-9][0-9]{0,17}"
_POSITIVE = r"[1-9][0-9]{0,17}"
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"

_JOB_ID = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{_JOB_ID_CHARS_MAX - 1}}}")
_HASHED = re.compile(r".*-[0-9a-f]{8}")
_METADATA = re.compile(rf"chk-({_POSITIVE})/_metadata")
_WORKER_FILE = re.compile(rf"chk-({_POSITIVE})/({_NUMBER})-({_NUMBER})")
_LEASE = re.compile(rf"chk-({_POSITIVE})/lease-([0-9a-f]{{32}})")
_OWNER = re.compile(rf"{OWNER_FOLDER}/([0-9]{{{_ATTEMPT_DIGITS}}})")
_RESTORED = re.compile(rf"{OWNER_FOLDER}/([0-9]{{{_ATTEMPT_DIGITS}}})-restored")
_SHARED = re.compile(rf"{SHARED_FOLDER}/({_POSITIVE})-({_NUMBER})-({_NUMBER})-({_PART})")
_AHEAD = re.compile(rf"(log|base)-({_NUMBER})-({_NUMBER})")
_HISTORY = re.compile(rf"{HISTORY_FOLDER}/([0-9]{{{_ATTEMPT_DIGITS}}})-([0-9]{{{_PAGE_DIGITS}}})")
_STAGED_SET = re.compile(r"[0-9]{6}-[0-9a-f]{8}")
_STAGED_BATCH = re.compile(rf"({_STAGED_SET.pattern})/batch-({_NUMBER})")
_STAGED_ROWS = re.compile(rf"{_STAGED_SET.pattern}/rows/(?:{_NUMBER})-[0-9a-f]{{8,32}}")
_TASKOWNED = re.compile(rf"{TASKOWNED_FOLDER}/({_PART}(?:/{_PART})*)")


@dataclass(frozen=True, order=True, slots=True)
class WorkerFile:
    """What the name of a worker's file says. `checkpoint` is the one that it was written for."""

    checkpoint: CheckpointId
    slot: SlotId
    attempt: AttemptId
    part: str = ""
    """What it is of all that the worker shares in that checkpoint."""


# ---- the job's folder


def job_id(name: str) -> str:
    """The job's name made safe for paths. Readable; two names never share an id."""
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"a job needs a name that is not blank, and got {name!r}")
    if _JOB_ID.fullmatch(name) and not _HASHED.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", name)[: _JOB_ID_CHARS_MAX - 9]
    if not re.match(r"[A-Za-z0-9_]", readable):
        readable = "_" + readable[1:]
    return f"{readable}-{digest}"


def is_job_id(text: str) -> bool:
    """True for what `job_id` can return."""
    return _JOB_ID.fullmatch(text) is not None


def job_directory(directory: str, name: str) -> str:
    """The folder (or URL) of a job below the checkpoint directory that the user named."""
    separator = "" if directory.endswith("/") else "/"
    return f"{directory}{separator}{job_id(name)}"


# ---- names inside it


def checkpoint_folder(checkpoint: CheckpointId) -> str:
    return f"chk-{_positive(checkpoint, 'a checkpoint')}"


def metadata(checkpoint: CheckpointId) -> str:
    return f"{checkpoint_folder(checkpoint)}/_metadata"


def worker_file(checkpoint: CheckpointId, slot: SlotId, attempt: AttemptId) -> str:
    """Unique per attempt: a late write of an older attempt never touches a newer one's file."""
    slot_text = _not_negative(slot, "a slot")
    return f"{checkpoint_folder(checkpoint)}/{slot_text}-{_not_negative(attempt, 'an attempt')}"


def lease(checkpoint: CheckpointId, unique: str) -> str:
    """`unique` are 32 hexadecimal digits that nobody else uses. It lies beside the files that it is for: whoever is to
    delete those sees it in the same listing."""
    return _checked(_LEASE, f"{checkpoint_folder(checkpoint)}/lease-{unique}")


def owner(attempt: AttemptId) -> str:
    """Padded with zeros, so that names sort like attempts."""
    digits = f"{_not_negative(attempt, 'an attempt'):0{_ATTEMPT_DIGITS}d}"
    if len(digits) > _ATTEMPT_DIGITS:
        raise InvariantBroken(f"attempt {attempt} has more than {_ATTEMPT_DIGITS} digits")
    return f"{OWNER_FOLDER}/{digits}"


def restored(attempt: AttemptId) -> str:
    return f"{owner(attempt)}-restored"


def history(attempt: AttemptId, page: int) -> str:
    """Unique per driver, which uses the number of its first attempt; names sort like time."""
    writer = owner(attempt).removeprefix(f"{OWNER_FOLDER}/")
    number = f"{_not_negative(page, 'a page'):0{_PAGE_DIGITS}d}"
    return _checked(_HISTORY, f"{HISTORY_FOLDER}/{writer}-{number}")


def shared_file(file: WorkerFile) -> str:
    """The name of a file that later checkpoints may refer to, too. Unique for ever, as `worker_file` is."""
    numbers = f"{file.checkpoint}-{file.slot}-{file.attempt}"
    return _checked(_SHARED, f"{SHARED_FOLDER}/{numbers}-{file.part}")


def ahead_part(role: Role, table: int, mark: int) -> str:
    """The part of a file that is written ahead of the snapshots that may need it, or over several of them."""
    return f"{role}-{_not_negative(table, 'a table')}-{_not_negative(mark, 'a mark')}"


def taskowned(file: str) -> str:
    """The name of a file that its task deletes itself."""
    return _checked(_TASKOWNED, f"{TASKOWNED_FOLDER}/{file}")


# ---- staged rows: names below the folder of all that a source has staged


def staging_folder(operator: str) -> str:
    """Where a source's staged rows are."""
    return taskowned(job_id(operator))


def staged_set(name: str) -> str:
    return f"{staged_set_folder(name)}/set.json"


def staged_set_folder(name: str) -> str:
    """`name` is unique for ever; names sort like time."""
    return _checked(_STAGED_SET, name)


def is_staged_set(name: str) -> bool:
    return _STAGED_SET.fullmatch(name) is not None


def staged_batch(name: str, batch: int) -> str:
    return f"{staged_set_folder(name)}/batch-{_not_negative(batch, 'a batch')}"


def staged_rows(name: str, batch: int, token: str) -> str:
    """A folder for Spark to write to; `token` is unique to this try."""
    number = _not_negative(batch, "a batch")
    return _checked(_STAGED_ROWS, f"{staged_set_folder(name)}/rows/{number}-{token}")


def staged_query(name: str) -> str:
    return f"{staged_set_folder(name)}/spark"


def staged_set_of(name: str) -> str | None:
    """The set that this file says is there."""
    folder, _, file = name.partition("/")
    return folder if file == "set.json" and is_staged_set(folder) else None


def staged_batch_of(name: str) -> tuple[str, int] | None:
    """The set and the batch whose files are listed in this one."""
    found = _STAGED_BATCH.fullmatch(name)
    return (found[1], int(found[2])) if found else None


# ---- and back


def checkpoint_of(name: str) -> CheckpointId | None:
    """The checkpoint that a file belongs to alone."""
    found = _METADATA.fullmatch(name) or _WORKER_FILE.fullmatch(name)
    return CheckpointId(int(found[1])) if found else None


def metadata_of(name: str) -> CheckpointId | None:
    """The checkpoint whose metadata this is."""
    found = _METADATA.fullmatch(name)
    return CheckpointId(int(found[1])) if found else None


def worker_file_of(name: str) -> WorkerFile | None:
    found = _WORKER_FILE.fullmatch(name)
    if not found:
        return None
    checkpoint, slot, attempt = (int(group) for group in found.groups())
    return WorkerFile(CheckpointId(checkpoint), SlotId(slot), AttemptId(attempt))


def lease_of(name: str) -> CheckpointId | None:
    """The checkpoint that is read under this lease."""
    found = _LEASE.fullmatch(name)
    return CheckpointId(int(found[1])) if found else None


def owner_of(name: str) -> AttemptId | None:
    """The attempt that claimed the job with this file."""
    found = _OWNER.fullmatch(name)
    return AttemptId(int(found[1])) if found else None


def restored_of(name: str) -> AttemptId | None:
    """The attempt whose restored checkpoint is recorded in this file."""
    found = _RESTORED.fullmatch(name)
    return AttemptId(int(found[1])) if found else None


def is_history(name: str) -> bool:
    return _HISTORY.fullmatch(name) is not None


def shared_of(name: str) -> WorkerFile | None:
    found = _SHARED.fullmatch(name)
    if not found:
        return None
    checkpoint, slot, attempt = (int(group) for group in found.groups()[:3])
    return WorkerFile(CheckpointId(checkpoint), SlotId(slot), AttemptId(attempt), found[4])


def shared_among(names: Iterable[str]) -> frozenset[SharedFile]:
    """Those of these files that several checkpoints may refer to."""
    found = ((name, shared_of(name)) for name in names)
    return frozenset(_shared(name, file) for name, file in found if file is not None)


def _shared(name: str, file: WorkerFile) -> SharedFile:
    ahead = _AHEAD.fullmatch(file.part)
    if ahead is None:
        return SharedFile(file.checkpoint, file.attempt, name)
    role, table = Role(ahead[1]), f"{file.slot}-{ahead[2]}"
    return SharedFile(file.checkpoint, file.attempt, name, role, table, int(ahead[3]))


def is_known(name: str) -> bool:
    """True for every name that a job can have written; clean-up leaves all others alone."""
    patterns = (_METADATA, _WORKER_FILE, _LEASE, _OWNER, _RESTORED, _SHARED, _TASKOWNED, _HISTORY)
    return name == JOB or any(pattern.fullmatch(name) for pattern in patterns)


def segment_file(name: str) -> str:
    """`name`, proved to be one that a segment of state may have. For names out of a metadata file."""
    if _WORKER_FILE.fullmatch(name) or _SHARED.fullmatch(name):
        return name
    raise CheckpointCorrupt(
        f"{name[:200]!r} is not the name of a state file (in chk-<n>/ or shared/): "
        "the metadata that names it is damaged or was not written by Penstock"
    )


def _checked(pattern: re.Pattern[str], name: str) -> str:
    if not pattern.fullmatch(name):
        raise InvariantBroken(f"{name!r} is not a safe storage name")
    return name


def _positive(number: int, what: str) -> int:
    if number < 1:
        raise InvariantBroken(f"{what} is numbered from 1 on, not {number}")
    return int(number)


def _not_negative(number: int, what: str) -> int:
    if number < 0:
        raise InvariantBroken(f"{what} is numbered from 0 on, not {number}")
    return int(number)
