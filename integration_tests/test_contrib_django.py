"""The Django project of the examples: a request, its transaction, and consumer processes, on a real broker."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient

from rocketshim import DelayLevels, TopicNames
from rocketshim_local import Broker
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout

from . import waiting

PROJECT = Path(__file__).parents[1] / "examples" / "django_shop"
PLACE = 'from django.test import Client; assert Client().post("/orders/o-7").status_code == 202'
GUARD_S = 120.0


def test_an_order_of_a_request_is_charged_by_a_consumer_process(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.default()).shared())
    database = tmp_path / "shop.sqlite3"
    environment = {
        **os.environ,
        "ROCKETSHIM_BOOTSTRAP": broker.bootstrap,
        "ROCKETSHIM_NAMESPACE": namespace,
        "SHOP_DATABASE": str(database),
        "SHOP_TOPIC": topic(partitions=2),
    }

    def manage(*words: str) -> list[str]:
        return [sys.executable, str(PROJECT / "manage.py"), *words]

    def run(*words: str) -> None:
        subprocess.run(manage(*words), cwd=tmp_path, env=environment, check=True, timeout=GUARD_S)

    run("migrate", "--run-syncdb", "--verbosity", "0")
    consuming = subprocess.Popen(
        manage("rocketshim_consume", "--group", "payments", "--processes", "2"), cwd=tmp_path, env=environment
    )
    try:
        run("shell", "--no-imports", "--command", PLACE)
        waiting.wait_until(lambda: consuming.poll() is not None or paid(database) == [("o-7", 1)], within_s=GUARD_S)
        assert consuming.poll() is None
        consuming.send_signal(signal.SIGTERM)
        assert consuming.wait(GUARD_S) == 0
    finally:
        consuming.kill()
        consuming.wait()
    assert paid(database) == [("o-7", 1)]


def paid(database: Path) -> list[tuple[str, int]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute("SELECT number, paid FROM orders_order").fetchall()
    finally:
        connection.close()
