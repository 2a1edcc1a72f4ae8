"""Facts about `rocketshim.locks.fold`."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.locks.fold import Folded, GroupLog, LeaseOutcome, Member, Owner, QueueLock
from rocketshim_topics.group_log import (
    ClaimedQueue,
    ClaimRecord,
    GroupRecord,
    LeaseEntry,
    LeaveRecord,
    MemberRecord,
    ReleaseRecord,
    RenewRecord,
)
from rocketshim_topics.message_queue import MessageQueue

T0 = 1_700_000_000_000
LEASE = 60_000
Q = MessageQueue("orders", "kafka", 0)
Q1 = MessageQueue("orders", "kafka", 1)
A, B, C = (Owner(name, "i1") for name in "abc")


def claim(owner: Owner, *queues: MessageQueue, base: int = T0, lease_ms: int = LEASE) -> ClaimRecord:
    named = tuple(ClaimedQueue(topic=q.topic, queue_id=q.queue_id) for q in queues or (Q,))
    return ClaimRecord(
        client_id=owner.client_id, incarnation=owner.incarnation, seq=1, lease_ms=lease_ms, base=base, queues=named
    )


def lease_entry(
    token: int,
    queue: MessageQueue = Q,
    confirmed: int = 0,
    next_offset: int | None = None,
    counts: tuple[tuple[int, int], ...] = (),
) -> LeaseEntry:
    return LeaseEntry(
        topic=queue.topic,
        queue_id=queue.queue_id,
        token=token,
        confirmed_offset=confirmed,
        next_offset=next_offset,
        reconsume_counts=counts,
    )


def renew(owner: Owner, *queues: LeaseEntry, base: int = T0, lease_ms: int = LEASE) -> RenewRecord:
    return RenewRecord(
        client_id=owner.client_id, incarnation=owner.incarnation, seq=1, lease_ms=lease_ms, base=base, queues=queues
    )


def release(owner: Owner, *queues: LeaseEntry, base: int = T0) -> ReleaseRecord:
    return ReleaseRecord(
        client_id=owner.client_id, incarnation=owner.incarnation, seq=1, lease_ms=LEASE, base=base, queues=queues
    )


def member(
    owner: Owner, *, base: int | None = None, strategy: str | None = None, lease_ms: int = LEASE
) -> MemberRecord:
    return MemberRecord(
        client_id=owner.client_id,
        incarnation=owner.incarnation,
        seq=1,
        lease_ms=lease_ms,
        base=base,
        strategy=strategy,
    )


def leave(owner: Owner) -> LeaveRecord:
    return LeaveRecord(client_id=owner.client_id, incarnation=owner.incarnation, seq=1, lease_ms=LEASE)


class Log:
    """A log under construction, and the fold over it. `at` is true time in ms since the log was created."""

    def __init__(self, start_offset: int = 0) -> None:
        self.fold = GroupLog(start_offset)
        self.now_ms = 0

    def wait(self, wait_ms: int) -> "Log":
        """Let time pass, with a heartbeat of another member every 5 s."""
        while wait_ms > 0:
            step_ms = min(5_000, wait_ms)
            self.now_ms += step_ms
            wait_ms -= step_ms
            if wait_ms:
                self.append(member(Owner("bystander", "i")))
        return self

    def append(self, record: GroupRecord) -> Folded:
        return self.fold.fold(self.fold.next_offset, T0 + self.now_ms, record)

    def outcome(self, record: GroupRecord) -> LeaseOutcome:
        (effect,) = self.append(record).effects
        return effect.outcome

    def granted(self, record: ClaimRecord) -> int:
        (effect,) = self.append(record).effects
        assert effect.outcome is LeaseOutcome.GRANTED
        assert effect.token is not None
        return effect.token


@pytest.fixture
def log() -> Log:
    """A log whose base is T0 and whose next offset is 1."""
    log = Log()
    log.append(member(A))
    return log


# --- locks --------------------------------------------------------------------------------------------------------


def test_a_claim_of_a_free_queue_is_granted_with_base_plus_offset_as_token(log: Log) -> None:
    assert log.granted(claim(A)) == T0 + 1
    lock = log.fold.lock(Q)
    assert (lock.owner, lock.token, lease_left(lock)) == (A, T0 + 1, LEASE)


def lease_left(lock: QueueLock) -> int:
    return lock.lease_left_ms


def test_a_claim_of_several_queues_is_evaluated_per_queue(log: Log) -> None:
    log.append(claim(A, Q1))
    outcomes = [j.outcome for j in log.append(claim(B, Q, Q1)).effects]
    assert outcomes == [LeaseOutcome.GRANTED, LeaseOutcome.REFUSED]


def test_a_claim_is_refused_while_another_owners_lease_is_valid(log: Log) -> None:
    log.append(claim(A))
    log.wait(LEASE - 1)
    assert log.outcome(claim(B)) is LeaseOutcome.REFUSED
    assert log.fold.lock(Q).owner == A


def test_an_expired_lease_has_no_owner_and_the_next_claim_is_granted(log: Log) -> None:
    log.append(claim(A))
    log.wait(LEASE)
    assert log.fold.lock(Q).owner == A  # the last record came before the end
    token = log.granted(claim(B))
    assert token == T0 + log.fold.next_offset - 1


def test_an_expired_lease_shows_no_owner_whoever_asks(log: Log) -> None:
    log.append(claim(A))
    log.wait(LEASE)
    log.append(member(B))
    lock = log.fold.lock(Q)
    assert (lock.owner, lock.lease_left_ms, lock.token) == (None, 0, T0 + 1)


def test_the_owners_own_claim_is_granted_again_with_a_new_token(log: Log) -> None:
    first = log.granted(claim(A))
    second = log.granted(claim(A))
    assert second > first
    assert log.outcome(renew(A, lease_entry(first))) is LeaseOutcome.VOID


def test_another_incarnation_of_the_same_client_is_another_owner(log: Log) -> None:
    log.append(claim(A))
    assert log.outcome(claim(Owner("a", "i2"))) is LeaseOutcome.REFUSED


def test_a_renewal_restarts_the_lease(log: Log) -> None:
    token = log.granted(claim(A))
    log.wait(LEASE - 1)
    assert log.outcome(renew(A, lease_entry(token))) is LeaseOutcome.RENEWED
    log.wait(LEASE - 1)
    assert log.outcome(claim(B)) is LeaseOutcome.REFUSED


@pytest.mark.parametrize("record", [renew, release])
def test_renewal_and_release_count_only_with_the_current_token(log: Log, record: Callable[..., GroupRecord]) -> None:
    token = log.granted(claim(A))
    for wrong in (token - 1, token + 1):
        assert log.outcome(record(A, lease_entry(wrong))) is LeaseOutcome.VOID
    assert log.outcome(record(B, lease_entry(token))) is LeaseOutcome.VOID
    assert log.fold.lock(Q).owner == A


@pytest.mark.parametrize("record", [renew, release])
def test_renewal_and_release_are_void_after_the_lease_has_expired(log: Log, record: Callable[..., GroupRecord]) -> None:
    token = log.granted(claim(A))
    log.wait(LEASE)
    assert log.outcome(record(A, lease_entry(token, next_offset=9))) is LeaseOutcome.VOID
    assert log.fold.lock(Q).next_offset is None


def test_a_released_queue_is_free_immediately(log: Log) -> None:
    token = log.granted(claim(A))
    assert log.outcome(release(A, lease_entry(token))) is LeaseOutcome.RELEASED
    assert log.fold.lock(Q).owner is None
    assert log.granted(claim(B)) > token


def test_a_lease_has_the_length_in_its_record(log: Log) -> None:
    token = log.granted(claim(A, lease_ms=1_000))
    log.wait(999)
    assert log.outcome(renew(A, lease_entry(token), lease_ms=3_000)) is LeaseOutcome.RENEWED
    log.wait(3_000)
    assert log.outcome(claim(B)) is LeaseOutcome.GRANTED


def test_position_and_counts_stay_with_the_queue_for_its_next_owner(log: Log) -> None:
    token = log.granted(claim(A))
    log.append(renew(A, lease_entry(token, next_offset=118, counts=((118, 4), (120, 1)))))
    log.append(release(A, lease_entry(token, counts=((118, 5),))))  # None: no new position
    (effect,) = log.append(claim(B)).effects
    assert (effect.next_offset, effect.reconsume_counts) == (118, ((118, 5),))


# --- log time -----------------------------------------------------------------------------------------------------


def test_a_silent_log_does_not_move_and_one_record_moves_it_five_seconds_at_most(log: Log) -> None:
    log.append(claim(A))
    log.now_ms += 10 * LEASE
    assert log.outcome(claim(B)) is LeaseOutcome.REFUSED
    assert log.fold.lock(Q).lease_left_ms == LEASE - 5_000


def test_a_leader_clock_that_steps_an_hour_forward_expires_nothing(log: Log) -> None:
    token = log.granted(claim(A))
    log.now_ms += 3_600_000
    assert log.outcome(renew(A, lease_entry(token))) is LeaseOutcome.RENEWED


def test_a_leader_clock_that_steps_an_hour_back_does_not_freeze_the_log(log: Log) -> None:
    log.now_ms += 7_200_000
    log.append(claim(A))
    log.now_ms -= 3_600_000
    log.append(member(B))
    assert log.fold.lock(Q).lease_left_ms == LEASE
    log.wait(LEASE)
    assert log.outcome(claim(B)) is LeaseOutcome.GRANTED


def test_a_malformed_record_is_void_but_moves_time(log: Log) -> None:
    log.append(claim(A))
    folded = log.fold.skip(2, T0 + 4_000)
    assert (folded.owner, folded.seq, folded.effects, folded.has_restarted) == (None, None, (), False)
    assert log.fold.lock(Q).lease_left_ms == LEASE - 4_000


def test_the_wait_before_a_claim_is_given_in_log_time(log: Log) -> None:
    log.append(claim(A))
    log.now_ms += 1_500
    log.append(member(B))
    assert log.fold.claimable_in_ms(Q, B) == LEASE - 1_500
    assert log.fold.claimable_in_ms(Q, A) == 0
    assert log.fold.claimable_in_ms(Q1, B) == 0


# --- base and tokens ----------------------------------------------------------------------------------------------


def test_the_base_is_the_append_time_of_the_first_record() -> None:
    fold = GroupLog(0)
    assert fold.base is None
    assert not fold.may_claim(0, LEASE)
    fold.fold(0, T0, member(A))
    assert (fold.base, fold.token_floor) == (T0, T0 + 1)
    assert fold.may_claim(1, LEASE)


def test_a_first_record_with_a_higher_base_sets_the_base() -> None:
    fold = GroupLog(0)
    fold.fold(0, T0, member(A, base=T0 + 77))
    assert fold.base == T0 + 77


def test_records_written_for_a_former_log_are_void(log: Log) -> None:
    assert log.outcome(claim(A, base=T0 - 1)) is LeaseOutcome.VOID
    token = log.granted(claim(A))
    assert log.outcome(renew(A, lease_entry(token), base=T0 - 1)) is LeaseOutcome.VOID
    assert log.outcome(release(A, lease_entry(token), base=T0 - 1)) is LeaseOutcome.VOID
    assert log.fold.lock(Q).owner == A


def test_a_higher_base_ends_every_lock_and_grants_nothing_for_one_lease(log: Log) -> None:
    token = log.granted(claim(A))
    folded = log.append(member(B, base=T0 + 1_000))
    assert folded.has_restarted
    assert log.fold.base == T0 + 1_000
    assert log.fold.lock(Q).owner is None
    assert log.outcome(renew(A, lease_entry(token), base=T0 + 1_000)) is LeaseOutcome.VOID
    log.wait(LEASE - 1)
    assert log.outcome(claim(B, base=T0 + 1_000)) is LeaseOutcome.REFUSED
    assert log.fold.claimable_in_ms(Q, B) == 1
    log.wait(1)
    assert log.granted(claim(B, base=T0 + 1_000)) > token


def test_tokens_keep_growing_when_the_topic_is_created_again_with_an_earlier_clock(log: Log) -> None:
    token = log.granted(claim(A))
    floor = log.fold.token_floor
    again = GroupLog(0)
    again.fold(0, T0 - 3_600_000, member(A, base=floor))
    (effect,) = again.fold(1, T0 - 3_600_000, claim(A, base=again.base or 0)).effects
    assert effect.token is not None
    assert effect.token > token


# --- members ------------------------------------------------------------------------------------------------------


def test_a_member_is_alive_for_one_lease_after_its_last_heartbeat(log: Log) -> None:
    log.wait(LEASE - 1)
    log.append(member(B, strategy="AVG"))
    assert [m.owner for m in log.fold.members] == [A, B, Owner("bystander", "i")]
    log.wait(1)
    log.append(member(B, strategy="AVG"))
    assert Member(B, "AVG", log.fold.next_offset - 2, log.fold.log_ms + LEASE) in log.fold.members
    assert A not in {m.owner for m in log.fold.members}


def test_a_member_that_was_absent_comes_last_again(log: Log) -> None:
    log.append(member(B))
    log.wait(LEASE)
    log.append(member(C))
    log.append(member(B))
    assert [(m.owner, m.since_offset) for m in log.fold.members if m.owner == B] == [(B, log.fold.next_offset - 1)]


def test_a_member_that_leaves_is_gone_immediately_and_keeps_its_leases(log: Log) -> None:
    log.append(claim(A))
    log.append(leave(A))
    assert log.fold.members == ()
    assert log.fold.lock(Q).owner == A


def test_each_record_reports_whether_a_member_joined_left_or_expired(log: Log) -> None:
    assert not log.append(member(A)).members_changed
    assert log.append(member(B)).members_changed
    assert not log.append(claim(A)).members_changed
    assert not log.append(renew(A, lease_entry(T0 + 3))).members_changed
    assert log.append(member(B, strategy="AVG")).members_changed
    assert not log.append(member(B, strategy="AVG")).members_changed
    assert log.append(leave(B)).members_changed
    assert not log.append(leave(B)).members_changed
    log.wait(LEASE - 1)
    assert not log.append(member(Owner("bystander", "i"))).members_changed
    log.wait(1)
    assert log.fold.skip(log.fold.next_offset, T0 + log.now_ms).members_changed, "A has expired"
    assert [each.owner.client_id for each in log.fold.members] == ["bystander"]
    assert log.append(member(A)).members_changed


def test_an_expired_member_is_forgotten(log: Log) -> None:
    for number in range(50):
        log.append(member(Owner("restarted", str(number))))
        log.wait(LEASE)
    assert len(log.fold._members) <= 3


def test_client_ids_are_distinct_and_sorted() -> None:
    fold = GroupLog(0)
    for offset, owner in enumerate([B, A, Owner("a", "i2")]):
        fold.fold(offset, T0, member(owner))
    assert fold.client_ids == ("a", "b")


def test_of_two_strategies_the_one_that_joined_first_stays(log: Log) -> None:
    log.append(member(B, strategy="AVG"))
    first = log.fold.conflicting_member(B, "AVG")
    assert first is not None
    assert first.owner == A
    assert log.fold.conflicting_member(A, None) is None
    assert log.fold.conflicting_member(C, None) == log.fold.members[1]  # C has not written yet
    assert log.fold.conflicting_member(C, "AVG") == first


# --- gaps, truncation and re-creation of the log ------------------------------------------------------------------


def test_an_offset_that_was_folded_and_a_negative_time_are_refused_and_change_nothing(log: Log) -> None:
    before = state(log.fold)
    with pytest.raises(ValueError, match="folded before"):
        log.fold.fold(0, T0, claim(A))
    with pytest.raises(ValueError, match="LogAppendTime"):
        log.fold.fold(1, -1, claim(A))
    with pytest.raises(ValueError, match="start_offset"):
        GroupLog(-1)
    assert state(log.fold) == before


def test_the_bounds_of_the_log_reveal_truncation_and_re_creation(log: Log) -> None:
    log.append(member(A))
    assert log.fold.why_lost(0, 2) is None
    assert log.fold.why_lost(2, 9) is None
    assert log.fold.why_lost(3, 9) == "truncated: it has 3 to 9, the next to read is 2"
    assert log.fold.why_lost(0, 1) == "recreated: it has 0 to 1, the next to read is 2"


def test_a_gap_ends_what_the_fold_knows(log: Log) -> None:
    log.append(claim(A))
    folded = log.fold.fold(9, T0, member(A))
    assert folded.has_restarted
    assert not log.fold.lock(Q).known
    assert not log.fold.may_claim(0, LEASE)


def test_an_unknown_version_ends_what_the_fold_knows_until_one_lease_has_passed(log: Log) -> None:
    log.append(claim(A))
    assert log.fold.unreadable(2, T0).has_restarted
    log.append(member(B))
    assert not log.fold.lock(Q).known
    assert log.outcome(claim(B)) is LeaseOutcome.UNKNOWN
    log.wait(LEASE)
    log.append(member(B))
    assert log.fold.may_claim(0, LEASE)
    assert log.fold.lock(Q).known


# --- folds that begin later ---------------------------------------------------------------------------------------


def truncated(start_offset: int = 500) -> Log:
    log = Log(start_offset)
    log.append(member(C, base=T0))
    return log


def test_a_fold_without_the_beginning_grants_nothing_before_it_spans_a_lease() -> None:
    log = truncated()
    assert not log.fold.may_claim(501, LEASE)
    assert log.outcome(claim(A)) is LeaseOutcome.UNKNOWN
    log = truncated()
    log.wait(LEASE)
    log.append(member(C, base=T0))
    assert not log.fold.may_claim(log.fold.next_offset + 1, LEASE)
    assert not log.fold.may_claim(0, LEASE + 1)
    assert log.fold.may_claim(log.fold.next_offset, LEASE)
    assert log.outcome(claim(A)) is LeaseOutcome.GRANTED


def test_a_renewal_that_confirms_a_read_record_makes_the_owner_known() -> None:
    log = truncated()
    token = T0 + 7
    assert log.outcome(renew(A, lease_entry(token, confirmed=480))) is LeaseOutcome.UNKNOWN
    likely = log.fold.lock(Q)
    assert (likely.known, likely.owner, likely.token) == (False, A, token)
    log.wait(20_000)
    renewal = renew(A, lease_entry(token, confirmed=501, next_offset=12, counts=((12, 1),)))
    assert log.outcome(renewal) is LeaseOutcome.RENEWED
    assert log.fold.lock(Q) == QueueLock(
        queue=Q,
        known=True,
        owner=A,
        token=token,
        lease_left_ms=LEASE,
        next_offset=12,
        reconsume_counts=((12, 1),),
    )


def test_a_confirmed_claim_makes_the_owner_known() -> None:
    log = truncated()
    assert log.outcome(claim(A)) is LeaseOutcome.UNKNOWN
    assert log.outcome(claim(B)) is LeaseOutcome.UNKNOWN
    token = T0 + 501
    assert log.outcome(renew(A, lease_entry(token, confirmed=501))) is LeaseOutcome.RENEWED


def test_a_confirmed_release_makes_the_queue_free() -> None:
    log = truncated()
    log.append(renew(A, lease_entry(T0 + 7, confirmed=480)))
    assert log.outcome(release(A, lease_entry(T0 + 7, confirmed=501, next_offset=33))) is LeaseOutcome.RELEASED
    lock = log.fold.lock(Q)
    assert (lock.known, lock.owner, lock.next_offset) == (True, None, 33)


def test_a_confirmation_that_arrives_after_its_lease_lets_the_later_claim_win() -> None:
    log = truncated()
    log.append(renew(A, lease_entry(T0 + 7, confirmed=480)))  # offset 501
    log.wait(LEASE)
    log.append(claim(B))  # granted, as a fold that knows more sees immediately
    winner = T0 + log.fold.next_offset - 1
    assert log.outcome(renew(A, lease_entry(T0 + 7, confirmed=501))) is LeaseOutcome.VOID
    lock = log.fold.lock(Q)
    assert (lock.known, lock.owner, lock.token) == (True, B, winner)


@pytest.mark.parametrize(
    "confirming",
    [
        renew(B, lease_entry(T0 + 7, confirmed=501)),  # another member's record
        renew(A, lease_entry(T0 + 8, confirmed=501)),  # another token
        renew(A, lease_entry(T0 + 7, confirmed=502)),  # a release gives no lease
        renew(A, lease_entry(T0 + 7, confirmed=500)),  # a record that names no queue
        renew(A, lease_entry(T0 + 7, confirmed=503)),  # itself
    ],
)
def test_a_record_confirms_only_a_record_of_its_own_writer_and_token(confirming: RenewRecord) -> None:
    log = truncated()
    log.append(renew(A, lease_entry(T0 + 7, confirmed=480)))
    log.append(release(A, lease_entry(T0 + 7, confirmed=480)))
    assert log.outcome(confirming) is LeaseOutcome.UNKNOWN


def test_an_unknown_queue_takes_position_counts_and_token_from_the_highest_token() -> None:
    log = truncated()
    log.append(renew(B, lease_entry(T0 + 9, confirmed=480, next_offset=70, counts=((70, 2),))))
    log.append(renew(B, lease_entry(T0 + 9, confirmed=480, next_offset=75, counts=((75, 1),))))
    log.append(renew(A, lease_entry(T0 + 7, confirmed=480, next_offset=40)))
    log.append(claim(C))  # offset 504
    seen = log.fold.lock(Q)
    assert (seen.token, seen.next_offset, seen.reconsume_counts) == (T0 + 504, 75, ((75, 1),))
    assert log.outcome(renew(C, lease_entry(T0 + 504, confirmed=504, counts=((75, 2),)))) is LeaseOutcome.RENEWED
    assert log.fold.lock(Q).next_offset == 75


def test_a_queue_freed_by_time_keeps_position_counts_and_token() -> None:
    log = truncated()
    log.append(renew(B, lease_entry(T0 + 9, confirmed=480, next_offset=70, counts=((70, 2),))))
    log.wait(LEASE)
    assert log.outcome(renew(A, lease_entry(T0 + 7))) is LeaseOutcome.VOID
    lock = log.fold.lock(Q)
    assert (lock.known, lock.owner) == (True, None)
    assert (lock.token, lock.next_offset, lock.reconsume_counts) == (T0 + 9, 70, ((70, 2),))


def test_the_fold_must_span_the_longest_lease_seen() -> None:
    log = truncated()
    log.append(member(B, base=T0, lease_ms=3 * LEASE))
    log.wait(2 * LEASE)
    log.append(member(C, base=T0))
    assert not log.fold.may_claim(0, LEASE)
    assert log.outcome(claim(A)) is LeaseOutcome.UNKNOWN


def test_a_stale_renewal_never_makes_an_owner() -> None:
    """The counter-example to adopting any higher token: B owns the queue, A's late renewal arrives first."""
    log = truncated()
    log.append(renew(A, lease_entry(T0 + 7, confirmed=480)))
    log.wait(LEASE - 1)
    log.append(claim(B))
    winner, confirmed = T0 + log.fold.next_offset - 1, log.fold.next_offset - 1
    log.wait(2_000)
    # A's lease would be over now; a fold that had adopted A and refused B would grant C here
    assert log.outcome(claim(C)) is LeaseOutcome.UNKNOWN
    assert log.outcome(renew(B, lease_entry(winner, confirmed=confirmed))) is LeaseOutcome.RENEWED
    assert log.fold.lock(Q).owner == B


def test_a_log_without_beginning_and_base_gets_a_base_after_one_lease() -> None:
    log = Log(500)
    log.append(member(A))
    assert log.fold.base is None
    for _ in range(12):
        log.wait(5_000)
        log.append(member(A))
    assert log.fold.base == T0
    assert log.fold.may_claim(0, LEASE)


def test_a_fold_with_a_former_logs_base_restarts_at_the_true_base() -> None:
    log = Log(500)
    log.append(claim(A, base=T0 - 9_000))  # a late record for a former log
    folded = log.append(member(B, base=T0))
    assert folded.has_restarted
    assert log.fold.base == T0
    assert log.fold.lock(Q).token is None


# --- properties ---------------------------------------------------------------------------------------------------

State = tuple[object, ...]


def state(fold: GroupLog) -> State:
    queues = [MessageQueue("orders", "kafka", i) for i in range(4)]
    return (
        fold.next_offset,
        fold.log_ms,
        fold.base,
        fold.members,
        fold.locks,
        tuple(fold.claimable_in_ms(q, owner) for q in queues for owner in (A, B, C)),
        fold.may_claim(0, LEASE),
    )


owners = st.sampled_from([A, B, C, Owner("a", "i2")])
some_queues = st.lists(st.sampled_from([Q, Q1]), min_size=1, max_size=2, unique=True).map(tuple)
leases = st.sampled_from([1_000, 10_000, LEASE])
tokens = st.integers(0, 60).map(lambda offset: T0 + offset)
bases = st.sampled_from([T0] * 12 + [T0 - 50, T0 + 500])
some_entries = st.builds(
    lease_entry,
    tokens,
    st.sampled_from([Q, Q1]),
    st.integers(0, 60),
    st.none() | st.integers(0, 99),
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), max_size=2).map(tuple),
)
any_records = st.one_of(
    st.builds(lambda o, qs, b, ms: claim(o, *qs, base=b, lease_ms=ms), owners, some_queues, bases, leases),
    st.builds(lambda o, h, b, ms: renew(o, h, base=b, lease_ms=ms), owners, some_entries, bases, leases),
    st.builds(lambda o, h, b: release(o, h, base=b), owners, some_entries, bases),
    st.builds(lambda o, b, ms: member(o, base=b, lease_ms=ms), owners, st.none() | bases, leases),
    st.builds(leave, owners),
)
clock_steps = st.one_of(
    st.integers(0, 9_000), st.integers(0, 50), st.sampled_from([-3_600_000, -10_000, 20_000, 3_600_000])
)
Entry = tuple[int, GroupRecord]


def appended(steps: Sequence[tuple[int, GroupRecord]]) -> list[Entry]:
    """Turn clock steps into append times; the first record sets base T0."""
    log: list[Entry] = [(T0, member(C))]
    now_ms = T0 + 7_200_000
    for step_ms, record in steps:
        now_ms = max(0, now_ms + step_ms)
        log.append((now_ms, record))
    return log


any_logs = st.lists(st.tuples(clock_steps, any_records), max_size=40).map(appended)


@dataclass
class Model:
    """Naive model of a log that begins at offset 0: it keeps no state, and every question reads the whole log."""

    log: Sequence[Entry]

    def times(self) -> list[int]:
        """Return the log time at each record."""
        steps = (min(5_000, max(0, after - before)) for (before, _), (after, _) in itertools.pairwise(self.log))
        return list(itertools.accumulate(steps, initial=0))

    def last_raise(self) -> tuple[int, int, int]:
        """Return the index of the current base's record, the base, and the log time from which claims are granted."""
        index, base, granting_from_ms = 0, T0, 0
        for i, (_, record) in enumerate(self.log[1:], 1):
            if record.base is not None and record.base > base:
                index, base, granting_from_ms = i, record.base, self.times()[i] + record.lease_ms
        return index, base, granting_from_ms

    def counting(self, queue: MessageQueue) -> list[tuple[int, GroupRecord, int]]:
        """Return records for the current base that name the queue: index, record, and token named (claims: made)."""
        index, base, granting_from_ms = self.last_raise()
        found: list[tuple[int, GroupRecord, int]] = []
        for i, (_, record) in enumerate(self.log):
            if i < index or record.base != base or isinstance(record, MemberRecord | LeaveRecord):
                continue
            if isinstance(record, ClaimRecord) and self.times()[i] < granting_from_ms:
                continue
            found += [(i, record, getattr(q, "token", base + i)) for q in record.queues if q.queue == queue]
        return found

    def lease_end(self, queue: MessageQueue, position: int, before: int) -> int:
        """Return the log time at which the lease granted at `position` ends, by the records before `before`."""
        granted = self.log[position][1]
        end = self.times()[position] + granted.lease_ms
        for i, record, token in self.counting(queue):
            if not position < i < before or isinstance(record, ClaimRecord) or self.times()[i] >= end:
                continue
            if writer(record) == writer(granted) and token == self.last_raise()[1] + position:
                end = self.times()[i] + (record.lease_ms if isinstance(record, RenewRecord) else 0)
        return end

    def lock(self, queue: MessageQueue) -> tuple[Owner | None, int | None, int]:
        """Return owner, last token and remaining lease after the last record."""
        granted: int | None = None
        for i, record, _ in self.counting(queue):
            if not isinstance(record, ClaimRecord):
                continue
            same = granted is not None and writer(self.log[granted][1]) == writer(record)
            if granted is None or same or self.times()[i] >= self.lease_end(queue, granted, i):
                granted = i
        if granted is None:
            return None, None, 0
        token = self.last_raise()[1] + granted
        left = self.lease_end(queue, granted, len(self.log)) - self.times()[-1]
        return (writer(self.log[granted][1]), token, left) if left > 0 else (None, token, 0)


def writer(record: GroupRecord) -> Owner:
    return Owner(record.client_id, record.incarnation)


def folded(log: Iterable[Entry], start_offset: int = 0) -> GroupLog:
    fold = GroupLog(start_offset)
    for offset, (append_ms, record) in enumerate(log, start_offset):
        fold.fold(offset, append_ms, record)
    return fold


@settings(max_examples=400)
@given(any_logs)
def test_any_log_folds_to_the_state_of_the_naive_model(log: list[Entry]) -> None:
    fold = folded(log)
    for queue in (Q, Q1):
        lock = fold.lock(queue)
        assert lock.known
        assert (lock.owner, lock.token, lock.lease_left_ms) == Model(log).lock(queue)


@given(any_logs)
def test_every_fold_of_one_log_has_one_state_at_each_position(log: list[Entry]) -> None:
    watched = GroupLog(0)
    for offset, (append_ms, record) in enumerate(log):
        watched.fold(offset, append_ms, record)
        assert state(watched) == state(watched)  # reading the state changes nothing
        assert state(watched) == state(folded(log[: offset + 1]))


@given(any_logs)
def test_at_each_position_an_expired_owner_is_none_and_only_its_own_record_makes_an_owner(log: list[Entry]) -> None:
    fold = GroupLog(0)
    ends: dict[MessageQueue, int] = {}
    for offset, (append_ms, record) in enumerate(log):
        before = {lock.queue: lock.owner for lock in fold.locks}
        result = fold.fold(offset, append_ms, record)
        for effect in result.effects:
            if effect.outcome in (LeaseOutcome.GRANTED, LeaseOutcome.RENEWED):
                ends[effect.queue] = fold.log_ms + record.lease_ms
        for lock in fold.locks:
            assert (lock.owner is not None) == (lock.lease_left_ms > 0)
            if lock.owner is not None:
                assert fold.log_ms + lock.lease_left_ms == ends[lock.queue]
                assert lock.owner in (before.get(lock.queue), result.owner)


@given(any_logs)
def test_tokens_of_a_queue_only_grow(log: list[Entry]) -> None:
    fold = GroupLog(0)
    newest: dict[MessageQueue, int] = {}
    for offset, (append_ms, record) in enumerate(log):
        for effect in fold.fold(offset, append_ms, record).effects:
            if effect.outcome is LeaseOutcome.GRANTED:
                assert effect.token is not None
                assert effect.token > newest.get(effect.queue, -1)
                newest[effect.queue] = effect.token
        assert fold.token_floor is None or fold.token_floor > max(newest.values(), default=-1)


@given(any_logs, any_logs, st.integers(-7_200_000, 7_200_000))
def test_tokens_keep_growing_across_a_re_creation(first: list[Entry], second: list[Entry], step_ms: int) -> None:
    before = folded(first)
    highest = max((lock.token or 0 for lock in before.locks), default=0)
    again = GroupLog(0)
    again.fold(0, T0 + step_ms, member(A, base=before.token_floor))
    base = again.base
    assert base is not None
    for offset, (append_ms, record) in enumerate(second, 1):
        for effect in again.fold(offset, append_ms, record.model_copy(update={"base": base})).effects:
            assert effect.outcome is not LeaseOutcome.GRANTED or (effect.token or 0) > highest


# Honest members: each reads the log up to some offset, writes what that allows, and its record arrives later.


@dataclass
class Honest:
    """A member of the model: how far it has read, and its records in flight, in order."""

    owner: Owner
    view: GroupLog
    outbox: list[GroupRecord]
    confirmed: dict[MessageQueue, int]

    def read_to(self, log: Sequence[Entry], end: int) -> None:
        while self.view.next_offset < end:
            offset = self.view.next_offset
            result = self.view.fold(offset, *log[offset])
            if result.owner == self.owner:
                for effect in result.effects:
                    if effect.outcome in (LeaseOutcome.GRANTED, LeaseOutcome.RENEWED):
                        self.confirmed[effect.queue] = offset

    def write(self, kind: str, queue: MessageQueue) -> None:
        lock = self.view.lock(queue)
        base = self.view.base
        if base is None or kind in ("member", "raise"):
            self.outbox.append(member(self.owner, base=base and base + 1_000 * (kind == "raise")))
        elif kind == "claim":
            self.outbox.append(claim(self.owner, queue, base=base))
        elif lock.owner == self.owner and lock.token is not None:
            entry = lease_entry(lock.token, queue, self.confirmed[queue])
            self.outbox.append((renew if kind == "renew" else release)(self.owner, entry, base=base))


moves = st.tuples(
    st.integers(0, 2),  # index of the member
    st.sampled_from(["read", "write", "send", "send"]),
    st.sampled_from(["claim", "renew"] * 4 + ["renew", "release", "release", "member", "raise"]),
    st.sampled_from([Q, Q1]),
    st.one_of(st.integers(0, 6_000), st.just(-3_600_000), st.just(3_600_000)),
)


def honest_log(steps: Sequence[tuple[int, str, str, MessageQueue, int]]) -> list[Entry]:
    log: list[Entry] = [(T0, member(C))]
    people = [Honest(owner, GroupLog(0), [], {}) for owner in (A, B, C)]
    now_ms = T0 + 7_200_000
    for who, what, kind, queue, step_ms in steps:
        person = people[who]
        now_ms = max(0, now_ms + step_ms)
        if what == "read":
            person.read_to(log, len(log))
        elif what == "write":
            person.read_to(log, max(person.view.next_offset, len(log) - 1))
            person.write(kind, queue)
        elif person.outbox:
            log.append((now_ms, person.outbox.pop(0)))
    return log


honest_logs = st.lists(moves, min_size=20, max_size=150).map(honest_log)


@settings(max_examples=300)
@given(honest_logs, st.data())
def test_folds_that_begin_later_never_contradict_the_complete_fold(log: list[Entry], data: st.DataObject) -> None:
    start = data.draw(st.integers(1, max(1, len(log) - 1)), label="start")
    whole, later = folded(log[:start]), GroupLog(start)
    for offset, (append_ms, record) in enumerate(log[start:], start):
        truth = whole.fold(offset, append_ms, record)
        seen = later.fold(offset, append_ms, record)
        for true, late in zip(truth.effects, seen.effects, strict=True):
            assert late.outcome in (true.outcome, LeaseOutcome.UNKNOWN)
        for queue in (Q, Q1):
            lock, true_lock = later.lock(queue), whole.lock(queue)
            if lock.known:
                assert (lock.owner, lock.lease_left_ms) == (true_lock.owner, true_lock.lease_left_ms)
                if lock.owner is not None:
                    assert lock.token == true_lock.token


@given(st.integers(1, 40), st.integers(0, 3), st.integers(1_000, 20_000))
def test_after_one_lease_every_fold_knows_every_renewed_or_unclaimed_queue(
    start: int, owner_count: int, every_ms: int
) -> None:
    """Owners renew at most every third of a lease; other members that want the queue wait until it is free."""
    log: list[Entry] = [(T0, member(C))]
    view = GroupLog(0)
    view.fold(0, *log[0])
    confirmed: dict[MessageQueue, int] = {}
    now_ms = T0
    queues = [MessageQueue("orders", "kafka", i) for i in range(owner_count + 1)]  # no member claims the last one
    while now_ms < T0 + 8 * LEASE or len(log) < start + 20:
        now_ms += min(every_ms, 5_000)
        records: list[GroupRecord] = [member(C, base=T0)]
        for queue in queues[:-1]:
            lock = view.lock(queue)
            entry = lease_entry(lock.token or 0, queue, confirmed.get(queue, 0))
            due = lock.owner is None or LEASE - lock.lease_left_ms >= every_ms
            if due:
                records.append(claim(A, queue) if lock.owner is None else renew(A, entry))
        for record in records:
            log.append((now_ms, record))
            for effect in view.fold(len(log) - 1, now_ms, record).effects:
                if effect.outcome in (LeaseOutcome.GRANTED, LeaseOutcome.RENEWED):
                    confirmed[effect.queue] = len(log) - 1
    later = GroupLog(start)
    for offset, entry_ in enumerate(log[start:], start):
        later.fold(offset, *entry_)
        if later.may_claim(0, LEASE):
            assert all(later.lock(queue).known for queue in queues)
    assert [later.lock(q).owner for q in queues] == [view.lock(q).owner for q in queues]
