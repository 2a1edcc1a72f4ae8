"""A poison message blocks an orderly queue of a running consumer: one command, or one button, and the queue goes on."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from rocketshim import Message, MessageView, Producer, PushConsumer
from rocketshim.cli import main
from rocketshim_local import Broker
from rocketshim_topics import TopicNames

from .console_stage import console
from .waiting import wait_until

WITHIN_S = 60.0


def records_of(broker: Broker, topic: str) -> list[tuple[bytes, dict[str, bytes]]]:
    """Return body and headers of the records of a topic, by partition."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    partitions = reader.list_topics(topic, 10).topics[topic].partitions
    found = []
    for number in partitions:
        low, high = reader.get_watermark_offsets(TopicPartition(topic, number), 10)
        reader.assign([TopicPartition(topic, number, low)])
        for _ in range(low, high):
            record = reader.poll(10)
            assert record is not None
            found.append((record.value(), dict(record.headers() or [])))
    reader.close()
    return found


def test_poison_blocks_an_orderly_queue_and_one_command_or_button_ends_that(  # noqa: PLR0915 - a story
    broker: Broker, namespace: str, tmp_path: Path
) -> None:
    orders, group = f"{namespace}.orders", f"shipping-{namespace}"
    where = ["--bootstrap", broker.bootstrap, "--namespace", namespace]
    words = ["--topic", orders, "--partitions", "1", "--group", group, "--with-log"]
    assert main(["init", *where, *words]) == 0
    handled: list[bytes] = []
    tried: list[bytes] = []

    def ship(message: MessageView) -> None:
        body = message.body or b""
        tried.append(body)
        if body.startswith(b"poison"):
            raise ConnectionError(f"no address in {body.decode()}")
        handled.append(body)

    def run(*words: str) -> tuple[int, dict[str, object]]:
        command = [sys.executable, "-m", "rocketshim", "group", *words, *where, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
        return done.returncode, json.loads(done.stdout)

    def lock() -> dict[str, Any]:
        (found,) = [each for each in run("locks", group)[1]["locks"] if each["topic"] == orders]  # type: ignore[attr-defined]
        return found  # type: ignore[no-any-return]

    def failing() -> list[list[int]]:
        return lock()["reconsume_counts"]  # type: ignore[no-any-return]

    consumer = PushConsumer(broker.bootstrap, group=group, namespace=namespace, suspend_current_queue_time_ms=100)
    consumer.listener(orders, orderly=True)(ship)
    sent = [b"0", b"poison 1", b"2", b"3", b"poison 4", b"5"]
    with Producer(broker.bootstrap, namespace=namespace) as producer:
        consumer.start()
        try:
            for body in sent:
                producer.send(Message(orders, body))
            wait_until(lambda: [each[0] for each in failing()] == [1], "the owner reports it", within_s=WITHIN_S)
            assert handled == [b"0"]
            assert re.search(r", in ship\n .*raise ConnectionError.*\nConnectionError$", lock()["stack_trace"])

            assert run("dead-letter", group, f"{orders}/0/1")[0] == 0
            assert run("dead-letter", group, f"{orders}/0/2", "--apply")[0] == 2, "it does not fail"
            assert handled == [b"0"], "nothing was done"

            before = tried.count(b"poison 1")
            code, facts = run("try-now", group, f"{orders}/0/1", "--apply")
            log = TopicNames(namespace).group_log(group)
            assert (code, str(facts["stored_at"]).rpartition("/")[0]) == (0, f"{log}/0")
            assert isinstance(facts["attempts_after"], int)
            wait_until(lambda: tried.count(b"poison 1") > before, "it was tried", within_s=WITHIN_S)

            code, facts = run("dead-letter", group, f"{orders}/0/1", "--apply")
            assert (code, facts["attempts_after"]) == (0, 0), facts
            wait_until(lambda: handled == [b"0", b"2", b"3"], "the queue goes on", within_s=WITHIN_S)
            ((body, headers),) = records_of(broker, f"{namespace}.rmq.dlq.{group}")
            assert body == b"poison 1"
            assert re.fullmatch(rb"\[given up by \S+@\S+\] no address in poison 1", headers["FAIL_TEXT"])
            assert (headers["FAIL_CLASS"], headers["ORIGIN_MESSAGE_ID"]) == (
                b"ConnectionError",
                f"{orders}/0/1".encode(),
            )
            assert run("dead-letter", group, f"{orders}/0/1", "--apply")[0] == 2, "it is done"

            wait_until(lambda: [each[0] for each in failing()] == [4], "the owner reports the next", within_s=WITHIN_S)
            with console(broker, namespace, tmp_path) as (_, browser):
                page = browser.ask("GET", f"/groups/{group}")[1]
                assert re.search(f"attempt of {orders}/0/4</summary><pre[^>]*>  File [^<]*, in ship\n", page)
                fields = dict(re.findall(r'<input type="hidden" name="([a-z]+)" value="([^"]*)">', page))
                assert fields == {"topic": orders, "partition": "0", "offset": "4", "token": fields["token"]}
                stored = browser.post(f"/groups/{group}/command", **fields, do="dead-letter")
                assert f"dead-letter for {orders}/0/4 is stored: it does not fail any more" in browser.get(stored)
            wait_until(lambda: handled == [b"0", b"2", b"3", b"5"], "the queue goes on", within_s=WITHIN_S)
        finally:
            consumer.stop()
    dead = sorted(body for body, _ in records_of(broker, f"{namespace}.rmq.dlq.{group}"))
    assert sorted([*handled, *dead]) == sorted(sent), "nothing is lost, and nothing is doubled"
    rows = run("lag", group)[1]["lag"]
    assert [each["position"] for each in rows if each["topic"] == orders] == [len(sent)]  # type: ignore[attr-defined]
