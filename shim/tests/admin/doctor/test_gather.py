"""With which settings the doctor connects, and what it makes of answers that miss a part."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from rocketshim.admin.doctor.facts import Facts, PartitionFacts, TopicFacts
from rocketshim.admin.doctor.gather import _REFUSED, _ClusterReader, _layout, gather
from rocketshim.core.worker_notes import NOT_ALLOWED
from rocketshim.errors import ConfigError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import DelayLevels, Envelope, TopicNames
from rocketshim_topics.hops import timer_state
from rocketshim_topics.redrive_log import MarkRecord, encode_redrive_record, record_digest

NAMES = TopicNames()
LED = TopicFacts((PartitionFacts(leader=1, replicas=1, in_sync=1),))


@pytest.fixture
def cluster() -> Iterator[_ClusterReader]:
    with closing(_ClusterReader("127.0.0.1:1", NAMES, {})) as made:
        yield made


@pytest.mark.parametrize(
    "given",
    ["group.id=payments", "auto.offset.reset=latest", "enable.auto.commit=true", "isolation.level=read_uncommitted"],
)
def test_settings_of_the_users_consumer_are_evaluated_but_not_used(given: str) -> None:
    name, _, value = given.partition("=")
    usable = {name: value for name, value in ((name, value), ("client.id", "me")) if name not in _REFUSED}
    assert usable == {"client.id": "me"}
    with closing(_ClusterReader("127.0.0.1:1", TopicNames(), usable)):
        pass


def test_a_setting_that_runs_code_is_refused_by_name_and_not_left_out() -> None:
    url = {"sasl.oauthbearer.token.endpoint.url": "https://idp", "sasl.oauthbearer.method": "oidc"}
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "OAUTHBEARER"}
    with pytest.raises(ConfigError, match=r"'sasl\.oauthbearer\.token\.endpoint\.url' loads or runs code"):
        gather("127.0.0.1:1", NAMES, DelayLevels.default(), client={**login, **url})
    with pytest.raises(ConfigError) as refused:
        gather("127.0.0.1:1", NAMES, DelayLevels.default(), client={"no.such": "1", "acks": "1"})
    assert "since rocketshim refuses it: acks" in str(refused.value)


def test_topics_that_are_deleted_after_their_description_are_left_out(cluster: _ClusterReader) -> None:
    cluster.reader.close()
    cluster.reader = TopicReader("memory:1", clients=InMemoryKafka(VirtualClock()).clients())
    assert cluster.open_transactions({"orders": LED}) == {}
    assert cluster.keys({"orders": LED}) == {}
    assert cluster.unread == []


def test_parked_records_that_were_sent_again_do_not_count(cluster: _ClusterReader) -> None:
    kafka, now_ms = InMemoryKafka(VirtualClock()), time.time_ns() // 1_000_000
    for topic in (NAMES.parked, NAMES.redrive_log):
        kafka.create_topic(topic, 1)
    for number in range(3):
        headers = [("PARK_REASON", NOT_ALLOWED.encode())]
        kafka.append(NAMES.parked, b"%d" % number, headers=headers, timestamp_ms=now_ms)
    cluster.reader.close()
    cluster.reader = TopicReader("memory:1", clients=kafka.clients())
    described = {NAMES.parked: LED}
    assert cluster.parked(described) == (3, 3)
    first, second, _ = cluster.reader.read([NAMES.parked])
    done = ((0, 0, record_digest(first)), (0, 1, record_digest(second)))
    mark = MarkRecord(state="redriven", source=NAMES.parked, plan="p", session="s", letters=done)
    kafka.append(NAMES.redrive_log, encode_redrive_record(mark))
    assert cluster.parked(described) == (1, 1)
    kafka.append(NAMES.redrive_log, b'{"v": 99}')
    assert cluster.parked(described) == (3, 3), "without an answer of the log each one counts"
    assert "the redrive log has a record of version 99" in cluster.unread[0]


def test_half_messages_that_wait_are_counted_by_their_producers(cluster: _ClusterReader) -> None:
    kafka, now_ms = InMemoryKafka(VirtualClock()), time.time_ns() // 1_000_000
    kafka.create_topic(NAMES.timer_state, 8)

    def store(name: str, asks: str | None, asked: int, *, age_ms: int = 0, generation: int | None = 1) -> None:
        envelope = Envelope(real_topic="orders", timer=name, timer_asks=asks, timer_asked=asked)
        state = timer_state(NAMES, 0, envelope, applied=1, append_ms=1, era=0, generation=generation)
        kafka.append(
            state.topic, state.value, key=state.key, partition=0, headers=state.headers, timestamp_ms=now_ms - age_ms
        )

    store("long ago", "shop", 3, age_ms=1_200_000)
    for name, asks, asked in (("a", "shop", 0), ("b", "shop", 3), ("c", "billing", 9), ("o-7", None, 0), ("x", " ", 3)):
        store(name, asks, asked)
    store("ended", "shop", 4)
    store("ended", "shop", 4, generation=None)
    cluster.reader.close()
    cluster.reader = TopicReader("memory:1", clients=kafka.clients())
    assert cluster.transactions() == {"shop": (2, 1), "billing": (1, 1)}
    assert cluster.unread == []


@pytest.mark.parametrize(
    ("size", "option"), [("2147483647", "--max-message-bytes 2147418111 "), ("500", ""), ("1048588", "")]
)
def test_a_proposed_init_takes_the_size_of_any_topic_and_makes_room_for_others(size: str, option: str) -> None:
    layout = _layout(NAMES, DelayLevels.default(), [TopicFacts((), {"max.message.bytes": size})])
    assert Facts("b:9092", layout, 0).init() == f"rocketshim init {option}--bootstrap b:9092"
