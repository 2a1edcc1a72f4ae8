"""What a program with a wrong clock does with a part of the library, for `test_client_clocks`: a process for each.

`python -m integration_tests.clock_parts PART BOOTSTRAP NAMESPACE TOPIC` prints what came of it as one line of JSON.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from rocketshim import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    DeadLetter,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
)
from rocketshim.aio import AsyncProducer
from rocketshim.dropin import Consumer as DropinConsumer
from rocketshim.dropin import Producer as DropinProducer
from rocketshim.errors import SendError

DEADLINE_S = 60.0
LEVELS = "1s 2s 1s"


def send(bootstrap: str, namespace: str, topic: str) -> dict[str, Any]:
    """Immediate and delayed sends."""
    with Producer(bootstrap, namespace=namespace, delay_levels=LEVELS) as producer:
        producer.send(Message(topic, b"send: delayed", delay_level=1), timeout_s=DEADLINE_S)
        try:
            producer.send(Message(topic, b"send: immediate"), timeout_s=DEADLINE_S)
        except SendError as error:
            return {"error": str(error)}
    return {"error": ""}


def send_async(bootstrap: str, namespace: str, topic: str) -> dict[str, Any]:
    """The same from asyncio."""

    async def main() -> str:
        async with AsyncProducer(bootstrap, namespace=namespace, delay_levels=LEVELS) as producer:
            await producer.send(Message(topic, b"send_async: delayed", delay_level=1), timeout_s=DEADLINE_S)
            try:
                await producer.send(Message(topic, b"send_async: immediate"), timeout_s=DEADLINE_S)
            except SendError as error:
                return str(error)
        return ""

    return {"error": asyncio.run(main())}


def dropin_send(bootstrap: str, namespace: str, topic: str) -> dict[str, Any]:
    """The drop-in producer: what it sends immediately is the plain client's, with the plain client's error."""
    errors: list[str] = []
    producer = DropinProducer(
        {"bootstrap.servers": bootstrap, "rocketshim.namespace": namespace, "rocketshim.delay.levels": LEVELS}
    )
    body = b"dropin_send: immediate"
    producer.produce(topic, body, on_delivery=lambda error, _: errors.append("" if error is None else error.name()))
    producer.produce(topic, b"dropin_send: delayed", delay_level=1)
    assert producer.flush(DEADLINE_S) == 0
    return {"error": errors[0]}


def consume(bootstrap: str, namespace: str, topic: str) -> dict[str, Any]:
    """A message is dead at its first attempt, another one comes back once; for all messages."""
    return _consume(PushConsumer(
        bootstrap, group="consume", namespace=namespace, delay_levels=LEVELS,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=1,
    ), topic)  # fmt: skip


def consume_orderly(bootstrap: str, namespace: str, topic: str) -> dict[str, Any]:
    """The same in order: locks, leases and tokens come from the group's log."""
    return _consume(PushConsumer(
        bootstrap, group="consume_orderly", namespace=namespace, delay_levels=LEVELS, max_reconsume_times=1,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, suspend_current_queue_time_ms=10,
    ), topic, orderly=True)  # fmt: skip


def _consume(consumer: PushConsumer, topic: str, *, orderly: bool = False) -> dict[str, Any]:
    handled: dict[str, int] = {}
    is_done = threading.Event()

    def listener(message: Any, context: Any = None) -> Any:
        del context
        body = message.body.decode()
        handled[body] = handled.get(body, 0) + 1
        if body == "dead":
            raise DeadLetter("it is to be dead")
        if body == "fails" or (body == "retry" and handled[body] == 1):
            raise OSError("no")
        if {"retry": 2, "fails": 2, "dead": 1}.items() <= handled.items():
            is_done.set()
        return ConsumeOrderlyStatus.SUCCESS if orderly else None

    consumer.listener(topic, orderly=orderly)(listener)
    consumer.start()
    try:
        _await(lambda: {"retry": 2, "fails": 2, "dead": 1}.items() <= handled.items())
        _await(lambda: consumer.send_back_counts.dead == 2)
        _await(lambda: _is_ready(consumer) is not None)
        return {"handled": handled, "not_stored": consumer.send_back_counts.not_stored, "ready": _is_ready(consumer)}
    finally:
        consumer.stop()


def _is_ready(consumer: PushConsumer) -> bool | None:
    state = consumer.state
    return None if state is None else state.is_ready(state.at_ns)


def dropin_consume(bootstrap: str, namespace: str, topic: str) -> dict[str, Any]:
    """The drop-in consumer sends one message back and makes another one dead."""
    consumer = DropinConsumer({
        "bootstrap.servers": bootstrap, "group.id": "dropin_consume", "auto.offset.reset": "earliest",
        "rocketshim.retry.enable": True, "rocketshim.namespace": namespace, "rocketshim.delay.levels": LEVELS,
    })  # fmt: skip
    consumer.subscribe([topic])
    handled: dict[str, int] = {}

    def step() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            body = message.value().decode()
            handled[body] = handled.get(body, 0) + 1
            if body == "dead":
                consumer.dead_letter(message, "it is to be dead")
            elif body == "retry" and handled[body] == 1:
                consumer.reconsume_later(message, "no", level=1)
        return {"retry": 2, "dead": 1}.items() <= handled.items()

    try:
        _await(step)
    finally:
        consumer.close()
    return {"handled": handled}


def pull(bootstrap: str, namespace: str, topic: str) -> dict[str, Any]:
    """Both pull consumers read everything, and a second member of the group continues after the first."""
    bodies: list[str] = []
    settings: dict[str, Any] = {"namespace": namespace, "consume_from_where": ConsumeFromWhere.FIRST_OFFSET}
    with LitePullConsumer(bootstrap, group="pull", **settings) as consumer:
        consumer.subscribe(topic)

        def step() -> bool:
            bodies.extend((message.body or b"").decode() for message in consumer.poll(500))
            return len(bodies) >= 3

        _await(step)
        consumer.commit_sync()
    with PullConsumer(bootstrap, group="pull", namespace=namespace) as plain:
        (queue,) = plain.fetch_message_queues(topic)
        return {"bodies": bodies, "max_offset": plain.max_offset(queue)}


def _await(fact: Callable[[], bool]) -> None:
    wait = threading.Event()
    for _ in range(round(DEADLINE_S * 20)):
        if fact():
            return
        wait.wait(0.05)
    raise TimeoutError


if __name__ == "__main__":
    part, *where = sys.argv[1:]
    sys.stdout.write(json.dumps(globals()[part](*where)))
