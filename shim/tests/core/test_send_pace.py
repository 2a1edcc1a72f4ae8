"""A producer with a pace keeps requests short behind a quota or a slow link, is not slowed down otherwise, and a slow
broker is never taken for a silent one."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.send_pace import SendPace, cost

MS = 1_000_000
S = 1_000 * MS
LONGEST_NS = 30 * S
MOST = 80_000_000
PATIENCE_NS = 2 * S


def pace(*, most: int = MOST) -> SendPace:
    return SendPace(patience_ns=PATIENCE_NS, longest_ns=LONGEST_NS, most=most)


@dataclass
class Broker:
    """A broker that enforces a quota as Kafka does: it answers, and then does not read for the throttle time.

    Attributes:
        quota: bytes a second, averaged over the last 10 s; None: there is none.
        link_ns: how long a request and its answer travel.
        bytes_per_s: throughput of the link.
    """

    quota: int | None = None
    link_ns: int = 5 * MS
    bytes_per_s: int = 100_000_000
    received: deque[tuple[int, int]] = field(default_factory=deque)
    in_window: int = 0
    reads_from_ns: int = 0
    sent_until_ns: int = 0

    def send(self, now_ns: int, size: int) -> tuple[int, int]:
        """Return when a request is answered, and the throttle time of the answer."""
        self.sent_until_ns = max(self.sent_until_ns, now_ns) + size * S // self.bytes_per_s
        read_ns = max(self.sent_until_ns + self.link_ns // 2, self.reads_from_ns)
        self.received.append((read_ns, size))
        self.in_window += size
        while self.received[0][0] <= read_ns - 10 * S:
            self.in_window -= self.received.popleft()[1]
        throttle_ns = 0
        if self.quota is not None:
            over = self.in_window - 10 * self.quota
            throttle_ns = max(0, over * S // self.quota)
        self.reads_from_ns = read_ns + throttle_ns
        return read_ns + self.link_ns // 2, throttle_ns


@dataclass
class Result:
    """What became of a backlog: bytes stored, longest time of a request, longest pause of the broker, all in ns."""

    stored: int = 0
    took_ns: int = 0
    throttle_ns: int = 0


def drain(broker: Broker, each: SendPace, record_bytes: int, for_ns: int, until: int = MOST + 1) -> Result:
    """Send a backlog without an end, in requests of up to 100 kB, for a time or until the limit is high."""
    result, now_ns = Result(), S
    flying: deque[tuple[int, int, int, int, int]] = deque()  # answered, throttle, sent, amount, bytes
    while now_ns < for_ns and each.limit < until:
        while flying and flying[0][0] <= now_ns:
            answered_ns, throttle_ns, sent_ns, amount, size = flying.popleft()
            each.throttled(answered_ns, throttle_ns)
            each.stored(amount, sent_ns, now_ns)
            if each.throttled_until_ns <= sent_ns:
                each.answered(now_ns - sent_ns, now_ns)
            each.ended(amount, now_ns)
            result.stored += size
            result.took_ns = max(result.took_ns, now_ns - sent_ns)
            result.throttle_ns = max(result.throttle_ns, throttle_ns)
        while (room := each.room(now_ns)) >= 1_000:
            count = max(1, min(room, 100_000) // (record_bytes + 1_000))
            amount = cost(count, count * record_bytes)
            flying.append((*broker.send(now_ns, count * record_bytes), now_ns, amount, count * record_bytes))
            each.sent(amount, now_ns)
        soonest_ns = [flying[0][0]] if flying else [now_ns + MS]
        now_ns = max(now_ns + MS, min([*soonest_ns, now_ns + 250 * MS]))
    return result


@pytest.mark.parametrize("quota", [20_000, 200_000, 1_000_000])
@pytest.mark.parametrize("record_bytes", [100, 2_000, 20_000])
def test_a_quota_is_used_up_and_requests_stay_short(quota: int, record_bytes: int) -> None:
    result = drain(Broker(quota), pace(), record_bytes, 120 * S)
    assert result.stored >= 0.8 * 120 * quota
    assert result.took_ns < 2 * LONGEST_NS // 3
    assert result.throttle_ns < LONGEST_NS // 3


@pytest.mark.parametrize("link_ns", [MS, 20 * MS, 600 * MS, 3 * S])
def test_a_link_with_a_long_delay_is_filled(link_ns: int) -> None:
    """Ten doublings are enough for 80 MB."""
    each = pace()
    drain(Broker(link_ns=link_ns), each, 2_000, 20 * link_ns + 10 * S, until=20_000_000)
    assert each.limit >= 20_000_000


def test_a_slow_link_holds_no_more_than_it_carries_in_a_third_of_the_time() -> None:
    broker = Broker(bytes_per_s=200_000)
    result = drain(broker, pace(), 20_000, 120 * S)
    assert result.took_ns < LONGEST_NS
    assert result.stored > 100 * 200_000


def test_nothing_is_sent_while_a_broker_does_not_read() -> None:
    each = pace()
    each.throttled(0, 5 * S)
    assert each.room(5 * S - 1) == each.room_count(5 * S - 1) == 0
    assert each.room(5 * S) > 0
    each.throttled(5 * S, 2 * S)
    each.throttled(6 * S, 0)
    assert each.room(7 * S - 1) == 0, "another broker reads again"


@given(cuts=st.integers(0, 40))
def test_one_record_may_always_be_in_flight(cuts: int) -> None:
    each = pace()
    for at in range(cuts):
        each.sent(100_000_000, at)
        each.late(at, at)
        each.ended(100_000_000, at)
    assert each.room_count(cuts) >= 1


def test_what_was_in_flight_together_halves_the_limit_once() -> None:
    each = pace()
    for at in (1, 2, 3):
        each.sent(80_000, at)
    for at in (1, 2, 3):
        each.late(at, 10)
    assert each.limit == 120_000


def test_after_a_second_without_records_the_limit_starts_low() -> None:
    each = pace()
    drain(Broker(), each, 2_000, 3 * S, until=10_000_000)
    assert each.limit >= 10_000_000
    each.ended(each.in_flight, 3 * S)
    assert each.room(3 * S + 999 * MS) >= 10_000_000
    assert each.room(4 * S) == 256_000


def test_a_silent_target_does_not_hold_up_others() -> None:
    each = pace()
    each.sent(256_000, S)
    assert each.room_count(2 * S) == 0, "a new client connects first"
    each.ended(0, S)
    assert each.room_count(S + 250 * MS) == 256
    assert each.room_count(3 * S) == 8 * 256


@given(
    times_ns=st.lists(st.integers(0, 20 * S), min_size=1, max_size=20),
    failures=st.integers(0, 9),
    later_ns=st.integers(0, 9 * S),
)
def test_patience_is_four_times_what_the_slowest_record_of_the_last_ten_seconds_took(
    times_ns: list[int], failures: int, later_ns: int
) -> None:
    each = pace()
    for took_ns in times_ns:
        each.answered(took_ns, S)
    found_ns = each.patience_ns(S + later_ns, failures)
    assert found_ns >= min(4 * max(times_ns), 2 * LONGEST_NS // 3)
    assert PATIENCE_NS <= found_ns <= 2 * LONGEST_NS // 3
    assert each.patience_ns(S + 20 * S) == PATIENCE_NS


@pytest.mark.parametrize(("failures", "patience_ns"), [(0, 2 * S), (1, 2 * S), (2, 4 * S), (3, 8 * S), (9, 8 * S)])
def test_patience_doubles_with_each_failure_from_the_second_on(failures: int, patience_ns: int) -> None:
    assert pace().patience_ns(0, failures) == patience_ns


def test_a_longer_configured_patience_is_kept() -> None:
    each = SendPace(patience_ns=30 * S, longest_ns=10 * S, most=MOST)
    assert each.patience_ns(0, 5) == 30 * S


def test_nobody_is_silent_while_a_broker_does_not_read() -> None:
    each = pace()
    each.throttled(S, 9 * S)
    assert each.quiet_ns(S, 10 * S) == 0
    assert each.quiet_ns(S, 11 * S) == S
