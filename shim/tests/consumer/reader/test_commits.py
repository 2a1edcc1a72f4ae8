"""Positions are sent once, upwards; what was refused is sent again; answers of former assignments change nothing."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.reader.commits import Committer
from rocketshim.core.process_queue import ProcessQueue

from ..conftest import Record

PLACE = ("orders", 0)


class Client:
    """Keeps what was committed; raises what it is told to."""

    def __init__(self) -> None:
        self.commits: list[tuple[int, str | None]] = []
        self.error: KafkaError | None = None

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        if self.error is not None:
            raise KafkaException(self.error)
        self.commits.extend((item.offset, item.metadata) for item in offsets)
        return None if asynchronous else offsets


@pytest.fixture
def client() -> Any:
    return Client()


def committer() -> Committer:
    made = Committer(lambda place: f"of {place[0]}")
    made.adopt(PLACE, 0)
    return made


def queue_done_to(count: int) -> Any:
    queue: ProcessQueue[Any] = ProcessQueue(*PLACE)
    queue.put([Record(offset) for offset in range(count)])
    chunk = queue.take(count)
    assert chunk is not None
    chunk.take_back()
    queue.report(chunk)
    return queue


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_position_is_sent_once_with_its_metadata(client: Any, *, asynchronous: bool) -> None:
    commits, queue = committer(), queue_done_to(4)
    assert commits.commit(client, [queue], now_ms=0, asynchronous=asynchronous)
    assert not commits.commit(client, [queue], now_ms=0, asynchronous=asynchronous)
    assert client.commits == [(4, "of orders")]


def test_a_position_below_the_start_is_not_sent(client: Any) -> None:
    commits = committer()
    commits.adopt(PLACE, 9)
    assert not commits.commit(client, [queue_done_to(4)], now_ms=0, asynchronous=False)
    assert client.commits == []


def test_what_was_refused_at_once_is_sent_again(client: Any) -> None:
    commits, queue = committer(), queue_done_to(4)
    client.error = KafkaError(KafkaError.ILLEGAL_GENERATION)
    assert not commits.commit(client, [queue], now_ms=7, asynchronous=False)
    assert (commits.failed, commits.failing_since_ms) == (1, 7)
    client.error = None
    assert commits.commit(client, [queue], now_ms=9, asynchronous=False)
    assert (commits.failed, commits.failing_since_ms) == (1, None)
    assert client.commits == [(4, "of orders")]


def test_what_was_refused_later_is_sent_again(client: Any) -> None:
    commits, queue = committer(), queue_done_to(4)
    commits.commit(client, [queue], now_ms=0, asynchronous=True)
    commits.answered(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), [TopicPartition(*PLACE, 4)], 5)
    assert commits.outstanding == 0
    assert commits.failing_since_ms == 5
    commits.commit(client, [queue], now_ms=6, asynchronous=True)
    commits.answered(None, [TopicPartition(*PLACE, 4)], 7)
    assert commits.failing_since_ms is None
    assert client.commits == [(4, "of orders")] * 2


def test_an_answer_that_comes_after_a_new_assignment_changes_nothing(client: Any) -> None:
    commits, queue = committer(), queue_done_to(4)
    commits.commit(client, [queue], now_ms=0, asynchronous=True)
    commits.forget(PLACE)
    commits.adopt(PLACE, 6)
    commits.answered(KafkaError(KafkaError.ILLEGAL_GENERATION), [TopicPartition(*PLACE, 4)], 5)
    assert commits.position(PLACE) == 6
    assert not commits.commit(client, [queue], now_ms=0, asynchronous=True)


def test_an_answer_for_a_partition_that_has_left_is_forgotten(client: Any) -> None:
    commits, queue = committer(), queue_done_to(4)
    commits.commit(client, [queue], now_ms=0, asynchronous=True)
    commits.forget(PLACE)
    commits.answered(None, [TopicPartition(*PLACE, 4)], 5)
    assert not commits.commit(client, [queue], now_ms=0, asynchronous=True)


def test_what_was_sent_is_sent_once_more_when_commits_say_something_else(client: Any) -> None:
    said = ["old"]
    commits = Committer(lambda _: said[0])
    commits.adopt(PLACE, 3)
    commits.adopt(("orders", 1), -1)  # its start is not known
    said[0] = "new"
    commits.commit_again(client, [PLACE, ("orders", 1), ("orders", 2)], now_ms=0)
    assert client.commits == [(3, "new")]
    assert commits.outstanding == 1


def test_what_may_not_be_committed_or_lies_in_another_store_is_not_sent_again(client: Any) -> None:
    commits = Committer(lambda _: "", may=lambda place: place != PLACE)
    commits.adopt(PLACE, 3)
    commits.commit_again(client, [PLACE], now_ms=0)
    stored = Committer(lambda _: "", store=client)
    stored.adopt(PLACE, 3)
    stored.commit_again(client, [PLACE], now_ms=0)
    assert client.commits == []


def test_a_refusal_to_be_told_again_is_counted(client: Any) -> None:
    commits = committer()
    client.error = KafkaError(KafkaError._TRANSPORT)
    commits.commit_again(client, [PLACE], now_ms=7)
    assert (commits.failed, commits.failing_since_ms, commits.outstanding) == (1, 7, 0)
