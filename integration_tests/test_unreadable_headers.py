"""A header whose name is no UTF-8: its first look raises SystemError, a second one ends the process.

Only a client without strings of its own can write one, so the records are made with librdkafka itself.
"""

import ctypes
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from rocketshim import (
    ConsumeFromWhere,
    DelayWorker,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    WorkerSettings,
)
from rocketshim.cli import main
from rocketshim.consumer.push.hooks import ConsumeMessageContext
from rocketshim.dropin import Consumer
from rocketshim.errors import MalformedRecordError
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, Envelope, TopicNames, encode, provision
from rocketshim_topics.layout import Layout

from . import waiting

GUARD_S = 180
WARM = 100
_END, _TOPIC, _VALUE, _COPY, _HEADERS, _PARTITION = 0, 1, 4, 7, 10, 3  # rd_kafka_vtype_t


def write(bootstrap: str, topic: str, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """One record with these headers, by `rd_kafka_producev` of the client's own library."""
    libraries = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(libraries.glob("librdkafka*.so*"))))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_headers_new.restype = ctypes.c_void_p
    said = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    assert library.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap.encode(), said, 512) == 0, said.value
    producer = ctypes.c_void_p(library.rd_kafka_new(0, conf, said, 512))
    arguments: list[Any] = [ctypes.c_int(_TOPIC), ctypes.c_char_p(topic.encode())]
    arguments += [ctypes.c_int(_PARTITION), ctypes.c_int32(0)]
    arguments += [
        ctypes.c_int(_VALUE),
        ctypes.c_char_p(body),
        ctypes.c_size_t(len(body)),
        ctypes.c_int(_COPY),
        ctypes.c_int(2),
    ]
    named = ctypes.c_void_p(library.rd_kafka_headers_new(len(headers)))
    for name, value in headers:  # with their lengths: a NUL does not end them
        sizes = ctypes.c_ssize_t(len(name)), ctypes.c_ssize_t(len(value))
        assert library.rd_kafka_header_add(named, name, sizes[0], value, sizes[1]) == 0
    arguments += [ctypes.c_int(_HEADERS), named]
    assert library.rd_kafka_producev(producer, *arguments, ctypes.c_int(_END)) == 0
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)


@dataclass
class Stage:
    """A topic with one partition, and the shim's topics."""

    bootstrap: str
    namespace: str
    names: TopicNames
    topic: str
    capsys: pytest.CaptureFixture[str]

    def write(self, topic: str, name: bytes, value: bytes, body: bytes = b"bad") -> None:
        """A record that nobody can read the headers of."""
        write(self.bootstrap, topic, [(name, value), (b"ab\xff\xfe", b"1")], body)

    def run(self, *words: str, code: int = 0) -> str:
        self.capsys.readouterr()
        assert main([*words, "--namespace", self.namespace, "--bootstrap", self.bootstrap]) == code, words
        return self.capsys.readouterr().out

    def send(self, message: Message) -> None:
        with Producer(self.bootstrap, namespace=self.namespace) as producer:
            producer.send(message, timeout_s=30)

    def warm_up(self, make: Callable[[], Message]) -> None:
        """Records that can be read: only where a line has run often does CPython leave out its check of the result."""
        with Producer(self.bootstrap, namespace=self.namespace) as producer:
            for each in [producer.send_async(make()) for _ in range(WARM)]:
                each.result(GUARD_S)

    def parked(self) -> list[str]:
        """Why each record is parked."""
        self.capsys.readouterr()
        assert main(["parked", "ls", "--json", "--namespace", self.namespace, "--bootstrap", self.bootstrap]) == 0
        return [json.loads(line)["park_reason"] for line in self.capsys.readouterr().out.splitlines()]


@pytest.fixture
def stage(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> Stage:
    names = TopicNames(namespace)
    provision.ensure_topics(admin, Layout(names, DelayLevels.default()).shared())
    return Stage(broker.bootstrap, namespace, names, topic(config={"message.timestamp.type": "LogAppendTime"}), capsys)


class Watching:
    """A hook that looks at headers before the listener does."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        for message in context.messages:
            assert message.properties is not None

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        self.consume_message_before(context)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(("tags", "wraps"), [(None, False), (None, True), ("a", False)])
def test_a_consumer_parks_the_message_and_goes_on(
    stage: Stage, group: Callable[..., str], orderly: bool, tags: str | None, wraps: bool
) -> None:
    stage.warm_up(lambda: Message(stage.topic, b"before", tag="a"))
    stage.write(stage.topic, b"TAGS", b"a")
    stage.send(Message(stage.topic, b"good", tag="a"))
    handled = threading.Event()
    consumer = PushConsumer(
        stage.bootstrap, group=group(), namespace=stage.namespace, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )

    def listener(message: Any) -> None:
        try:
            tag = message.tag
        except MalformedRecordError as error:
            raise (ValueError("no tag") if wraps else error) from error
        if tag == "a" and message.body == b"good":
            handled.set()

    consumer.register_message_listener(stage.topic, listener, tags=tags, orderly=orderly)
    consumer.register_consume_message_hook(Watching())
    consumer.start()
    try:
        assert handled.wait(GUARD_S)
        waiting.wait_until(lambda: stage.parked() == ["bad-header-key"], within_s=GUARD_S)
    finally:
        consumer.stop(30)


@pytest.mark.parametrize("looks", [False, True])
def test_a_drop_in_consumer_parks_the_message_that_is_sent_back(
    stage: Stage, group: Callable[..., str], looks: bool
) -> None:
    stage.write(stage.topic, b"TAGS", b"a")
    config = {
        "bootstrap.servers": stage.bootstrap,
        "group.id": group(),
        "auto.offset.reset": "earliest",
        "rocketshim.retry.enable": True,
        "rocketshim.namespace": stage.namespace,
    }
    with Consumer(config) as consumer:
        consumer.subscribe([stage.topic])
        message = consumer.poll(GUARD_S)
        assert message is not None
        for look in (consumer.tag, consumer.origin, consumer.tag) if looks else ():
            with pytest.raises(MalformedRecordError, match="not UTF-8"):
                look(message)
        consumer.reconsume_later(message, "why")
    assert stage.parked() == ["bad-header-key"]


def test_pull_consumers_say_so_and_go_on(stage: Stage, group: Callable[..., str]) -> None:
    stage.warm_up(lambda: Message(stage.topic, b"before", tag="a"))
    stage.write(stage.topic, b"TAGS", b"a")
    stage.send(Message(stage.topic, b"good", tag="a"))
    queue = MessageQueue(stage.topic, queue_id=0)
    with PullConsumer(
        stage.bootstrap, group=group("pull"), namespace=stage.namespace, consumer_pull_timeout_ms=60_000
    ) as puller:
        before = puller.pull(queue, "a", 0, 1_024)
        assert (len(before.messages), before.next_begin_offset) == (WARM, WARM)
        for _ in range(2):
            with pytest.raises(MalformedRecordError, match=f"{stage.topic}/0/{WARM}"):
                puller.pull(queue, "a", WARM)
        assert [message.body for message in puller.pull(queue, "a", WARM + 1).messages] == [b"good"]
        assert [message.body for message in puller.pull(queue, None, WARM).messages] == [b"bad", b"good"]
    for expression, expected in (("a", [b"good"]), (None, [b"bad", b"good"])):
        with LitePullConsumer(
            stage.bootstrap,
            group=group("lite"),
            namespace=stage.namespace,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        ) as lite:
            lite.subscribe(stage.topic, expression)
            said: list[str] = []
            got: list[Any] = []
            end = time.monotonic() + GUARD_S
            while len(got) < WARM + len(expected) or len(said) < 2 - len(expected):
                assert time.monotonic() < end
                try:
                    got += lite.poll(200)
                except MalformedRecordError as error:
                    said.append(str(error))
            assert [f"{stage.topic}/0/{WARM}" in text for text in said] == [True] * (2 - len(expected))
            assert [message.body for message in got[WARM:]] == expected
            for _ in range(2 * (len(expected) - 1)):
                with pytest.raises(MalformedRecordError):
                    assert got[WARM].tag


def test_a_worker_parks_it_and_delivers_what_lies_behind(stage: Stage) -> None:
    stage.warm_up(lambda: Message(stage.topic, b"before", delay_level=1))
    stage.write(stage.names.schedule, b"REAL_TOPIC", stage.topic.encode())
    stage.write(stage.names.schedule, b"REAL_TOPIC", stage.topic.encode(), body=b"")  # as empty as a probe
    assert main(["delayed", "ls", "--namespace", stage.namespace, "--bootstrap", stage.bootstrap]) == 0
    stage.send(Message(stage.topic, b"good", delay_level=1))
    worker = DelayWorker(
        WorkerSettings.make(bootstrap=stage.bootstrap, namespace=stage.namespace, allow=(stage.topic,))
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    reader = confluent_kafka.Consumer({"bootstrap.servers": stage.bootstrap, "group.id": f"{stage.topic}-reader"})
    reader.assign([confluent_kafka.TopicPartition(stage.topic, 0, 0)])
    try:
        got = reader.consume(WARM + 1, GUARD_S)
        assert [message.value() for message in got] == [b"before"] * WARM + [b"good"]
        waiting.wait_until(lambda: stage.parked() == ["bad-header-key"] * 2, within_s=GUARD_S)
        stage.write(stage.topic, b"a", b"b")
        stage.capsys.readouterr()
        assert (
            main(["dlq", "ls", "--topic", stage.topic, "--json", "--limit", "500", "--bootstrap", stage.bootstrap]) == 0
        )
        letters = [json.loads(line) for line in stage.capsys.readouterr().out.splitlines()]
        assert [letter["malformed"] for letter in letters if letter["malformed"]] == ["bad-header-key"]
    finally:
        reader.close()
        worker.stop()
        thread.join(GUARD_S)
    assert not thread.is_alive()


def test_listings_show_it_and_go_on_and_it_is_not_sent_again(
    stage: Stage, admin: AdminClient, group: Callable[..., str], tmp_path: Path
) -> None:
    """Each topic of a group has one such record, and a good one behind it."""
    name, names, plan = group(), stage.names, str(tmp_path / "plan.json")
    provision.ensure_topics(admin, Layout(names, DelayLevels.default()).for_group(name, with_log=False))
    good = encode(
        Envelope(
            shim=1, uniq_key="good", real_topic=stage.topic, retry_topic=stage.topic, fail_class="Timeout",
            origin_message_id=f"{stage.topic}/0/1", consumer_group=name, reconsume_times=17,
        )
    )  # fmt: skip
    producer = confluent_kafka.Producer({"bootstrap.servers": stage.bootstrap})
    for topic in (names.dead_letter(name), names.retry(name), names.schedule, names.parked, stage.topic):
        stage.write(topic, b"TAGS", b"a")
        producer.produce(topic, b"good", partition=0, headers=good)  # type: ignore[arg-type]
    assert producer.flush(GUARD_S) == 0
    both = [["dlq", "ls", "--group", name], ["retry", "ls", "--group", name], ["delayed", "ls"], ["parked", "ls"]]
    for words in (*both, ["dlq", "export", "--group", name], ["dlq", "ls", "--topic", stage.topic]):
        assert len(stage.run(*words, *([] if "export" in words else ["--json"])).splitlines()) == 2, words
        assert "good" in stage.run(*words)
    bad = json.loads(stage.run("dlq", "ls", "--group", name, "--json").splitlines()[0])
    assert (bad["malformed"], bad["headers"], bad["id"]) == ("bad-header-key", [], f"{names.dead_letter(name)}/0/0")
    assert "bad-header-key" in stage.run("dlq", "show", "0/0", "--group", name)
    assert "bad-header-key" in stage.run("delayed", "show", "0/0")
    stage.run("parked", "show", "0/0", "--json")
    stats = json.loads(stage.run("dlq", "stats", "--group", name, "--json"))
    assert sorted(each["cause"] for each in stats) == ["Timeout", "malformed (bad-header-key)"]
    assert len(json.loads(stage.run("trace", "good", "--json"))) == 5
    stage.run("doctor", "--group", name, "--json", code=2)
    stage.run("parked", "plan", "0/0", code=2)

    made = json.loads(stage.run("dlq", "plan", "--group", name, "--out", plan, "--json"))
    assert (made["letters"], made["held_back"]) == (1, {"malformed": 1})
    stage.run("dlq", "plan", "--topic", stage.topic, "--to-source", code=0)
    stage.run("dlq", "discard", "--group", name, "--out", plan)
    assert main(["dlq", "apply", plan, "--bootstrap", stage.bootstrap]) == 0
    waiting.await_ends_of_transactions(admin)
    assert stage.run("dlq", "ls", "--group", name, "--json") == ""
