"""The console as a process on a real broker: from the cause to the verdict, and killed while it sends."""

import html
import os
import queue
import re
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from rocketshim import MessageView, PushConsumer
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import Broker
from rocketshim_topics import TopicNames
from rocketshim_topics.wire import UNIQ_KEY, read_headers

from .console_stage import DEADLINE_S, console, store_dead_letters

TIMEOUTS = 4_000
OTHERS = 445  # one in ten of all


@pytest.fixture
def dead(broker: Broker, admin: AdminClient, namespace: str, group: Callable[..., str]) -> str:
    """A group whose dead letters have two causes; its name."""
    name = group()
    store_dead_letters(broker, admin, namespace, name, TIMEOUTS + OTHERS)
    return name


def number_in(page: str, pattern: str) -> int:
    """The number in a page; 0 if the pattern is not in it."""
    found = re.search(pattern, page)
    return 0 if found is None else int(found[1].replace(",", ""))


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
        causes = browser.wait_for(f"/dead/{topic}", "4,445 dead letters by cause")  # it reads for some seconds
        assert "4,000 4,000 Timeout Timeout of order #" in causes
        plan = browser.post(f"/dead/{topic}/plans", where="FAIL_CLASS = 'Timeout'")
        assert "Send again 4,000 records" in browser.get(plan)
        assert not sent(broker, namespace, dead)

        browser.post(f"{plan}/apply", most="10")
        shown = browser.wait_for(f"{plan}/progress", "10 of 4,000 applied")
        assert "None of them has failed again so far" in shown
        assert sum(sent(broker, namespace, dead).values()) == 10

        browser.post(f"{plan}/apply", count_typed="3990", rate="200")  # it takes 20 s: time to be killed
        while number_in(browser.get(f"{plan}/progress"), r"Sent: ([\d,]+)") < 1_000:
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with console(broker, namespace, tmp_path) as (_, browser):
        assert 1_000 < number_in(browser.get(plan), r"([\d,]+) of 4,000 applied") < TIMEOUTS
        left = number_in(browser.get(plan), r"left: ([\d,]+)")
        browser.post(f"{plan}/apply", count_typed=str(left))
        shown = browser.wait_for(f"{plan}/progress", "Applied")
        assert "by this plan: 4,000 , by other plans: 0, left: 0" in shown
    found = sent(broker, namespace, dead)
    assert len(found) == TIMEOUTS
    assert set(found.values()) == {1}


def test_the_verdict_of_a_group_that_runs_tells_what_failed_again_and_what_was_handled(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    name, source = f"g-{namespace}", topic()
    store_dead_letters(broker, admin, namespace, name, 30, source=source)
    consumer = PushConsumer(broker.bootstrap, group=name, namespace=namespace)
    consumer.register_message_listener(source, fail_every_tenth)
    dead = TopicNames(namespace).dead_letter(name)
    with consumer, console(broker, namespace, tmp_path) as (_, browser):
        good = browser.post(f"/dead/{dead}/plans", where="FAIL_CLASS = 'Timeout'")
        browser.post(f"{good}/apply", count_typed="27")
        browser.wait_for(f"{good}/progress", "✓ None of them failed again: all were handled")
        bad = browser.post(f"/dead/{dead}/plans")
        browser.post(f"{bad}/apply", count_typed="3")
        shown = browser.wait_for(f"{bad}/progress", "✗ 3 of them failed again, and wait for another attempt")
        assert "None of them" not in shown


ORDER = re.compile(r'>(\d)/(\d+)</a>(?:(?!</tr>)[\s\S])*{"order": (\d+)}')
"""A row of a topic's page: partition, offset, and the order in the body."""


def fail_every_tenth(message: MessageView) -> None:
    if (message.body or b"").endswith(b"0"):
        raise KeyError(message.body)


def test_an_operator_sends_a_message_finds_it_in_its_topic_and_a_consumer_gets_it(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    source, group, got = topic(partitions=3), f"g-{namespace}", queue.SimpleQueue[bytes]()
    store_dead_letters(broker, admin, namespace, group, 1)  # its topics
    consumer = PushConsumer(broker.bootstrap, group=group, namespace=namespace)
    consumer.register_message_listener(source, lambda message: got.put(message.body or b""))
    with consumer, console(broker, namespace, tmp_path) as (_, browser):
        assert source in browser.get("/topics")
        for number in range(60):
            form = {"body": f'{{"order": {number}}}', "key": f"k{number}", "tag": "odd" if number % 2 else "even"}
            stored = browser.post(f"/topics/{source}/messages", properties=f"price={number}", **form)
            assert stored.startswith(f"/message/{source}/")
        assert {got.get(timeout=DEADLINE_S) for _ in range(60)} == {b'{"order": %d}' % each for each in range(60)}
        first = browser.ask("GET", f"/topics/{source}")[1]
        assert "the limit of records on a page was reached" in first
        older = re.search(r'<a href="([^"]+)">Older records', first)
        assert older is not None
        found = [ORDER.findall(html.unescape(each)) for each in (first, browser.ask("GET", html.unescape(older[1]))[1])]
        assert [len(each) for each in found] == [50, 10]
        assert {int(order) for each in found for _, _, order in each} == set(range(60))
        for partition in "012":  # newest first, though the times of partitions may interleave
            orders = [int(order) for each in found for where, _, order in each if where == partition]
            assert orders == sorted(orders, reverse=True)
        assert re.findall(r'{"order": (\d+)}', browser.get(f"/topics/{source}?tags=odd&where=price%3C5")) == ["3", "1"]
        assert re.findall(r'{"order": (\d+)}', browser.get(f"/topics/{source}?key=k7")) == ["7"]
        record = browser.get(stored)
        assert "token (console of" in record
        assert '{ "order": 59 }' in record
        later = browser.post(f"/topics/{source}/messages", body="later", delay="1h")
        assert later.startswith(f"/message/{TopicNames(namespace).schedule}/")
        refused = browser.ask("POST", f"/topics/{source}x/messages", {"body": "x"})
        assert (refused[0], f"{source}x" in admin.list_topics(timeout=DEADLINE_S).topics) == (404, False)


def test_the_name_of_a_group_does_not_end_the_console(broker: Broker, namespace: str, tmp_path: Path) -> None:
    with console(broker, namespace, tmp_path) as (process, browser):
        for name in ("%00", "%00a", "a%00", "%0a", "%ff", "%20", "a" * 300):
            assert browser.ask("GET", f"/groups/{name}")[0] == 404, name
        assert process.poll() is None


def test_ctrl_c_ends_the_console_while_it_sends_and_a_page_is_open(
    broker: Broker, namespace: str, dead: str, tmp_path: Path
) -> None:
    topic = TopicNames(namespace).dead_letter(dead)
    with console(broker, namespace, tmp_path) as (process, browser):
        plan = browser.post(f"/dead/{topic}/plans")
        browser.post(f"{plan}/apply", count_typed="4445", rate="50")
        browser.wait_for(f"{plan}/progress", "applies it")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) in {0, 130}
    assert set(sent(broker, namespace, dead).values()) <= {1}


def test_a_hundred_tabs_are_served_beside_clients_that_neither_finish_a_request_nor_read_an_answer(
    broker: Broker, namespace: str, dead: str, tmp_path: Path
) -> None:
    causes = f"/dead/{TopicNames(namespace).dead_letter(dead)}"
    with console(broker, namespace, tmp_path) as (_, browser), ExitStack() as silent:
        for number in range(60):
            connection = silent.enter_context(browser.connect())
            connection.sendall(browser.request(causes) if number % 2 else b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        with ThreadPoolExecutor(100) as tabs:
            shown = list(tabs.map(browser.get, ["/tiles"] * 300))
    assert all("Dead letters 4,445 4,445 new in 24 h" in each for each in shown[-100:])
