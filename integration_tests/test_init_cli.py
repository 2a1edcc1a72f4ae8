"""`rocketshim init` on a real broker: what a newcomer types first, and what is typed on a running system."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import DelayWorker, Message, Producer, WorkerSettings
from rocketshim.cli import main
from rocketshim.core.worker_notes import levels_metadata
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.groups import GroupReader
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.provision import read_topics

from .running import running

LEVELS = "1s 2s"


def test_a_newcomers_topic_is_created_once_and_never_changed(
    broker: Broker, admin: AdminClient, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, names = f"{namespace}.orders", TopicNames(namespace)
    command = ["init", "--bootstrap", broker.bootstrap, "--namespace", namespace, "--topic", name]
    assert main([*command, "--partitions", "3", "--group", "payments", "--dry-run"]) == 0
    assert f"create  {name} (yours): 3 partitions" in capsys.readouterr().out
    assert read_topics(admin, [name]) == {}

    assert main([*command, "--partitions", "3", "--group", "payments"]) == 0
    ours = [names.schedule, names.timers, names.timer_state, names.retry("payments"), names.dead_letter("payments")]
    found = read_topics(admin, [name, *ours])
    assert {topic: state.partitions for topic, state in found.items()} == {
        name: 3,
        names.schedule: 32,
        names.timers: 8,
        names.timer_state: 8,
        names.retry("payments"): 1,
        names.dead_letter("payments"): 1,
    }
    capsys.readouterr()
    assert main([*command, "--lanes", "1"]) == 0, "three are enough for who asks for no number"
    assert "nothing to do" in capsys.readouterr().out
    assert main([*command, "--partitions", "5", "--lanes", "2", "--fix"]) == 2
    assert f"differs  {name}: partitions is 3, should be 5" in capsys.readouterr().out
    found = read_topics(admin, [name, names.schedule])
    assert (found[name].partitions, found[names.schedule].partitions) == (3, 64)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--topic", "%RETRY%payments"], "not a topic name"),
        (["--topic", "rmq.dlq.payments"], "is a topic of rocketshim: init creates these by itself"),
        (["--topic", "SCHEDULE_TOPIC_XXXX"], "is a topic of rocketshim: init creates these by itself"),
        (["--partitions", "2"], "--partitions applies to the topics of --topic only"),
    ],
)
def test_a_topic_that_is_not_the_users_is_refused(
    broker: Broker, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--bootstrap", broker.bootstrap, *words]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("exactly_once", [False, True])
def test_lanes_grow_under_a_running_worker(
    broker: Broker,
    namespace: str,
    topic: Callable[..., str],
    exactly_once: bool,
) -> None:
    """The worker reads partitions that are added while it runs, and both old and new lanes deliver."""
    target, names = topic(1), TopicNames(namespace)
    command = ["init", "--bootstrap", broker.bootstrap, "--namespace", namespace, "--delay-levels", LEVELS]
    assert main(command) == 0
    worker = DelayWorker(
        WorkerSettings.make(
            bootstrap=broker.bootstrap,
            namespace=namespace,
            delay_levels=LEVELS,
            allow=(target,),
            exactly_once=exactly_once,
            instance=namespace,
        )
    )
    reader = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": namespace, "isolation.level": "read_committed"}
    )
    reader.assign([TopicPartition(target, 0, 0)])

    def is_received(wanted: set[bytes]) -> bool:
        """At least once, some may come twice."""
        found: list[bytes | None] = []
        end = time.monotonic() + 90
        while not wanted <= set(found) and time.monotonic() < end:
            found += [message.value() for message in reader.consume(1, timeout=1)]
        return wanted == set(found) and (not exactly_once or len(found) == len(wanted))

    with running(worker):
        with Producer(broker.bootstrap, namespace=namespace, delay_levels=LEVELS) as producer:
            producer.send(Message(target, b"before", delay_level=1), timeout_s=30)
        assert is_received({b"before"}), "the worker runs"
        assert main([*command, "--lanes", "3"]) == 0
        with Producer(broker.bootstrap, namespace=namespace, delay_levels=LEVELS) as producer:
            sent = [
                producer.send(Message(target, str(number).encode(), delay_level=1), timeout_s=30) for number in range(6)
            ]
        stored_in = {int(each.offset_msg_id.split("/")[1]) for each in sent}
        levels = DelayLevels.parse(LEVELS)
        assert stored_in == {levels.partition(1, lane) for lane in range(3)}
        assert is_received({str(number).encode() for number in range(6)})
        with TopicReader(broker.bootstrap) as topics:
            carried = {each.metadata for each in GroupReader(topics).read(worker.group).partitions}
        assert carried == {levels_metadata(levels)}, "each commit, also in a transaction, carries the level table"
    reader.close()
    assert names.schedule in sent[0].offset_msg_id
