"""Named timers on a real broker, landed: what the log voided is not lost, and what it delivered is not doubled."""

import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from rocketshim import ConsumeFromWhere, Producer, PushConsumer
from rocketshim_local import Broker
from rocketshim_spark.cli import main
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout

from .running import patient_worker

pytestmark = pytest.mark.usefixtures("interpreted")

LEVELS = "1s 1s 1s 1s"
GUARD_S = 120.0


@dataclass
class Timers:
    """What was sent, and where it was landed."""

    topic: str
    namespace: str
    lake: str
    ids: dict[str, str] = field(default_factory=dict)

    def ask(self, *words: str) -> int:
        return main([*words, "--lake", self.lake, "--namespace", self.namespace])


@pytest.fixture(scope="module")
def timers(
    spark: SparkSession, broker: Broker, admin: AdminClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Timers]:
    """Messages with names: fired, cancelled, replaced, dropped, delivered now, recurring and waiting."""
    del spark  # the one that the commands will find
    unique = uuid.uuid4().hex[:10]
    made = Timers(f"orders-{unique}", f"ns{unique}", tmp_path_factory.mktemp("lake").as_uri())
    names, topic, ids = TopicNames(made.namespace), made.topic, made.ids
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(LEVELS)).shared())
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(GUARD_S)
    client = {"session.timeout.ms": 45_000}
    worker = patient_worker(broker.bootstrap, made.namespace, LEVELS, allow=(topic,), client=client)
    thread = threading.Thread(target=worker.run)
    thread.start()
    seen: list[bytes] = []
    done = threading.Event()

    def handle(message: object, context: object) -> None:
        del context
        seen.append(message.body)  # type: ignore[attr-defined]
        if {b"fired", b"new", b"first", b"now"} <= set(seen) and seen.count(b"recurs") >= 2:
            done.set()

    consumer = PushConsumer(
        broker.bootstrap, group=f"pay-{unique}", namespace=made.namespace, delay_levels=LEVELS,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )  # fmt: skip
    consumer.register_message_listener(topic, handle)
    consumer.start()
    with Producer(broker.bootstrap, namespace=made.namespace, delay_levels=LEVELS) as producer:

        def send(body: str, name: str, *, to: str = topic, **options: object) -> None:
            ids[body] = producer.send(to, body.encode(), timer=name, timeout_s=GUARD_S, **options).msg_id  # type: ignore[call-overload]

        send("fired", "a", delay="1s")
        send("cancelled", "b", delay="2s")
        producer.cancel(topic, timer="b")
        send("old", "c", delay="2s")
        send("new", "c", delay="1s")
        send("first", "d", delay="2s")
        send("dropped", "d", delay="1s", if_absent=True)
        send("now", "e", delay="3s")
        producer.send_now(topic, timer="e")
        send("recurs", "f", every="1s")
        send("waits", "g", delay="1h")
        send("waits no more", "h", delay="1h")
        producer.cancel(topic, timer="h")
        assert done.wait(GUARD_S)
        producer.cancel(topic, timer="f")
    time.sleep(4)
    consumer.stop()
    worker.stop()
    thread.join()
    assert made.ask("land", topic, "--bootstrap", broker.bootstrap) == 0
    yield made
    ours = [name for name in admin.list_topics(timeout=GUARD_S).topics if unique in name]
    for future in admin.delete_topics(ours).values():
        future.result(GUARD_S)


def test_what_the_log_voided_is_not_lost(timers: Timers, spark: SparkSession) -> None:
    assert timers.ask("audit") == 0
    rows = spark.read.format("delta").load(f"{timers.lake}/reports/lineage").collect()
    states = {row.msg_id: (row.state, row.last_reason) for row in rows}
    assert {name: states[each] for name, each in timers.ids.items()} == {
        "fired": ("acknowledged", None),
        "cancelled": ("voided", "cancelled"),
        "old": ("voided", "replaced"),
        "new": ("acknowledged", None),
        "first": ("acknowledged", None),
        "dropped": ("voided", "dropped"),
        "now": ("acknowledged", None),
        "recurs": ("voided", "cancelled"),
        "waits": ("scheduled", None),
        "waits no more": ("voided", "cancelled"),
    }
    occurrences = [row for row in rows if row.msg_id.startswith(f"{timers.ids['recurs']}.")]
    assert len(occurrences) >= 2
    assert {row.state for row in occurrences} == {"acknowledged"}
    assert not any(row.copies for row in rows)
    assert len(rows) == len(timers.ids) + len(occurrences)


def test_each_wait_of_a_named_message_has_an_outcome(timers: Timers, spark: SparkSession) -> None:
    assert timers.ask("delays") == 0
    rows = spark.read.format("delta").load(f"{timers.lake}/reports/delay_outcomes").collect()
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.msg_id, set()).add(row.outcome)
    expected = {
        "fired": "delivered",
        "cancelled": "voided",
        "old": "voided",
        "new": "delivered",
        "first": "delivered",
        "now": "voided",
        "waits": "waiting",
        "waits no more": "voided",
    }
    assert {name: found[timers.ids[name]] - {"hopped"} for name in expected} == {
        name: {outcome} for name, outcome in expected.items()
    }
    assert found[timers.ids["recurs"]] - {"hopped"} == {"delivered", "voided"}
    late = [row.late_ms for row in rows if row.outcome == "delivered"]
    assert min(late) >= 0
    assert not any(row.repeats for row in rows)
