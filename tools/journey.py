"""Follow a delayed message through the files from its send to its dead letter: `python -m tools.journey`.

One message with a delay is sent, delivered by the worker, and fails at every attempt of a push consumer until it is a
dead letter, in memory. A file counts if one of its functions is called with the message among its arguments, in any
form: as a message, a record, or inside a queue's batch. The files are printed in the order in which the message reaches
them. Functions that are called without the message, such as those that commit offsets, do not count.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition

from rocketshim import DelayLevels, Layout, Message, MessageView, PushConsumer, TopicNames
from rocketshim.clock import SystemClock
from rocketshim.dropin import Consumer, retry_side
from rocketshim.dropin import consumer as drop_in_consumer
from rocketshim.harness import Harness
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka
from rocketshim_topics.coordinates import TopicPartitionKey

BODY: Final = b"the body of the message whose way is followed"
PACKAGES: Final = ("rocketshim_topics", "rocketshim")
NOT_ON_THE_WAY: Final = ("rocketshim/testing/", "rocketshim/harness.py", "rocketshim/observe/")  # the harness looks on
DEPTH: Final = 4
MOST: Final = 40


class Journey:
    """Notes each file of the library one of whose functions gets the message."""

    def __init__(self) -> None:
        self.functions: dict[str, list[str]] = {}
        self._looking = threading.local()

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Look at a call; the profile function of every thread."""
        if event != "call" or getattr(self._looking, "now", False):
            return
        file = frame.f_code.co_filename
        if not any(f"/{package}/" in file for package in PACKAGES) or any(part in file for part in NOT_ON_THE_WAY):
            return
        self._looking.now = True
        try:
            if any(carries(each) for each in arguments(frame)):
                package = file.index(f"/{PACKAGES[0]}/" if f"/{PACKAGES[0]}/" in file else f"/{PACKAGES[1]}/")
                functions = self.functions.setdefault(file[package + 1 :], [])
                if frame.f_code.co_qualname not in functions:
                    functions.append(frame.f_code.co_qualname)
        finally:
            self._looking.now = False


def arguments(frame: FrameType) -> list[Any]:
    """Return the arguments of a call, without the object whose method it is."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    return [frame.f_locals[name] for name in names if name in frame.f_locals and name not in ("self", "cls")]


def carries(value: Any, depth: int = DEPTH) -> bool:
    """Return whether a value contains the message."""
    if isinstance(value, bytes):
        return value == BODY
    if depth == 0 or value is None or isinstance(value, str | int | float | type):
        return False
    return any(carries(part, depth - 1) for part in parts(value))


def parts(value: Any) -> Iterator[Any]:
    """Return what a value consists of, if it is data: the elements of a collection, the fields of a record."""
    kind = type(value)
    if isinstance(value, list | tuple):
        yield from value[:MOST]
    elif isinstance(value, dict):
        yield from list(value.values())[:MOST]
    elif kind is KafkaMessage:
        yield value.value()
    elif kind.__module__.startswith(PACKAGES) and not callable(value):
        names = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
        for name in [*names, *getattr(value, "__dict__", ())]:
            yield getattr(value, name, None)


def files() -> dict[str, list[str]]:
    """Return the files that the message passes, in the order in which it reaches them, with their functions."""
    journey = Journey()
    consumer = PushConsumer("in-memory:9092", group="payments", max_reconsume_times=2)

    @consumer.listener("orders")
    def fail(_: Any) -> None:
        raise ValueError("refused")

    logging.disable()  # the failures of the listener
    threading.setprofile(journey.see)
    try:
        with Harness() as harness:
            harness.run(consumer)
            sys.setprofile(journey.see)
            harness.send(Message("orders", BODY, delay="10s"))
            harness.pass_time("10m")
            sys.setprofile(None)
            if [dead.body for dead in harness.dead("payments")] != [BODY]:
                raise SystemExit("the message is not a dead letter: its way was not followed to the end")
    finally:
        threading.setprofile(None)
        logging.disable(logging.NOTSET)
    return journey.functions


class Entered:
    """Notes each file of the library in which a function is called, and each class one of whose methods is called."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.classes: set[tuple[str, str]] = set()

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Look at a call; the profile function of every thread."""
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        is_ours = any(f"/{package}/" in file for package in PACKAGES) and not any(
            part in file for part in NOT_ON_THE_WAY
        )
        if event == "call" and is_ours and name != "<module>":
            self.files.add(file)
            owner, dot, _ = name.partition(".<locals>")[0].rpartition(".")
            if dot:
                self.classes.add((file, owner))


def entered(journey: Callable[[], Iterator[None]]) -> Entered:
    """Return what a journey enters, once everything is loaded. What it prepares before its `yield` does not count."""
    found = Entered()
    logging.disable()  # the failures of the listener
    try:
        for _ in journey():
            pass
        prepared = journey()
        next(prepared)
        threading.setprofile(found.see)
        sys.setprofile(found.see)
        next(prepared, None)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        logging.disable(logging.NOTSET)
    return found


def delayed_message() -> Iterator[None]:
    """Send a delayed message to a listener that always fails, until it is a dead letter."""
    yield
    consumer = PushConsumer("in-memory:9092", group="payments", max_reconsume_times=2)

    @consumer.listener("orders")
    def fail(_: Any) -> None:
        raise ValueError("refused")

    with Harness() as harness:
        harness.run(consumer)
        harness.send(Message("orders", BODY, delay="10s"))
        harness.pass_time("10m")
        if [dead.body for dead in harness.dead("payments")] != [BODY]:
            raise SystemExit("the message is not a dead letter")


def _kafka(*, with_log: bool) -> InMemoryKafka:
    """Make a Kafka with the topics of the group "g"."""
    kafka = InMemoryKafka(SystemClock())
    layout = Layout(TopicNames(), DelayLevels.default())
    kafka.create_topics([*layout.shared(), *layout.for_group("g", with_log=with_log)])
    kafka.create_topic("orders")
    return kafka


def orderly_hand_over() -> Iterator[None]:
    """Let an orderly consumer handle two messages and stop, and a second one take the queue over and go on."""
    kafka = _kafka(with_log=True)
    yield
    for _ in range(2):
        handled: list[MessageView] = []
        consumer = PushConsumer("memory:1", group="g", clients=Clients(kafka.consumer, kafka.producer))
        consumer.register_message_listener("orders", handled.append, orderly=True)
        for _ in range(2):
            kafka.append("orders", BODY)
        with consumer:
            kafka.wait_until(lambda handled=handled: len(handled) == 2, guard_s=60)  # type: ignore[misc]


def drop_in() -> Iterator[None]:
    """Poll a message with the drop-in consumer, and send it back."""
    kafka = _kafka(with_log=False)
    yield
    kafka.append("orders", BODY)
    client = kafka.consumer({"group.id": "g", "enable.auto.offset.store": False})
    client.assign([TopicPartition("orders", 0, 0)])
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "group.id": "g", "rocketshim.retry.enable": True}
    with (
        patch.object(drop_in_consumer, "_poll", lambda _, timeout: client.poll(timeout)),
        patch.object(retry_side, "Producer", lambda _: kafka.producer({"enable.idempotence": True})),
        Consumer(nowhere) as consumer,
    ):
        found: Any = consumer._rocketshim  # noqa: SLF001 - the topics exist, and there is no broker that assigns
        found.has_topics = found.partitions.reads_retries = True
        found.partitions.add([TopicPartitionKey("orders", 0)])
        while (message := consumer.poll(1.0)) is None:
            pass
        consumer.reconsume_later(message, ValueError("refused"))
        consumer.poll(0.0)


def main() -> None:
    """Print the files and their functions."""
    for file, functions in files().items():
        print(f"{file}: {', '.join(functions)}")


if __name__ == "__main__":
    main()
