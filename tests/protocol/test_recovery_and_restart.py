"""What to restore, whether to restart, what to commit: pure decisions."""

from __future__ import annotations

import pytest

from penstock.protocol import recovery, restart
from penstock.protocol.commit import Pending, covered
from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.recovery import Claim, Damaged, Facts, Found, Refuse, RestoreFrom, StartFresh


def found(checkpoint: int, attempt: int, until: int = 0) -> Found:
    kind = SnapshotKind.CHECKPOINT
    return Found(CheckpointId(checkpoint), AttemptId(attempt), kind, CheckpointId(until))


def claim(attempt: int, restored: int | None, until: int = 0) -> Claim:
    point = None if restored is None else CheckpointId(restored)
    return Claim(AttemptId(attempt), point, CheckpointId(until))


def facts(
    claims: list[Claim] | None = None,
    usable: list[Found] | None = None,
    damaged: list[int] | None = None,
    newest_seen: int = 0,
) -> Facts:
    broken = tuple(Damaged(CheckpointId(n), "bit flip") for n in damaged or [])
    return Facts(tuple(claims or []), tuple(usable or []), broken, CheckpointId(newest_seen))


def decide(known: Facts, may_fall_back: bool = False) -> recovery.Decision:
    return recovery.decide(known, may_fall_back=may_fall_back)


def test_nothing_in_storage_is_a_fresh_start() -> None:
    """bug-E12: half a first checkpoint is nothing, but its id is used up."""
    assert decide(facts()) == StartFresh(CheckpointId(1))
    assert decide(facts(newest_seen=1)) == StartFresh(CheckpointId(2))


def test_the_newest_readable_checkpoint_is_restored_whatever_the_order() -> None:
    """R1, I7, bug-E5."""
    for order in ([found(3, 1), found(5, 1)], [found(5, 1), found(3, 1)]):
        decision = decide(facts([claim(1, 0)], order, newest_seen=6))
        assert isinstance(decision, RestoreFrom)
        assert decision.checkpoint == 5
        assert decision.first_id == 7


def test_a_checkpoint_that_a_later_attempt_went_back_behind_is_void() -> None:
    """R5, I18: its transactions were aborted by that attempt."""
    known = facts([claim(1, 0), claim(2, 3)], [found(3, 1), found(5, 1)])
    decision = decide(known)
    assert isinstance(decision, RestoreFrom)
    assert decision.checkpoint == 3


def test_a_claim_that_restored_nothing_yet_voids_nothing() -> None:
    known = facts([claim(1, 0), claim(2, None)], [found(5, 1)])
    assert isinstance(decide(known), RestoreFrom)


def test_a_damaged_newest_checkpoint_is_refused_where_sinks_have_committed_it() -> None:
    """I17, T5, bug-E2: falling back would show rows twice."""
    known = facts([claim(1, 0)], [found(3, 1)], damaged=[5], newest_seen=5)
    decision = decide(known)
    assert isinstance(decision, Refuse)
    assert "checkpoint 5: bit flip" in decision.reason
    assert 'restore="' in decision.reason


def test_a_damaged_newest_checkpoint_is_passed_over_where_no_sink_minds() -> None:
    """T5, bug-E3: reported, and the next older one is used."""
    known = facts([claim(1, 0)], [found(3, 1)], damaged=[5], newest_seen=5)
    decision = decide(known, may_fall_back=True)
    assert isinstance(decision, RestoreFrom)
    assert decision.checkpoint == 3
    assert [each.checkpoint for each in decision.skipped] == [5]


def test_an_older_damaged_checkpoint_is_nobodys_business() -> None:
    decision = decide(facts([claim(1, 0)], [found(5, 1)], damaged=[3]))
    assert isinstance(decision, RestoreFrom)
    assert decision.skipped == ()


def test_ids_never_go_back_below_what_was_reserved() -> None:
    """C1, C7, I7, bug-E18: also when the files of the last snapshots are gone."""
    known = facts([claim(1, 0, until=101)], [found(5, 1, until=105)], newest_seen=5)
    decision = decide(known)
    assert isinstance(decision, RestoreFrom)
    assert decision.first_id == 105


def test_attempts_are_numbered_on() -> None:
    assert recovery.next_attempt([]) == 1
    assert recovery.next_attempt([claim(4, 0), claim(7, None)]) == 8


# ---- restarts


def test_the_delay_doubles_up_to_its_limit_and_starts_again_after_a_quiet_time() -> None:
    """R2."""
    strategy = restart.Exponential(initial_ms=50, max_ms=150, reset_after_ms=1_000)
    times = [0.0, 100.0, 200.0, 300.0, 5_000.0]
    delays = [restart.decide(strategy, times[: n + 1]) for n in range(5)]
    assert delays == [restart.RestartAfter(ms) for ms in (50, 100, 150, 150, 50)]


def test_a_very_long_series_of_failures_does_not_overflow() -> None:
    strategy = restart.Exponential()
    decision = restart.decide(strategy, [float(n) for n in range(5_000)])
    assert decision == restart.RestartAfter(strategy.max_ms)


def test_a_fixed_number_of_restarts_is_kept() -> None:
    """R2."""
    strategy = restart.Fixed(attempts=2, delay_ms=7)
    assert restart.decide(strategy, [0, 1]) == restart.RestartAfter(7)
    assert isinstance(restart.decide(strategy, [0, 1, 2]), restart.GiveUp)


def test_a_failure_rate_only_counts_its_interval() -> None:
    """R2."""
    strategy = restart.Rate(failures_max=2, interval_ms=100, delay_ms=7)
    assert restart.decide(strategy, [0, 50, 200, 250]) == restart.RestartAfter(7)
    assert isinstance(restart.decide(strategy, [200, 250, 299]), restart.GiveUp)
    assert restart.decide(strategy, [200, 250, 300]) == restart.RestartAfter(7)


def test_never_means_never() -> None:
    """B5, R2."""
    assert isinstance(restart.decide(restart.Never(), [0]), restart.GiveUp)


# ---- commits


@pytest.mark.parametrize(("upto", "names"), [(1, ["a"]), (2, ["a", "b", "c"]), (9, list("abcd"))])
def test_a_checkpoint_commits_its_own_transactions_and_all_older_ones(
    upto: int, names: list[str]
) -> None:
    """E3, bug-C15: also those of aborted checkpoints before it."""
    entries = [(2, "b"), (1, "a"), (2, "c"), (3, "d")]
    pending = [Pending(CheckpointId(n), name) for n, name in entries]
    assert [entry.transaction for entry in covered(pending, CheckpointId(upto))] == names
