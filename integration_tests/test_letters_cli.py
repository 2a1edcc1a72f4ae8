"""`dlq`, `retry` and `trace` on a real broker: the commands a person on call types."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient

from rocketshim import ConsumeFromWhere, DeadLetter, Producer, PushConsumer
from rocketshim.cli import main
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, Message, TopicNames, provision
from rocketshim_topics.layout import Layout

from .running import killed_at_last, patient_worker

LEVELS = "1s 1s 1s"
CAUSES: tuple[type[Exception], ...] = (KeyError, ValueError, OSError, ZeroDivisionError, LookupError)


@pytest.fixture
def world(
    broker: Broker, admin: AdminClient, namespace: str, group: Callable[..., str], topic: Callable[..., str]
) -> tuple[list[str], str, str, dict[str, str]]:
    """Sixty dead letters of six causes, one of which failed twice; the connection's options, group, topic, ids."""
    name, members = topic(2), group()
    names = TopicNames(namespace)
    provision.ensure_topics(admin, Layout(names, DelayLevels.parse(LEVELS)).shared())
    worker = patient_worker(broker.bootstrap, namespace, LEVELS, allow=(name,))
    thread = threading.Thread(target=worker.run)
    thread.start()
    consumer = PushConsumer(
        broker.bootstrap,
        group=members,
        namespace=namespace,
        delay_levels=LEVELS,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        max_reconsume_times=1,
    )
    all_dead = threading.Event()
    seen: set[tuple[str, int]] = set()

    def fail(message: object, context: object) -> None:
        del context
        number = int(message.body)  # type: ignore[attr-defined]
        seen.add((message.msg_id, message.reconsume_times))  # type: ignore[attr-defined]
        if len(seen) == 61:
            all_dead.set()
        cause = number % 6
        if cause == 5 and number != 5:
            raise DeadLetter(f"customer {number} is gone")
        if number == 5 and message.reconsume_times == 0:  # type: ignore[attr-defined]
            raise RuntimeError("not yet 42")
        if cause == 5:
            raise DeadLetter("now it is")
        raise_later(CAUSES[cause], number)

    consumer.register_message_listener(name, fail)
    consumer.start()
    ids: dict[str, str] = {}
    with Producer(broker.bootstrap, namespace=namespace, delay_levels=LEVELS) as producer:
        for number in range(60):
            message = Message(
                name, str(number).encode(), key=f"k{number}", tag="odd" if number % 2 else "even",
                properties={"n": f"{number}"},
                max_reconsume_times=1 if number == 5 else 0, delay="1s" if number == 5 else None,
            )  # fmt: skip
            ids[str(number)] = producer.send(message, timeout_s=30).msg_id
    assert all_dead.wait(180)
    consumer.stop()
    worker.stop()
    thread.join()
    return ["--bootstrap", broker.bootstrap, "--namespace", namespace], members, name, ids


def raise_later(cause: type[Exception], number: int) -> None:
    raise cause(f"number {number} cannot be")


def test_the_commands_of_a_person_on_call(
    world: tuple[list[str], str, str, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    connection, members, topic, ids = world

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main([*words, *connection]) == code
        return capsys.readouterr().out

    def listed(*words: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in run(*words, "--group", members, "--json").splitlines()]

    stats = json.loads(run("dlq", "stats", "--group", members, "--json"))
    assert sum(each["count"] for each in stats) == 60
    causes = {each["cause"]: each["count"] for each in stats if each["cause"] != "DeadLetter"}
    assert causes == {cause.__name__: 10 for cause in CAUSES}
    assert {each["text"]: each["count"] for each in stats if each["cause"] == "DeadLetter"} == {
        "customer # is gone": 9,
        "now it is": 1,
    }
    assert "60 dead letters" in run("dlq", "stats", "--group", members)

    everything = listed("dlq", "ls", "--limit", "100")
    assert {each["id"] for each in everything} == set(ids.values())
    assert len(listed("dlq", "ls")) == 50, "--limit is 50"
    assert len(listed("dlq", "ls", "--where", "FAIL_CLASS = 'KeyError' AND n >= 30")) == 5
    assert len(listed("dlq", "ls", "--tags", "odd", "--limit", "99")) == 30
    assert [each["key"] for each in listed("dlq", "ls", "--key", "k7")] == ["k7"]
    assert len(listed("dlq", "ls", "--since", "1h", "--limit", "99")) == 60

    assert [each["failures"] for each in listed("retry", "ls")] == [1]

    life = json.loads(run("trace", ids["5"], "--delay-levels", LEVELS, "--json"))
    named = TopicNames(connection[3])
    places = [each["topic"] for each in life]
    assert places == [
        named.schedule,
        topic,
        named.schedule,
        named.retry(members),
        named.dead_letter(members),
    ]
    assert all(each["late_ms"] is None or each["late_ms"] >= 0 for each in life)
    assert [each["cause"] for each in life] == [None, None, "RuntimeError", "RuntimeError", "DeadLetter"]
    dead = f"{life[-1]['topic']}/{life[-1]['partition']}/{life[-1]['offset']}"
    assert json.loads(run("trace", dead, "--delay-levels", LEVELS, "--json")) == life
    assert "dead: DeadLetter: now it is" in " ".join(run("trace", dead).split())

    shown = json.loads(run("dlq", "show", ids["5"], "--group", members, "--json"))
    assert (shown["body"], shown["tag"], shown["headers"]) == ("5", "odd", [["n", "5"]])
    assert "now it is" in run("dlq", "show", f"0/{shown['offset']}", "--group", members)
    run("dlq", "show", "no-such-id", "--group", members, code=2)
    run("dlq", "ls", "--group", "nobody", code=1)
    run("dlq", "ls", "--group", members, "--where", "a LIKE 'x%'", code=1)


FOLLOWED = {
    "dlq": (["dlq", "ls", "--group", "{group}"], lambda names, group: names.dead_letter(group)),
    "retry": (["retry", "ls", "--group", "{group}"], lambda names, group: names.retry(group)),
    "parked": (["parked", "ls"], lambda names, _: names.parked),
    "delayed": (
        ["delayed", "ls", "--topic", "orders", "--where", "UNIQ_KEY <> 'other'"],
        lambda names, _: names.schedule,
    ),
}


@pytest.mark.parametrize("what", FOLLOWED)
def test_following_shows_what_comes_until_ctrl_c(
    broker: Broker, admin: AdminClient, namespace: str, group: Callable[..., str], what: str
) -> None:
    """Each record is written when the one before it was shown. Afterwards there is no trace of the reader."""
    names, members = TopicNames(namespace), group()
    layout = Layout(names, DelayLevels.default())
    provision.ensure_topics(admin, [*layout.shared(), *layout.for_group(members, with_log=False)])
    words, place = FOLLOWED[what]
    topic = place(names, members)
    producer = KafkaProducer({"bootstrap.servers": broker.bootstrap})
    words = [word.format(group=members) for word in words]
    command = [sys.executable, "-m", "rocketshim", *words, "--bootstrap", broker.bootstrap, "--namespace", namespace]
    with (
        subprocess.Popen(
            [*command, "--follow", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child,
        killed_at_last(child),
    ):
        assert child.stdout is not None
        for number in range(3):
            headers: list[tuple[str, str | bytes | None]] = [("UNIQ_KEY", b"m%d" % number), ("REAL_TOPIC", b"orders")]
            if what == "delayed":
                producer.produce(topic, b"", headers=[("UNIQ_KEY", b"other"), headers[1]], partition=number % 2)
            else:
                headers.pop()
            producer.produce(topic, b"body", headers=headers, partition=number % 2 if what == "delayed" else 0)
            assert producer.flush(60) == 0
            assert json.loads(child.stdout.readline())["id"] == f"m{number}"
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        assert (child.stdout.read(), child.stderr.read() if child.stderr else "") == ("", "")
    groups = {each.group_id for each in admin.list_consumer_groups().result(60).valid}
    assert not [each for each in groups if each.startswith(("rocketshim-read", namespace, members))]
