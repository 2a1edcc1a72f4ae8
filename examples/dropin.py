"""From a plain confluent_kafka loop to retries and dead letters in five changed lines. Runs by itself.

    python examples/dropin.py

`plain_loop` is how such a loop often looks: what fails is logged and lost. `retrying_loop` is the same loop with five
lines changed or added (a test counts them). With ROCKETSHIM_BOOTSTRAP set it runs on that cluster (its topics begin
with `example`). The worker, which moves retries when they are due, runs in a thread here to keep the example in one
file; in earnest it is a process of its own: `rocketshim worker --allow orders`.
"""
# ruff: noqa: PLC0415, BLE001 - each loop imports its own Consumer; a loop of this kind catches whatever its handler raises

import threading
import uuid
from collections import Counter
from typing import Any

import confluent_kafka
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import (
    DelayLevels,
    DelayWorker,
    Layout,
    Producer,
    TopicNames,
    TopicSpec,
    WorkerSettings,
    ensure_topics,
)
from rocketshim import Message as Order
from rocketshim.local import any_broker

MARK = f"example{uuid.uuid4().hex[:6]}"


class NoSuchCustomerError(Exception):
    """Trying again is of no use."""


class Bank:
    """What charges orders: one goes through, one at the third attempt, one never."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.charged: list[str] = []

    def charge(self, message: Message) -> None:
        """Charge an order, or raise."""
        order = (message.value() or b"").decode()
        self.attempts[order] += 1
        print(f"  {order}, attempt {self.attempts[order]}, from {message.topic()}")
        if order == "hopeless":
            raise NoSuchCustomerError(order)
        if order == "twice" and self.attempts[order] <= 2:
            raise OSError("the bank does not answer")
        self.charged.append(order)


def plain_loop(config: dict[str, Any], orders: str, bank: Bank, count: int) -> None:
    """Before."""
    from confluent_kafka import Consumer

    consumer = Consumer({**config, "group.id": f"{MARK}-plain"})
    consumer.subscribe([orders])
    while bank.attempts.total() < count:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        try:
            bank.charge(message)
        except Exception as error:
            print(f"  lost: {error!r}")
        consumer.commit(message=message)
    consumer.close()


def retrying_loop(config: dict[str, Any], orders: str, bank: Bank, count: int) -> None:
    """After."""
    from rocketshim.dropin import Consumer

    consumer = Consumer({**config, "group.id": MARK, "rocketshim.retry.enable": True, "rocketshim.namespace": MARK})
    consumer.subscribe([orders])
    while bank.attempts.total() < count:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        try:
            bank.charge(message)
        except NoSuchCustomerError as error:
            consumer.dead_letter(message, error)
        except Exception as error:
            consumer.reconsume_later(message, error, delay="1s")
        consumer.commit(message=message)
    consumer.close()


def main() -> None:
    """Three orders through both loops."""
    with any_broker(report=print) as broker:
        names, orders = TopicNames(MARK), f"{MARK}.orders"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        shared = Layout(names, DelayLevels.default()).shared()
        ensure_topics(admin, [*shared, TopicSpec(orders, partitions=1)])
        worker = DelayWorker(WorkerSettings.make(bootstrap=broker.bootstrap, namespace=MARK, allow=(orders,)))
        moving = threading.Thread(target=worker.run)
        moving.start()
        with Producer(broker.bootstrap, namespace=MARK) as producer:
            for order in ("now", "twice", "hopeless"):
                producer.send(Order(orders, order.encode()), timeout_s=30)
        config = {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": False}

        print("the plain loop:")
        plain = Bank()
        plain_loop(config, orders, plain, count=3)
        print("five lines later:")
        retrying = Bank()
        retrying_loop(config, orders, retrying, count=5)

        with confluent_kafka.Consumer({**config, "group.id": f"{MARK}-looks"}) as looks:
            _, dead = looks.get_watermark_offsets(TopicPartition(names.dead_letter(MARK), 0), timeout=30)
        print(f"charged: {plain.charged} before, {retrying.charged} after; dead letters: {dead}")
        worker.stop()
        moving.join()
        if (plain.charged, retrying.charged, dead) != (["now"], ["now", "twice"], 1):
            raise SystemExit("not as it should be")
        ours = [each for each in admin.list_topics().topics if each.startswith(MARK)]
        for future in admin.delete_topics(ours).values():
            future.result(30)


if __name__ == "__main__":
    main()
