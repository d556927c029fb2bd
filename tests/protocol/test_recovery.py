"""From what lies in storage to what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.messages import SnapshotKind
from penstock.protocol.recovery import (
    BeginFrom,
    Claim,
    Damaged,
    Facts,
    Found,
    Origin,
    Refuse,
    RestoreFrom,
    StartFresh,
    decide,
    first_free_id,
    is_left_behind,
    is_void,
)


def found(checkpoint: int, attempt: int = 1, ids_until: int = 0) -> Found:
    kind = SnapshotKind.CHECKPOINT
    return Found(CheckpointId(checkpoint), AttemptId(attempt), kind, CheckpointId(ids_until))


def claim(attempt: int, restored: int | None = 0, ids_until: int = 0, first_id: int = 0) -> Claim:
    """It keeps all up to the one that it went on from."""
    point = None if restored is None else CheckpointId(restored)
    kept = frozenset(CheckpointId(n) for n in range(1, (restored or 0) + 1))
    return Claim(
        AttemptId(attempt), point, CheckpointId(ids_until), CheckpointId(first_id), kept=kept
    )


def facts(
    claims: tuple[Claim, ...] = (),
    there: tuple[Found, ...] = (),
    damaged: tuple[Damaged, ...] = (),
    seen: int = 0,
) -> Facts:
    return Facts(claims, there, damaged, CheckpointId(seen))


def test_an_empty_directory_starts_fresh() -> None:
    assert decide(facts(), may_fall_back=False) == StartFresh(CheckpointId(1))


def test_a_crash_before_the_first_checkpoint_starts_from_the_beginning() -> None:
    """bug-E12: one of two workers had written its file of chk 1; there is no metadata, so nothing is skipped."""
    decision = decide(facts((claim(1, 0),), seen=1), may_fall_back=False)
    assert isinstance(decision, StartFresh)
    assert decision.first_id == 2


def test_the_newest_checkpoint_is_restored() -> None:
    """R1, I7."""
    decision = decide(
        facts((claim(1),), (found(3), found(7), found(5)), seen=7), may_fall_back=False
    )
    assert isinstance(decision, RestoreFrom)
    assert decision.checkpoint == 7
    assert decision.skipped == ()


def test_a_checkpoint_that_a_later_attempt_went_back_behind_is_void() -> None:
    """R5, I18: the late metadata of a driver that was replaced is never used."""
    claims = (claim(2, 5),)
    assert is_void(found(6, attempt=1), claims)
    assert not is_void(found(5, attempt=1), claims)
    assert not is_void(found(6, attempt=2), claims)
    decision = decide(facts(claims, (found(5), found(6)), seen=6), may_fall_back=False)
    assert isinstance(decision, RestoreFrom)
    assert decision.checkpoint == 5


def test_an_attempt_that_recorded_nothing_makes_nothing_void() -> None:
    """R5: it was claimed, and died before it had looked."""
    assert not is_void(found(6, attempt=1), (claim(1, 0), claim(2, None)))


def test_a_damaged_newest_one_is_refused_where_rows_would_come_twice() -> None:
    """T5, I17, bug-E2: says what is broken and what can be done."""
    broken = Damaged(CheckpointId(7), "chk-7/_metadata: the digest is wrong")
    decision = decide(facts((claim(1),), (found(5),), (broken,), 7), may_fall_back=False)
    assert isinstance(decision, Refuse)
    assert "checkpoint 7" in decision.reason
    assert "digest is wrong" in decision.reason
    assert "checkpoint 5 is readable" in decision.reason
    assert 'restore="' in decision.reason


def test_a_damaged_newest_one_is_passed_over_where_no_sink_minds() -> None:
    """T5, I17, bug-E2, bug-E3: one of three is unreadable."""
    broken = Damaged(CheckpointId(7), "gone")
    decision = decide(facts((claim(1),), (found(3), found(5)), (broken,), 7), may_fall_back=True)
    assert isinstance(decision, RestoreFrom)
    assert decision.checkpoint == 5
    assert decision.skipped == (broken,)


@pytest.mark.parametrize("may_fall_back", [False, True])
def test_damage_below_the_newest_one_does_not_matter(may_fall_back: bool) -> None:
    """bug-E3."""
    broken = Damaged(CheckpointId(3), "gone")
    decision = decide(facts((claim(1),), (found(5),), (broken,), 5), may_fall_back=may_fall_back)
    assert isinstance(decision, RestoreFrom)
    assert decision.checkpoint == 5
    assert decision.skipped == ()


def test_when_nothing_is_readable_a_job_that_may_starts_over() -> None:
    """I17."""
    broken = (Damaged(CheckpointId(3), "gone"),)
    assert isinstance(decide(facts((claim(1),), (), broken, 3), may_fall_back=False), Refuse)
    assert isinstance(decide(facts((claim(1),), (), broken, 3), may_fall_back=True), StartFresh)


def test_metadata_that_an_attempt_went_on_from_and_that_is_gone_is_damage() -> None:
    """I17, I24: it goes only when a newer one is complete."""
    lost = facts((claim(2, 7),), (found(5),))
    assert isinstance(decide(lost, may_fall_back=False), Refuse)
    decision = decide(lost, may_fall_back=True)
    assert isinstance(decision, RestoreFrom) and decision.checkpoint == 5
    assert [damaged.checkpoint for damaged in decision.skipped] == [7]
    for fine in (
        facts((claim(2, 7),), (found(5), found(8, 2))),
        facts((claim(3, 5),), (found(5),)),
        facts((claim(2, 7), claim(3, None)), (found(7),)),
    ):
        assert isinstance(decide(fine, may_fall_back=False), RestoreFrom)


def test_ids_never_go_back() -> None:
    """C1, C7, bug-E18: above every file, every reservation of an attempt and of a checkpoint."""
    assert first_free_id(facts(seen=41)) == 42
    assert first_free_id(facts((claim(1, 0, ids_until=101),), seen=3)) == 101
    assert first_free_id(facts((claim(1, 0, 101),), (found(90, ids_until=190),), seen=90)) == 190


def test_a_void_checkpoint_that_somebody_went_on_from_again_is_good_again() -> None:
    """R5: a person restored 2, regretted it and restored 3; the next failure must not go back to 2."""
    assert is_void(found(3), (claim(2, 2),))
    assert not is_void(found(3), (claim(3, 3),))
    assert is_void(found(3), (claim(4, 2),))


def test_a_checkpoint_counts_if_the_newest_claim_kept_it() -> None:
    """R5, I18: one below the restored one that an earlier claim had found void stays void."""
    kept = replace(claim(3, 5), kept=frozenset({CheckpointId(3), CheckpointId(5)}))
    assert is_void(found(4), (kept,))
    assert not is_void(found(3), (kept,))


def test_a_job_begun_with_another_jobs_checkpoint_begins_with_it_again() -> None:
    """R5: until it has one of its own, or is begun anew."""
    origin = Origin("/other", CheckpointId(9))
    begun = Claim(AttemptId(2), CheckpointId(0), origin=origin)
    decision = decide(facts((begun,), (found(3),), seen=3), may_fall_back=False)
    assert decision == BeginFrom(origin, CheckpointId(4)), "what was there before is void"
    own = decide(facts((begun,), (found(5, attempt=3),)), may_fall_back=False)
    assert isinstance(own, RestoreFrom)
    anew = decide(facts((claim(3, 0),)), may_fall_back=False)
    assert isinstance(anew, StartFresh)
    unsure = decide(facts((begun, claim(3, None))), may_fall_back=False)
    assert isinstance(unsure, BeginFrom), "an attempt that recorded nothing began nothing"


def test_a_fallback_below_the_first_own_checkpoint_is_to_the_origin() -> None:
    """I17: only where no sink minds, and never to an empty state."""
    begun = Claim(AttemptId(1), CheckpointId(0), origin=Origin("/other", CheckpointId(9)))
    broken = (Damaged(CheckpointId(3), "gone"),)
    assert isinstance(decide(facts((begun,), (), broken, 3), may_fall_back=False), Refuse)
    decision = decide(facts((begun,), (), broken, 3), may_fall_back=True)
    assert isinstance(decision, BeginFrom)
    assert decision.skipped == broken


def test_damage_that_a_later_attempt_has_left_behind_counts_no_more() -> None:
    """I17: ids tell that the checkpoint is older than the attempt which went back."""
    went_back = claim(2, 5, ids_until=120, first_id=20)
    assert is_left_behind(CheckpointId(7), (went_back,))
    assert not is_left_behind(CheckpointId(5), (went_back,)), "it is what was restored"
    assert not is_left_behind(CheckpointId(20), (went_back,)), "its own"
    again = claim(3, 7, ids_until=220, first_id=120)
    assert not is_left_behind(CheckpointId(7), (again,)), "somebody went on from it again"
    broken = (Damaged(CheckpointId(7), "gone"),)
    decision = decide(facts((went_back,), (found(5),), broken, 7), may_fall_back=False)
    assert isinstance(decision, RestoreFrom)
    assert (decision.checkpoint, decision.skipped) == (5, ())
