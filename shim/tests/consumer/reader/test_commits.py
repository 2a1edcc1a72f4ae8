"""Positions are sent once, upwards; what was refused is sent again; answers of former assignments change nothing."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.reader.group_offsets import Committer
from rocketshim.core.clock import RENEWAL_MS
from rocketshim.core.partition import Partition
from rocketshim.core.process_deaths import CarefulStart, Handling
from rocketshim.core.process_queue import ProcessQueue
from rocketshim.locks.lease import Lease, Ownership
from rocketshim.testing.partition_result import PartitionResult
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue

from ..conftest import Record

KEY = TopicPartitionKey("orders", 0)


class Client:
    """Records commits; raises the error that the test sets. `now_ms` is the time."""

    def __init__(self) -> None:
        self.now_ms = 0
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


def offsets_with(metadata: str) -> Callable[[Mapping[TopicPartitionKey, int]], list[TopicPartition]]:
    return lambda positions: [TopicPartition(*key, at, metadata=metadata) for key, at in positions.items()]


class Bench:
    """A committer, and the partitions that it knows."""

    def __init__(self, client: Any, metadata: str, ownership: Ownership, now_ms: Any = lambda: 0, **parts: Any) -> None:
        self.partitions: dict[TopicPartitionKey, Partition] = {}
        self.commits = Committer(lambda: client, now_ms, offsets_with(metadata), ownership, self.partitions, **parts)

    def begin(self, key: TopicPartitionKey, offset: int) -> None:
        """Assign a partition, perhaps again."""
        self.partitions[key] = Partition(key)
        self.partitions[key].begin(offset)

    def commit(self, queues: list[Any], *, asynchronous: bool) -> None:
        for queue in queues:
            if (partition := self.partitions.get(queue.key)) is not None:
                partition.queue = queue
        keys = [queue.key for queue in queues]
        self.commits.commit([self.partitions[key] for key in keys if key in self.partitions], asynchronous=asynchronous)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.commits, name)


def committer(client: Any, *, needs_lease: bool = False) -> Bench:
    ownership = Ownership(lambda: 0, needs_lease=needs_lease)
    ownership.leases[KEY] = Lease(MessageQueue(KEY.topic, queue_id=KEY.partition), 1, 1)
    made = Bench(client, "of orders", ownership, lambda: client.now_ms)
    made.begin(KEY, 0)
    return made


def queue_done_to(count: int) -> Any:
    queue: ProcessQueue = ProcessQueue(KEY)
    queue.put([Record(offset) for offset in range(count)])
    chunk = queue.take(count)
    assert chunk is not None
    chunk.take_back()
    queue.report(chunk)
    return queue


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_position_is_sent_once_with_its_metadata(client: Any, *, asynchronous: bool) -> None:
    commits, queue = committer(client), queue_done_to(4)
    commits.commit([queue], asynchronous=asynchronous)
    commits.commit([queue], asynchronous=asynchronous)
    assert client.commits == [(4, "of orders")]


def test_a_position_below_the_start_is_not_sent(client: Any) -> None:
    commits = committer(client)
    commits.begin(KEY, 9)
    commits.commit([queue_done_to(4)], asynchronous=False)
    assert client.commits == []


def test_a_commit_that_is_refused_immediately_is_sent_again(client: Any) -> None:
    commits, queue = committer(client), queue_done_to(4)
    client.error = KafkaError(KafkaError.ILLEGAL_GENERATION)
    client.now_ms = 7
    commits.commit([queue], asynchronous=False)
    assert (commits.failed, commits.failing_since_ms) == (1, 7)
    client.error = None
    client.now_ms = 9
    commits.commit([queue], asynchronous=False)
    assert (commits.failed, commits.failing_since_ms) == (1, None)
    assert client.commits == [(4, "of orders")]


def test_a_commit_that_is_refused_later_is_sent_again(client: Any) -> None:
    commits, queue = committer(client), queue_done_to(4)
    commits.commit([queue], asynchronous=True)
    client.now_ms = 5
    commits.answered(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), [TopicPartition(*KEY, 4)])
    assert commits.outstanding == 0
    assert commits.failing_since_ms == 5
    client.now_ms = 6
    commits.commit([queue], asynchronous=True)
    client.now_ms = 7
    commits.answered(None, [TopicPartition(*KEY, 4)])
    assert commits.failing_since_ms is None
    assert client.commits == [(4, "of orders")] * 2


def test_a_commit_that_is_waited_for_sends_what_was_sent_without_an_answer_again(client: Any) -> None:
    commits, queue = committer(client), queue_done_to(4)
    commits.commit([queue], asynchronous=True)
    commits.commit([queue], asynchronous=True)
    assert client.commits == [(4, "of orders")]
    commits.commit([queue], asynchronous=False)
    assert client.commits == [(4, "of orders")] * 2
    commits.commit([queue], asynchronous=False)
    assert client.commits == [(4, "of orders")] * 2


def test_an_answer_that_comes_after_a_failed_commit_of_the_same_offset_counts(client: Any) -> None:
    commits, queue = committer(client), queue_done_to(4)
    commits.commit([queue], asynchronous=True)
    client.error = KafkaError(KafkaError._TIMED_OUT)
    commits.commit([queue], asynchronous=False)
    commits.answered(None, [TopicPartition(*KEY, 4)])
    assert commits.partitions[KEY].stored == 4  # metrics show it


def test_a_position_that_does_not_move_is_committed_again_each_hour(client: Any) -> None:
    commits, queue = committer(client, needs_lease=True), queue_done_to(4)
    commits.commit([queue], asynchronous=True)
    commits.answered(None, [TopicPartition(*KEY, 4)])
    for client.now_ms in (RENEWAL_MS - 1, RENEWAL_MS, RENEWAL_MS + 1):
        commits.commit([queue], asynchronous=True)
    assert client.commits == [(4, "of orders")] * 2


def test_an_answer_after_a_new_assignment_changes_nothing(client: Any) -> None:
    commits, queue = committer(client), queue_done_to(4)
    commits.commit([queue], asynchronous=True)
    del commits.partitions[KEY]
    commits.begin(KEY, 6)
    client.now_ms = 5
    commits.answered(KafkaError(KafkaError.ILLEGAL_GENERATION), [TopicPartition(*KEY, 4)])
    assert commits.partitions[KEY].sent == 6
    commits.commit([queue], asynchronous=True)
    assert client.commits == [(4, "of orders")]


def test_an_answer_for_a_revoked_partition_is_ignored(client: Any) -> None:
    commits, queue = committer(client), queue_done_to(4)
    commits.commit([queue], asynchronous=True)
    del commits.partitions[KEY]
    client.now_ms = 5
    commits.answered(None, [TopicPartition(*KEY, 4)])
    commits.commit([queue], asynchronous=True)
    assert client.commits == [(4, "of orders")]


def test_sent_offsets_are_sent_again_when_the_metadata_changes(client: Any) -> None:
    commits = Bench(client, "new", Ownership(lambda: 0))
    commits.begin(KEY, 3)
    commits.begin(TopicPartitionKey("orders", 1), -1)  # its start is not known
    keys = [KEY, TopicPartitionKey("orders", 1), TopicPartitionKey("orders", 2)]
    commits.commit_again(keys)
    for _ in range(2):
        commits.commit([ProcessQueue(key) for key in keys], asynchronous=True)
        assert client.commits == [(3, "new")]
        commits.answered(None, [TopicPartition(*KEY, 3)])


def test_forbidden_or_locally_stored_offsets_are_not_sent_again(client: Any) -> None:
    commits = Bench(client, "", Ownership(lambda: 0, needs_lease=True))
    commits.begin(KEY, 3)
    commits.commit_again([KEY])
    commits.commit([ProcessQueue(KEY)], asynchronous=True)
    stored = Bench(client, "", Ownership(lambda: 0), store=client)
    stored.begin(KEY, 3)
    stored.commit_again([KEY])
    stored.commit([ProcessQueue(KEY)], asynchronous=True)
    assert client.commits == []


def test_a_refused_commit_of_new_metadata_is_sent_again(client: Any) -> None:
    commits, queue = committer(client), ProcessQueue(KEY)
    commits.commit_again([KEY])
    client.error = KafkaError(KafkaError._TRANSPORT)
    client.now_ms = 7
    commits.commit([queue], asynchronous=True)
    assert (commits.failed, commits.failing_since_ms, commits.outstanding) == (1, 7, 0)
    client.error = None
    commits.commit([queue], asynchronous=True)
    commits.answered(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), [TopicPartition(*KEY, 0)])
    commits.commit([queue], asynchronous=True)
    commits.answered(None, [TopicPartition(*KEY, 0)])
    commits.commit([queue], asynchronous=True)
    assert client.commits == [(0, "of orders")] * 2
    assert (commits.failed, commits.failing_since_ms) == (2, None)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_refused_commit_of_a_partition_that_is_gone_is_no_longer_failing(client: Any, *, asynchronous: bool) -> None:
    commits = committer(client)
    client.error = KafkaError(KafkaError.REBALANCE_IN_PROGRESS)
    client.now_ms = 7
    commits.commit([queue_done_to(4)], asynchronous=asynchronous)
    commits.commit([], asynchronous=True)
    assert commits.failing_since_ms == 7
    del commits.partitions[KEY]
    commits.commit([], asynchronous=True)
    assert commits.failing_since_ms is None


def test_an_asynchronous_commit_waits_for_the_answer_to_the_one_before(client: Any) -> None:
    """Otherwise a commit that librdkafka repeats, with the coordinator changing, may be stored after a later one."""
    commits = committer(client)
    commits.commit([queue_done_to(4)], asynchronous=True)
    client.now_ms = 500
    commits.commit([queue_done_to(6)], asynchronous=True)
    assert [offset for offset, _ in client.commits] == [4]
    client.now_ms = 600
    commits.answered(None, [TopicPartition(*KEY, 4)])
    client.now_ms = 1_000
    commits.commit([queue_done_to(6)], asynchronous=True)
    assert [offset for offset, _ in client.commits] == [4, 6]


def test_an_error_that_many_partitions_share_is_logged_once(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    committer(client).answered(
        None, [PartitionResult.of(("orders", number), 4, error=error) for number in range(1_000)]
    )
    assert caplog.text.count("TOPIC_AUTHORIZATION_FAILED") == 1


def test_the_refusal_of_one_partition_does_not_hide_what_is_stored_of_another(client: Any) -> None:
    refused = TopicPartitionKey("gone", 0)
    care = CarefulStart(window=8)
    commits = Bench(client, "", Ownership(lambda: 0), care=care)
    for key in (KEY, refused):
        commits.begin(key, 0)
        care.begin(key, 0, Handling(is_open=True))
    care.next({KEY: [0], refused: [0]}, {}, lambda: False, 0)  # both are to be noted
    commits.commit([ProcessQueue(KEY), ProcessQueue(refused)], asynchronous=True)
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    commits.answered(None, [PartitionResult.of(KEY, 0), PartitionResult.of(refused, 0, error=error)])
    assert care.next({KEY: [0], refused: [0]}, {}, lambda: False, 0) == {(KEY, 0)}
    assert care.dirty == {refused}


class AllOrNothing(Client):
    """Refuses an offset of one partition as librdkafka reports it: every partition of the commit seems refused."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[TopicPartitionKey, TopicPartition] = {}

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        self.stored.update({TopicPartitionKey.of(item): item for item in offsets if item.topic != "gone"})
        if asynchronous:
            return None
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        del timeout
        return [self.stored.get(TopicPartitionKey.of(item), item) for item in partitions]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_what_is_stored_beside_a_refused_offset_counts_as_stored(*, asynchronous: bool) -> None:
    client, gone = AllOrNothing(), TopicPartitionKey("gone", 0)
    commits = Bench(client, "m", Ownership(lambda: 0))
    queues = [queue_done_to(4), ProcessQueue(gone)]
    for key in (KEY, gone):
        commits.begin(key, 0)
    commits.commit_again([gone])
    commits.commit(queues, asynchronous=asynchronous)
    if asynchronous:
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        commits.answered(
            error, [PartitionResult.of(each, at, error=error, metadata="m") for each, at in ((KEY, 4), (gone, 0))]
        )
    assert commits.partitions[KEY].stored == 4
    assert commits.failed == 1
