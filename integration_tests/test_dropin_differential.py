"""The original and the drop-in are driven with the same operations and must answer the same.

Switched off in everything; switched on, as long as nothing is sent back, in everything but `consumer_group_metadata`,
which is refused.

Both read the same topic, each in a group of its own. What a call answers is compared: the value, or the type of the
error and its Kafka code. A poll is made only where the answer does not depend on time: something is certain to come (a
message, or the end of the partition), or nothing can. What follows an assignment in the client's own time (a position,
an offset that can be stored) is looked at only after the first message.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from rocketshim import dropin
from rocketshim_local import Broker

GUARD_S = 90.0
COUNT = 60
STEPS = 1_000
LONG_STEPS = 25_000
SWITCHED_OFF = {"rocketshim.retry.enable": False, "rocketshim.namespace": "unused"}
SWITCHED_ON = {"rocketshim.retry.enable": True, "rocketshim.namespace": "unused"}


def plain(value: Any) -> Any:
    """A value that can be compared."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Message):
        error = value.error()
        body = value.value() if error is None else None  # the text of an event names the group
        seen = [value.topic(), value.partition(), value.offset(), value.key(), body, value.headers()]
        return [*seen, value.timestamp(), value.leader_epoch(), None if error is None else error.code(), bool(value)]
    if isinstance(value, TopicPartition):
        code = None if value.error is None else value.error.code()
        return (value.topic, value.partition, value.offset, value.metadata, value.leader_epoch, code)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    return type(value)


def outcome(call: Callable[[confluent_kafka.Consumer], Any], consumer: confluent_kafka.Consumer) -> Any:
    try:
        return ("value", plain(call(consumer)))
    except KafkaException as error:
        return ("raised", type(error), error.args[0].code())
    except Exception as error:  # noqa: BLE001 - whatever the original raises
        return ("raised", type(error), str(error))


def known(consumer: confluent_kafka.Consumer, place: TopicPartition) -> None:
    """Wait until the group has a coordinator that answers: how long that takes is nobody's answer."""
    deadline = time.monotonic() + GUARD_S
    while True:
        try:
            if consumer.committed([place], timeout=GUARD_S)[0].error is None:
                return
        except KafkaException:
            assert time.monotonic() < deadline


class Pair:
    """Two consumers in step, and what is known of where they are."""

    def __init__(
        self, broker: Broker, topic: str, group: Callable[..., str], seed: int, ours: dict[str, Any], **config: Any
    ) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a sequence that can be had again
        self.seed = seed
        self.topic = topic
        self.last: tuple[Message | None, Message | None] = (None, None)
        shared = {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest", "enable.partition.eof": True}
        shared |= {
            "enable.auto.commit": False,
            "log_level": 2,
            "fetch.wait.max.ms": 5,
            "retry.backoff.ms": 10,
            **config,
        }
        self.original = confluent_kafka.Consumer({**shared, "group.id": group("original")})
        self.ours = dropin.Consumer({**shared, "group.id": group("ours"), **ours})
        self.is_on = ours == SWITCHED_ON
        self.may_poll = False
        self.settled = False
        self.steps = 0
        self.log: list[str] = []
        for consumer in (self.original, self.ours):
            known(consumer, TopicPartition(topic, 0))
        self.assign()
        self.poll()  # from here on both know the topic

    def same(self, call: Callable[..., Any], what: str) -> Any:
        self.steps += 1
        self.log.append(what)
        theirs, ours = outcome(call, self.original), outcome(call, self.ours)
        assert theirs == ours, self.story()
        return theirs

    def story(self) -> str:
        """The last operations, for the reader of a difference."""
        return f"seed {self.seed}, step {self.steps}: {', '.join(self.log[-20:])}"

    def place(self, offset: int | None = None) -> TopicPartition:
        number = self.random.choice([0, 0, 0, 0, 1, 7])
        return TopicPartition(self.topic, number, OFFSET_INVALID if offset is None else offset)

    def offset(self) -> int:
        return self.random.choice([0, 1, COUNT - 1, COUNT, COUNT + 9, self.random.randrange(COUNT), OFFSET_BEGINNING])

    # --- operations --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Take what comes first: what an assignment that is over had asked for may still come."""
        if not self.settled:
            self.poll()

    def assign(self) -> None:
        self.settle()
        start = self.random.choice([self.offset(), OFFSET_END, OFFSET_STORED, OFFSET_INVALID])
        assigned = TopicPartition(self.topic, 0, start)
        self.same(lambda consumer: consumer.assign([assigned]), f"assign at {start}")
        self.may_poll = True
        self.settled = False

    def unassign(self) -> None:
        self.settle()
        self.same(lambda consumer: consumer.unassign(), "unassign")
        self.may_poll = self.settled = False

    def incremental(self) -> None:
        self.settle()
        places = [TopicPartition(self.topic, 1, OFFSET_END)]
        name = self.random.choice(["incremental_assign", "incremental_unassign"])
        self.same(lambda consumer: getattr(consumer, name)(places), name)
        self.unassign()

    def seek(self) -> None:
        if self.may_poll:  # a partition that is fetched; a seek of any other may wait for its first fetch
            target = TopicPartition(self.topic, 0, max(0, self.offset()))
            self.poll()
            self.same(lambda consumer: consumer.seek(target), f"seek to {target.offset}")
            self.may_poll = True
            self.settled = False

    def seek_elsewhere(self) -> None:
        self.same(lambda consumer: consumer.seek(TopicPartition(self.topic, 5, 3)), "seek")

    def poll(self) -> None:
        if not self.may_poll:
            return
        messages = self.original.poll(GUARD_S), self.ours.poll(timeout=GUARD_S)
        self._took([messages[0]], [messages[1]], "poll")

    def consume(self) -> None:
        if not self.may_poll:
            return
        self.poll()
        if not self.may_poll:
            return
        theirs, ours = self.original.consume(1, GUARD_S), self.ours.consume(num_messages=1, timeout=GUARD_S)
        self._took(theirs, ours, "consume")

    def _took(self, theirs: list[Any], ours: list[Any], what: str) -> None:
        self.steps += 1
        self.log.append(what)
        assert plain(theirs) == plain(ours), self.story()
        assert theirs != [None], self.story()
        self.last = (theirs[-1], ours[-1])
        self.settled = True
        error = self.last[0].error()
        self.may_poll = error is None or error.code() != KafkaError._PARTITION_EOF

    def pause_and_resume(self) -> None:
        self.settle()
        places = [self.place() for _ in range(self.random.randrange(3))]
        name = self.random.choice(["pause", "resume"])
        self.same(lambda consumer: getattr(consumer, name)(places), name)
        for consumer in (self.original, self.ours):
            consumer.resume([self.place_0])  # a pause outlives its assignment
        self.assign()  # what a paused partition has fetched may come or not

    def look(self) -> None:
        places = [self.place() for _ in range(self.random.randrange(3))]
        calls: list[tuple[str, Callable[..., Any]]] = [
            ("position", lambda consumer: consumer.position(places)),
            ("assignment", lambda consumer: consumer.assignment()),
            ("committed", lambda consumer: consumer.committed(places, timeout=GUARD_S)),
            ("watermarks", lambda consumer: consumer.get_watermark_offsets(self.place_0, timeout=GUARD_S)),
            ("times", lambda consumer: consumer.offsets_for_times([TopicPartition(self.topic, 0, 1)], timeout=GUARD_S)),
            ("topics", lambda consumer: sorted(consumer.list_topics(self.topic, timeout=GUARD_S).topics)),
            ("memberid", lambda consumer: consumer.memberid()),
            ("attribute", lambda consumer: setattr(consumer, "note", 1)),
            ("metadata", lambda consumer: type(consumer.consumer_group_metadata())),
        ]
        name, call = self.random.choice(calls[not self.settled : -1 if self.is_on else None])
        if name == "attribute":
            assert [outcome(call, each)[1] for each in (self.original, self.ours)] == [AttributeError] * 2
        else:
            self.same(call, name)

    @property
    def place_0(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def commit(self) -> None:
        if not self.settled:
            return
        offset = self.random.randrange(COUNT)
        calls: list[tuple[str, Callable[..., Any]]] = [
            ("commit()", lambda consumer: consumer.commit(asynchronous=False)),
            ("commit(offsets)", lambda consumer: consumer.commit(offsets=[self._at(offset)], asynchronous=False)),
            ("commit both", lambda consumer: consumer.commit(message=1, offsets=[self._at(offset)])),
            ("commit(wrong)", lambda consumer: consumer.commit(offsets=3)),
            ("commit(asynchronous)", lambda consumer: consumer.commit(offsets=[self._at(offset)], asynchronous=True)),
        ]
        name, call = self.random.choice(calls)
        self.same(call, name)
        if "asynchronous" in name:
            self.same(lambda consumer: consumer.commit(offsets=[self._at(1)], asynchronous=False), "commit after it")

    def commit_message(self) -> None:
        if not self.settled or self.last[0] is None or self.last[0].error() is not None:
            return
        name = self.random.choice(["commit", "store_offsets"])
        more: dict[str, Any] = {"asynchronous": False} if name == "commit" else {}
        messages = {self.original: self.last[0], self.ours: self.last[1]}
        self.same(lambda consumer: getattr(consumer, name)(message=messages[consumer], **more), f"{name}(message)")

    def store(self) -> None:
        if not self.settled:
            return
        offset = self.random.randrange(COUNT)
        calls: list[Callable[..., Any]] = [
            lambda consumer: consumer.store_offsets(offsets=[self._at(offset)]),
            lambda consumer: consumer.store_offsets(),
            lambda consumer: consumer.store_offsets(offsets=[TopicPartition(self.topic, 9, 1)]),
        ]
        self.same(self.random.choice(calls), "store_offsets")

    def _at(self, offset: int) -> TopicPartition:
        return TopicPartition(self.topic, 0, offset)

    def misuse(self) -> None:
        calls: list[Callable[..., Any]] = [
            lambda consumer: consumer.poll("soon"),
            lambda consumer: consumer.poll(None),
            lambda consumer: consumer.consume(-1, 0),
            lambda consumer: consumer.consume(0, 0),
            lambda consumer: consumer.consume(2_000_000, 0),
            lambda consumer: consumer.subscribe("topic"),
            lambda consumer: consumer.subscribe(),
            lambda consumer: consumer.subscribe([self.topic], on_assign=None),
            lambda consumer: consumer.subscribe([self.topic], on_gone=print),
            lambda consumer: consumer.assign("topic"),
            lambda consumer: consumer.assign([self.topic]),
            lambda consumer: consumer.pause(3),
            lambda consumer: consumer.seek(3),
            lambda consumer: consumer.seek(TopicPartition(self.topic)),
            lambda consumer: consumer.committed([3]),
            lambda consumer: consumer.set_sasl_credentials(None, None),
            lambda consumer: consumer.offsets_for_times(),
            len,
            bool,
            lambda consumer: consumer.no_such_method(),
        ]
        call = self.random.choice(calls)
        theirs, ours = outcome(call, self.original), outcome(call, self.ours)
        assert theirs[:2] == ours[:2]  # a text may name the class
        self.steps += 1

    def close(self) -> None:
        for call in AFTER_CLOSE:
            self.same(call, "close and after")


AFTER_CLOSE: list[Callable[..., Any]] = [
    lambda consumer: consumer.close(),
    lambda consumer: consumer.close(),
    lambda consumer: consumer.poll(0),
    lambda consumer: consumer.consume(1, 0),
    lambda consumer: consumer.assignment(),
    lambda consumer: consumer.subscribe(["t"]),
    lambda consumer: consumer.unsubscribe(),
    lambda consumer: consumer.assign([]),
    lambda consumer: consumer.unassign(),
    lambda consumer: consumer.commit(),
    lambda consumer: consumer.store_offsets(),
    lambda consumer: consumer.position([]),
    lambda consumer: consumer.committed([]),
    lambda consumer: consumer.memberid(),
    lambda consumer: consumer.consumer_group_metadata(),
    lambda consumer: consumer.pause([]),
    lambda consumer: consumer.resume([]),
    lambda consumer: consumer.set_sasl_credentials("u", "p"),
]


@pytest.fixture
def filled(broker: Broker, topic: Callable[..., str]) -> str:
    """A topic of two partitions, COUNT records in the first: values, keys and headers present, empty and absent."""
    name = topic(partitions=2)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(COUNT):
        value = [None, b"", b"value-%d" % number][number % 3]
        producer.produce(name, value, [None, b"", b"key"][number % 3], partition=0, headers=[("h", None), ("h", b"1")])
    assert producer.flush(GUARD_S) == 0
    return name


@pytest.fixture
def pairs(broker: Broker, filled: str, group: Callable[..., str]) -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(seed: int, ours: dict[str, Any], **config: Any) -> Pair:
        made.append(Pair(broker, filled, group, seed, ours, **config))
        return made[-1]

    yield make
    for pair in made:
        pair.original.close()
        pair.ours.close()


def drive(pair: Pair, steps: int) -> None:
    often = [pair.poll] * 8 + [pair.consume] * 3 + [pair.seek] * 2
    rest = [pair.assign, pair.unassign, pair.incremental, pair.seek_elsewhere, pair.pause_and_resume]
    rest += [pair.look] * 3 + [pair.commit] * 2 + [pair.commit_message] * 2 + [pair.store, pair.misuse]
    while pair.steps < steps:
        pair.random.choice(often + rest)()
    pair.close()


BOTH = [
    pytest.mark.parametrize("stores", [True, False], ids=["the client stores offsets", "the program stores offsets"]),
    pytest.mark.parametrize("ours", [SWITCHED_OFF, SWITCHED_ON], ids=["retry off", "retry on"]),
]


@BOTH[0]
@BOTH[1]
def test_the_same_operations_have_the_same_answers(
    pairs: Callable[..., Pair], stores: bool, ours: dict[str, Any]
) -> None:
    drive(pairs(20_261 + stores, ours, **{"enable.auto.offset.store": stores}), STEPS)


@pytest.mark.long
@BOTH[0]
@BOTH[1]
def test_the_same_operations_have_the_same_answers_for_long(
    pairs: Callable[..., Pair], stores: bool, ours: dict[str, Any]
) -> None:
    drive(pairs(random.SystemRandom().randrange(2**32), ours, **{"enable.auto.offset.store": stores}), LONG_STEPS)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (({},), {}),
        ((["group.id"],), {}),
        (({"group.id": "g"}, 1), {}),
        (({"group.id": "g", "no.such": 1},), {}),
        (({"group.id": "g", "session.timeout.ms": "x"},), {}),
        (({"group.id": "g", "error_cb": 1},), {}),
        ((), {"group.id": "g"}),
        (({"group.id": "g"},), {"client.id": "c"}),
        (({"client.id": "c"},), {"group.id": "g", "logger": None}),
    ],
)
def test_the_constructor_takes_and_refuses_the_same(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def made(cls: type[confluent_kafka.Consumer]) -> Any:
        try:
            cls(*args, **kwargs).close()
        except KafkaException as error:
            return type(error), error.args[0].code(), error.args[0].str()
        except Exception as error:  # noqa: BLE001 - whatever the original raises
            return type(error), str(error)
        return "made"

    assert made(dropin.Consumer) == made(confluent_kafka.Consumer)


def test_nothing_is_created_or_subscribed_beyond_what_was_asked(
    broker: Broker, filled: str, group: Callable[..., str], admin: AdminClient
) -> None:
    before = set(admin.list_topics(timeout=GUARD_S).topics)
    config = {"bootstrap.servers": broker.bootstrap, "group.id": group(), "auto.offset.reset": "earliest"}
    with dropin.Consumer(config, **{"rocketshim.max.reconsume.times": 3}) as consumer:
        assert isinstance(consumer, confluent_kafka.Consumer)
        consumer.subscribe([filled])
        message = consumer.poll(GUARD_S)
        assert message is not None
        assert {each.topic for each in consumer.assignment()} == {filled}
        with pytest.raises(dropin.FeatureNotEnabledError, match=r"rocketshim\.retry\.enable"):
            consumer.reconsume_later(message)
        with pytest.raises(dropin.FeatureNotEnabledError, match=r"rocketshim\.retry\.enable"):
            consumer.dead_letter(message, "x")
        assert (consumer.reconsume_times(message), consumer.tag(message)) == (0, None)
        assert str(consumer.origin(message)) == consumer.uniq_key(message) == f"{filled}/0/0"
    assert set(admin.list_topics(timeout=GUARD_S).topics) - before <= {"__consumer_offsets"}
