"""Plan and apply on a real broker: a thousand dead letters of six causes, killed in the middle, each sent once."""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from rocketshim import ConsumeFromWhere, DeadLetter, PushConsumer
from rocketshim.admin import redrive
from rocketshim.cli import main
from rocketshim.kafka.clients import confluent_clients
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, Envelope, Layout, TopicNames, encode, provision
from test_support.share_groups import consume_shared, set_up_share_group

from .waiting import await_ends_of_transactions, wait_until

CAUSES = ("Timeout", "KeyError", "ValueError", "OSError", "DeadLetter", "NoListener")
COUNT = 1_000
ENDED = """
import os, signal, sys
import rocketshim.admin.redrive as redrive
from rocketshim.cli import main

class Ending(redrive.Redriver):
    def __init__(self, *args, **settings):
        passed = []
        def point(name):
            passed.append(name)
            if passed.count(sys.argv[1]) == int(sys.argv[2]):
                os.kill(os.getpid(), signal.Signals[sys.argv[3]])
        super().__init__(*args, **{**settings, "report": point})

redrive.Redriver = Ending
sys.exit(main(sys.argv[4:]))
"""


TAKEN_OVER = """
import subprocess, sys
import rocketshim.admin.redrive as redrive
from rocketshim.cli import main

class TakenOver(redrive.Redriver):
    def __init__(self, *args, **settings):
        passed = []
        def point(name):
            passed.append(name)
            if name == "produced" and passed.count(name) == 2:
                words = ["dlq", "apply", sys.argv[2], *sys.argv[3:]]
                subprocess.run([sys.executable, "-m", "rocketshim", *words], check=True, capture_output=True)
        super().__init__(*args, **{**settings, "report": point})

redrive.Redriver = TakenOver
sys.exit(main(["dlq", "apply", sys.argv[1], "--rate", "100", *sys.argv[3:]]))
"""


class World:
    """A group with a thousand dead letters: 2 partitions, 100 keys, 6 causes; number 7 is there twice."""

    def __init__(self, broker: Broker, admin: AdminClient, namespace: str, group: str, source: str) -> None:
        self.names = TopicNames(namespace)
        self.source = source
        self.group = group
        self.connection = ["--bootstrap", broker.bootstrap]
        self.scope = [*self.connection, "--namespace", namespace, "--group", group]
        self.bootstrap = broker.bootstrap
        layout = Layout(self.names, DelayLevels.default(), retry_partitions=3, dead_letter_partitions=2)
        provision.ensure_topics(admin, layout.for_group(group, with_log=False))
        # without idempotence a batch that is sent again comes after later ones, also of its key
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "enable.idempotence": True}
        )
        for number in range(COUNT):
            headers = self.headers(number, source)
            for _ in range(2 if number == 7 else 1):
                producer.produce(
                    self.names.dead_letter(group), b"%d" % number, b"key-%d" % (number % 100), headers=headers
                )
        producer.flush(60)

    def headers(self, number: int, source: str) -> list[tuple[str, bytes | None]]:
        cause = CAUSES[number % len(CAUSES)]
        return encode(
            Envelope(
                shim=1,
                uniq_key=f"m{number}",
                retry_topic=source,
                origin_message_id=f"{source}/0/{number}",
                reconsume_times=17,
                consumer_group=self.group,
                fail_class=cause,
                fail_text=f"{cause} of {number}",
                fail_at_ms=1,
                replay_count=3 if number == 12 else None,
                user=(("n", b"%d" % number),),
            )
        )

    def read(self, topic: str) -> list[Any]:
        with TopicReader(self.bootstrap) as reader:
            return list(reader.read([topic]))


@pytest.fixture
def world(
    broker: Broker, admin: AdminClient, namespace: str, group: Callable[..., str], topic: Callable[..., str]
) -> World:
    return World(broker, admin, namespace, group(), topic(2))


@pytest.fixture
def run(admin: AdminClient, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(list(words)) == code
        if "apply" in words:
            await_ends_of_transactions(admin)
        return capsys.readouterr().out

    return call


def ended(*words: str, point: str, nth: int, by: signal.Signals) -> tuple[int, str]:
    """Run a command that gets a signal when it passes a point of the protocol; its exit code and what it complained."""
    done = subprocess.run(
        [sys.executable, "-c", ENDED, point, str(nth), by.name, *words],
        check=False, timeout=120, env=os.environ, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_thousand_letters_killed_and_resumed_are_sent_once(
    world: World, run: Callable[..., str], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    made = json.loads(run("dlq", "plan", *world.scope, "--out", str(plan), "--json"))
    assert made["letters"] == COUNT - 1
    assert made["held_back"] == {"repeat-of": 1, "replayed-too-often": 1}
    assert sum(made["by_cause"].values()) == COUNT - 1
    assert set(made["by_cause"]) == set(CAUSES)
    assert world.read(world.names.retry(world.group)) == []

    apply = ["dlq", "apply", str(plan), *world.connection]
    assert f"would be sent: {COUNT - 1}" in run(*apply, "--dry-run")
    code, _ = ended(*apply, "--rate", "100", point="produced", nth=3, by=signal.SIGKILL)
    assert code == -signal.SIGKILL
    first = {message.value() for message in world.read(world.names.retry(world.group))}
    assert len(first) == 200, "what was in the open transaction is not to be seen"
    code, told = ended(*apply, "--rate", "100", point="produced", nth=3, by=signal.SIGINT)
    assert (code, "stopped after 200 dead letters; run the same command again" in told) == (130, True)
    capped = json.loads(run(*apply, "--max", "150", "--json"))
    assert (capped["sent"], capped["settled_before"], capped["stopped_by"]) == (150, 400, "most")
    rest = json.loads(run(*apply, "--json"))
    assert (rest["sent"], rest["settled_before"], rest["failed"]) == (COUNT - 1 - 550, 550, 0)
    again = json.loads(run(*apply, "--json"))
    assert (again["sent"], again["settled_before"]) == (0, COUNT - 1)

    arrived = world.read(world.names.retry(world.group))
    assert Counter(message.value() for message in arrived) == {
        b"%d" % number: 1 for number in range(COUNT) if number != 12
    }
    for message in arrived:
        headers = dict(message.headers())
        assert (headers["RECONSUME_TIMES"], headers["REPLAY_COUNT"]) == (b"0", b"1")
        assert headers["UNIQ_KEY"] == b"m" + message.value() == b"m" + headers["n"]
        assert headers["REPLAY_ID"].decode().startswith(made["id"])
    by_key: dict[bytes, list[int]] = {}
    for message in arrived:
        by_key.setdefault(message.key(), []).append(int(message.value()))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())

    assert run("dlq", "ls", *world.scope, "--json").count("\n") == 2, "the two that were held back"
    assert len(run("dlq", "ls", *world.scope, "--json", "--all", "--limit", "2000").splitlines()) == COUNT + 1
    more = json.loads(run("dlq", "plan", *world.scope, "--json", "--out", str(plan)))
    assert more["held_back"] == {"redriven-by": COUNT - 1, "replayed-too-often": 1, "repeat-of": 1}


def test_when_marks_are_gone_nothing_is_sent_twice_and_the_way_out_works(
    world: World, admin: AdminClient, run: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan, discard, newer = (tmp_path / f"{name}.json" for name in ("plan", "discard", "newer"))
    run("dlq", "plan", *world.scope, "--where", "n < 20", "--out", str(plan))
    apply = ["dlq", "apply", *world.connection]
    sent = json.loads(run(*apply, str(plan), "--json"))["sent"]
    everything = TopicPartition(world.names.redrive_log, 0, -1)
    admin.delete_records([everything])[everything].result(60)

    assert main([*apply, str(plan)]) == 1
    assert "Make a new plan by rocketshim dlq plan" in capsys.readouterr().err
    assert json.loads(run("dlq", "plan", *world.scope, "--json", "--out", str(newer)))["letters"] == 0
    told = run("dlq", "plan", *world.scope)
    assert f"{COUNT + 1} held back: marks-lost" in told
    assert len(world.read(world.names.retry(world.group))) == sent

    run("dlq", "discard", *world.scope, "--out", str(discard), "--where", "n < 20")  # the first way out
    assert json.loads(run(*apply, str(discard), "--json"))["failed"] == 0
    run("dlq", "plan", *world.scope, "--where", "n = 30", "--again", "--out", str(newer))  # the second one
    assert json.loads(run(*apply, str(newer), "--json"))["sent"] == 1
    assert json.loads(run(*apply, str(newer), "--json"))["sent"] == 0
    producer = Producer({"bootstrap.servers": world.bootstrap})
    in_two_minutes_ms = time.time_ns() // 1_000_000 + 120_000
    producer.produce(
        world.names.dead_letter(world.group),
        b"later",
        headers=world.headers(COUNT, world.source),
        timestamp=in_two_minutes_ms,
    )
    assert producer.flush(60) == 0
    assert json.loads(run("dlq", "plan", *world.scope, "--json", "--out", str(newer)))["letters"] == 1
    assert json.loads(run(*apply, str(newer), "--json"))["sent"] == 1
    assert len(world.read(world.names.retry(world.group))) == sent + 2


def test_a_second_apply_takes_the_first_one_over(
    world: World, run: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has a transaction open when another plan of the same letters is applied: it must not commit."""
    plans = [tmp_path / "one.json", tmp_path / "two.json"]
    for plan in plans:
        run("dlq", "plan", *world.scope, "--out", str(plan))
    told: list[dict[str, Any]] = []
    real = redrive.Redriver
    held: list[Producer] = []

    class Watched(Producer):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__(config)
            held.append(self)

        def close(self) -> bool:
            held.remove(self)
            return super().close()

    def interrupted(*args: Any, **settings: Any) -> Any:
        passed: list[str] = []

        def point(name: str) -> None:
            passed.append(name)
            if passed.count("produced") == 2 and name == "produced":
                monkeypatch.setattr(redrive, "Redriver", real)
                told.append(json.loads(run("dlq", "apply", str(plans[1]), *world.connection, "--json")))

        settings["clients"] = replace(confluent_clients(), producer=Watched)
        settings["report"] = point
        return real(*args, **settings)

    monkeypatch.setattr(redrive, "Redriver", interrupted)
    run("dlq", "apply", str(plans[0]), *world.connection, "--rate", "100", code=1)
    assert held == [], "a fenced producer is closed, with its threads and connections"
    assert [(each["sent"], each["settled_before"]) for each in told] == [(COUNT - 1 - 100, 100)]
    arrived = Counter(message.value() for message in world.read(world.names.retry(world.group)))
    assert arrived == {b"%d" % number: 1 for number in range(COUNT) if number != 12}


def test_an_apply_that_is_taken_over_says_that_and_nothing_else(
    world: World, run: Callable[..., str], tmp_path: Path
) -> None:
    plans = [str(tmp_path / "one.json"), str(tmp_path / "two.json")]
    for plan in plans:
        run("dlq", "plan", *world.scope, "--out", plan)
    done = subprocess.run(
        [sys.executable, "-c", TAKEN_OVER, *plans, *world.connection],
        check=False, timeout=120, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert f"began to redrive {world.names.dead_letter(world.group)}" in line


def alter(admin: AdminClient, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


def test_letters_that_the_target_refuses_fail_alone(
    world: World, admin: AdminClient, run: Callable[..., str], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    target = world.names.retry(world.group)
    producer = Producer({"bootstrap.servers": world.bootstrap, "partitioner": "murmur2_random"})
    large = [(1_000, b"x" * 5_000), (1_001, b"y" * 5_000)]
    for number, body in large:
        headers = world.headers(number, world.source)
        producer.produce(world.names.dead_letter(world.group), body, b"large-%d" % number, headers=headers)
    assert producer.flush(60) == 0
    alter(admin, target, "max.message.bytes", "3000")
    where = ["--where", "n >= 950"]
    assert json.loads(run("dlq", "plan", *world.scope, *where, "--out", str(plan), "--json"))["letters"] == 52
    told = json.loads(run("dlq", "apply", str(plan), *world.connection, "--stop-ratio", "0.5", "--json", code=2))
    assert (told["sent"], told["failures"]) == (50, {"refused:MSG_SIZE_TOO_LARGE": 2})
    assert len(world.read(target)) == 50


def test_many_letters_without_a_key_for_a_compacted_topic_need_few_sessions(
    world: World, admin: AdminClient, topic: Callable[..., str], run: Callable[..., str], tmp_path: Path
) -> None:
    provision.ensure_topics(admin, Layout(world.names, DelayLevels.default()).shared())
    plan, refusing = tmp_path / "plan.json", topic(2)
    producer = Producer({"bootstrap.servers": world.bootstrap})
    for number in range(1_000, 1_040):
        headers = world.headers(number, refusing if number % 2 else world.source)
        producer.produce(world.names.dead_letter(world.group), b"", headers=headers)
    assert producer.flush(60) == 0
    words = ["dlq", "plan", *world.scope, "--to-source", "--where", "n >= 1000"]
    run(*words, "--out", str(plan))
    alter(admin, refusing, "cleanup.policy", "compact")
    made = run(*words)
    assert "     20 held back: no-key\n" in made, "a plan that is made now knows it"
    assert "brokers take only records with a key there" in made
    told = json.loads(run("dlq", "apply", str(plan), *world.connection, "--stop-ratio", "1", "--json", code=2))
    assert (told["sent"], told["failures"]) == (20, {"refused:INVALID_RECORD": 20})
    assert (len(world.read(world.source)), world.read(refusing)) == (20, [])
    begun = [record for record in world.read(world.names.redrive_log) if b'"begin"' in record.value()]
    assert len(begun) <= 3, "one session finds a refusal, the next one names it, the last one sends the rest"


def test_a_redrive_whose_cause_is_not_fixed_stops(
    world: World, admin: AdminClient, run: Callable[..., str], tmp_path: Path
) -> None:
    """A consumer lets everything die immediately; at the rate given all letters would take over three minutes."""
    provision.ensure_topics(admin, Layout(world.names, DelayLevels.default()).shared())
    plan, is_there = tmp_path / "plan.json", threading.Event()
    run("dlq", "plan", *world.scope, "--out", str(plan))
    consumer = PushConsumer(
        world.bootstrap, group=world.group, namespace=world.names.namespace,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )  # fmt: skip

    def die(*_: object) -> None:
        is_there.set()
        raise DeadLetter("still closed")

    consumer.register_message_listener(world.source, die)
    producer = Producer({"bootstrap.servers": world.bootstrap})
    producer.produce(world.source, b"first")
    producer.flush(60)
    with consumer:
        assert is_there.wait(120)
        told = json.loads(run("dlq", "apply", str(plan), *world.connection, "--rate", "5", "--json", code=2))
    assert told["stopped_by"] == "failures"
    assert told["dead_again"] > 2
    assert told["left"] > 0
    again = json.loads(run("dlq", "plan", *world.scope, "--where", "REPLAY_COUNT = 1", "--json", "--out", str(plan)))
    assert again["letters"] >= told["dead_again"], "those that died again are new letters"


def test_letters_are_chosen_discarded_and_sent_to_their_source_only_when_asked(
    world: World, run: Callable[..., str], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    where = ["--where", "FAIL_CLASS = 'Timeout' AND n < 300"]
    chosen = json.loads(run("dlq", "plan", *world.scope, *where, "--to-source", "--out", str(plan), "--json"))
    (target,) = chosen["by_target"]
    assert (chosen["letters"], chosen["by_cause"]) == (49, {"Timeout": 49})
    run("dlq", "apply", str(plan), *world.connection)
    assert len(world.read(target)) == 49
    assert world.read(world.names.retry(world.group)) == []

    run("dlq", "discard", *world.scope, "--where", "FAIL_CLASS = 'NoListener'", "--out", str(plan))
    told = json.loads(run("dlq", "apply", str(plan), *world.connection, "--json"))
    assert (told["sent"], told["failed"]) == (166, 0)
    assert len(world.read(target)) == 49
    stats = json.loads(run("dlq", "stats", *world.scope, "--json"))
    assert "NoListener" not in {each["cause"] for each in stats}
    assert sum(each["count"] for each in stats) == COUNT + 1 - 49 - 166
    exported = [json.loads(line) for line in run("dlq", "export", *world.scope, "--all").splitlines()]
    assert Counter(each["state"] for each in exported) == {"dead": 786, "redriven": 49, "discarded": 166}
    assert sorted({int(each["body"]) for each in exported}) == list(range(COUNT))

    plan.write_text(plan.read_text().replace('"again": false', '"again": true'))
    run("dlq", "apply", str(plan), *world.connection, code=1)


GOLDEN = Path(__file__).parents[1] / "shim" / "tests" / "admin" / "golden" / "dead_letters.json"


def unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def test_letters_of_other_projects_are_seen_and_sent_again(
    broker: Broker, namespace: str, topic: Callable[..., str], run: Callable[..., str], tmp_path: Path
) -> None:
    """Every golden letter in one topic; their sources are one topic here."""
    source, letters, plan = topic(2), topic(2), tmp_path / "plan.json"
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    producer.produce(source, b"order 8", b"o-8", headers=[("mine", b"1")], partition=0)
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    changed = {
        "dead-letter-topic": source.encode(),
        "dead-letter-offset": b"3",  # else a duplicate of Streams' dead letter
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
    }
    for letter in golden:
        headers = [
            (name, source.encode() if name.endswith(("original-topic", "errors.topic")) else unpacked(value))
            for name, value in letter["headers"]
        ]
        headers = [(name, changed.get(name, value)) for name, value in headers]
        producer.produce(letters, unpacked(letter["value"]), unpacked(letter["key"]), headers=headers)
    assert producer.flush(60) == 0

    scope = ["--bootstrap", broker.bootstrap, "--namespace", namespace, "--topic", letters]
    listed = [json.loads(line) for line in run("dlq", "ls", *scope, "--json").splitlines()]
    assert Counter(each["written_by"] for each in listed) == {
        "Spring Kafka dead-letter topic": 1,
        "Spring Kafka retry topics": 3,
        "Kafka Streams": 1,
        "Kafka Connect": 1,
        "SmallRye": 1,
        "Kafka share group": 2,
    }
    assert {each["origin_topic"] for each in listed} == {source}
    stats = json.loads(run("dlq", "stats", *scope, "--where", "CONSUMER_GROUP = 'spring-steps'", "--json"))
    assert [(each["cause"], each["count"]) for each in stats] == [("SpringLetters$NoStockException", 3)]
    for shared in (each for each in listed if each["written_by"] == "Kafka share group"):
        shown = run("dlq", "show", f"{shared['partition']}/{shared['offset']}", *scope)
        assert "order 8" in shown
        assert "Kafka share group" in shown

    held = json.loads(run("dlq", "plan", *scope, "--json", "--out", str(plan)))
    assert held["letters"] == 0, "their groups have no retry topic here"
    made = json.loads(run("dlq", "plan", *scope, "--to-source", "--json", "--out", str(plan)))
    assert (made["letters"], made["by_target"], made["held_back"]) == (9, {source: 9}, {})
    told = json.loads(run("dlq", "apply", str(plan), "--bootstrap", broker.bootstrap, "--json"))
    assert (told["sent"], told["failed"]) == (9, 0)
    with TopicReader(broker.bootstrap) as reader:
        arrived = [message for message in reader.read([source]) if "REPLAY_ID" in dict(message.headers())]
    assert Counter(message.value() for message in arrived) == {b"order 7": 7, b"order 8": 2}
    for message in arrived:
        names = [name for name, _ in message.headers()]
        assert names[-1] == ("mine" if message.value() == b"order 8" else "traceparent")
        assert not [name for name in names if "rrors" in name or name.startswith(("kafka_", "retry_topic", "dead-"))]
    assert json.loads(run("dlq", "apply", str(plan), "--bootstrap", broker.bootstrap, "--json"))["sent"] == 0


@pytest.mark.parametrize("copies_records", [False, True])
def test_what_a_share_group_rejects_is_shown_sent_again_and_counted(
    broker: Broker,
    admin: AdminClient,
    topic: Callable[..., str],
    run: Callable[..., str],
    tmp_path: Path,
    *,
    copies_records: bool,
) -> None:
    """Kafka writes the dead letters itself (KIP-1191)."""
    source, plan = topic(2), tmp_path / "plan.json"
    payers, dead_letters = f"payers-{source}", f"dlq.{source}"
    if not set_up_share_group(admin, payers, dead_letters, copies_records=copies_records):
        pytest.skip("before 4.4, Kafka writes no dead letters of share groups")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for body in (b"order 7", b"order 8"):
        producer.produce(source, body, b"o-7", headers=[("mine", b"1")], partition=1)
    assert producer.flush(60) == 0

    def only_order_7(message: Message) -> AcknowledgeType:
        return AcknowledgeType.REJECT if message.value() == b"order 7" else AcknowledgeType.ACCEPT

    def dead() -> list[Message]:
        with TopicReader(broker.bootstrap) as reader:
            return list(reader.read([dead_letters]))

    scope = ["--bootstrap", broker.bootstrap, "--topic", dead_letters]
    consume_shared(broker.bootstrap, payers, source, only_order_7, deliveries=2)
    for times in (1, 2):
        wait_until(lambda: len(dead()) == times, "the dead letter is stored", within_s=30)  # noqa: B023 - waits here
        listed = [json.loads(line) for line in run("dlq", "ls", *scope, "--json").splitlines()]
        assert [(each["written_by"], each["origin_topic"], each["group"]) for each in listed] == [
            ("Kafka share group", source, payers)
        ]
        shown = run("dlq", "show", f"{listed[0]['partition']}/{listed[0]['offset']}", *scope)
        assert "order 7" in shown
        assert "Offset rejected by client." in shown
        made = json.loads(run("dlq", "plan", *scope, "--to-source", "--json", "--out", str(plan)))
        assert (made["letters"], made["by_target"]) == (1, {source: 1})
        applied = json.loads(run("dlq", "apply", str(plan), "--bootstrap", broker.bootstrap, "--json"))
        assert (applied["sent"], applied["failed"]) == (1, 0)
        (again,) = consume_shared(broker.bootstrap, payers, source, only_order_7, deliveries=1)
        headers = dict(again.headers() or [])
        assert (again.key(), again.value(), headers["mine"]) == (b"o-7", b"order 7", b"1")
        assert headers["REPLAY_COUNT"] == b"%d" % times
        assert not [name for name in headers if name.startswith("__dlq")]
