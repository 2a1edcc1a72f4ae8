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
