"""The console as a process on a real broker: from the cause to the verdict, and killed while it sends."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import Broker
from rocketshim_topics import TopicNames
from rocketshim_topics.wire import UNIQ_KEY, read_headers

from .console_stage import DEADLINE_S, console, store_dead_letters

COUNT = 1_000


@pytest.fixture
def dead(broker: Broker, admin: AdminClient, namespace: str, group: Callable[..., str]) -> str:
    """A group whose dead letters have two causes; its name."""
    name = group()
    store_dead_letters(broker, admin, namespace, name, COUNT)
    return name


def sent(broker: Broker, namespace: str, group: str) -> Counter[bytes]:
    with TopicReader(broker.bootstrap) as reader:
        found = reader.read([TopicNames(namespace).retry(group)])
        return Counter(dict(read_headers(record))[UNIQ_KEY] or b"" for record in found)


def test_an_operator_finds_the_cause_sends_ten_and_a_killed_console_sends_each_of_the_rest_once(
    broker: Broker, namespace: str, dead: str, tmp_path: Path
) -> None:
    topic = TopicNames(namespace).dead_letter(dead)
    with console(broker, namespace, tmp_path) as (process, browser):
        assert topic in browser.get("/dead")
        causes = browser.get(f"/dead/{topic}")
        assert "1,000 dead letters by cause" in causes
        assert "900 900 Timeout Timeout of order #" in causes
        plan = browser.post(f"/dead/{topic}/plans", where="FAIL_CLASS = 'Timeout'")
        assert "Send again 900 records" in browser.get(plan)
        assert not sent(broker, namespace, dead)

        browser.post(f"{plan}/apply", most="10")
        shown = browser.wait_for(f"{plan}/progress", "10 of 900 applied")
        assert "✓ None of them is a dead letter again" in shown
        assert sum(sent(broker, namespace, dead).values()) == 10

        browser.post(f"{plan}/apply", count_typed="900", rate="200")
        time.sleep(1.5)  # it is killed in the middle, wherever that is
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with console(broker, namespace, tmp_path) as (_, browser):
        assert "of 900 applied" in browser.get(plan)
        browser.post(f"{plan}/apply", count_typed="900")
        shown = browser.wait_for(f"{plan}/progress", "Applied")
        assert "by this plan: 900 , by other plans: 0, left: 0" in shown
    found = sent(broker, namespace, dead)
    assert len(found) == 900
    assert set(found.values()) == {1}


def test_ctrl_c_ends_the_console_while_it_sends_and_a_page_is_open(
    broker: Broker, namespace: str, dead: str, tmp_path: Path
) -> None:
    topic = TopicNames(namespace).dead_letter(dead)
    with console(broker, namespace, tmp_path) as (process, browser):
        plan = browser.post(f"/dead/{topic}/plans")
        browser.post(f"{plan}/apply", count_typed="1000", rate="50")
        browser.wait_for(f"{plan}/progress", "applies it")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) in {0, 130}
    assert set(sent(broker, namespace, dead).values()) <= {1}
