"""Which shared files may go, event by event."""

from __future__ import annotations

from penstock.protocol.ids import AttemptId, CheckpointId
from penstock.protocol.retention import Files, Retention, Role, SharedFile


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def file(checkpoint: int, part: str = "a", attempt: int = 1) -> SharedFile:
    name = f"shared/{checkpoint}-0-{attempt}-{part}"
    return SharedFile(n(checkpoint), AttemptId(attempt), name)


def files(*given: SharedFile) -> Files:
    return frozenset(given)


A, B, C = file(1), file(2), file(3)


def begun(attempt: int = 1) -> Retention:
    return Retention().claimed(AttemptId(attempt), {})


def complete(
    retention: Retention, checkpoint: int, *refers: SharedFile, base: int = 0
) -> Retention:
    """Triggered, acknowledged and completed."""
    retention = retention.triggered(n(checkpoint), n(base))
    retention, _ = retention.acknowledged(n(checkpoint), files(*refers))
    retention, strays = retention.completed(n(checkpoint), files(*refers))
    assert strays == ()
    return retention


# ---- while somebody refers to it


def test_a_file_goes_with_the_last_checkpoint_that_refers_to_it() -> None:
    """T4, I12, I13."""
    retention = complete(complete(begun(), 1, A), 2, A, B, base=1)
    assert retention.only_of(n(1)) == ()
    retention, strays = retention.deleted(n(1))
    assert strays == ()
    assert retention.only_of(n(2)) == (A, B)
    retention, strays = retention.deleted(n(2), retention.only_of(n(2)))
    assert (strays, retention.existing) == ((), {})


def test_a_file_that_was_written_again_under_another_name_takes_nothing_with_it() -> None:
    """bug-D1: 2 did not hear in time that 1 is complete, wrote again what it had, and 3 builds on 1 or on 2."""
    retention = complete(complete(begun(), 1, A), 2, B)
    third = complete(retention, 3, A, C, base=1)
    assert third.only_of(n(1)) == ()
    assert complete(retention, 3, B, C, base=2).only_of(n(1)) == (A,)


def test_a_checkpoint_whose_deletion_has_not_ended_refers_to_its_files() -> None:
    """I12: it may be taken back, or fail."""
    retention = complete(complete(complete(begun(), 1, A), 2, A, B), 3, C)
    assert retention.only_of(n(2)) == (B,), "1 is still there"
    retention, _ = retention.deleted(n(2), (B,))
    assert retention.only_of(n(1)) == (A,)


def test_two_that_go_in_one_piece_of_work_leave_nothing() -> None:
    """I13: while neither was known to be gone, each left to the other what both refer to."""
    retention = complete(complete(complete(begun(), 1, A), 2, A), 3, C)
    assert (retention.only_of(n(1)), retention.only_of(n(2))) == ((), ())
    retention, first = retention.deleted(n(1))
    retention, second = retention.deleted(n(2))
    assert (first, second) == ((), (A,))


def test_it_makes_no_difference_how_often_something_is_told() -> None:
    """bug-D9, I6."""
    retention = complete(complete(begun(), 1, A), 2, A, B, base=1)
    again, strays = retention.completed(n(2), files(A, B))
    assert (again, strays) == (retention, ())
    again, strays = retention.acknowledged(n(2), files(A, B))
    assert (again, strays) == (retention, ()), "a late repetition of what is in the checkpoint"
    once, strays = retention.deleted(n(1))
    assert once.deleted(n(1)) == (once, ())


# ---- bases


def test_a_base_is_pinned_until_everything_that_builds_on_it_has_ended() -> None:
    """I12, B6: a pending snapshot may refer to any of its files, whether it has answered or not."""
    retention = complete(begun(), 1, A).triggered(n(2), n(1)).triggered(n(3), n(1))
    assert retention.is_pinned(n(1))
    retention, _ = retention.given_up(n(2))
    assert retention.is_pinned(n(1))
    retention, _ = retention.acknowledged(n(3), files(A, C))
    after, strays = retention.completed(n(3), files(A, C))
    assert (after.is_pinned(n(1)), after.only_of(n(1)), strays) == (False, (), ())
    after, strays = retention.given_up(n(3))
    assert (after.is_pinned(n(1)), after.only_of(n(1)), strays) == (False, (A,), (C,))


# ---- what never came to be


def test_the_files_of_a_snapshot_that_was_given_up_go_unless_others_refer_to_them() -> None:
    """I8, C4, bug-D6, bug-D7."""
    retention = complete(begun(), 1, A).triggered(n(2), n(1))
    retention, strays = retention.acknowledged(n(2), files(A, B))
    assert strays == ()
    _, strays = retention.given_up(n(2))
    assert strays == (B,)


def test_the_files_of_a_late_answer_go_unless_others_refer_to_them() -> None:
    """I8, C4."""
    retention = complete(begun(), 1, A).triggered(n(2), n(1))
    retention, _ = retention.given_up(n(2))
    again, strays = retention.acknowledged(n(2), files(A, B))
    assert (again, strays) == (retention, (B,))


def test_what_was_acknowledged_and_is_not_in_the_checkpoint_goes() -> None:
    """I13: a second answer of a subtask does not count."""
    retention = begun().triggered(n(1))
    for answer in (files(A), files(file(1, "again"))):
        retention, _ = retention.acknowledged(n(1), answer)
    _, strays = retention.completed(n(1), files(A))
    assert strays == (file(1, "again"),)


# ---- what lies in storage


def test_only_files_that_nobody_can_come_to_refer_to_are_strays() -> None:
    """I12, I13, bug-D13: of a pending snapshot, of one not triggered yet, and of a newer attempt."""
    retention = complete(begun(attempt=5), 11, file(11, attempt=5)).triggered(n(12))
    older, over = file(9, attempt=4), file(11, "late", attempt=5)
    spared = (file(11, attempt=5), file(12, attempt=5), file(13, attempt=5), file(9, attempt=6))
    assert retention.strays([older, over, *spared]) == (older, over)


def test_nothing_is_a_stray_before_an_attempt_is_claimed() -> None:
    assert Retention().strays([A, B]) == ()


def test_a_new_attempt_knows_what_others_refer_to() -> None:
    """I14, bug-D3: checkpoints of all attempts, also those that do not count any more."""
    there = {n(1): files(A), n(2): files(A, B)}
    retention = Retention().claimed(AttemptId(4), there)
    assert retention.strays([A, B, C]) == (C,)
    retention, _ = retention.deleted(n(1))
    assert retention.strays([A, B, C]) == (C,)


def test_what_was_pending_ends_with_its_attempt() -> None:
    """I13: its files are an older attempt's now."""
    retention = complete(begun(), 1, A).triggered(n(2), n(1))
    retention, _ = retention.acknowledged(n(2), files(A, B))
    retention = retention.claimed(AttemptId(2), {n(1): files(A)})
    assert retention.strays([A, B]) == (B,)


def test_what_is_going_while_an_attempt_is_claimed_may_not_have_gone() -> None:
    """I12: nobody looked at it, and its deletion may fail."""
    retention = complete(complete(begun(), 1, A), 2, B)
    retention = retention.claimed(AttemptId(2), {n(2): files(B)}, going={n(1)})
    assert retention.strays([A, B]) == ()
    assert retention.deleted(n(1))[1] == (A,)


def test_a_checkpoint_that_cannot_be_read_may_refer_to_any_file_up_to_its_own() -> None:
    """I12, T5: somebody may repair it."""
    retention = Retention().claimed(AttemptId(2), {n(1): files(A)}, unreadable=n(2))
    assert retention.strays([A, B, C]) == (C,)
    assert retention.deleted(n(1))[1] == ()


# ---- what was written ahead


def ahead(role: Role, checkpoint: int, number: int, *, table: str = "0-0") -> SharedFile:
    name = f"shared/{checkpoint}-0-1-{role}-0-{number}"
    return SharedFile(n(checkpoint), AttemptId(1), name, role, table, number)


def log(checkpoint: int, number: int = 1) -> SharedFile:
    return ahead(Role.LOG, checkpoint, number)


def base(number: int, checkpoint: int = 1, table: str = "0-0") -> SharedFile:
    return ahead(Role.BASE, checkpoint, number, table=table)


def test_changes_that_were_written_ahead_outlive_a_snapshot_that_is_given_up() -> None:
    """S7, I12, bug-D1, bug-D7: the next one may refer to them, whether the first had answered or not."""
    retention = complete(begun(), 1, A).triggered(n(2), n(1))
    retention, _ = retention.acknowledged(n(2), files(A, log(1), B))
    retention, strays = retention.given_up(n(2))
    assert strays == (B,)
    assert retention.strays([log(1)]) == (), "nor is it found by looking"
    retention = retention.triggered(n(3), n(1))
    retention, _ = retention.acknowledged(n(3), files(A, log(1)))
    retention, strays = retention.completed(n(3), files(A, log(1)))
    assert (strays, retention.only_of(n(1))) == ((), ())


def test_changes_that_were_written_ahead_go_when_every_base_is_newer() -> None:
    """S7, I13: what no checkpoint has by then, none will."""
    retention = complete(begun(), 1, A).triggered(n(2), n(1)).triggered(n(3), n(1))
    retention, _ = retention.completed(n(2), files(A, B))
    assert retention.strays([log(1)]) == (), "3 builds on 1"
    retention, _ = retention.given_up(n(3))
    assert retention.strays([log(1), log(2)]) == (log(1),)


def test_changes_in_a_checkpoint_that_went_are_looked_at_again() -> None:
    """S7, I13: when it goes an older snapshot may still refer to them."""
    retention = complete(begun(), 1, A).triggered(n(2), n(1)).triggered(n(3), n(1))
    retention, _ = retention.acknowledged(n(2), files(A, log(1)))
    retention, _ = retention.completed(n(2), files(A, log(1)))
    retention, strays = retention.deleted(n(2))
    assert strays == ()
    _, strays = retention.given_up(n(3))
    assert strays == (log(1),)


def test_all_rows_stay_until_a_base_begins_with_later_ones() -> None:
    """S7, I12, bug-D10: over any number of checkpoints, and whatever becomes of the first that uses them."""
    retention = begun()
    for number in range(1, 9):
        retention = complete(retention, number, file(number), base=number - 1)
        assert retention.strays([base(3), base(7)]) == ()
    retention = complete(retention, 9, base(7), base=8)
    assert retention.strays([base(3), base(7), base(9)]) == (base(3),)


def test_all_rows_of_other_tables_say_nothing() -> None:
    """S7, I12."""
    retention = complete(begun(), 1, base(7, table="0-1"))
    assert retention.strays([base(3)]) == ()


def test_all_rows_are_not_followed_while_somebody_builds_on_an_older_base() -> None:
    """S7, I12: a snapshot that is pending may begin with the earlier ones."""
    retention = complete(begun(), 1, A).triggered(n(2), n(1)).triggered(n(3), n(1))
    retention, _ = retention.completed(n(2), files(base(7)))
    assert retention.strays([base(3)]) == ()
    retention, _ = retention.given_up(n(3))
    assert retention.strays([base(3)]) == (base(3),)


def test_all_rows_that_no_checkpoint_begins_with_any_more_go() -> None:
    """S7, I13: where one has written all rows itself there are no later ones. It makes no difference how often that is
    asked."""
    retention = complete(complete(begun(), 1, base(3)), 2, B, base=1)
    assert retention.only_of(n(1)) == (), "it may be needed again"
    retention, strays = retention.deleted(n(1))
    assert strays == (base(3),)
    assert retention.strays([base(3)]) == (base(3),)
    retention = complete(retention, 3, base(9), base=2).triggered(n(4), n(3))
    retention, _ = retention.given_up(n(4))
    assert (retention.let_go, retention.strays([base(3)])) == (frozenset(), (base(3),))


def test_a_late_answer_says_nothing_about_all_rows() -> None:
    """S7, I12: a snapshot that has been triggered meanwhile may begin with them."""
    retention = complete(begun(), 1, A).triggered(n(2), n(1)).triggered(n(3), n(1))
    retention, _ = retention.completed(n(3), files(A, C))
    retention, _ = retention.given_up(n(2))
    retention = retention.triggered(n(4), n(3))
    _, strays = retention.acknowledged(n(2), files(A, B, base(3)))
    assert strays == (B,)


def test_who_looks_through_everything_is_told_when_it_is_worth_it() -> None:
    """S7, I13: a base that is the first to begin with rows from the background."""
    retention = complete(complete(begun(), 1, A), 2, A, base(3), base=1)
    assert not retention.is_rebased(n(1))
    assert retention.is_rebased(n(2))
    retention = complete(retention.triggered(n(3), n(2)), 3, base(3), B)
    assert not retention.is_rebased(n(3))


def test_what_was_written_ahead_ends_with_its_attempt() -> None:
    """S7, I13: found by the next one's first look, unless a checkpoint refers to it."""
    retention = Retention().claimed(AttemptId(2), {n(1): files(log(1), base(3))})
    assert retention.strays([log(1), base(3), log(1, 2), base(4)]) == tuple(
        sorted([log(1, 2), base(4)])
    )
