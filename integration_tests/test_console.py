"""The console as a process on a real broker: from the cause to the verdict, and killed while it sends."""

import html
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, Envelope, Layout, TopicNames, encode, provision
from rocketshim_topics.wire import UNIQ_KEY, read_headers

COUNT = 1_000
DEADLINE_S = 60.0


class Browser:
    """Speaks HTTP as a browser does: one cookie, and where its forms come from."""

    def __init__(self, port: int, login: str) -> None:
        self._port = port
        self._headers = {"sec-fetch-site": "same-origin"}
        status, _, headers = self.ask("GET", login)
        assert status == 303
        self._headers["cookie"] = headers["set-cookie"].partition(";")[0]

    def ask(self, method: str, path: str, form: dict[str, str] | None = None) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        body = None if form is None else urlencode(form)
        connection.request(method, path, body, self._headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, {name.lower(): value for name, value in answer.getheaders()}

    def get(self, path: str) -> str:
        status, text, _ = self.ask("GET", path)
        assert status == 200, text
        return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))

    def post(self, path: str, **form: str) -> str:
        status, text, headers = self.ask("POST", path, form)
        assert status == 303, text
        return headers["location"]

    def wait_for(self, path: str, text: str) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while text not in (shown := self.get(path)):
            assert time.monotonic() < deadline, shown
            time.sleep(0.1)
        return shown


@contextmanager
def console(broker: Broker, namespace: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Browser]]:
    """Start the console as its users do; it is killed afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["console", "--operate", "--listen", str(port), "--state-dir", str(folder), "--namespace", namespace]
    command = [sys.executable, "-m", "rocketshim", *words, "--bootstrap", broker.bootstrap]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        login = re.search(r"/login\?token=\S+", process.stderr.readline())
        assert login is not None
        _await_port(port)
        yield process, Browser(port, login[0])
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _await_port(port: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "the console does not listen"
            time.sleep(0.05)
        else:
            return


@pytest.fixture
def dead(broker: Broker, admin: AdminClient, namespace: str, group: Callable[..., str]) -> str:
    """A group whose dead letters have two causes; its name."""
    name, names = group(), TopicNames(namespace)
    layout = Layout(names, DelayLevels.default(), retry_partitions=3, dead_letter_partitions=2)
    provision.ensure_topics(admin, [*layout.shared(), *layout.for_group(name, with_log=False)])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(COUNT):
        cause = "KeyError" if number % 10 == 0 else "Timeout"
        envelope = Envelope(
            shim=1,
            uniq_key=f"m{number}",
            retry_topic="orders",
            origin_message_id=f"orders/0/{number}",
            reconsume_times=17,
            consumer_group=name,
            fail_class=cause,
            fail_text=f"{cause} of order {number}",
            fail_at_ms=1,
        )
        producer.produce(names.dead_letter(name), b"%d" % number, b"k%d" % (number % 50), headers=encode(envelope))
    assert producer.flush(DEADLINE_S) == 0
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
