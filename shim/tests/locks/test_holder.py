"""Facts about `rocketshim.locks.holder`: one holder first, then several holders with kills, freezes and delays."""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.errors import ConfigError
from rocketshim.locks.fold import Folded, GroupLog, LeaseOutcome, Owner
from rocketshim.locks.holder import TRANSITIONS, Commanded, LockEvent, LockState, QueueLockAction, QueueLockHolder
from rocketshim.locks.lease import (
    Lease,
    QueueLockSettings,
    ReconsumeCounts,
    StopReason,
    Trouble,
)
from rocketshim_topics.group_log import (
    CAUSE_CHARS,
    TRACE_CHARS,
    ClaimRecord,
    CommandRecord,
    GroupRecord,
    LeaseEntry,
    LeaveRecord,
    MemberRecord,
    QueueCommand,
    ReleaseRecord,
    RenewRecord,
    decode_group_record,
    encode_group_record,
)
from rocketshim_topics.message_queue import MessageQueue

T0 = 1_700_000_000_000
Q = MessageQueue("orders", "kafka", 0)
COUNTS = ((21, 2),)
Q1 = MessageQueue("orders", "kafka", 1)
A, B = Owner("a", "i1"), Owner("b", "i1")
DEFAULT = QueueLockSettings()
LEASE, HOLD, RENEW = 60_000, 30_000, 20_000
ActionT = TypeVar("ActionT", bound=GroupRecord)


# --- settings -----------------------------------------------------------------------------------------------------


def test_default_times_equal_rocketmqs() -> None:
    assert (DEFAULT.lock_lease_ms, DEFAULT.lock_hold_ms, DEFAULT.lock_renew_ms) == (60_000, 30_000, 20_000)
    assert (DEFAULT.margin_ms, DEFAULT.heartbeat_every_ms, DEFAULT.retry_ms) == (30_000, 5_000, 2_500)


@pytest.mark.parametrize(
    ("lease", "hold", "renew"), [(60, 60, 20), (60, 30, 30), (60, 70, 20), (60, 30, 0), (86_400_001, 30, 20)]
)
def test_contradictory_times_are_refused_and_the_error_contains_the_margin(lease: int, hold: int, renew: int) -> None:
    with pytest.raises(ConfigError, match=f"stops {lease - hold} ms"):
        QueueLockSettings(lock_lease_ms=lease, lock_hold_ms=hold, lock_renew_ms=renew)


@pytest.mark.parametrize("heartbeat", [0, 5_001, 900])
def test_heartbeats_move_log_time_and_keep_membership(heartbeat: int) -> None:
    with pytest.raises(ConfigError, match="heartbeat_ms"):
        QueueLockSettings(lock_lease_ms=900, lock_hold_ms=600, lock_renew_ms=300, heartbeat_ms=heartbeat)
    assert QueueLockSettings(lock_lease_ms=900, lock_hold_ms=600, lock_renew_ms=300).heartbeat_every_ms == 300


# --- one holder ---------------------------------------------------------------------------------------------------


def decoded(value: bytes) -> GroupRecord:
    """Return a record of a member."""
    record = decode_group_record(value)
    assert not isinstance(record, CommandRecord)
    return record


def valid_token(holder: QueueLockHolder, queue: MessageQueue, now_ms: int) -> int | None:
    """Return the token with which a member may process and commit a queue; None: it may not."""
    slot = holder._slots.get(queue)
    return slot.lease.token if slot is not None and slot.lease.holds(now_ms) else None


class Bench:
    """One holder, its fold, and a log that gets every record immediately unless the test keeps it back."""

    def __init__(self, *wanted: MessageQueue, owner: Owner = A, settings: QueueLockSettings = DEFAULT) -> None:
        self.log = GroupLog(0)
        self.holder = QueueLockHolder(owner, settings)
        self.now_ms = 1_000_000
        self.holder.begin(0, self.now_ms)
        self.sent: list[GroupRecord] = []
        self.done: list[tuple[Lease, StopReason | None]] = []
        self.commanded: list[Commanded] = []
        self.keep_back = False
        self.take(self.holder.want(wanted, self.now_ms))
        self.tick()

    def take(self, actions: Iterable[QueueLockAction]) -> None:
        """Perform actions: append and read back the records, and collect the other actions."""
        for action in actions:
            match action:
                case Lease(stopped=reason) as lease:
                    self.done.append((lease, reason))
                case Commanded() as command:
                    self.commanded.append(command)
                case _:
                    self.sent.append(action)
                    if not self.keep_back:
                        self.append(action)

    def append(self, record: GroupRecord) -> Folded:
        folded = self.log.fold(self.log.next_offset, T0 + self.now_ms, record)
        self.take(self.holder.observe(folded, self.now_ms))
        return folded

    def tick(self) -> list[Any]:
        """Tick until no more actions follow; return the actions."""
        sent, done = len(self.sent), len(self.done)
        self.take(self.holder.tick(self.log, self.now_ms))
        self.take(self.holder.tick(self.log, self.now_ms))
        return [*self.sent[sent:], *self.done[done:]]

    def wait(self, wait_ms: int) -> None:
        """Let time pass, and tick at each instant that the holder requests."""
        end_ms = self.now_ms + wait_ms
        while (wakeup_ms := self.holder.next_wakeup_ms(self.log)) is not None and wakeup_ms <= end_ms:
            self.now_ms = max(self.now_ms, wakeup_ms)
            before = len(self.sent) + len(self.done)
            self.tick()
            if before == len(self.sent) + len(self.done):
                self.now_ms = min(end_ms, self.now_ms + 1)
                break
        self.now_ms = end_ms
        self.tick()

    def of(self, kind: type[ActionT]) -> list[ActionT]:
        return [record for record in self.sent if isinstance(record, kind)]

    def token(self, queue: MessageQueue = Q) -> int | None:
        return valid_token(self.holder, queue, self.now_ms)

    def starts(self) -> list[tuple[MessageQueue, int, int | None, ReconsumeCounts]]:
        """Queue, token, position and counts of each start."""
        started = [lease for lease, reason in self.done if reason is None]
        return [(lease.queue, lease.token, lease.next_offset, lease.reconsume_counts) for lease in started]

    def stops(self) -> list[tuple[MessageQueue, int, StopReason]]:
        """Queue, token and reason of each stop."""
        return [(lease.queue, lease.token, reason) for lease, reason in self.done if reason is not None]

    def lease(self, token: int, queue: MessageQueue = Q) -> Lease:
        """The lease of a queue with this token."""
        return next(lease for lease, _ in self.done if (lease.queue, lease.token) == (queue, token))

    def until_ms(self) -> int:
        """The end of the belief in `Q`."""
        return self.holder._slots[Q].lease.until_ms


def test_a_member_of_a_new_group_heartbeats_claims_and_starts_immediately() -> None:
    bench = Bench(Q, Q1)
    assert [type(action) for action in bench.sent] == [MemberRecord, ClaimRecord]
    assert bench.starts() == [(Q, T0 + 1_000_001, None, ()), (Q1, T0 + 1_000_001, None, ())]
    assert bench.token() == T0 + 1_000_001


def test_there_is_no_belief_before_the_own_claim_is_read_back() -> None:
    bench = Bench()
    bench.keep_back = True
    bench.take(bench.holder.want([Q], bench.now_ms))
    bench.tick()
    assert bench.token() is None
    (claim,) = bench.of(ClaimRecord)
    assert isinstance(claim, ClaimRecord)
    bench.append(claim)
    assert bench.token() is not None


def test_all_owned_queues_are_renewed_in_one_record_every_renew_interval() -> None:
    bench = Bench(Q, Q1)
    bench.wait(RENEW - 1)
    assert not bench.of(RenewRecord)
    bench.wait(1)
    (renewal,) = bench.of(RenewRecord)
    assert isinstance(renewal, RenewRecord)
    assert [entry.queue for entry in renewal.queues] == [Q, Q1]
    assert [entry.confirmed_offset for entry in renewal.queues] == [1, 1]
    bench.wait(10 * RENEW)
    assert len(bench.of(RenewRecord)) == 11
    assert not bench.stops()


class Instant(int):
    """A time that counts its comparisons; a sum or difference of it is a plain number."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Instant.compared += 1
        return int(self) < other

    def __ge__(self, other: int) -> bool:
        Instant.compared += 1
        return int(self) >= other


def test_a_record_of_another_member_does_not_scan_every_owned_queue() -> None:
    queues = [MessageQueue("orders", queue_id=number) for number in range(1_000)]
    bench = Bench(*queues)
    assert len(bench.starts()) == 1_000
    Instant.compared = 0
    for _ in range(100):
        bench.now_ms = Instant(bench.now_ms + 1)
        record = MemberRecord(client_id="b", incarnation="1", seq=1, lease_ms=LEASE)
        assert not bench.append(record).effects
    assert Instant.compared <= 400
    bench.keep_back = True
    bench.now_ms = int(bench.now_ms) + HOLD
    bench.tick()
    assert len(bench.stops()) == 1_000, "each belief still ends at its own time"


def test_releasing_one_of_many_queues_does_not_scan_the_others() -> None:
    queues = [MessageQueue("orders", queue_id=number) for number in range(300)]
    bench = Bench(*queues)
    tokens = {queue: bench.token(queue) for queue in queues}
    bench.take(bench.holder.want((), bench.now_ms))
    Instant.compared = 0
    bench.now_ms = Instant(bench.now_ms + 1)
    for queue, token in tokens.items():
        assert token is not None
        bench.take(bench.holder.release(bench.lease(token, queue), 1, (), bench.now_ms))
    assert len(bench.of(ReleaseRecord)) == 300
    assert Instant.compared <= 10 * 300
    assert not bench.holder._slots


def test_the_belief_lasts_from_before_the_renewal_was_sent() -> None:
    bench = Bench(Q)
    sent_ms = bench.now_ms
    assert bench.until_ms() == sent_ms + HOLD
    bench.keep_back = True
    bench.wait(RENEW)
    (renewal,) = bench.of(RenewRecord)
    assert isinstance(renewal, RenewRecord)
    bench.now_ms += 2_000  # the round trip to the log
    bench.append(renewal)
    assert bench.until_ms() == sent_ms + RENEW + HOLD


def test_the_belief_after_a_claim_lasts_from_before_it_was_sent() -> None:
    bench = Bench()
    bench.keep_back = True
    bench.take(bench.holder.want([Q], bench.now_ms))
    bench.tick()
    sent_ms = bench.now_ms
    bench.now_ms += 2_000
    bench.append(bench.of(ClaimRecord)[0])
    assert bench.until_ms() == sent_ms + HOLD


def test_no_queue_is_claimed_before_the_log_is_read_to_its_initial_end() -> None:
    bench = Bench()
    fresh = QueueLockHolder(B, DEFAULT)
    fresh.want([Q], 0)
    fresh.begin(3, 0)
    record = MemberRecord(client_id="x", incarnation="x", seq=1, lease_ms=LEASE)
    fresh.observe(bench.append(record), 0)
    assert [type(action) for action in fresh.tick(bench.log, 0)] == [MemberRecord]
    fresh.observe(bench.append(record), 0)
    assert [type(action) for action in fresh.tick(bench.log, 0)] == [ClaimRecord]


def test_a_duplicate_of_the_own_claim_ends_the_belief_in_the_token_it_replaces() -> None:
    bench = Bench(Q)
    token = bench.token()
    bench.append(bench.of(ClaimRecord)[0])
    assert bench.stops() == [(Q, token or 0, StopReason.LOST)]


def test_a_renewal_that_is_not_confirmed_is_repeated_until_the_belief_ends() -> None:
    bench = Bench(Q)
    bench.keep_back = True
    bench.wait(HOLD - 1)
    assert len(bench.of(RenewRecord)) == 4  # at 20, 22.5, 25 and 27.5 s
    assert bench.token() is not None
    bench.wait(1)
    assert bench.token() is None
    assert bench.stops() == [(Q, T0 + 1_000_001, StopReason.UNCONFIRMED)]


def test_a_confirmation_that_is_read_too_late_does_not_count() -> None:
    bench = Bench(Q)
    bench.keep_back = True
    bench.wait(RENEW)
    (renewal,) = bench.of(RenewRecord)
    assert isinstance(renewal, RenewRecord)
    bench.now_ms += HOLD - RENEW  # frozen meanwhile
    (effect,) = bench.append(renewal).effects
    assert effect.outcome is LeaseOutcome.RENEWED  # by the log the queue is still ours
    assert bench.token() is None
    assert [reason is None for _, reason in bench.done] == [True, False]


def test_after_a_belief_has_ended_the_queue_is_drained_and_then_claimed_again() -> None:
    bench = Bench(Q)
    first = bench.token()
    assert first is not None
    bench.now_ms += HOLD
    bench.tick()
    assert len(bench.of(ClaimRecord)) == 1
    assert not bench.of(RenewRecord)
    bench.take(bench.holder.release(bench.lease(first), None, (), bench.now_ms))
    bench.tick()
    assert len(bench.of(ClaimRecord)) == 2
    second = bench.token()
    assert second is not None
    assert second > first


def test_a_claim_confirmed_too_late_is_made_again() -> None:
    bench = Bench()
    bench.keep_back = True
    bench.take(bench.holder.want([Q], bench.now_ms))
    bench.tick()
    bench.now_ms += HOLD
    bench.append(bench.of(ClaimRecord)[0])
    assert bench.token() is None
    bench.keep_back = False
    bench.tick()
    assert bench.token() == T0 + 1_000_000 + 3


def test_queues_are_released_in_the_order_stop_drain_commit_release() -> None:
    bench = Bench(Q, Q1)
    token = bench.token()
    assert token is not None
    bench.holder.progress(bench.lease(token), 17, ((17, 2),))
    bench.take(bench.holder.want([Q1], bench.now_ms))
    assert bench.stops() == [(Q, token, StopReason.UNWANTED)]
    bench.wait(RENEW)  # a slow listener: the queue is still renewed and still ours
    assert bench.token() == token  # the commit has not been made yet
    assert not bench.of(ReleaseRecord)
    bench.take(bench.holder.release(bench.lease(token), 18, ((18, 1),), bench.now_ms))
    assert bench.token() is None
    (release,) = bench.of(ReleaseRecord)
    assert isinstance(release, ReleaseRecord)
    assert release.queues[0].model_dump(exclude_none=True) == {
        "topic": "orders",
        "queue_id": 0,
        "token": token,
        "confirmed_offset": bench.log.next_offset - 2,
        "next_offset": 18,
        "reconsume_counts": ((18, 1),),
    }
    lock = bench.log.lock(Q)
    assert (lock.owner, lock.next_offset, lock.reconsume_counts) == (None, 18, ((18, 1),))


def test_calls_out_of_order_are_errors_and_change_nothing() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    with pytest.raises(ValueError, match="not stopped"):
        bench.holder.release(bench.lease(token), None, (), bench.now_ms)
    for call in (
        lambda: bench.holder.tick(bench.log, bench.now_ms - 1),
        lambda: bench.holder.want([], bench.now_ms - 1),
        lambda: bench.holder.close(bench.now_ms - 1),
    ):
        with pytest.raises(ValueError, match="went back"):
            call()
    bench.wait(RENEW)
    assert bench.token() == token


def test_calls_about_a_former_lease_are_late_and_ignored() -> None:
    bench = Bench(Q)
    old = bench.token()
    assert old is not None
    bench.now_ms += HOLD
    bench.tick()
    bench.take(bench.holder.release(bench.lease(old), None, (), bench.now_ms))
    bench.tick()
    new = bench.token()
    bench.holder.progress(bench.lease(old), 99, ((99, 9),))
    assert bench.holder.release(bench.lease(old), None, (), bench.now_ms) == []
    assert bench.holder.release(bench.lease(old), 99, (), bench.now_ms) == []
    assert bench.holder.release(Lease(MessageQueue("unheard", "kafka", 1), 5, 0), None, (), bench.now_ms) == []
    bench.wait(RENEW)
    renewal = bench.of(RenewRecord)[-1]
    assert isinstance(renewal, RenewRecord)
    assert (renewal.queues[0].token, renewal.queues[0].next_offset) == (new, None)


def test_renewals_carry_the_progress_of_the_queue() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    bench.holder.progress(bench.lease(token), 17, ((17, 2),))
    bench.holder.progress(bench.lease(token), None, ((17, 3),))
    bench.wait(RENEW)
    lock = bench.log.lock(Q)
    assert (lock.next_offset, lock.reconsume_counts) == (17, ((17, 3),))


def test_a_position_that_goes_back_is_renewed_by_the_next_tick() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    bench.holder.progress(bench.lease(token), 17, ())
    bench.wait(RENEW)
    bench.holder.progress(bench.lease(token), 3, ())  # the topic was created again
    bench.tick()
    assert bench.log.lock(Q).next_offset == 3
    assert bench.tick() == []


def test_a_message_that_keeps_failing_is_named_by_the_next_tick() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    for count in (1, 2, 3):
        assert bench.tick() == [], "an attempt or two may still succeed"
        bench.holder.progress(bench.lease(token), 17, ((17, count),))
    bench.tick()
    assert bench.log.lock(Q).reconsume_counts == ((17, 3),)
    bench.holder.progress(bench.lease(token), 17, ((17, 4),))
    assert bench.tick() == [], "its further attempts wait for the next renewal"


@pytest.mark.parametrize(
    ("committed", "token", "start"),
    [
        (10, 7, (20, COUNTS)),  # the owner that reported 20 had committed 10 before
        (20, 8, (20, COUNTS)),  # the next owner has begun there
        (25, 8, (25, COUNTS)),  # and has gone on
        (0, 8, (0, ())),  # the next owner has begun lower: the topic was created again
        (10, None, (10, ())),  # an operator has set the position
    ],
)
def test_a_position_of_the_log_counts_unless_a_later_owner_or_an_operator_has_begun_lower(
    committed: int, token: int | None, start: tuple[int, ReconsumeCounts]
) -> None:
    lease = Lease(Q, 9, 0, next_offset=20, reconsume_counts=COUNTS, position_token=7)
    assert lease.start_after(committed, token) == start
    unreported = Lease(Q, 9, 0, reconsume_counts=COUNTS)
    assert unreported.start_after(committed, token)[0] == committed


def test_a_new_owner_starts_with_the_position_and_the_counts_of_the_last_one() -> None:
    bench = Bench()
    other = LeaseEntry(
        topic="orders",
        queue_id=0,
        token=T0 + 1_000_001,
        confirmed_offset=1,
        next_offset=118,
        reconsume_counts=((118, 4),),
    )
    stamp = {"client_id": "b", "incarnation": "i1", "lease_ms": LEASE, "base": bench.log.base}
    for kind, queues in (("claim", [{"topic": "orders", "queue_id": 0}]), ("release", [other.model_dump()])):
        fields = stamp | {"v": 1, "kind": kind, "seq": 1, "queues": queues}
        bench.append(decoded(_json(fields)))
    bench.take(bench.holder.want([Q], bench.now_ms))
    bench.tick()
    assert bench.starts() == [(Q, T0 + 1_000_003, 118, ((118, 4),))]
    bench.wait(RENEW)  # nothing has been consumed yet, so nothing is forgotten
    assert (bench.log.lock(Q).next_offset, bench.log.lock(Q).reconsume_counts) == (118, ((118, 4),))


def _json(fields: dict[str, object]) -> bytes:
    return json.dumps(fields).encode()


def test_a_lock_that_the_log_gives_to_another_member_stops_immediately() -> None:
    bench = Bench(Q)
    token = bench.token()
    # B's claim, granted by log time (clock steps have used up the margin)
    for _ in range(12):
        bench.log.fold(
            bench.log.next_offset,
            T0 + bench.now_ms + 5_000 * bench.log.next_offset,
            MemberRecord(client_id="x", incarnation="x", seq=1, lease_ms=LEASE),
        )
    claim = {"v": 1, "kind": "claim", "client_id": "b", "incarnation": "i1", "seq": 1, "lease_ms": LEASE}
    record = decoded(_json(claim | {"base": bench.log.base, "queues": [{"topic": "orders", "queue_id": 0}]}))
    folded = bench.log.fold(bench.log.next_offset, T0 + bench.now_ms + 100_000, record)
    assert folded.effects[0].outcome is LeaseOutcome.GRANTED
    bench.take(bench.holder.observe(folded, bench.now_ms))
    assert bench.stops() == [(Q, token or 0, StopReason.LOST)]
    assert bench.token() is None


def test_a_void_renewal_stops_the_queue_immediately() -> None:
    bench = Bench(Q)
    bench.keep_back = True
    bench.wait(RENEW)
    (renewal,) = bench.of(RenewRecord)
    assert isinstance(renewal, RenewRecord)
    entry = renewal.queues[0]
    fields = renewal.model_dump() | {"kind": "release", "seq": 99, "queues": [entry.model_dump()]}
    # an operator released it in our name: `rocketshim group release`
    bench.log.fold(bench.log.next_offset, T0 + bench.now_ms, decoded(_json(fields)))
    bench.append(renewal)
    assert [reason for _, _, reason in bench.stops()] == [StopReason.LOST]


def test_a_release_written_in_our_name_stops_the_queue_immediately() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    entry = {"topic": "orders", "queue_id": 0, "token": token, "confirmed_offset": 1}
    fields = {"v": 1, "kind": "release", "client_id": "a", "incarnation": "i1", "seq": 2**40, "lease_ms": LEASE}
    folded = bench.append(decoded(_json(fields | {"base": bench.log.base, "queues": [entry]})))
    assert folded.effects[0].outcome is LeaseOutcome.RELEASED
    assert bench.stops() == [(Q, token, StopReason.LOST)]


def test_a_refused_claim_is_made_again_when_the_lease_should_have_expired() -> None:
    bench = Bench(owner=B)
    fields = {"v": 1, "kind": "claim", "client_id": "a", "incarnation": "i1", "seq": 1, "lease_ms": 12_000}
    bench.append(decoded(_json(fields | {"base": bench.log.base, "queues": [{"topic": "orders", "queue_id": 0}]})))
    granted_ms = bench.now_ms
    bench.take(bench.holder.want([Q], bench.now_ms))
    bench.wait(11_999)
    assert not bench.of(ClaimRecord)
    bench.wait(1)  # between two heartbeats: the claim itself moves log time
    assert bench.token() is not None
    assert bench.now_ms - granted_ms == 12_000


def test_a_claim_that_could_not_be_sent_is_made_again_after_a_wait() -> None:
    bench = Bench()
    bench.keep_back = True
    bench.take(bench.holder.want([Q], bench.now_ms))
    bench.tick()
    (claim,) = bench.of(ClaimRecord)
    assert isinstance(claim, ClaimRecord)
    bench.take(bench.holder.send_failed(claim.seq, bench.now_ms))
    bench.wait(DEFAULT.retry_ms - 1)
    assert len(bench.of(ClaimRecord)) == 1
    bench.wait(1)
    assert len(bench.of(ClaimRecord)) == 2


def test_a_queue_won_but_no_longer_wanted_is_released_unused_with_its_counts() -> None:
    bench = Bench()
    bench.keep_back = True
    bench.take(bench.holder.want([Q], bench.now_ms))
    bench.tick()
    bench.take(bench.holder.want([], bench.now_ms))
    bench.append(bench.of(ClaimRecord)[0])
    assert not bench.done
    assert not bench.holder._slots
    (release,) = bench.of(ReleaseRecord)
    assert isinstance(release, ReleaseRecord)
    assert bench.append(release).effects[0].outcome is LeaseOutcome.RELEASED


def test_close_releases_everything_before_it_sends_leave() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    bench.take(bench.holder.close(bench.now_ms))
    bench.take(bench.holder.close(bench.now_ms))
    bench.tick()
    assert not bench.holder.has_left
    bench.take(bench.holder.release(bench.lease(token), None, (), bench.now_ms))
    bench.tick()
    assert bench.holder.has_left
    assert [type(a) for a in bench.sent[-2:]] == [ReleaseRecord, LeaveRecord]
    assert bench.log.members == ()
    assert bench.holder.next_wakeup_ms(bench.log) is None
    bench.now_ms += 100_000
    assert bench.tick() == []
    with pytest.raises(ValueError, match="closed"):
        bench.holder.want([Q], bench.now_ms)


def test_a_belief_that_ends_during_a_release_forbids_commit_and_release() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    bench.take(bench.holder.want([], bench.now_ms))
    bench.now_ms += HOLD
    assert bench.token() is None
    bench.take(bench.holder.release(bench.lease(token), 5, (), bench.now_ms))
    assert not bench.of(ReleaseRecord)
    assert bench.stops() == [(Q, token, StopReason.UNWANTED)]


def test_a_re_created_log_stops_everything_and_the_holder_waits_one_lease() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    floor = bench.log.token_floor
    bench.take(bench.holder.log_lost(floor, bench.now_ms))
    assert bench.stops() == [(Q, token, StopReason.LOG_LOST)]
    assert bench.token() is None
    bench.take(bench.holder.release(bench.lease(token), None, (), bench.now_ms))
    bench.log = GroupLog(0)
    bench.holder.begin(0, bench.now_ms)
    bench.now_ms += 10
    bench.tick()
    heartbeat = bench.of(MemberRecord)[-1]
    assert isinstance(heartbeat, MemberRecord)
    assert heartbeat.base == floor
    bench.wait(LEASE - 11)
    assert len(bench.of(ClaimRecord)) == 1
    bench.wait(1)
    new = bench.token()
    assert new is not None
    assert new > token


def test_a_survivor_waits_one_lease_even_if_the_tokens_of_both_logs_overlap() -> None:
    bench = Bench(Q)
    old = bench.token()
    assert old is not None
    floor = bench.log.token_floor
    assert floor is not None
    lost_ms = bench.now_ms
    bench.take(bench.holder.log_lost(floor, bench.now_ms))
    bench.take(bench.holder.release(bench.lease(old), None, (), bench.now_ms))
    bench.log = GroupLog(0)
    stranger = MemberRecord(client_id="new", incarnation="n", seq=1, lease_ms=LEASE)
    bench.log.fold(0, floor - 1, stranger)
    bench.holder.begin(1, bench.now_ms)
    while bench.token() is None:
        bench.wait(1_000)
    assert bench.log.base == floor - 1  # its next token is above every old one, so the base is not raised
    assert bench.now_ms - lost_ms == LEASE


def test_a_survivor_whose_floor_is_above_the_new_base_raises_it() -> None:
    bench = Bench(Q)
    old = bench.token()
    assert old is not None
    floor = bench.log.token_floor
    bench.take(bench.holder.log_lost(floor, bench.now_ms))
    bench.take(bench.holder.release(bench.lease(old), None, (), bench.now_ms))
    bench.log = GroupLog(0)
    bench.log.fold(  # another member was first, and the leader's clock has stepped back
        0, T0 - 9_000_000, MemberRecord(client_id="new", incarnation="n", seq=1, lease_ms=LEASE)
    )
    bench.holder.begin(1, bench.now_ms)
    bench.wait(3 * LEASE)
    new = bench.token()
    assert new is not None
    assert new > old


def test_a_token_from_a_former_log_makes_a_newcomer_wait_one_lease() -> None:
    bench = Bench()
    fresh = QueueLockHolder(B, DEFAULT)
    fresh.want([Q], 0)
    fresh.begin(bench.log.next_offset, 0, token_floor=T0 - 5)
    fresh.observe(bench.append(MemberRecord(client_id="x", incarnation="x", seq=1, lease_ms=LEASE)), 0)
    assert not any(isinstance(action, ClaimRecord) for action in fresh.tick(bench.log, LEASE - 1))
    assert any(isinstance(action, ClaimRecord) for action in fresh.tick(bench.log, LEASE))


def test_a_token_from_this_log_costs_nothing() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    fresh = QueueLockHolder(B, DEFAULT)
    fresh.want([Q1], 0)
    fresh.begin(bench.log.next_offset, 0, token_floor=token + 1)
    fresh.observe(bench.append(MemberRecord(client_id="x", incarnation="x", seq=1, lease_ms=LEASE)), 0)
    heartbeat, claim = fresh.tick(bench.log, 0)
    assert isinstance(heartbeat, MemberRecord)
    assert heartbeat.base == bench.log.base
    assert isinstance(claim, ClaimRecord)


def test_a_token_above_those_of_this_log_raises_its_base_but_not_before_the_log_is_read() -> None:
    bench = Bench(Q)
    floor = (bench.token() or 0) + 500
    fresh = QueueLockHolder(B, DEFAULT)
    fresh.want([Q1], 0)
    fresh.begin(bench.log.next_offset + 1, 0, token_floor=floor)
    record = MemberRecord(client_id="x", incarnation="x", seq=1, lease_ms=LEASE)
    (early,) = fresh.tick(bench.log, 0)
    assert isinstance(early, MemberRecord)
    assert early.base == bench.log.base
    fresh.observe(bench.append(record), 0)
    (late,) = fresh.tick(bench.log, DEFAULT.heartbeat_every_ms)
    assert isinstance(late, MemberRecord)
    assert late.base == floor


def test_a_log_truncated_before_it_was_read_stops_everything() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    bench.take(bench.holder.log_lost(bench.log.token_floor, bench.now_ms))
    bench.take(bench.holder.release(bench.lease(token), None, (), bench.now_ms))
    base = bench.log.base
    bench.log = GroupLog(700)
    bench.holder.begin(700, bench.now_ms)
    bench.log.fold(
        700,
        T0 + bench.now_ms,
        MemberRecord(client_id="x", incarnation="x", seq=1, lease_ms=LEASE, base=base),
    )
    bench.wait(LEASE + 5_000)
    assert bench.log.base == base  # the floor is for new logs only
    new = bench.token()
    assert new is not None
    assert new > token


def test_a_record_of_an_unknown_version_stops_everything_until_a_lease_has_passed() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    bench.take(bench.holder.observe(bench.log.unreadable(bench.log.next_offset, T0 + bench.now_ms), bench.now_ms))
    assert bench.stops() == [(Q, token, StopReason.LOG_LOST)]
    bench.take(bench.holder.release(bench.lease(token), None, (), bench.now_ms))
    bench.wait(LEASE - 1)
    assert bench.token() is None
    bench.wait(5_000)
    assert bench.token() is not None


def test_entries_that_exceed_one_record_go_into_several() -> None:
    queues = [MessageQueue("orders", "kafka", i) for i in range(12)]
    bench = Bench(*queues)
    counts = tuple((offset, 1) for offset in range(3_000))
    for queue in queues:
        bench.holder.progress(bench.lease(bench.token(queue) or 0, queue), 0, counts)
    bench.wait(RENEW)
    renewals = [a for a in bench.of(RenewRecord) if isinstance(a, RenewRecord)]
    assert len(renewals) == len(queues)
    assert {entry.queue for record in renewals for entry in record.queues} == set(queues)
    assert {len(entry.reconsume_counts) for record in renewals for entry in record.queues} == {1_000}
    bench.wait(HOLD)
    assert all(bench.token(queue) for queue in queues)


def test_a_record_of_many_queues_with_long_names_can_be_sent() -> None:
    queues = [MessageQueue("t" * 249, "kafka", i) for i in range(4_000)]
    bench = Bench(*queues)
    for queue in queues:
        since_ms = bench.now_ms
        trouble = Trouble(since_ms, "ä" * CAUSE_CHARS, '"' * TRACE_CHARS, (2**63 - 1, since_ms))
        bench.holder.progress(bench.lease(bench.token(queue) or 0, queue), 2**63 - 1, ((1, 1),), trouble)
    bench.wait(RENEW)
    claims = [a for a in bench.of(ClaimRecord) if isinstance(a, ClaimRecord)]
    renewals = [a for a in bench.of(RenewRecord) if isinstance(a, RenewRecord)]
    records: list[GroupRecord] = [*claims, *renewals]
    assert max(len(encode_group_record(record)) for record in records) < 1_000_000
    assert {entry.queue for record in renewals for entry in record.queues} == set(queues)


def test_every_state_is_reached_and_left() -> None:
    states = set(LockState)
    assert {state for state, _ in TRANSITIONS} == states
    assert set(TRANSITIONS.values()) == states
    assert {event for _, event in TRANSITIONS} == set(LockEvent)


# --- several holders ----------------------------------------------------------------------------------------------
#
# A simulation in true time. The log's leader stamps records by its clock, which may step; every process has a
# monotonic clock with its own zero; records reach the log late but in order; processes read late, freeze, are killed.

QUEUES = [MessageQueue("orders", "kafka", i) for i in range(3)]


@dataclass
class Broker:
    """The group log, the committed positions, and true time."""

    now_ms: int = 0
    leader_ahead_ms: int = 0
    log_id: int = 0
    low: int = 0
    records: list[tuple[int, bytes]] = field(default_factory=list)
    committed: dict[MessageQueue, int] = field(default_factory=dict)
    tokens: dict[MessageQueue, int] = field(default_factory=dict)  # from the metadata of the commits

    def append(self, value: bytes) -> None:
        self.records.append((T0 + self.now_ms + self.leader_ahead_ms, value))

    def commit(self, queue: MessageQueue, token: int, position: int) -> None:
        assert position >= self.committed.get(queue, 0), "a commit went backwards"
        assert token >= self.tokens.get(queue, 0), "a former owner commits"
        self.committed[queue] = position
        self.tokens[queue] = token


class Sink:
    """The sink that listeners write to; it stores the highest token of each queue and refuses lower ones."""

    def __init__(self) -> None:
        self.highest: dict[MessageQueue, int] = {}
        self.cursor: dict[MessageQueue, int] = {}
        self.frontier: dict[MessageQueue, int] = {}
        self.newest: dict[MessageQueue, int] = {}
        self.handed_over: dict[MessageQueue, int] = {}
        self.obeyed: set[tuple[int, int]] = set()  # numbers of commands, of each log
        self.starts = 0
        self.refused = 0

    def started(self, queue: MessageQueue, token: int, position: int) -> None:
        """Check that a process starts with a higher token than all before, without a gap, and not behind a release."""
        assert token > self.newest.get(queue, -1), "a later owner has a lower token"
        assert position <= self.frontier.get(queue, 0), "messages skipped"
        assert position >= self.handed_over.pop(queue, 0), "a clean hand-over went back"
        self.newest[queue] = token
        self.starts += 1

    def write(self, queue: MessageQueue, token: int, position: int) -> None:
        """Accept a message; first successes arrive in order, and repeats only re-run a suffix."""
        if token < self.highest.get(queue, -1):
            self.refused += 1
            return
        if token == self.highest.get(queue):
            assert position == self.cursor[queue], "one owner writes its messages in order"
        assert position <= self.frontier.get(queue, 0), "a gap"
        self.highest[queue] = token
        self.cursor[queue] = position + 1
        self.frontier[queue] = max(self.frontier.get(queue, 0), position + 1)


@dataclass
class Run:
    """The state of a process for a queue from its start until it is drained."""

    lease: Lease
    token: int
    position: int
    stopped: bool = False


class Process:
    """One member: the shell around its state machines."""

    def __init__(self, number: int, broker: Broker, sink: Sink) -> None:
        self.owner = Owner(f"m{number}", f"i{number}")
        self.broker = broker
        self.sink = sink
        self.zero_ms = 7_777_777 * number  # every monotonic clock has its own zero
        self.holder = QueueLockHolder(self.owner, DEFAULT)
        self.outbox: deque[bytes] = deque()
        self.runs: dict[MessageQueue, Run] = {}
        self.frozen = False
        self.follow()

    @property
    def now_ms(self) -> int:
        return self.broker.now_ms + self.zero_ms

    def believes(self, queue: MessageQueue) -> bool:
        return valid_token(self.holder, queue, self.now_ms) is not None

    def follow(self) -> None:
        """Begin to read the current log."""
        self.log_id = self.broker.log_id
        self.log = GroupLog(self.broker.low)
        floor = max(self.broker.tokens.values(), default=-1) + 1 or None
        self.perform(self.holder.begin(self.broker.low + len(self.broker.records), self.now_ms, floor))

    def perform(self, actions: list[QueueLockAction]) -> None:
        for action in actions:
            match action:
                case Lease(stopped=None) as lease:
                    queue, token = lease.queue, lease.token
                    assert queue not in self.runs, "two runs of one queue in one process"
                    position = max(self.broker.committed.get(queue, 0), lease.next_offset or 0)
                    self.runs[queue] = Run(lease, token, position)
                    self.broker.commit(queue, token, position)
                    self.sink.started(queue, token, position)
                case Lease() as lease:
                    run = self.runs[lease.queue]
                    assert (run.token, run.stopped) == (lease.token, False), "one stop for each start"
                    run.stopped = True
                case Commanded(lease, command):
                    queue = command.queue
                    assert self.believes(queue)
                    assert (lease.token, self.runs[queue].lease) == (command.token, lease), "a late command is obeyed"
                    assert (self.log_id, command.offset) not in self.sink.obeyed, "a command is obeyed twice"
                    self.sink.obeyed.add((self.log_id, command.offset))
                case record:
                    self.outbox.append(encode_group_record(record))

    def read(self, limit: int) -> None:
        """Read and fold up to `limit` records, and detect a log that was replaced or has lost its beginning."""
        why = self.log.why_lost(self.broker.low, self.broker.low + len(self.broker.records))
        if self.log_id != self.broker.log_id or why is not None:
            self.perform(self.holder.log_lost(self.log.token_floor, self.now_ms))
            self.follow()
        index = self.log.next_offset - self.broker.low
        for append_ms, value in self.broker.records[index : index + limit]:
            record = decode_group_record(value)
            if isinstance(record, CommandRecord):
                self.perform(self.holder.observe(self.log.skip(self.log.next_offset, append_ms), self.now_ms))
                self.perform(self.holder.command(record, self.now_ms))
                continue
            folded = self.log.fold(self.log.next_offset, append_ms, record)
            self.perform(self.holder.observe(folded, self.now_ms))

    def work(self) -> None:
        """Process one message of each permitted queue, and drain or commit stopped queues."""
        for queue, run in list(self.runs.items()):
            if run.stopped:
                self.give_back(queue, run)
            elif self.believes(queue):
                self.sink.write(queue, run.token, run.position)
                run.position += 1
                self.holder.progress(run.lease, run.position, ((run.position, 1),))
                if run.position % 3 == 0:
                    self.broker.commit(queue, run.token, run.position)

    def give_back(self, queue: MessageQueue, run: Run) -> None:
        lease_is_valid = valid_token(self.holder, queue, self.now_ms) == run.token
        if lease_is_valid:
            self.broker.commit(queue, run.token, run.position)
        self.perform(self.holder.release(run.lease, run.position, (), self.now_ms))
        if lease_is_valid:
            self.sink.handed_over[queue] = run.position
        del self.runs[queue]

    def step(self, limit: int) -> None:
        """Run one turn of the process: read, tick, work."""
        self.read(limit)
        self.perform(self.holder.tick(self.log, self.now_ms))
        self.work()

    def thaw(self) -> None:
        """Continue after a freeze: listeners complete their current write before anything is checked."""
        self.frozen = False
        for queue, run in self.runs.items():
            if run.token < self.sink.highest.get(queue, -1):  # the frozen write of a former owner
                self.sink.write(queue, run.token, run.position)

    def deliver(self, limit: int) -> None:
        """Deliver records to the log, in order."""
        for _ in range(min(limit, len(self.outbox))):
            self.broker.append(self.outbox.popleft())


class Cluster:
    """Processes on one log, with a random history of events."""

    def __init__(self, random: Random, members: int = 3) -> None:
        self.random = random
        self.broker = Broker()
        self.sink = Sink()
        self.processes: list[Process] = []
        self.spawned = self.commands = 0
        self.clock_stepped_ms = -LEASE
        for _ in range(members):
            self.spawn()

    # operations; weights in OPERATIONS

    def spawn(self, process: Process | None = None) -> None:
        """Start a new process, possibly right after a re-creation of the log."""
        del process
        if len(self.processes) < 4:
            new = Process(self.spawned, self.broker, self.sink)
            self.spawned += 1
            self.processes.append(new)
            new.perform(new.holder.want(QUEUES, new.now_ms))

    def kill(self, process: Process) -> None:
        """Kill a process; some of its records in flight still arrive."""
        process.deliver(self.random.randrange(5))
        self.processes.remove(process)

    def freeze_or_thaw(self, process: Process) -> None:
        if process.frozen:
            process.thaw()
        else:
            process.frozen = True

    def want(self, process: Process) -> None:
        if not process.frozen:
            process.perform(process.holder.want(self.random.sample(QUEUES, self.random.randrange(4)), process.now_ms))

    def step_clock(self, process: Process) -> None:
        """Step the leader's clock, at most five times per lease, which the margin of 30 s covers."""
        del process
        if self.broker.now_ms - self.clock_stepped_ms >= LEASE // 5:
            self.clock_stepped_ms = self.broker.now_ms
            self.broker.leader_ahead_ms += self.random.choice([-3_600_000, -7_000, 7_000, 3_600_000])

    def recreate(self, process: Process) -> None:
        del process
        self.broker.records.clear()
        self.broker.low = 0
        self.broker.log_id += 1

    def truncate(self, process: Process) -> None:
        del process
        count = self.random.randrange(len(self.broker.records) + 1)
        del self.broker.records[:count]
        self.broker.low += count

    def command(self, process: Process) -> None:
        """A person writes a command for the last known owner of a queue, or for the one before."""
        del process
        queue = self.random.choice(QUEUES)
        if queue in self.sink.newest:
            self.commands += 1
            token = self.sink.newest[queue] - self.random.choice([0, 0, 1])
            self.broker.append(encode_group_record(command(token, queue=queue, offset=self.commands)))

    def deliver(self, process: Process) -> None:
        """Deliver records in flight, even those of a frozen process."""
        process.deliver(self.random.choice([1, 10]))

    def step(self, process: Process) -> None:
        if not process.frozen:
            process.step(self.random.choice([1, 10, 1_000]))

    OPERATIONS = (
        (step, 600), (deliver, 300), (freeze_or_thaw, 15), (want, 10), (spawn, 8), (kill, 4), (step_clock, 3),
        (truncate, 2), (recreate, 1), (command, 10),
    )  # fmt: skip

    def play(self, steps: int) -> None:
        operations, weights = zip(*self.OPERATIONS, strict=True)
        for operation in self.random.choices(operations, weights, k=steps):
            self.broker.now_ms += self.random.choice([0, 0, 1, 10, 100, 500, 1_000, 3_000])
            self.check()
            if self.processes:
                operation(self, self.random.choice(self.processes))
            else:
                self.spawn()
            self.check()

    def check(self) -> None:
        """Check that no two members, even frozen ones, believe in one queue at the same time."""
        for queue in QUEUES:
            believers = [process.owner for process in self.processes if process.believes(queue)]
            assert len(believers) <= 1, f"{believers} believe in {queue} at {self.broker.now_ms}"

    def come_to_rest(self, duration_ms: int) -> None:
        """Wake all members and let them want all queues; deliver and read records immediately."""
        end_ms = self.broker.now_ms + duration_ms
        while self.broker.now_ms < end_ms:
            self.broker.now_ms += 400
            if not self.processes:
                self.spawn()
            for process in self.processes:
                if process.frozen:
                    process.thaw()
                process.perform(process.holder.want(QUEUES, process.now_ms))
                process.step(10**9)
                process.deliver(10**9)
            self.check()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_no_two_members_believe_in_one_queue_and_accepted_tokens_never_go_back(seed: int) -> None:
    cluster = Cluster(Random(seed))  # noqa: S311 - a test's dice
    cluster.play(2_500)
    cluster.come_to_rest(4 * LEASE)
    for queue in QUEUES:
        assert sum(process.believes(queue) for process in cluster.processes) == 1
    views = {tuple((lock.queue, lock.owner, lock.token) for lock in process.log.locks) for process in cluster.processes}
    assert len(views) == 1
    assert all(lock.known and lock.owner for process in cluster.processes for lock in process.log.locks)
    # a process that begins at any offset two leases back or earlier knows the same
    broker = cluster.broker
    high = broker.low + len(broker.records)
    whole = cluster.processes[0].log
    for start in range(broker.low, high, 1 + len(broker.records) // 5):
        later = GroupLog(start)
        for append_ms, value in broker.records[start - broker.low : whole.next_offset - broker.low]:
            record = decode_group_record(value)
            if isinstance(record, CommandRecord):
                later.skip(later.next_offset, append_ms)
            else:
                later.fold(later.next_offset, append_ms, record)
        if later.log_ms >= 2 * LEASE:
            assert [(lock.known, lock.owner, lock.token, lock.lease_left_ms) for lock in later.locks] == [
                (lock.known, lock.owner, lock.token, lock.lease_left_ms) for lock in whole.locks
            ]


def test_the_simulation_is_not_idle() -> None:
    cluster = Cluster(Random(7))  # noqa: S311 - a test's dice
    cluster.play(60_000)
    assert cluster.sink.starts > 500
    assert cluster.sink.refused > 10
    assert 10 < len(cluster.sink.obeyed) < cluster.commands
    assert cluster.spawned > 50


def test_a_killed_owner_is_replaced_one_lease_after_its_last_renewal() -> None:
    cluster = Cluster(Random(1), members=2)  # noqa: S311 - a test's dice
    cluster.come_to_rest(3 * LEASE)
    owner = next(process for process in cluster.processes if process.believes(QUEUES[0]))
    cluster.processes.remove(owner)
    killed_ms = cluster.broker.now_ms
    while not cluster.processes[0].believes(QUEUES[0]):
        cluster.come_to_rest(400)
    assert cluster.broker.now_ms - killed_ms <= LEASE + 1_200


def test_a_released_queue_is_taken_over_immediately() -> None:
    cluster = Cluster(Random(1), members=2)  # noqa: S311 - a test's dice
    cluster.come_to_rest(3 * LEASE)
    owner = next(process for process in cluster.processes if process.believes(QUEUES[0]))
    (other,) = (process for process in cluster.processes if process is not owner)
    owner.perform(owner.holder.close(owner.now_ms))
    for process in (owner, other, other):
        process.step(10**9)
        process.deliver(10**9)
    other.step(10**9)
    assert other.believes(QUEUES[0])


def test_the_cause_of_a_failing_message_is_in_the_log_at_once_and_its_end_too() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    bench.wait(1_000)
    bench.holder.progress(bench.lease(token), 17, ((17, 3),), Trouble(bench.now_ms - 900, "KeyError: 'price'"))
    bench.wait(100)
    entry = bench.of(RenewRecord)[-1].queues[0]  # type: ignore[union-attr]
    assert (entry.reconsume_counts, entry.cause, entry.failing_ms) == (((17, 3),), "KeyError: 'price'", 900)  # type: ignore[union-attr]
    bench.holder.progress(bench.lease(token), 18, ())
    bench.wait(100)
    entry = bench.of(RenewRecord)[-1].queues[0]  # type: ignore[union-attr]
    assert (entry.reconsume_counts, entry.cause, entry.failing_ms) == ((), None, None)  # type: ignore[union-attr]


def test_a_trace_and_a_long_call_go_with_the_next_renewal_and_cause_none() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    since_ms = bench.now_ms
    bench.holder.progress(
        bench.lease(token), 17, ((17, 2),), Trouble(since_ms, "E: a", "in ship", (17, since_ms + 500))
    )
    bench.wait(RENEW - 1)
    bench.holder.progress(bench.lease(token), 17, ((17, 2),), Trouble(since_ms, "E: b", "in price", (17, since_ms)))
    assert bench.of(RenewRecord) == []
    bench.wait(1)
    (entry,) = renewal(bench).queues
    assert (entry.cause, entry.trace, entry.call_offset, entry.call_ms) == ("E: b", "in price", 17, RENEW)
    bench.holder.progress(bench.lease(token), 18, ())
    bench.wait(RENEW)
    (entry,) = renewal(bench).queues
    assert (entry.failing_ms, entry.cause, entry.trace, entry.call_offset, entry.call_ms) == (None,) * 5
    assert len(bench.of(RenewRecord)) == 2


def test_a_renewal_has_the_traces_of_sixteen_queues_and_the_causes_of_all() -> None:
    queues = [MessageQueue("orders", queue_id=number) for number in range(20)]
    bench = Bench(*queues)
    for queue in queues[1:]:
        lease = bench.lease(bench.token(queue) or 0, queue)
        bench.holder.progress(lease, 0, ((0, 1),), Trouble(bench.now_ms, "E: a", "in ship"))
    for _ in range(2):
        bench.wait(RENEW)
        entries = renewal(bench).queues
        assert [entry.cause for entry in entries] == [None, *["E: a"] * 19]
        assert [entry.trace for entry in entries] == [None, *["in ship"] * 16, None, None, None]


def test_a_queue_that_is_claimed_again_has_no_trouble_of_the_lease_before() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    bench.holder.progress(bench.lease(token), 17, ((17, 1),), Trouble(1, "E: a", "in ship", (17, 1)))
    bench.take(bench.holder.log_lost(bench.log.token_floor, bench.now_ms))
    bench.take(bench.holder.release(bench.lease(token), None, (), bench.now_ms))
    bench.take(bench.holder.begin(bench.log.next_offset, bench.now_ms))
    while bench.token() in {None, token}:
        bench.wait(1_000)
    bench.wait(RENEW)
    (entry,) = renewal(bench).queues
    assert entry.token != token
    assert (entry.failing_ms, entry.cause, entry.trace, entry.call_offset, entry.call_ms) == (None,) * 5


def renewal(bench: Bench) -> RenewRecord:
    """Return the last one."""
    record = bench.of(RenewRecord)[-1]
    assert isinstance(record, RenewRecord)
    return record


def command(
    token: int, *, queue: MessageQueue = Q, offset: int = 17, do: QueueCommand = QueueCommand.DEAD_LETTER
) -> CommandRecord:
    return CommandRecord(do=do, topic=queue.topic, queue_id=queue.queue_id, token=token, offset=offset, by="ann")


def test_a_command_comes_with_the_lease_that_it_names_while_that_may_be_used() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    lease = bench.lease(token)
    for late_or_wrong in (command(token - 1), command(token + 1), command(token, queue=Q1)):
        bench.take(bench.holder.command(late_or_wrong, bench.now_ms))
    assert bench.commanded == []
    bench.take(bench.holder.command(command(token), bench.now_ms))
    assert bench.commanded == [Commanded(lease, command(token))]


def test_a_command_for_a_queue_that_is_left_is_ignored() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    bench.take(bench.holder.want((), bench.now_ms))
    bench.take(bench.holder.command(command(token), bench.now_ms))
    assert bench.commanded == []


def test_a_command_that_is_read_when_the_lease_has_ended_is_ignored() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    bench.keep_back = True
    bench.now_ms += DEFAULT.lock_hold_ms
    bench.take(bench.holder.command(command(token), bench.now_ms))
    assert bench.commanded == []


def test_what_a_command_did_is_renewed_immediately_and_later_changes_are_not() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    lease = bench.lease(token)
    bench.holder.progress(lease, 17, ((17, 1),))
    bench.take(bench.holder.command(command(token, do=QueueCommand.TRY_NOW), bench.now_ms))
    renewals = len(bench.of(RenewRecord))
    bench.wait(100)
    assert len(bench.of(RenewRecord)) == renewals, "nothing has changed yet"
    bench.holder.progress(lease, 17, ((17, 2),))
    bench.wait(100)
    assert len(bench.of(RenewRecord)) == renewals + 1
    bench.holder.progress(lease, 17, ((17, 1),))
    bench.wait(100)
    assert len(bench.of(RenewRecord)) == renewals + 1


def test_a_dead_letter_is_renewed_immediately_and_a_further_failure_before_it_is_not() -> None:
    bench = Bench(Q)
    token = bench.token()
    assert token is not None
    lease = bench.lease(token)
    bench.holder.progress(lease, 17, ((17, 1),))
    bench.take(bench.holder.command(command(token), bench.now_ms))
    renewals = len(bench.of(RenewRecord))
    bench.holder.progress(lease, 17, ((17, 2),))
    bench.wait(100)
    assert len(bench.of(RenewRecord)) == renewals, "its listener had it"
    bench.holder.progress(lease, 18, ())
    bench.wait(100)
    assert len(bench.of(RenewRecord)) == renewals + 1
