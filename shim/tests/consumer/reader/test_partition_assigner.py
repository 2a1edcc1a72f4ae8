"""RocketMQ's own allocation on the in-memory Kafka: shares that fit together, leases, hand-over by release."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from rocketshim.clock import SystemClock
from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.consumer.reader.group_offsets import StartOffsets
from rocketshim.consumer.reader.partition_assigner import LeasedAssigner, TopicAssigner
from rocketshim.core.allocate import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueConsistentHash,
    Allocation,
)
from rocketshim.core.message_model import MessageModel
from rocketshim.core.start_position import ConsumeFromWhere, StartRules, decode_metadata
from rocketshim.errors import ConfigError, ConsumerError
from rocketshim.kafka.clients import Clients
from rocketshim.locks.fold import Owner
from rocketshim.locks.lease import Lease, Ownership
from rocketshim.locks.log_thread import MemberChecks
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.group_log import (
    ClaimRecord,
    LeaseEntry,
    MemberRecord,
    ReleaseRecord,
    decode_group_record,
    encode_group_record,
)
from rocketshim_topics.layout import Layout
from rocketshim_topics.message_queue import MessageQueue

GUARD_S = 180.0
QUEUES = 6
NAMES = TopicNames()
RETRY = NAMES.retry("g")
LOG = NAMES.group_log("g")
STRATEGIES = [
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueConsistentHash(),
]


# --- the share alone -------------------------------------------------------------------------------------------------


def share_of_one(strategy: Any, client_id: str, members: Callable[[], list[str]]) -> TopicAssigner:
    allocation = Allocation(strategy, "g", client_id, {RETRY: "%RETRY%g"})
    return TopicAssigner(lambda: ["orders", RETRY], 20_000, allocation, members)


@pytest.fixture
def still() -> InMemoryKafka:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", QUEUES)
    kafka.create_topic(RETRY)
    return kafka


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize(
    "members", [["a"], ["a", "b"], ["a", "b", "c"], [f"m{number}" for number in range(9)]], ids=len
)
def test_the_shares_of_all_members_contain_each_queue_once(
    still: InMemoryKafka, strategy: Any, members: list[str]
) -> None:
    reader = still.consumer({"group.id": "g"})
    shares = [share_of_one(strategy, each, lambda: members).wanted(reader, (), 0) for each in members]
    found = Counter(place for share in shares for place in share or ())
    assert found == {**{("orders", number): 1 for number in range(QUEUES)}, (RETRY, 0): 1}


def test_a_share_is_computed_at_a_change_and_at_the_interval_only(still: InMemoryKafka) -> None:
    members = ["a"]
    share = share_of_one(AllocateMessageQueueAveragely(), "a", lambda: members)
    reader = still.consumer({"group.id": "g"})
    assert len(share.wanted(reader, (), 0) or ()) == QUEUES + 1
    assert share.wanted(reader, (), 19_999) is None
    members = ["a", "b"]
    assert len(share.wanted(reader, (), 19_999) or ()) == QUEUES // 2 + 1
    still.add_partitions("orders", QUEUES + 2)
    assert share.wanted(reader, (), 30_000) is None
    assert len(share.wanted(reader, (), 40_000) or ()) == (QUEUES + 2) // 2 + 1


def test_before_its_first_heartbeat_a_member_wants_nothing_and_when_it_is_gone_no_more(still: InMemoryKafka) -> None:
    members = ["b"]
    share = share_of_one(AllocateMessageQueueAveragely(), "a", lambda: members)
    reader = still.consumer({"group.id": "g"})
    assert share.wanted(reader, (), 0) is None
    members = ["a", "b"]
    assert share.wanted(reader, (), 0)
    members = ["b"]
    assert share.wanted(reader, (), 0) == set()


def test_a_strategy_that_raises_keeps_the_assigned_queues(still: InMemoryKafka) -> None:
    class Broken:
        name = "BROKEN"

        def allocate(self, *arguments: Any) -> Any:
            raise OSError(arguments)

    share = share_of_one(Broken(), "a", lambda: ["a"])
    held = {TopicPartitionKey("orders", 1), TopicPartitionKey(RETRY, 0)}
    assert share.wanted(still.consumer({"group.id": "g"}), held, 0) == held


def test_a_configured_list_yields_its_existing_queues(still: InMemoryKafka) -> None:
    named = [MessageQueue("orders", queue_id=2), MessageQueue("orders", queue_id=77), MessageQueue("%RETRY%g")]
    share = share_of_one(AllocateMessageQueueByConfig(named), "a", lambda: ["a", "b"])
    assert share.wanted(still.consumer({"group.id": "g"}), (), 0) == {("orders", 2), (RETRY, 0)}


def test_many_topics_are_looked_up_together_and_shared_one_by_one() -> None:
    topics = [f"t{number}" for number in range(30)]
    kafka, asked, shared = InMemoryKafka(VirtualClock()), list[str | None](), list[int]()
    for topic in topics:
        kafka.create_topic(topic, 4)

    class Counted(Allocation):
        def share(self, topic: str, partitions: Any, members: Any) -> Any:
            shared.append(len(partitions))
            return super().share(topic, partitions, members)

    class Reader:
        def list_topics(self, topic: str | None = None, **options: Any) -> Any:
            asked.append(topic)
            return kafka.consumer({"group.id": "g"}).list_topics(topic, **options)

    allocation = Counted(AllocateMessageQueueAveragely(), "g", "a", {})
    reader: Any = Reader()
    assert len(TopicAssigner(lambda: topics, 20_000, allocation, lambda: ["a", "b"]).wanted(reader, (), 0) or ()) == 60
    assert (asked, shared) == ([None], [4] * 30), "no topic looks through the partitions of the others"


def test_a_cluster_that_stays_unreachable_is_logged_once(
    still: InMemoryKafka, caplog: pytest.LogCaptureFixture
) -> None:
    assigner = TopicAssigner(lambda: ["orders"], 1_000)
    client = still.consumer({"group.id": "g"})
    still.stop_broker()
    for now_ms in (0, 1_000, 2_000):
        assert assigner.wanted(client, (), now_ms) is None
    assert caplog.text.count("consumer.topics-unknown") == 1


def test_while_the_cluster_is_unreachable_nothing_changes(still: InMemoryKafka) -> None:
    share = share_of_one(AllocateMessageQueueAveragely(), "a", lambda: ["a"])
    reader = still.consumer({"group.id": "g"})
    still.stop_broker()
    assert share.wanted(reader, (), 0) is None
    still.start_broker()
    assert share.wanted(reader, (), 1_000)


# --- consumers -------------------------------------------------------------------------------------------------------


class Heard:
    """A listener that keeps bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes | None] = []
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            self.bodies.append(message.body)


@pytest.fixture
def kafka() -> InMemoryKafka:
    kafka = InMemoryKafka(SystemClock())
    layout = Layout(NAMES, DelayLevels.default())
    kafka.create_topics([*layout.shared(), *layout.for_group("g", with_log=True)])
    kafka.create_topic("orders", QUEUES)
    return kafka


@pytest.fixture
def start(kafka: InMemoryKafka) -> Iterator[Callable[..., PushConsumer]]:
    made: list[PushConsumer] = []

    def of(listener: Callable[..., Any], client_id: str, *, orderly: bool = False, **values: Any) -> PushConsumer:
        consumer = PushConsumer(
            "memory:1",
            group="g",
            clients=Clients(kafka.consumer, kafka.producer),
            client_id=client_id,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            consume_thread_min=2,
            persist_consumer_offset_interval_ms=20,
            **{"allocate_message_queue_strategy": AllocateMessageQueueAveragely(), **values},
        )
        consumer.register_message_listener("orders", listener, orderly=orderly)
        consumer.start(wait_s=0)
        made.append(consumer)
        return consumer

    yield of
    for consumer in made:
        consumer.stop()


def fill(kafka: InMemoryKafka, numbers: range) -> list[bytes]:
    bodies = [b"%d" % number for number in numbers]
    for number, body in zip(numbers, bodies, strict=True):
        kafka.append("orders", body, partition=number % QUEUES)
    return bodies


def release_record(kafka: InMemoryKafka, queue: MessageQueue) -> bytes:
    """The release of a queue by its owner's name, as an operator writes it."""
    records = [(record.offset() or 0, decode_group_record(record.value())) for record in kafka.records(LOG)]
    offset, claim = next(
        (at, each)
        for at, each in reversed(records)
        if isinstance(each, ClaimRecord) and any(claimed.queue == queue for claimed in each.queues)
    )
    held_queue = LeaseEntry(
        topic=queue.topic, queue_id=queue.queue_id, token=claim.base + offset, confirmed_offset=offset
    )
    return encode_group_record(
        ReleaseRecord(
            client_id=claim.client_id,
            incarnation=claim.incarnation,
            seq=2**62,
            lease_ms=claim.lease_ms,
            base=claim.base,
            queues=(held_queue,),
        )
    )


def queues(consumer: PushConsumer) -> list[Any]:
    return [] if consumer._loop is None else list(consumer._loop.mode.queues)


def held(consumer: PushConsumer) -> set[tuple[str, int]]:
    loop = consumer._loop
    return set() if loop is None else {queue.key for queue in loop.mode.queues}


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_members_allocate_by_the_strategy_and_hand_over(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer], orderly: bool
) -> None:
    """`AVG` of six queues: 6, then 3 and 3, then 2, 2, 2; the retry topic's one queue to the first member."""
    one, two, three = Heard(), Heard(), Heard()
    first = start(one, "a", orderly=orderly)
    kafka.wait_until(lambda: held(first) == {*(("orders", n) for n in range(6)), (RETRY, 0)}, guard_s=GUARD_S)
    sent = fill(kafka, range(60))
    second = start(two, "b", orderly=orderly)
    kafka.wait_until(lambda: held(second) == {("orders", 3), ("orders", 4), ("orders", 5)}, guard_s=GUARD_S)
    kafka.wait_until(lambda: held(first) == {("orders", 0), ("orders", 1), ("orders", 2), (RETRY, 0)}, guard_s=GUARD_S)
    sent += fill(kafka, range(60, 120))
    third = start(three, "c", orderly=orderly)
    kafka.wait_until(lambda: held(third) == {("orders", 4), ("orders", 5)}, guard_s=GUARD_S)
    sent += fill(kafka, range(120, 180))
    everything = lambda: one.bodies + two.bodies + three.bodies  # noqa: E731
    kafka.wait_until(lambda: set(everything()) == set(sent), guard_s=GUARD_S)
    second.stop()
    kafka.wait_until(lambda: held(third) == {("orders", 3), ("orders", 4), ("orders", 5)}, guard_s=GUARD_S)
    sent += fill(kafka, range(180, 240))
    kafka.wait_until(lambda: set(everything()) == set(sent), guard_s=GUARD_S)
    wanted = {("orders", number): 40 for number in range(QUEUES)}
    kafka.wait_until(lambda: wanted.items() <= kafka.committed("g").items(), guard_s=GUARD_S)
    assert kafka.members("g") == []  # Kafka's group protocol has no part in it


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_commit_under_a_lease_carries_no_token(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer], orderly: bool
) -> None:
    """The commit alone decides where the next owner starts. Only that of an orderly consumer has its lock's token."""
    fill(kafka, range(QUEUES))
    start(Heard(), "a", orderly=orderly)
    wanted = {("orders", number): 1 for number in range(QUEUES)}
    kafka.wait_until(lambda: wanted.items() <= kafka.committed("g").items(), guard_s=GUARD_S)
    found = kafka.consumer({"group.id": "g"}).committed([TopicPartition("orders", 0)])
    metadata = decode_metadata(found[0].metadata)
    assert metadata is not None
    assert (metadata.token is not None) == orderly


def test_a_start_found_after_the_lease_has_ended_is_not_committed(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer]
) -> None:
    fill(kafka, range(6))
    consumer = start(Heard(), "a")
    kafka.wait_until(lambda: len(held(consumer)) == QUEUES + 1, guard_s=GUARD_S)
    loop = consumer._loop
    assert loop is not None
    before = len(kafka.commits("g"))
    place = TopicPartitionKey("another's", 0)
    ownership, client = loop.reader.ownership, kafka.consumer({"group.id": "g"})
    assert not ownership.owns(place)
    kafka.create_topic(place.topic)
    rules = StartRules("rmq.retry.g", ConsumeFromWhere.FIRST_OFFSET, 0)
    starts = StartOffsets(rules, client=lambda: client, lookups=client, ownership=ownership)
    assert starts.resolve([place], 10.0) == {place: 0}
    assert place.topic not in [commit.topic for commit in kafka.commits("g")[before:]]


def test_a_queue_whose_lease_has_ended_is_not_sought(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = start(Heard(), "a")
    kafka.wait_until(lambda: len(held(consumer)) == QUEUES + 1, guard_s=GUARD_S)
    loop = consumer._loop
    assert loop is not None
    with monkeypatch.context() as patch:
        patch.setattr(loop.reader.ownership, "owns", lambda _: False)
        with pytest.raises(ConsumerError, match="not read by this consumer"):
            consumer.seek(MessageQueue("orders", queue_id=0), 0)


def test_no_commit_goes_backwards(kafka: InMemoryKafka, start: Callable[..., PushConsumer]) -> None:
    """Members come and go while messages flow: each partition's commits only rise, and all is heard."""
    heard = Heard()
    sent: list[bytes] = []
    members = [start(heard, "m0")]
    for number in range(1, 6):
        sent += fill(kafka, range(len(sent), len(sent) + 120))
        members.append(start(heard, f"m{number}"))
        if number % 2 == 0:
            members.pop(0).stop()
    kafka.wait_until(lambda: set(heard.bodies) >= set(sent), guard_s=GUARD_S)
    for consumer in members:
        consumer.stop()
    at: dict[Any, int] = {}
    for commit in kafka.commits("g"):
        place = commit.topic, commit.partition
        assert commit.next_offset >= at.get(place, 0), place
        at[place] = commit.next_offset
    assert {place: offset for place, offset in at.items() if place[0] == "orders"} == {
        ("orders", number): len(sent) // QUEUES for number in range(QUEUES)
    }


def test_a_member_of_the_group_protocol_is_refused_in_a_group_with_a_strategy(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer]
) -> None:
    """An orderly consumer of Kafka's group protocol writes the log too, and so they find each other."""
    first = start(Heard(), "a")
    kafka.wait_until(lambda: bool(held(first)), guard_s=GUARD_S)
    second = start(Heard(), "b", orderly=True, allocate_message_queue_strategy=None)
    kafka.wait_until(second._ended.is_set, guard_s=GUARD_S)
    with pytest.raises(ConsumerError, match="configure the same"):
        second.stop()
    second._thread = None  # the fixture has nothing to stop


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_while_the_group_protocol_has_members_a_member_with_a_strategy_handles_nothing(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer], caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    """Both would handle the same messages, as a concurrent consumer of the group protocol has no log."""
    plain, heard = Heard(), Heard()
    first = start(plain, "a", allocate_message_queue_strategy=None)
    sent = fill(kafka, range(QUEUES))
    committed = {("orders", number): 1 for number in range(QUEUES)}
    kafka.wait_until(lambda: committed.items() <= kafka.committed("g").items(), guard_s=GUARD_S)
    with caplog.at_level(logging.WARNING, "rocketshim.consumer"):
        start(heard, "b", orderly=orderly)
        kafka.wait_until(lambda: "consumer.start-unknown" in caplog.text, guard_s=GUARD_S)
    sent += fill(kafka, range(QUEUES, 2 * QUEUES))
    kafka.wait_until(lambda: set(plain.bodies) == set(sent), guard_s=GUARD_S)
    first.stop()
    rest = fill(kafka, range(2 * QUEUES, 3 * QUEUES))
    kafka.wait_until(lambda: set(heard.bodies) >= set(rest), guard_s=GUARD_S)
    assert sorted(plain.bodies + heard.bodies) == sorted(sent + rest), "each message once"


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_when_the_group_protocol_gets_members_a_member_with_a_strategy_gives_its_queues_up(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer], caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    """They would handle the same messages as long as both run: a concurrent member of the protocol reads no log."""
    plain, heard = Heard(), Heard()
    start(heard, "a", orderly=orderly, rebalance_interval_ms=1_000)
    fill(kafka, range(QUEUES))
    committed = {("orders", number): 1 for number in range(QUEUES)}
    kafka.wait_until(lambda: committed.items() <= kafka.committed("g").items(), guard_s=GUARD_S)
    second = start(plain, "b", allocate_message_queue_strategy=None)
    kafka.wait_until(lambda: len(held(second)) == QUEUES + 1, guard_s=GUARD_S)
    with caplog.at_level(logging.WARNING, "rocketshim.consumer"):
        fill(kafka, range(QUEUES, 2 * QUEUES))
        kafka.wait_until(lambda: "consumer.start-unknown" in caplog.text, guard_s=GUARD_S)
    after = fill(kafka, range(2 * QUEUES, 3 * QUEUES))
    kafka.wait_until(lambda: set(plain.bodies) >= set(after), guard_s=GUARD_S)
    assert not set(heard.bodies) & set(after), "only one of them handles what came later"
    second.stop()
    rest = fill(kafka, range(3 * QUEUES, 4 * QUEUES))
    kafka.wait_until(lambda: set(heard.bodies) >= set(rest), guard_s=GUARD_S)


def test_differing_strategies_are_logged_and_no_queue_has_two_consumers(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Heard(), Heard()
    with caplog.at_level(logging.ERROR, "rocketshim.group"):
        first = start(one, "a")
        kafka.wait_until(lambda: len(held(first)) == QUEUES + 1, guard_s=GUARD_S)
        second = start(two, "b", allocate_message_queue_strategy=AllocateMessageQueueAveragelyByCircle())
        # by blocks `a` gives up 3, 4, 5; by circle `b` wants 1, 3, 5, of which it gets what is free
        kafka.wait_until(lambda: held(second) == {("orders", 3), ("orders", 5)}, guard_s=GUARD_S)
    said = [record for record in caplog.records if getattr(record, "event", None) == "group.strategies-differ"]
    assert [(record.client_id, record.theirs, record.mine) for record in said] == [  # type: ignore[attr-defined]
        ("a", "AVG", "AVG_BY_CIRCLE")
    ]
    assert held(first) == {("orders", 0), ("orders", 1), ("orders", 2), (RETRY, 0)}


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_two_members_with_one_client_id_are_logged(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer], caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    """One of the two never gets a queue."""
    locks = {"lock_lease_ms": 6_000, "lock_hold_ms": 3_000, "lock_renew_ms": 100}
    with caplog.at_level(logging.ERROR, "rocketshim.group"):
        first = start(Heard(), "same", orderly=orderly, **locks)
        kafka.wait_until(lambda: len(held(first)) == QUEUES + 1, guard_s=GUARD_S)
        assert "group.client-id-shared" not in caplog.text
        start(Heard(), "same", orderly=orderly, **locks)
        kafka.wait_until(lambda: caplog.text.count("group.client-id-shared: client_id=same") == 2, guard_s=GUARD_S)


def test_a_killed_predecessor_with_the_same_client_id_is_no_other_member() -> None:
    checks = MemberChecks(Owner("same", "b"), "AVG", 60_000)
    records = [MemberRecord(client_id="same", incarnation=each, seq=1, lease_ms=60_000) for each in ("a", "b")]
    assert [_is_logged(checks, record) for record in records] == [False, False]
    assert _is_logged(checks, records[0])


def _is_logged(checks: MemberChecks, record: MemberRecord) -> bool:
    before = len(checks._logged)
    checks.check_client_id(record)
    return len(checks._logged) > before


def test_a_queue_with_a_lost_lease_is_not_committed_and_starts_again_with_a_new_one(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer]
) -> None:
    """An operator releases the queue in the group log (`rocketshim group release`) during a listener call."""
    begun, go_on, heard = threading.Event(), threading.Event(), Heard()

    def listener(message: Any) -> None:
        heard(message)
        begun.set()
        go_on.wait(GUARD_S)

    kafka.append("orders", b"a", partition=0)
    consumer = start(listener, "a")
    assert begun.wait(GUARD_S)
    before = kafka.committed("g")["orders", 0]
    released = release_record(kafka, MessageQueue("orders", queue_id=0))
    last = max(queue.epoch for queue in queues(consumer))
    kafka.append(LOG, released)
    kafka.wait_until(
        lambda: any(q.key == ("orders", 0) and q.epoch > last for q in queues(consumer)),
        guard_s=GUARD_S,
    )
    assert kafka.committed("g")["orders", 0] == before == 0
    go_on.set()
    kafka.wait_until(lambda: heard.bodies == [b"a", b"a"], guard_s=GUARD_S)
    kafka.wait_until(lambda: kafka.committed("g")["orders", 0] == 1, guard_s=GUARD_S)


class ClosingLog:
    """A group log that grants a claim, which was in flight, while it stops."""

    members: tuple[str, ...] = ("a",)
    error = None

    def __init__(self, lease: Lease) -> None:
        self.leases: SimpleQueue[Any] = SimpleQueue()
        self.released: list[Lease] = []
        self._lease = lease

    def want(self, queues: Collection[MessageQueue]) -> None: ...

    def release(self, lease: Lease) -> None:
        self.released.append(lease)

    def stop(self, _: float, meanwhile: Callable[[], None]) -> None:
        self.leases.put(self._lease)
        meanwhile()


def test_a_lease_that_is_won_while_its_member_closes_is_released() -> None:
    lease = Lease(MessageQueue("orders", queue_id=0), token=7, until_ms=10_000)
    log: Any = ClosingLog(lease)
    allocation = Allocation(AllocateMessageQueueAveragely(), "g", "a", {})
    LeasedAssigner(lambda: ["orders"], 20_000, allocation, log, Ownership(lambda: 0, needs_lease=True)).close()
    assert log.released == [lease]


def test_a_strategy_in_broadcasting_is_refused() -> None:
    with pytest.raises(ConfigError, match="every member"):
        PushConsumer(
            "b:1",
            group="g",
            message_model=MessageModel.BROADCASTING,
            allocate_message_queue_strategy=AllocateMessageQueueAveragely(),
        )


def test_an_invalid_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match="allocate_message_queue_strategy"):
        PushConsumer("b:1", group="g", allocate_message_queue_strategy="AVG")  # type: ignore[arg-type]
