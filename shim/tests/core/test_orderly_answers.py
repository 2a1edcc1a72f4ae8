"""The meaning of orderly answers, independent of a queue."""

import pytest

from rocketshim.core.listener_answers import ConsumeOrderlyStatus, ConsumeStatus, orderly_status
from rocketshim.core.orderly_queue import BatchAnswer

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class FalseStatus:
    """It names a class that is not its own, as `unittest.mock.Mock(spec=ConsumeOrderlyStatus)` does."""

    __class__ = ConsumeOrderlyStatus  # type: ignore[assignment]


def test_a_listener_that_returns_none_has_succeeded() -> None:
    assert orderly_status(None) is SUCCESS


@pytest.mark.parametrize("status", list(ConsumeOrderlyStatus))
def test_a_status_is_returned_unchanged(status: ConsumeOrderlyStatus) -> None:
    assert orderly_status(status) is status


def test_the_status_of_a_concurrent_listener_is_understood() -> None:
    """The clients of RocketMQ for Go and Python have one enumeration for both kinds of listeners."""
    assert orderly_status(ConsumeStatus.CONSUME_SUCCESS) is SUCCESS
    assert orderly_status(ConsumeStatus.RECONSUME_LATER) is SUSPEND


@pytest.mark.parametrize(
    "answer", [0, 3, True, False, "SUCCESS", b"", object(), pytest.param(FalseStatus(), id="false status")]
)
def test_any_other_value_is_a_failure(answer: object) -> None:
    assert orderly_status(answer) is SUSPEND


@pytest.mark.parametrize(
    ("status", "auto_commit", "stops"),
    [
        (SUCCESS, True, False),
        (SUCCESS, False, False),
        (ConsumeOrderlyStatus.COMMIT, True, False),
        (ConsumeOrderlyStatus.COMMIT, False, False),
        (ConsumeOrderlyStatus.ROLLBACK, True, False),
        (ConsumeOrderlyStatus.ROLLBACK, False, True),
        (SUSPEND, True, True),
        (SUSPEND, False, True),
    ],
)
def test_a_run_ends_at_suspend_and_at_rollback_without_auto_commit(
    status: ConsumeOrderlyStatus, auto_commit: bool, stops: bool
) -> None:
    assert BatchAnswer(1, status, auto_commit=auto_commit).stops is stops
