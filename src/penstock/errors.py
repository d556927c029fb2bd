"""Every error that Penstock raises on purpose.

PenstockError
├── ConfigError            an argument is wrong: a duration, a limit, a combination of options
├── PlanError              the pipeline is wrong: names the operator
│   └── SchemaError        a column is missing or has the wrong type, or a function returned another schema
├── DataError              input that is not what its format says: names file and line
├── LaunchError            the workers cannot run: too few slots, another interpreter, a stopped session
├── StorageError           the checkpoint directory cannot be used
│   ├── CheckpointCorrupt  a file of a checkpoint is missing or damaged
│   └── JobFenced          another driver has taken this job over
├── CommitError            a sink could not commit what a completed checkpoint promised
├── JobFailed              the job ended for good; `cause` says why
├── SimulationFailed       a simulated schedule broke a rule: the seed, a small trace and what to look at
└── InvariantBroken        a rule of the protocol was broken: a bug in Penstock

Errors cross process boundaries, so each passes its arguments on to `super().__init__` and pickles.
"""

from __future__ import annotations


class PenstockError(Exception):
    """The root: catch this to catch everything that Penstock raises."""


class ConfigError(PenstockError):
    """An argument is wrong."""


class PlanError(PenstockError):
    """The pipeline cannot run as it is written."""


class SchemaError(PlanError):
    """A column is missing, has the wrong type, or a function returned another schema."""


class DataError(PenstockError):
    """Input is not what its format says."""


class LaunchError(PenstockError):
    """The workers cannot run on this Spark."""


class StorageError(PenstockError):
    """The checkpoint directory cannot be used."""


class CheckpointCorrupt(StorageError):
    """A file of a checkpoint is missing or damaged."""


class JobFenced(StorageError):
    """Another driver has taken this job over."""


class CommitError(PenstockError):
    """A sink could not commit what a completed checkpoint promised. `operator` is the sink, where it is known."""

    def __init__(self, message: str, operator: str = "") -> None:
        super().__init__(message, operator)
        self.operator = operator

    def __str__(self) -> str:
        return str(self.args[0])


class JobFailed(PenstockError):
    """The job ended for good. `cause` is what a person needs to know."""

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message, cause)
        self.cause = cause

    def __str__(self) -> str:
        return str(self.args[0])


class SimulationFailed(PenstockError, AssertionError):
    """A schedule of `penstock.testing.simulate` broke a rule. The message is the report as text; `report` has its
    parts, where a schedule was the cause."""

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message, report)
        self.report = report

    def __str__(self) -> str:
        return str(self.args[0])


class InvariantBroken(PenstockError):
    """A rule of the protocol was broken: a bug in Penstock."""
