"""The next hop of a failed message: the record of every decision, and what it becomes if it is too large."""

from typing import Any, NoReturn

import pytest
from confluent_kafka import Message

from rocketshim.core.next_hop import FailedMessage, Hop, HopKind, HopMaker
from rocketshim.core.retry_policy import AfterDelay, AtLevel, Dead, Decision
from rocketshim_topics import DelayLevels, Failure, MessageError, TopicNames, decode
from rocketshim_topics.hops import value_reference

NAMES, LEVELS = TopicNames(), DelayLevels.default()
FAILURE = Failure("ValueError", "bad", 9)


def failed(topic: str = "orders", headers: Any = None, **asked: Any) -> FailedMessage:
    message = Message(topic, 0, 7, key=b"k", value=b"x", timestamp=(1, 5), headers=headers)
    return FailedMessage(message, FAILURE, **asked)


class Policy:
    """A policy with one answer; it raises it if it is an exception."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.seen: list[tuple[int, float]] = []

    def next_hop(self, reconsume_times: int, unit: float) -> Any:
        self.seen.append((reconsume_times, unit))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def hops(decided: Any = None, limit: int = 16) -> HopMaker:
    return HopMaker(NAMES, LEVELS, "g", limit=limit, policy=None if decided is None else Policy(decided))


def first(made_by: HopMaker, what: FailedMessage, lane: Any = lambda: 1) -> Hop:
    return made_by.first(what, lane=lane, unit=0.5)


def no_lane() -> NoReturn:
    raise AssertionError("nobody has to know the lanes")


@pytest.mark.parametrize(
    ("decided", "delay_ms", "partition"),
    [(AtLevel(4), 30_000, 32 + 3), (AfterDelay(30_000), 30_000, LEVELS.queue_for(30_000, 1))],
)
def test_a_retry_has_the_decided_delay_and_the_given_lane(decided: Decision, delay_ms: int, partition: int) -> None:
    hop = first(hops(decided), failed(reconsume_times=1))
    envelope = decode(hop.out.headers, trusted=True)
    assert (hop.kind, hop.reconsume_times) == (HopKind.RETRY, 2)
    assert (hop.out.topic, hop.out.partition, envelope.delay_ms) == (NAMES.schedule, partition, delay_ms)
    assert (envelope.reconsume_times, envelope.fail_class) == (2, "ValueError")


@pytest.mark.parametrize("asked", [True, False])
def test_a_dead_letter_does_not_request_a_lane(asked: bool) -> None:
    hop = first(hops(Dead(asked)), failed(reconsume_times=1), no_lane)
    assert (hop.kind, hop.out.topic) == (HopKind.DEAD_LETTER, NAMES.dead_letter("g"))
    assert decode(hop.out.headers, trusted=True).reconsume_times == 2


def test_the_policy_gets_the_count_of_a_retry_record_and_the_lower_limit_counts() -> None:
    policy, counted = Policy(AtLevel(1)), [("RECONSUME_TIMES", b"3"), ("MAX_RECONSUME_TIMES", b"4")]
    made_by = HopMaker(NAMES, LEVELS, "g", limit=16, policy=policy)
    first(made_by, failed(NAMES.retry("g"), counted))
    first(made_by, failed("orders", counted))
    assert policy.seen == [(3, 0.5), (0, 0.5)], "a header of another topic is not a count"
    assert first(made_by, failed(NAMES.retry("g"), [counted[0], ("MAX_RECONSUME_TIMES", b"3")])).decision == Dead(False)  # noqa: FBT003
    assert first(made_by, failed(asked_level=2)).out.partition == LEVELS.partition(2, 1)
    assert len(policy.seen) == 2, "a level that the listener asked for needs no policy"


@pytest.mark.parametrize(
    ("answer", "why"), [(OSError("down"), "OSError('down')"), (AtLevel(0), "it returned AtLevel(level=0)")]
)
def test_the_level_table_decides_instead_of_a_policy_that_fails(answer: Any, why: str) -> None:
    hop = first(hops(answer), failed())
    assert (hop.kind, hop.policy_error, hop.out.partition) == (HopKind.RETRY, why, LEVELS.partition(3, 1))
    assert first(hops(AtLevel(1)), failed()).policy_error == ""


def test_without_a_policy_the_level_table_decides() -> None:
    assert first(hops(), failed()).out.partition == LEVELS.partition(3, 1)
    assert first(hops(limit=0), failed(), no_lane).kind is HopKind.DEAD_LETTER


def test_a_record_that_breaks_the_wire_format_is_parked() -> None:
    hop = first(hops(), failed(NAMES.retry("g"), [("RECONSUME_TIMES", b"x")]), no_lane)
    assert (hop.kind, hop.out.topic, hop.reason) == (HopKind.PARKED, NAMES.parked, "bad-number:RECONSUME_TIMES")
    hop = first(hops(), failed(malformed="bad-utf8"), no_lane)
    assert (hop.kind, hop.reason, hop.error) == (HopKind.PARKED, "bad-utf8", "")


def test_a_message_from_which_no_hop_can_be_made_is_parked_with_the_error() -> None:
    hop = first(hops(), failed(), lambda: -1)
    assert (hop.kind, hop.reason) == (HopKind.PARKED, "no-hop")
    assert "lanes count from 0" in hop.error


def test_an_error_in_looking_up_the_lanes_is_the_callers() -> None:
    def unknown() -> NoReturn:
        raise MessageError("no lanes")

    with pytest.raises(MessageError, match="no lanes"):
        first(hops(), failed(), unknown)


@pytest.mark.parametrize("decided", [AtLevel(1), Dead(asked=False)])
def test_a_hop_that_is_too_large_becomes_a_dead_letter_by_reference_and_then_nothing(decided: Decision) -> None:
    made_by = hops(decided)
    hop = made_by.smaller(first(made_by, failed(reconsume_times=4)))
    assert hop is not None
    envelope = decode(hop.out.headers, trusted=True)
    assert (hop.kind, hop.out.topic, hop.out.value) == (HopKind.BY_REFERENCE, NAMES.dead_letter("g"), None)
    assert value_reference(envelope) is not None
    assert envelope.reconsume_times == 5
    assert made_by.smaller(hop) is None


def test_a_parked_record_that_is_too_large_loses_its_value_then_everything_but_the_reason() -> None:
    made_by = hops()
    whole = first(made_by, failed(malformed="bad", headers=[("user", b"u")]))
    without_value = made_by.smaller(whole)
    assert without_value is not None
    assert (without_value.out.key, without_value.out.value) == (b"k", None)
    assert without_value.out.headers == whole.out.headers
    bare = made_by.smaller(without_value)
    assert bare is not None
    assert (bare.kind, bare.out.key) == (HopKind.PARKED, None)
    assert sorted(dict(bare.out.headers)) == ["HOP_ID", "PARK_FROM", "PARK_REASON"]
    assert made_by.smaller(bare) is None


# --- sent on ----------------------------------------------------------------------------------------------------------

HOUR_MS = 3_600_000
T0_MS = 1_767_225_600_000
UNHANDLED = Failure("NoListener", "no listener for 'refunds' in this consumer", 9, unhandled=True)
UNDECODABLE = Failure("UndecodableBody", "ValueError: no such field", 9, unhandled=True)


def came_back(failure: Failure = UNHANDLED, waited_ms: int | None = None, **headers: str) -> FailedMessage:
    """A record of the retry topic that this member cannot handle, sent on first `waited_ms` ago; None: not yet."""
    known = {"RETRY_TOPIC": "refunds", "RECONSUME_TIMES": "3", "FAIL_CLASS": "OSError", "FAIL_TEXT": "down"} | headers
    if waited_ms is not None:
        known["UNHANDLED_SINCE_MS"] = str(T0_MS - waited_ms)
    pairs: Any = [(name, value.encode()) for name, value in known.items()]
    message = Message(NAMES.retry("g"), 0, 7, key=b"k", value=b"x", timestamp=(2, T0_MS), headers=pairs)
    return FailedMessage(message, failure, asked_level=-1)


def test_what_this_member_cannot_handle_is_sent_on_with_nothing_counted() -> None:
    hop = first(hops(), came_back())
    envelope = decode(hop.out.headers, trusted=True)
    assert (hop.kind, hop.out.topic, hop.out.partition) == (HopKind.SENT_ON, NAMES.schedule, LEVELS.partition(3, 1))
    assert (envelope.real_topic, envelope.delay_ms, envelope.unhandled_since_ms) == ("%RETRY%g", 10_000, T0_MS)
    assert (envelope.reconsume_times, envelope.fail_class, envelope.fail_text) == (3, "OSError", "down")
    assert (hop.out.key, hop.out.value, envelope.hop_id) == (b"k", b"x", f"{NAMES.retry('g')}/0/7")


def test_a_message_at_its_limit_is_sent_on_too() -> None:
    assert first(hops(limit=3), came_back(MAX_RECONSUME_TIMES="0")).kind is HopKind.SENT_ON


def test_the_pauses_grow_and_each_is_the_delay_of_a_level() -> None:
    waited_ms, pauses_s = 0, []
    while waited_ms < HOUR_MS:
        pause_ms = decode(first(hops(), came_back(waited_ms=waited_ms)).out.headers, trusted=True).delay_ms or 0
        pauses_s.append(pause_ms // 1_000)
        waited_ms += pause_ms
    assert pauses_s == [10, 10, 10, 30, 60, 120, 240, 480, 600, 600, 600, 600, 600]


def test_the_last_pause_ends_when_the_time_is_over_and_then_the_message_is_dead() -> None:
    made_by = HopMaker(NAMES, LEVELS, "g", limit=16, send_on_timeout_ms=HOUR_MS)
    last = decode(first(made_by, came_back(waited_ms=HOUR_MS - 3)).out.headers, trusted=True)
    assert (last.delay_ms, last.unhandled_since_ms) == (3, T0_MS - HOUR_MS + 3)
    hop = first(made_by, came_back(waited_ms=HOUR_MS), no_lane)
    dead = decode(hop.out.headers, trusted=True)
    assert (hop.kind, dead.reconsume_times, dead.fail_class) == (HopKind.DEAD_LETTER, 4, "NoListener")
    assert dead.fail_text == "no listener for 'refunds' in this consumer; its last failure: OSError: down"
    assert dead.unhandled_since_ms is None


def test_a_failed_attempt_of_another_member_begins_the_time_again() -> None:
    retried = FailedMessage(came_back(waited_ms=HOUR_MS).message, FAILURE)
    assert decode(first(hops(), retried).out.headers, trusted=True).unhandled_since_ms is None


def test_a_clock_of_a_leader_that_was_set_back_does_not_end_the_time() -> None:
    assert first(hops(), came_back(waited_ms=-HOUR_MS)).kind is HopKind.SENT_ON


@pytest.mark.parametrize("table", [" ", "1s", "0s 5s 3d"])
def test_every_level_table_has_a_pause(table: str) -> None:
    made_by = HopMaker(NAMES, DelayLevels.parse(table), "g", limit=16)
    assert (decode(first(made_by, came_back()).out.headers, trusted=True).delay_ms or 0) > 0


def test_a_body_that_another_member_could_decode_is_sent_on() -> None:
    assert first(hops(), came_back(UNDECODABLE)).kind is HopKind.SENT_ON


@pytest.mark.parametrize("cause", ["UndecodableBody", "UnansweredCodec", "NoListener"])
def test_a_body_that_no_member_is_known_to_decode_is_dead(cause: str) -> None:
    assert first(hops(), came_back(UNDECODABLE, FAIL_CLASS=cause), no_lane).kind is HopKind.DEAD_LETTER


def test_nothing_of_another_topic_is_sent_on() -> None:
    assert (
        first(hops(), FailedMessage(failed().message, UNHANDLED, asked_level=-1), no_lane).kind is HopKind.DEAD_LETTER
    )


def test_a_message_that_is_too_large_to_be_sent_on_is_dead_by_reference() -> None:
    made_by = hops()
    hop = made_by.smaller(first(made_by, came_back()))
    assert hop is not None
    assert hop.kind is HopKind.BY_REFERENCE
