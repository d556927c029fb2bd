"""The simulated world with a user's pipeline in it: faults by luck or by script, every call kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from penstock.engine.history.records import ExceptionInfo
from penstock.errors import ConfigError
from penstock.protocol.messages import Failed, FromWorker, ToWorker
from penstock.shells.sim.scenario import Drawn
from penstock.shells.sim.strikes import Strikes
from penstock.shells.sim.trace import brief
from penstock.shells.sim.world import Violation, World
from penstock.testing.copies import SharedGlobals
from penstock.testing.finding import OF_PENSTOCK, Call, Finding, rule
from penstock.testing.luck import Luck
from penstock.testing.outside import SimulatedFault, fault_points

CONSEQUENCES = ("ChannelLost", "CheckpointFailed", "WorkerLost")
"""What other workers, or the driver, say when a worker has failed."""
WHERE = {
    "commit_error": "commit",
    "prepare_error": "prepare",
    "restore_error": "recovery",
    "user_error": "user code",
}


IN_VAIN_MIN = 3
STAGED_IN_MEMORY = (
    " A commit may come in another process than the prepare: what was staged must be where all of them find it, not in"
    " memory, and a transaction that was committed before must be known as such."
)
NEVER_ENDS = (
    "poll() of this source. When all of its rows were returned it must return pen.END: also where it had none at all,"
    " where it was opened behind its last row, and where no lane is its own. pen.Wait is for rows still to come."
)


@dataclass
class Asked:
    """What the newest reader of a source's subtask answered."""

    ended: bool = False
    in_vain: int = 0
    """How often it was asked since it last had rows."""
    answer: str = ""


class UserWorld(World):
    def __init__(self, seed: int, luck: Luck, draw: Callable[[UserWorld, Random], Drawn]) -> None:
        self.luck = luck
        self.calls: list[Call] = []
        self.lines: list[tuple[float, str, str]] = []
        self.finding: Finding | None = None
        self._raised: list[ExceptionInfo] = []
        self.rows_read = 0
        self.batches_read = 0
        self.readers: dict[str, Asked] = {}
        self.shared: SharedGlobals | None = None
        """Looked at with every call, where somebody wants to know."""
        self.inside = ""
        """The kind of fault that fits to what the user's code does right now."""
        super().__init__(seed, draw=lambda _, rng: draw(self, rng))
        self._strikes = ScriptedStrikes(self)

    def explore(self) -> Finding | None:
        """Runs the schedule; what is wrong, if anything is."""
        try:
            with fault_points(self):
                self.run()
        except Violation as violation:
            return self.finding or self._of_the_engine(str(violation))
        except ConfigError:
            raise
        except Exception as error:
            what = f"the simulated job crashed: {type(error).__name__}: {error}"
            return self.finding or Finding(
                "crash", "Penstock does not crash", what, (), (), OF_PENSTOCK
            )
        return self.finding

    # ---- asked and told

    def opens(self, where: str) -> Asked:
        """A new reader takes the place of the one before."""
        self.readers[where] = Asked()
        return self.readers[where]

    def happens(self, fault: str) -> bool:
        rate: float = getattr(self.faults, fault)
        hit = self.luck.happens(fault, rate)
        if hit:
            self.note("fault", fault)
        return hit

    def outside_may_fail(self, what: str) -> None:
        if self.inside and self.happens(self.inside):
            raise SimulatedFault(f"simulated failure of {what!r} in {WHERE[self.inside]}")

    def note(self, who: str, what: str, message: ToWorker | FromWorker | None = None) -> None:
        words = what if message is None else f"{what} {brief(message)}"
        self.lines.append((self.clock.now_ms, who, words))

    def call(self, where: str, what: str, transaction: str = "") -> None:
        self.calls.append(Call(self.clock.now_ms, where, what, transaction))
        if self.shared is not None:
            self.shared.look()
        self.note(where, what)

    def found(self, finding: Finding) -> None:
        """The first finding counts, and ends the run."""
        if self.finding is None:
            self.finding = finding
            self.violation(finding.kind, finding.what)

    # ---- what Penstock's own checkers say, in words for users

    def copies(self, message: ToWorker | FromWorker) -> int:
        """Asked for every message: what workers raise is kept, also where a driver has given up on their attempt."""
        if isinstance(message, Failed):
            info = (message.attempt, message.error, message.message, message.operator)
            self._raised.append(ExceptionInfo(self.clock.wall_ms(), *info, message.traceback))
        return super().copies(message)

    def failures(self) -> list[ExceptionInfo]:
        """What the job itself met, oldest first, without what the simulation put in. Where that is known, without what
        is only a consequence: a worker that has failed takes its channels with it."""
        told = [e for d in self.cluster.drivers for e in d.manager.history.exceptions]
        known = {(e.attempt, e.error, e.message) for e in self._raised}
        met = self._raised + [e for e in told if (e.attempt, e.error, e.message) not in known]
        own = [f for f in met if "simulated" not in f"{f.error} {f.message}".lower()]
        own.sort(key=lambda failure: failure.time_ms)
        return [f for f in own if f.error not in CONSEQUENCES] or own

    def _of_the_engine(self, problem: str) -> Finding:
        invariant, _, what = problem.partition(": ")
        if invariant not in ("I25", "I27"):
            return Finding(invariant, rule(invariant), what, (), (), OF_PENSTOCK)
        failures = [f for f in self.failures() if f.error not in CONSEQUENCES]
        if not failures:
            return self._without_a_failure(invariant, what)
        last = failures[-1]
        refused = self._refused_by(last.operator)
        return Finding(
            invariant,
            rule(invariant),
            "the job does not come to its end, although nothing fails any more",
            ("the job finishes",),
            (f"{last.error} in {last.operator or 'the job'}: {last.message}",),
            f"What {last.operator or 'the job'!r} raises, again and again. After a failure it is asked for the same"
            f" thing once more and must be able to answer.{STAGED_IN_MEMORY if refused else ''}",
            refused,
        )

    def _without_a_failure(self, invariant: str, what: str) -> Finding:
        """Nobody says why the job does not end. A source that has no rows and no end is a reason."""
        for where, reader in self.readers.items():
            if not reader.ended and reader.in_vain >= IN_VAIN_MIN:
                told = f"the source {where} was asked {reader.in_vain} times for rows, had none, and did not return END"
                return Finding(invariant, rule("I27"), told, ("END",), (reader.answer,), NEVER_ENDS)
        return Finding(invariant, rule(invariant), what, (), (), OF_PENSTOCK)

    def _refused_by(self, operator: str) -> tuple[str, ...]:
        """The transaction that a sink would not commit, if that is what keeps the job from its end."""
        for call in reversed(self.calls):
            if " -> raised " in call.what and call.where.startswith(f"{operator} ["):
                return (call.transaction,)
        return ()


class ScriptedStrikes(Strikes):
    """Faults from outside, chosen by luck or by a script."""

    def __init__(self, world: UserWorld) -> None:
        super().__init__(world)
        self._user_world = world
        self._healed = False

    def heal(self) -> None:
        super().heal()
        self._healed = True

    def strike(self) -> None:
        if self._healed:
            return
        kind = self._user_world.luck.strike(self._user_world.faults)
        if kind is not None:
            self._user_world.note("fault", kind)
            self._how[kind]()
