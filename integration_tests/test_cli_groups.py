"""`group ls`, `group reset` and `group lag --max-lag` on a real broker."""

import json
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from rocketshim import ConsumeFromWhere, MessageView, PushConsumer
from rocketshim.admin.group_reset import GroupResetter, ResetTarget
from rocketshim.cli import main
from rocketshim.core.start_position import CommitMetadata, encode_metadata
from rocketshim.errors import GroupActiveError
from rocketshim_local import Broker
from rocketshim_topics import TopicNames

from .test_group_cli import commit, fill
from .waiting import wait_until

Topic = Callable[..., str]
Group = Callable[..., str]


def positions(bootstrap: str, group: str, topic: str, count: int) -> list[tuple[int, str | None]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, number) for number in range(count)], timeout=60)
    finally:
        consumer.close()
    return [(item.offset, item.metadata) for item in found]


@pytest.fixture
def ask(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with `--json`, check its exit code, and return what it printed."""

    def ask(*words: str, code: int = 0) -> Any:
        assert main([*words, "--bootstrap", broker.bootstrap, "--json"]) == code
        return json.loads(capsys.readouterr().out or "null")

    return ask


@pytest.fixture
def place(broker: Broker, topic: Topic, group: Group) -> tuple[str, str, str]:
    """Return the brokers, a topic with one partition, and a group."""
    return broker.bootstrap, topic(1), group()


MARK = encode_metadata(CommitMetadata("digest", 2, "t=*"))


def test_positions_move_as_planned_and_keep_their_metadata(
    broker: Broker, topic: Topic, group: Group, ask: Callable[..., Any]
) -> None:
    name, members = topic(2), group()
    fill(broker.bootstrap, name, 10)
    fill(broker.bootstrap, name, 5, partition=1)
    before_ms = time.time_ns() // 1_000_000 + 60_000
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, b"late", partition=0, timestamp=before_ms + 1)
    assert producer.flush(60) == 0
    commit(broker.bootstrap, members, TopicPartition(name, 0, 4, MARK), TopicPartition(name, 1, 5, MARK))

    def now() -> list[int]:
        return [offset for offset, _ in positions(broker.bootstrap, members, name, 2)]

    plan = ask("group", "reset", members, "--to", "latest")
    assert [(each["position"], each["target"]) for each in plan["resets"]] == [(4, 11), (5, 5)]
    assert (plan["applied"], plan["refused"], now()) == (False, None, [4, 5]), "a plan changes nothing"

    assert ask("group", "reset", members, "--to", "latest", "--apply")["applied"]
    assert positions(broker.bootstrap, members, name, 2) == [(11, MARK), (5, MARK)]
    ask("group", "reset", members, "--to", "earliest", "--topic", f"{name}/1", "--apply")
    assert now() == [11, 0]
    ask("group", "reset", members, "--to", "3", "--topic", name, "--apply")
    assert now() == [3, 3]
    later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(before_ms / 1_000 - 1))
    ask("group", "reset", members, "--to", later, "--apply")
    assert now() == [10, 5], "the first record of that time, or the end"
    ask("group", "reset", members, "--to", "1h", "--apply")
    assert now() == [0, 0]


def test_a_group_that_never_committed_is_placed_on_named_topics(
    broker: Broker, topic: Topic, group: Group, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    name, members = topic(2), group()
    fill(broker.bootstrap, name, 3)
    there = ["--bootstrap", broker.bootstrap]
    assert main(["group", "reset", members, "--to", "latest", *there]) == 1
    assert "name its topics with --topic" in capsys.readouterr().err
    ask("group", "reset", members, "--to", "latest", "--topic", name, "--apply")
    assert [offset for offset, _ in positions(broker.bootstrap, members, name, 2)] == [3, 0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "11"], "has the offsets 0 to 10; nothing was changed"),
        (["--to", "yesterday"], "--to 'yesterday': write a duration before now"),
        (["--to", "latest", "--topic", "no-such-topic"], "there is no topic no-such-topic"),
        (["--to", "latest", "--topic", "{name}/7"], "has the partitions 0 to 0"),
    ],
)
def test_a_wrong_target_changes_nothing(
    words: list[str],
    told: str,
    place: tuple[str, str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    bootstrap, name, members = place
    fill(bootstrap, name, 10)
    commit(bootstrap, members, TopicPartition(name, 0, 4))
    words = [word.replace("{name}", name) for word in words]
    assert main(["group", "reset", members, *words, "--apply", "--bootstrap", bootstrap]) == 1
    assert told in capsys.readouterr().err
    assert positions(bootstrap, members, name, 1)[0][0] == 4


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_running_group_is_not_reset(
    protocol: str, broker: Broker, topic: Topic, group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    name, members = topic(1), group()
    fill(broker.bootstrap, name, 10)
    commit(broker.bootstrap, members, TopicPartition(name, 0, 4))
    resetter = GroupResetter(broker.bootstrap, TopicNames())
    plan_before = resetter.plan(members, [], ResetTarget(latest=True))
    assert plan_before.refused is None
    member = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": members, "group.protocol": protocol,
         "enable.auto.commit": False}
    )  # fmt: skip
    joined = threading.Event()
    member.subscribe([name], on_assign=lambda *_: joined.set())
    try:
        until = time.monotonic() + 60
        while not joined.is_set() and time.monotonic() < until:
            member.poll(0.1)
        assert joined.is_set()
        words = ["group", "reset", members, "--to", "latest", "--bootstrap", broker.bootstrap]
        assert main(words) == 2, "the plan is shown, with why it cannot be applied"
        assert "1 running member" in capsys.readouterr().err
        assert main([*words, "--apply"]) == 1
        error = capsys.readouterr().err
        assert "stop them first" in error
        assert "Nothing was changed" in error
        with pytest.raises(GroupActiveError, match="a member has joined"):
            resetter.apply(plan_before)
    finally:
        member.close()
    assert positions(broker.bootstrap, members, name, 1)[0][0] == 4


def test_an_orderly_group_is_refused_while_it_runs_and_can_then_be_moved_back_and_forward(
    broker: Broker, topic: Topic, group: Group, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, members = topic(1), group()
    there = ["--bootstrap", broker.bootstrap, "--namespace", namespace]
    assert main(["init", "--group", members, "--with-log", *there]) == 0
    fill(broker.bootstrap, name, 10)
    seen: SimpleQueue[int] = SimpleQueue()

    def running() -> PushConsumer:
        consumer = PushConsumer(
            broker.bootstrap, group=members, namespace=namespace, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
        )

        @consumer.listener(name, orderly=True)
        def handle(message: MessageView) -> None:
            seen.put(message.queue_offset)

        return consumer

    words = ["group", "reset", members, "--topic", name, *there]

    def reset(to: str) -> None:  # who left no word holds the locks until the lease ends
        wait_until(lambda: main([*words, "--to", to, "--apply"]) == 0, f"reset to {to}", within_s=150)

    with running():
        assert [seen.get(timeout=150) for _ in range(10)] == list(range(10))
        assert main([*words, "--to", "latest", "--apply"]) == 1
        assert "running member" in capsys.readouterr().err
    reset("earliest")
    with running():
        assert [seen.get(timeout=150) for _ in range(10)] == list(range(10))
    fill(broker.bootstrap, name, 5)
    reset("13")
    assert positions(broker.bootstrap, members, name, 1)[0][0] == 13
    with running():
        assert [seen.get(timeout=150) for _ in range(2)] == [13, 14]


def test_groups_are_listed_with_their_retry_topics(
    broker: Broker, topic: Topic, group: Group, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, members, shim = topic(1), group(), group()
    for each in (members, shim):
        commit(broker.bootstrap, each, TopicPartition(name, 0, 0))
    there = ["--bootstrap", broker.bootstrap, "--namespace", namespace]
    assert main(["init", *there, "--group", shim]) == 0
    capsys.readouterr()
    assert main(["group", "ls", *there, "--json"]) == 0
    rows = {row["group"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows[members] == {"group": members, "state": "EMPTY", "members": 0, "retry_topic": None}
    assert rows[shim]["retry_topic"] == TopicNames(namespace).retry(shim)
    assert main(["group", "ls", *there]) == 0
    assert shim in capsys.readouterr().out


def test_a_lag_above_the_limit_is_a_finding_and_otherwise_cron_hears_nothing(
    broker: Broker, topic: Topic, group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    name, members = topic(1), group()
    fill(broker.bootstrap, name, 10)
    commit(broker.bootstrap, members, TopicPartition(name, 0, 4))
    lag = ["group", "lag", members, "--bootstrap", broker.bootstrap]
    assert main([*lag, "--max-lag", "6", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*lag, "--max-lag", "5", "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert name in out
    assert "the lag is 6, above --max-lag 5" in err
    assert main([*lag, "--max-lag", "5", "--count", "--json"]) == 2


def test_groups_and_topics_are_completed(
    broker: Broker, topic: Topic, group: Group, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, members = topic(1), group()
    commit(broker.bootstrap, members, TopicPartition(name, 0, 0))
    monkeypatch.setattr("rocketshim.cli.completion._TIMEOUT_S", 60.0)
    monkeypatch.setenv("_ROCKETSHIM_COMPLETE", "complete_zsh")
    for line, offered in (("group lag ", members), ("group reset x --topic ", name)):
        words, _, option = line.partition("--")
        option = f" --{option}" if option else ""
        begun = offered[:-2]
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"rocketshim {words}--bootstrap {broker.bootstrap}{option} {begun}")
        with pytest.raises(SystemExit):
            main([])
        assert offered in capfd.readouterr().out
