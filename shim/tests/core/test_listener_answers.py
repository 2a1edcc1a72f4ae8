"""The meaning of a concurrent listener's answer for each message: `ConsumeMessageConcurrentlyService`'s rules."""

from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.listener_answers import (
    ALL,
    ConsumeOrderlyStatus,
    ConsumeReturnType,
    ConsumeStatus,
    as_one,
    is_success,
    item_answers,
    succeeded_count,
)

SUCCESS = ConsumeStatus.CONSUME_SUCCESS
LATER = ConsumeStatus.RECONSUME_LATER
ACK_INDEXES = st.integers(-3, 40) | st.just(ALL) | st.integers(-(2**40), 2**40)


class Impostor(IntEnum):
    """Another enumeration whose success compares equal to our success, as an orderly status does."""

    SUCCESS = 0


@given(ack_index=ACK_INDEXES, batch_count=st.integers(1, 32))
def test_messages_up_to_the_ack_index_are_done_and_later_ones_failed(ack_index: int, batch_count: int) -> None:
    done = [index for index in range(batch_count) if index <= ack_index]
    assert succeeded_count(SUCCESS, ack_index, batch_count) == len(done)
    assert succeeded_count(None, ack_index, batch_count) == len(done)


@given(
    status=st.just(LATER) | st.integers() | st.booleans() | st.text() | st.just(Impostor.SUCCESS) | st.binary(),
    ack_index=ACK_INDEXES,
    batch_count=st.integers(1, 32),
)
def test_reconsume_later_or_an_invalid_status_fails_all_for_any_ack_index(
    status: object, ack_index: int, batch_count: int
) -> None:
    assert succeeded_count(status, ack_index, batch_count) == 0


@pytest.mark.parametrize(
    ("ack_index", "batch_count", "expected"),
    [(ALL, 1, 1), (ALL, 1024, 1024), (-1, 4, 0), (0, 4, 1), (3, 4, 4), (4, 4, 4), (2, 4, 3)],
)
def test_examples_of_ack_index(ack_index: int, batch_count: int, expected: int) -> None:
    assert succeeded_count(SUCCESS, ack_index, batch_count) == expected


def test_the_status_of_an_orderly_listener_is_understood() -> None:
    """The clients of RocketMQ for Go and Python have one enumeration for both kinds of listeners."""
    done = [status for status in ConsumeOrderlyStatus if succeeded_count(status, ALL, 3) == 3]
    assert done == [ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT]
    assert [status for status in ConsumeOrderlyStatus if is_success(status)] == done


def test_zero_and_false_are_not_success_although_they_compare_equal() -> None:
    """A listener that returns a number of rows, or `False`, has not reported success."""
    assert ConsumeStatus.CONSUME_SUCCESS == 0
    assert succeeded_count(0, ALL, 3) == 0
    assert succeeded_count(False, ALL, 3) == 0  # noqa: FBT003


def test_statuses_have_rocketmqs_names() -> None:
    assert [status.name for status in ConsumeStatus] == ["CONSUME_SUCCESS", "RECONSUME_LATER"]
    assert {kind.value for kind in ConsumeReturnType} == {"SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED"}
    assert ALL == 2_147_483_647


ANSWERS = st.sampled_from([None, ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.RECONSUME_LATER, OSError(), 0, "SUCCESS"])


@given(st.lists(ANSWERS, min_size=1, max_size=6), st.integers(min_value=1, max_value=6))
def test_a_list_has_one_answer_per_message_only_if_the_lengths_match(answers: list[object], count: int) -> None:
    assert item_answers(answers, count) == (answers if len(answers) == count else None)
    assert item_answers(tuple(answers), count) is None
    done = [answer is None or answer is ConsumeStatus.CONSUME_SUCCESS for answer in answers]
    assert [is_success(answer) for answer in answers] == done
    expected = ConsumeStatus.CONSUME_SUCCESS if all(done) else ConsumeStatus.RECONSUME_LATER
    assert as_one(answers, count) is (expected if len(answers) == count else answers)


@given(ANSWERS)
def test_any_other_answer_applies_to_all_messages(answer: object) -> None:
    assert item_answers(answer, 1) is None
    assert as_one(answer, 1) is answer
