"""The mistakes that strangers make, each with the error that it gets and the words that help. None passes silently.

No refactoring may swallow one of these errors again. `cli/test_mistakes.py` has those of the command line, and
`integration_tests/test_mistakes.py` those that only a broker shows.
"""

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

import rocketshim
import rocketshim.dropin
from rocketshim.codecs import JsonCodec, PydanticCodec, SerializerCodec
from rocketshim.compat.rocketmq import client
from rocketshim.compat.rocketmq.exceptions import ProducerSendSyncFailed, PushConsumerStartFailed
from rocketshim.errors import (
    ClosedError,
    ConfigError,
    ConsumerError,
    FeatureNotEnabledError,
    FilterSyntaxError,
    MessageError,
    MessageTooLargeError,
    NotSupportedError,
    ReservedHeaderError,
    SendTimeoutError,
    TopicMissingError,
)
from rocketshim.harness import Harness
from rocketshim.producer.selectors import SelectMessageQueueByHash
from rocketshim.testing import InMemoryKafka

NOBODY = "127.0.0.1:1"
shim: Any = rocketshim  # a mistake is what a type checker would have found
compat: Any = client
dropin: Any = rocketshim.dropin


class Order(BaseModel):
    """A body."""

    id: int


class Unfinished(BaseModel):
    """A body with a name that nobody defines."""

    lines: "list[Missing]"  # type: ignore[name-defined]  # noqa: F821 - the mistake


@dataclass
class Plain:
    """A body that is not a model of pydantic."""

    id: int


class OneArgument:
    """A codec and a hook whose methods take too few arguments."""

    def encode(self, value: object, topic: str, headers: object) -> bytes:
        """Return nothing."""
        del value, topic, headers
        return b""

    def decode(self, body: bytes) -> bytes:
        """Return the body."""
        return body

    def consume_message_before(self) -> None:
        """Do nothing."""

    def consume_message_after(self, context: object) -> None:
        """Do nothing."""


class AsyncHook:
    """A hook that nothing would await, so that it would accept each message."""

    async def filter_message(self, message: object) -> bool:
        """Accept nothing."""
        del message
        return False


class ShortPolicy:
    """A policy that has an answer for two attempts only."""

    def next_hop(self, times: int, unit: float) -> rocketshim.AfterDelay:
        """Return the delay."""
        del unit
        return rocketshim.AfterDelay([10, 20][times])


class NumberPolicy:
    """A policy that answers with a number."""

    def next_hop(self, times: int, unit: float) -> Any:
        """Return a number."""
        del unit
        return times


class LongPolicy:
    """A policy with a delay that no worker accepts."""

    def next_hop(self, times: int, unit: float) -> rocketshim.AfterDelay:
        """Return 400 days."""
        del times, unit
        return rocketshim.AfterDelay(400 * 86_400_000)


class NoPolicy:
    """A policy without arguments."""

    def next_hop(self) -> rocketshim.AtLevel:
        """Return a level."""
        return rocketshim.AtLevel(1)


class NoStrategy:
    """An allocation strategy without arguments."""

    name = "mine"

    def allocate(self) -> list[Any]:
        """Return no queues."""
        return []


def handle(message: Any) -> None:
    """Handle a message."""
    del message


async def awaited(message: Any) -> None:
    """Handle a message."""
    del message


def yields(message: Any) -> Any:
    """Do nothing, since nothing asks for the next value."""
    yield message


async def yields_async(message: Any) -> Any:
    """Do nothing, too."""
    yield message


def kafka() -> InMemoryKafka:
    made = InMemoryKafka()
    made.create_topic("orders", 1)
    return made


def send(*args: Any, **options: Any) -> Any:
    """Send with a producer that would succeed."""
    with shim.Producer("memory:1", clients=kafka().clients()) as producer:
        return producer.send(*args, **options)


def consumer(**settings: Any) -> Any:
    return shim.PushConsumer("memory:1", group="g", clients=kafka().clients(), **settings)


def listen(function: Any = handle, **options: Any) -> Any:
    return consumer().listener("orders", **options)(function)


def push(**settings: Any) -> Any:
    return shim.PushConsumer(NOBODY, **{"group": "g", **settings})


def pull() -> Any:
    return shim.LitePullConsumer("memory:1", group="g", clients=kafka().clients())


def drop_in(**config: Any) -> Any:
    return dropin.Consumer({"bootstrap.servers": NOBODY, "group.id": "g", **config})


def retrying(**config: Any) -> Any:
    return drop_in(**{"rocketshim.retry.enable": True, **config})


def two_listeners(first: Any, second: Any, topic: str = "b", **options: Any) -> None:
    made = consumer()
    made.listener("a")(first)
    made.listener(topic, **options)(second)


def late_listener() -> None:
    made = consumer()
    made.listener("orders")(handle)
    made.start()
    try:
        made.listener("b")(handle)
    finally:
        made.stop()


def second_start() -> None:
    made = consumer()
    made.listener("orders")(handle)
    made.start()
    made.stop()
    made.start()


def send_after_close() -> None:
    producer = shim.Producer("memory:1", clients=kafka().clients())
    producer.close()
    producer.send("orders", b"")


def send_to_nobody() -> None:
    producer = shim.Producer(NOBODY)
    try:
        producer.send("orders", b"", timeout_s=0.5)
    finally:
        producer.close(0)


async def awaited_send() -> None:
    await send("orders", b"")


def subscribe_and_assign() -> None:
    made = pull()
    made.subscribe("orders")
    made.assign([rocketshim.MessageQueue("orders", queue_id=0)])


def in_harness(call: Callable[[Any], object]) -> None:
    with Harness() as harness:
        call(harness)


def orderly_in_harness(harness: Any) -> None:
    made = consumer()
    made.listener("orders", orderly=True)(handle)
    harness.run(made)


def compat_consumer(**subscription: Any) -> Any:
    made = compat.PushConsumer("g")
    made.subscribe("orders", **{"callback": handle, **subscription})
    return made


class Mistake(NamedTuple):
    """A mistake: what is done, the error, and words that help."""

    make: Callable[[], object]
    error: type[Exception]
    words: str


MISTAKES = {
    # connecting
    "no address": Mistake(shim.Producer, ConfigError, "give host:port of a broker, or set ROCKETSHIM_BOOTSTRAP"),
    "an empty address": Mistake(lambda: shim.Producer(""), ConfigError, "bootstrap is empty"),
    "a blank address": Mistake(lambda: shim.Producer(" , "), ConfigError, "write host:port of at least one broker"),
    "kafka://": Mistake(lambda: shim.Producer("kafka://b:9092"), ConfigError, "an address is not a URL. Write b:9092"),
    "http://": Mistake(lambda: shim.Producer("http://b:9092"), ConfigError, "Kafka's protocol is not HTTP"),
    "an address of the second broker": Mistake(lambda: shim.Producer("a:1,tcp://b:1"), ConfigError, "Write b:1"),
    "a wrong port": Mistake(send_to_nobody, SendTimeoutError, "Connection refused"),
    # settings
    "a typo of a setting": Mistake(
        lambda: push(max_reconsume_time=3), ConfigError, "no such setting; did you mean max_reconsume_times?"
    ),
    "a setting in camel case": Mistake(
        lambda: push(maxReconsumeTimes=3), ConfigError, "did you mean max_reconsume_times?"
    ),
    "a typo in a settings object": Mistake(
        lambda: shim.ProducerSettings(bootstrap=NOBODY, lingerms=3), ConfigError, "did you mean linger_ms?"
    ),
    "a setting out of range": Mistake(
        lambda: push(consume_thread_min=0),
        ConfigError,
        "consume_thread_min=0: Input should be greater than",
    ),
    "settings of another class": Mistake(
        lambda: shim.PushConsumer(settings=rocketshim.ProducerSettings(bootstrap=NOBODY)),
        ConfigError,
        "takes PushConsumerSettings as settings=",
    ),
    "settings in both forms": Mistake(
        lambda: shim.Producer(NOBODY, settings=rocketshim.ProducerSettings(bootstrap=NOBODY)), ConfigError, "not both"
    ),
    "a worker with an address": Mistake(
        lambda: shim.DelayWorker(NOBODY), ConfigError, "a worker takes WorkerSettings(bootstrap=…, allow=…)"
    ),
    "a worker without topics": Mistake(
        lambda: shim.WorkerSettings(bootstrap=NOBODY), ConfigError, "WorkerSettings: allow is required"
    ),
    "Kafka's acks": Mistake(lambda: shim.Producer(NOBODY, acks="all"), ConfigError, "client={'acks': …}"),
    "Kafka's compression_type": Mistake(
        lambda: shim.Producer(NOBODY, compression_type="gzip"), ConfigError, "client={'compression.type': …}"
    ),
    "Kafka's session_timeout_ms": Mistake(
        lambda: push(session_timeout_ms=6_000), ConfigError, "client={'session.timeout.ms': …}"
    ),
    "Kafka's auto_offset_reset": Mistake(
        lambda: push(auto_offset_reset="earliest"),
        ConfigError,
        "consume_from_where=ConsumeFromWhere.FIRST_OFFSET",
    ),
    "Kafka's auto_offset_reset, pulling": Mistake(
        lambda: shim.LitePullConsumer(NOBODY, group="g", auto_offset_reset="earliest"),
        ConfigError,
        "consume_from_where",
    ),
    "Kafka's bootstrap_servers": Mistake(
        lambda: shim.Producer(bootstrap_servers=NOBODY), ConfigError, "it is called bootstrap here"
    ),
    "Kafka's group_id": Mistake(
        lambda: shim.PushConsumer(NOBODY, group_id="g"), ConfigError, "it is called group here"
    ),
    "Kafka's enable_auto_commit": Mistake(
        lambda: push(enable_auto_commit=True), ConfigError, "a push consumer commits what its listeners have handled"
    ),
    "Kafka's max_poll_records": Mistake(lambda: push(max_poll_records=5), ConfigError, "write pull_batch_size"),
    "Kafka's value_serializer": Mistake(
        lambda: shim.Producer(NOBODY, value_serializer=str), ConfigError, "write codec="
    ),
    "Kafka's transactional_id": Mistake(
        lambda: shim.Producer(NOBODY, transactional_id="t"), ConfigError, "rocketshim.dropin.Producer"
    ),
    "an option of a listener for the consumer": Mistake(
        lambda: push(dead_on=ValueError), ConfigError, "an option of a listener: @consumer.listener(topic, dead_on=…)"
    ),
    "a setting of the producer for the consumer": Mistake(
        lambda: push(linger_ms=1), ConfigError, "a setting of the producer: Producer(…, linger_ms=…)"
    ),
    "a group for the producer": Mistake(
        lambda: shim.Producer(NOBODY, group="g"), ConfigError, "group is a setting of the consumer"
    ),
    "a typo of a client setting": Mistake(
        lambda: shim.Producer(NOBODY, client={"linger_ms": 5}).send("orders", b""),
        ConfigError,
        "No such configuration property",
    ),
    "a client setting that must not change": Mistake(
        lambda: shim.Producer(NOBODY, client={"acks": "1"}).send("orders", b""), ConfigError, "must be 'all' here"
    ),
    "a start as a word of Kafka": Mistake(
        lambda: push(consume_from_where="earliest"), ConfigError, "ConsumeFromWhere.FIRST_OFFSET"
    ),
    "a message model that does not exist": Mistake(
        lambda: push(message_model="broadcast"), ConfigError, "MessageModel.BROADCASTING"
    ),
    "a start in seconds": Mistake(
        lambda: push(consume_timestamp_ms=1_767_225_600), ConfigError, "give epoch milliseconds"
    ),
    "a level table with commas": Mistake(
        lambda: push(delay_levels="1s,5s"), ConfigError, "is not an integer and one of the units"
    ),
    "a level with a capital unit": Mistake(lambda: shim.DelayLevels.parse("1S"), ConfigError, "s, m, h, d (lower"),
    "a namespace with a dot": Mistake(lambda: shim.TopicNames("a.b"), ConfigError, "is not a namespace"),
    "an allocation strategy of other arguments": Mistake(
        lambda: push(allocate_message_queue_strategy=NoStrategy()), ConfigError, "allocate does not take 4 arguments"
    ),
    # groups
    "no group": Mistake(lambda: shim.PushConsumer(NOBODY), ConfigError, "group is required"),
    "a blank group": Mistake(lambda: push(group="   "), ConfigError, "give a text that is not blank"),
    "a blank group, pulling": Mistake(
        lambda: shim.LitePullConsumer(NOBODY, group=" "), ConfigError, "give a text that is not blank"
    ),
    "a reserved group": Mistake(lambda: push(group="DEFAULT_CONSUMER"), ConfigError, "RocketMQ reserves it"),
    "the worker's group": Mistake(lambda: push(group="rmq.sched"), ConfigError, "is the group of the delay-redeliv"),
    "the worker's group, pulling": Mistake(
        lambda: shim.LitePullConsumer(NOBODY, group="rmq.sched"), ConfigError, "choose another name"
    ),
    "the worker's group of a namespace": Mistake(
        lambda: shim.PullConsumer(NOBODY, group="pay.rmq.sched"), ConfigError, "choose another name"
    ),
    "the worker's group, drop-in": Mistake(
        lambda: retrying(**{"group.id": "rmq.sched"}), ConfigError, "choose another name"
    ),
    # retry policies
    "a policy that is a class": Mistake(
        lambda: push(retry_policy=shim.ExponentialRetryPolicy), ConfigError, "pass an object, ExponentialRetryPolicy()"
    ),
    "a policy that is a number": Mistake(lambda: push(retry_policy=5), ConfigError, "an instance of RetryPolicy"),
    "a policy of other arguments": Mistake(
        lambda: push(retry_policy=NoPolicy()), ConfigError, "write next_hop(self, reconsume_times, unit)"
    ),
    "a policy that raises later": Mistake(
        lambda: push(retry_policy=ShortPolicy()), ConfigError, "next_hop(2, 0.5) raised IndexError"
    ),
    "a policy that answers nonsense": Mistake(
        lambda: push(retry_policy=NumberPolicy()), ConfigError, "next_hop(0, 0.5) returned 0: it returns AtLevel"
    ),
    "a policy with a delay of 400 days": Mistake(
        lambda: push(retry_policy=LongPolicy()), ConfigError, "AfterDelay of 0 ms to 40 days"
    ),
    "a growing delay from 0": Mistake(
        lambda: shim.ExponentialRetryPolicy(initial_ms=0), ConfigError, "need 1 <= initial_ms=0"
    ),
    "a growing delay up to 400 days": Mistake(
        lambda: shim.ExponentialRetryPolicy(cap_ms=400 * 86_400_000), ConfigError, "<= 40 days"
    ),
    # sending
    "a topic that does not exist": Mistake(lambda: send("nosuch", b""), TopicMissingError, "does not exist"),
    "a topic with a blank": Mistake(lambda: send("my orders", b""), MessageError, "Kafka accepts 1 to 249 of"),
    "a send to the schedule topic": Mistake(
        lambda: send("SCHEDULE_TOPIC_XXXX", b""), MessageError, "give the message a delay"
    ),
    "a delay as a word": Mistake(lambda: send("orders", b"", delay="soon"), MessageError, "as in '90s'"),
    "a delay in bytes": Mistake(lambda: send("orders", b"", delay=b"5s"), MessageError, "give a text like '90s'"),
    "a negative delay": Mistake(lambda: send("orders", b"", delay=-5), MessageError, "a duration is 0 to"),
    "two delays": Mistake(
        lambda: send("orders", b"", delay=5, delay_level=3), MessageError, "at most one of its three delays"
    ),
    "a time without a zone": Mistake(
        lambda: send("orders", b"", deliver_at=datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
        MessageError,
        "give an aware datetime",
    ),
    "a level as a text": Mistake(lambda: send("orders", b"", delay_level="3"), MessageError, "give a whole number"),
    "time.time()": Mistake(
        lambda: send("orders", b"", deliver_at=1_795_871_465.9),
        MessageError,
        "give whole milliseconds, as int(time.time() * 1000), or a datetime with a time zone",
    ),
    "a time in seconds": Mistake(
        lambda: send("orders", b"", deliver_at=1_795_871_465), MessageError, "give milliseconds, 1795871465000"
    ),
    "a body of text": Mistake(
        lambda: send("orders", "x"),
        MessageError,
        "give bytes (text.encode()) or a pydantic model, or its codec: send(topic, body, codec=JsonCodec())",
    ),
    "a body that is a dict": Mistake(lambda: send("orders", {}), MessageError, "codec=JsonCodec()"),
    "a body that is a dataclass": Mistake(lambda: send("orders", Plain(1)), MessageError, "codec=PydanticCodec(Plain)"),
    "a message with a body of text": Mistake(
        lambda: shim.Message("orders", "x"), MessageError, "producer.send(topic, body, codec=JsonCodec())"
    ),
    "a class as a body": Mistake(lambda: send("orders", Order), MessageError, "the class Order: give an object of it"),
    "a body that is None": Mistake(lambda: send("orders", None), MessageError, "a tombstone is a Message(topic, None)"),
    "no body": Mistake(lambda: send("orders"), MessageError, "give a Message(topic, body, …), or a topic and a body"),
    "a body that is too large": Mistake(
        lambda: send("orders", b"x" * 5_000_000), MessageTooLargeError, "exceeds max_message_bytes"
    ),
    "a reserved property": Mistake(
        lambda: send("orders", b"", properties={"REAL_TOPIC": "x"}), ReservedHeaderError, "choose another property name"
    ),
    "a list of tags on a message": Mistake(
        lambda: send("orders", b"", tag="a || b"), MessageError, "a message has one tag"
    ),
    "a typo of an option": Mistake(
        lambda: send("orders", b"", dely="5s"), MessageError, "a message has no option dely: did you mean delay?"
    ),
    "an option of a listener for a message": Mistake(
        lambda: send("orders", b"", orderly=True), MessageError, "orderly is an option of a listener"
    ),
    "a codec that is a class": Mistake(lambda: send("orders", {}, codec=JsonCodec), ConfigError, "such as JsonCodec()"),
    "a value that the codec refuses": Mistake(
        lambda: send("orders", {"id": 1}, codec=PydanticCodec(Order)), MessageError, "the codec refuses the body"
    ),
    "a selector that is a class": Mistake(
        lambda: send("orders", b"", selector=SelectMessageQueueByHash), MessageError, "or an object with such a method"
    ),
    "a negative time-out": Mistake(lambda: send("orders", b"", timeout_s=-1), MessageError, "give seconds, 0 or more"),
    "a message and an option": Mistake(
        lambda: send(rocketshim.Message("orders", b""), key="k"), MessageError, "give key to the Message"
    ),
    "a batch of one message": Mistake(
        lambda: shim.Producer(NOBODY).send_batch(rocketshim.Message("orders", b"")), MessageError, "a list of messages"
    ),
    "a batch of bodies": Mistake(
        lambda: shim.Producer(NOBODY).send_batch([b"x"]), MessageError, "give a Message(topic"
    ),
    "a send after close": Mistake(send_after_close, ClosedError, "this producer is closed; create a new one"),
    "a settings object that is not named": Mistake(
        lambda: shim.PushConsumer(shim.PushConsumerSettings.make(bootstrap=NOBODY, group="g")),  # type: ignore[arg-type]
        ConfigError,
        "give the settings object by name: settings=",
    ),
    "an awaited send": Mistake(lambda: asyncio.run(awaited_send()), TypeError, "SendResult"),
    # listeners
    "a listener without a topic": Mistake(
        lambda: consumer().listener(handle), ConfigError, "give the topic: @consumer.listener('orders')"
    ),
    "a listener without arguments": Mistake(lambda: listen(lambda: None), ConfigError, "nor (message): not a listener"),
    "a listener with three arguments": Mistake(
        lambda: listen(lambda _a, _b, _c: None), ConfigError, "takes neither (message, context) nor (message)"
    ),
    "a listener that is a class": Mistake(lambda: listen(Order), ConfigError, "a listener is a function"),
    "a listener with yield": Mistake(lambda: listen(yields), ConfigError, "contains yield"),
    "an async listener with yield": Mistake(lambda: listen(yields_async), ConfigError, "contains yield"),
    "a second listener": Mistake(
        lambda: two_listeners(handle, handle, "a"), ConfigError, "a topic has only one listener"
    ),
    "tag= for tags=": Mistake(lambda: listen(tag="a"), ConfigError, "a listener has no option tag: did you mean tags?"),
    "orderley=": Mistake(lambda: listen(orderley=True), ConfigError, "did you mean orderly?"),
    "deadon=": Mistake(lambda: listen(deadon=ValueError), ConfigError, "did you mean dead_on?"),
    "a limit for a listener": Mistake(
        lambda: listen(max_reconsume_times=3),
        ConfigError,
        "a setting of the consumer: PushConsumer(…, max_reco",
    ),
    "an option of a message for a listener": Mistake(
        lambda: listen(delay="5s"), ConfigError, "an option of a message: send(topic, body, delay=…)"
    ),
    "an unknown option, registered by a call": Mistake(
        lambda: consumer().register_message_listener("orders", handle, tag="a"), ConfigError, "did you mean tags?"
    ),
    "orderly as a text": Mistake(lambda: listen(orderly="no"), ConfigError, "orderly='no': give True or False"),
    "a list of tags": Mistake(lambda: listen(tags=["a"]), ConfigError, "give one text, such as 'created || paid'"),
    "several topics for a listener": Mistake(
        lambda: consumer().register_message_listener(["a", "b"], handle),
        ConfigError,
        "several topics need several calls",
    ),
    "SQL that is no text": Mistake(
        lambda: listen(sql=["a = 1"]), ConfigError, "is not an SQL condition: give one text"
    ),
    "tags with a comma": Mistake(lambda: listen(tags="a,b"), FilterSyntaxError, "write 'a || b'"),
    "tags with one bar": Mistake(lambda: listen(tags="a | b"), FilterSyntaxError, "write 'a || b'"),
    "SQL as tags": Mistake(
        lambda: listen(tags="price > 5 AND vip IS NOT NULL"),
        FilterSyntaxError,
        "give it as sql=, or as MessageSel",
    ),
    "a typo in SQL": Mistake(
        lambda: listen(sql="price >> 5"), FilterSyntaxError, "position 7: found '>', expected a property name"
    ),
    "two filters": Mistake(lambda: listen(tags="a", sql="b = 1"), ConfigError, "combine them into one"),
    "a selector that is a class, listening": Mistake(
        lambda: listen(selector=Order), ConfigError, "give an instance of it"
    ),
    "a selector without arguments": Mistake(
        lambda: listen(selector=lambda: True), ConfigError, "does not take 1 argument; it gets one message"
    ),
    "a selector that is async": Mistake(
        lambda: listen(selector=awaited), ConfigError, "a filter must be a plain function"
    ),
    "a selector with yield": Mistake(lambda: listen(selector=yields), ConfigError, "it contains yield"),
    "a selector by its name": Mistake(
        lambda: listen(selector="mine"), ConfigError, "pass the object itself, not its name"
    ),
    "retry_on by its name": Mistake(lambda: listen(retry_on="X"), ConfigError, "as in retry_on=(ValueError,)"),
    "dead_on as a list": Mistake(lambda: listen(dead_on=[ValueError]), ConfigError, "as in dead_on=(ValueError,)"),
    "dead_on and retry_on": Mistake(
        lambda: listen(dead_on=ValueError, retry_on=ValueError), ConfigError, "leave it in one of them"
    ),
    "body as a name": Mistake(lambda: listen(body="Order"), ConfigError, "give the type itself, as in body=Order"),
    "body with a name that is not defined": Mistake(
        lambda: listen(body=Unfinished), ConfigError, "name 'Missing' is not defined; define it before"
    ),
    "body with such a name inside": Mistake(lambda: listen(body=list[Unfinished]), ConfigError, "'Missing' is not"),
    "body as an object": Mistake(
        lambda: listen(body=Order(id=1)), ConfigError, "give the type itself, as in body=Order"
    ),
    "body that is no type": Mistake(lambda: listen(body=5), ConfigError, "is not a type that pydantic validates"),
    "body and codec": Mistake(
        lambda: listen(body=Order, codec=JsonCodec()), ConfigError, "body=Order is short for codec=PydanticCodec(Order)"
    ),
    "a codec that is a class, listening": Mistake(lambda: listen(codec=JsonCodec), ConfigError, "such as JsonCodec()"),
    "a codec of other arguments": Mistake(
        lambda: listen(codec=OneArgument()), ConfigError, "write decode(self, body, topic, headers)"
    ),
    "a codec of other arguments, for the consumer": Mistake(
        lambda: consumer(codec=OneArgument()), ConfigError, "write decode(self, body, topic, headers)"
    ),
    "a codec that only encodes": Mistake(
        lambda: listen(codec=SerializerCodec(lambda _value, _context: b"")), ConfigError, "without a deserializer"
    ),
    "a serializer of other arguments": Mistake(
        lambda: SerializerCodec(lambda _value: b""),  # type: ignore[misc, arg-type]
        ConfigError,
        "callable with a value and a context",
    ),
    "plain and async listeners": Mistake(
        lambda: two_listeners(handle, awaited), ConfigError, "all `async def` or all plain functions"
    ),
    "concurrent and orderly listeners": Mistake(
        lambda: two_listeners(handle, handle, orderly=True), ConfigError, "create a second consumer in another group"
    ),
    "an orderly async listener": Mistake(lambda: listen(awaited, orderly=True), ConfigError, "use a plain function"),
    "an orderly listener of lists with a codec": Mistake(
        lambda: consumer(consume_message_batch_max_size=5).listener("orders", orderly=True, body=Order)(handle),
        ConfigError,
        "set consume_message_batch_max_size=1",
    ),
    "a pattern that does not compile": Mistake(
        lambda: consumer().listener("^a(")(handle), ConfigError, "is not a regular expression"
    ),
    "an internal topic": Mistake(
        lambda: consumer().listener("%RETRY%g")(handle), ConfigError, "the listener of their original topic"
    ),
    "a late listener": Mistake(late_listener, ConfigError, "register it before, or use subscribe()"),
    "no listener": Mistake(lambda: consumer().start(), ConfigError, "register a listener before start()"),
    "a second start": Mistake(second_start, ConsumerError, "a consumer runs only once: create a new one"),
    "a hook without its methods": Mistake(
        lambda: consumer().register_filter_message_hook(object()), ConfigError, "with the method filter_message"
    ),
    "a hook of other arguments": Mistake(
        lambda: consumer().register_consume_message_hook(OneArgument()),
        ConfigError,
        "write consume_message_before(",
    ),
    "an async hook": Mistake(
        lambda: consumer().register_filter_message_hook(AsyncHook()), ConfigError, "nothing awaits it"
    ),
    "a retry by delay and level": Mistake(lambda: shim.RetryLater("5s", level=3), ConfigError, "not both"),
    "a retry at level 0": Mistake(lambda: shim.RetryLater(level=0), ConfigError, "from 1 on; raise DeadLetter"),
    "a retry at a level as text": Mistake(lambda: shim.RetryLater(level="3"), ConfigError, "whole numbers from 1 on"),
    "a retry in the past": Mistake(lambda: shim.RetryLater(-5), ConfigError, "a duration is 0 to"),
    "a retry after 400 days": Mistake(lambda: shim.RetryLater("400d"), ConfigError, "the longest delay is 40 days"),
    "an infinite number in JSON": Mistake(
        lambda: JsonCodec().decode(b'{"price": 1e999}', "orders", ()), ValueError, "1e999 is too large"
    ),
    # pull consumers
    "a poll before the start": Mistake(lambda: pull().poll(), ConsumerError, "the consumer is not started"),
    "several topics for a pull consumer": Mistake(
        lambda: pull().subscribe(["orders"]), ConfigError, "several topics need several calls"
    ),
    "a topic as a queue": Mistake(lambda: pull().assign(["orders"]), ConfigError, "give a MessageQueue"),
    "subscribe and assign": Mistake(subscribe_and_assign, ConfigError, "the two exclude each other"),
    "SQL as the expression of a pull consumer": Mistake(
        lambda: pull().subscribe("orders", "price > 5"), FilterSyntaxError, "MessageSelector.by_sql()"
    ),
    "a list for a selector": Mistake(lambda: shim.MessageSelector.by_tag("a,b"), FilterSyntaxError, "write 'a || b'"),
    "a listener for queues of other arguments": Mistake(
        lambda: pull().register_topic_message_queue_change_listener("orders", lambda: None),
        ConfigError,
        "pass a function of (topic, queues)",
    ),
    # the drop-in
    "a typo of a key": Mistake(
        lambda: drop_in(**{"rocketshim.retry.enabled": True}), ConfigError, "did you mean rocketshim.retry.enable?"
    ),
    "retry without a group": Mistake(
        lambda: dropin.Consumer({"rocketshim.retry.enable": True}), ConfigError, "needs a group.id"
    ),
    "retry with uncommitted records": Mistake(
        lambda: retrying(**{"isolation.level": "read_uncommitted"}), ConfigError, "must be read_committed"
    ),
    "a retry that is off": Mistake(
        lambda: drop_in().reconsume_later(None), FeatureNotEnabledError, "set 'rocketshim.retry.enable': True"
    ),
    "a retry after 400 days, drop-in": Mistake(
        lambda: retrying().reconsume_later(None, delay="400d"), ConfigError, "the longest delay is 40 days"
    ),
    # the client of RocketMQ
    "no address, compat": Mistake(
        lambda: compat_consumer().start(), PushConsumerStartFailed, "call set_name_server_address('host:port')"
    ),
    "SQL as tags, compat": Mistake(
        lambda: compat_consumer(expression="Tag=test AND creator=xx"), FilterSyntaxError, "looks like an SQL condition"
    ),
    "a callback without arguments": Mistake(
        lambda: compat_consumer(callback=lambda: 0), ConfigError, "it gets one ReceivedMessage"
    ),
    "an async callback": Mistake(lambda: compat_consumer(callback=awaited), ConfigError, "nothing awaits it"),
    "a send before the start": Mistake(
        lambda: compat.Producer("g").send_sync(compat.Message("orders")), ProducerSendSyncFailed, "call start() first"
    ),
    "a checker that cannot be called": Mistake(
        lambda: compat.TransactionMQProducer("g", "check"),
        ConfigError,
        "cannot be called",
    ),
    "a domain of name servers": Mistake(
        lambda: compat.Producer("g").set_name_server_domain("x"), NotSupportedError, "set_name_server_address()"
    ),
    # tests
    "an orderly consumer in the harness": Mistake(
        lambda: in_harness(orderly_in_harness), ConfigError, "which the harness does not drive"
    ),
    "a group that does not run in the harness": Mistake(
        lambda: in_harness(lambda harness: harness.dead("g")), ConfigError, "run its consumer first"
    ),
    "something that is not a consumer": Mistake(
        lambda: in_harness(lambda harness: harness.run(shim.PushConsumer)), ConfigError, "give a PushConsumer"
    ),
    "something that is not a producer": Mistake(
        lambda: in_harness(lambda harness: harness.connect(5)), ConfigError, "give a Producer or an AsyncProducer"
    ),
    "a body of text in the harness": Mistake(
        lambda: in_harness(lambda harness: harness.send("orders", "x")), MessageError, "codec=JsonCodec()"
    ),
    "a time as a word": Mistake(
        lambda: in_harness(lambda harness: harness.pass_time("soon")), ConfigError, "as in '90s'"
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_gets_its_error_and_the_words_that_help(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETSHIM_BOOTSTRAP", raising=False)
    with pytest.raises(mistake.error) as caught:
        mistake.make()
    assert type(caught.value) is mistake.error
    assert mistake.words in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert "pydantic_core._pydantic_core.ValidationError" not in shown, "one error is enough"


def test_these_are_more_than_the_mistakes_of_the_strangers() -> None:
    assert len(MISTAKES) >= 84
