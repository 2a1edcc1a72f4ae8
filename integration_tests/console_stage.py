"""What tests of the console share: the console as a process, dead letters to look at, and a client that speaks HTTP."""

import html
import http.client
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, Envelope, Layout, TopicNames, encode, provision
from test_support.ports import free_ports

DEADLINE_S = 60.0
_SENT_WITHIN_S = 240.0  # 4,000 dead letters, on a machine that others use


class Browser:
    """Speaks HTTP as a browser does: one cookie, and where its forms come from."""

    def __init__(self, port: int, login: str) -> None:
        self._port = port
        self.login_url = f"http://127.0.0.1:{port}{login}"
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

    def connect(self) -> socket.socket:
        """Open a connection for a request by hand."""
        return socket.create_connection(("127.0.0.1", self._port), DEADLINE_S)

    def request(self, path: str) -> bytes:
        """Return the bytes of a GET request."""
        headers = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n{headers}\r\n".encode()

    def get(self, path: str) -> str:
        status, text, _ = self.ask("GET", path)
        assert status == 200, text
        return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))

    def post(self, path: str, **form: str) -> str:
        status, text, headers = self.ask("POST", path, form)
        assert status == 303, text
        return headers["location"]

    def wait_for(self, path: str, text: str) -> str:
        deadline = time.monotonic() + _SENT_WITHIN_S
        while text not in (shown := self.get(path)):
            assert time.monotonic() < deadline, shown
            time.sleep(0.1)
        return shown


@contextmanager
def console(
    broker: Broker, namespace: str, folder: Path, *, env: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], Browser]]:
    """Start the console as its users do; it is killed afterwards."""
    (port,) = free_ports(1)
    words = ["console", "--operate", "--listen", str(port), "--state-dir", str(folder), "--namespace", namespace]
    words += ["--worker-url", "http://127.0.0.1:1"]  # where no worker is
    command = [sys.executable, "-m", "rocketshim", *words, "--bootstrap", broker.bootstrap]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stderr is not None
        login = re.search(r"/login\?token=\S+", process.stderr.readline())
        assert login is not None
        await_port(port)
        yield process, Browser(port, login[0])
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def await_port(port: int) -> None:
    """Wait until a server on this machine listens."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "the console does not listen"
            time.sleep(0.05)
        else:
            return


def store_dead_letters(
    broker: Broker, admin: AdminClient, namespace: str, group: str, count: int, *, source: str = "orders"
) -> None:
    """Store dead letters of a group: one in ten failed with a KeyError, the others with a Timeout."""
    names = TopicNames(namespace)
    layout = Layout(names, DelayLevels.default(), retry_partitions=3, dead_letter_partitions=2)
    provision.ensure_topics(admin, [*layout.shared(), *layout.timers(), *layout.for_group(group, with_log=False)])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        cause = "KeyError" if number % 10 == 0 else "Timeout"
        envelope = Envelope(
            shim=1,
            uniq_key=f"m{number}",
            retry_topic=source,
            origin_message_id=f"{source}/0/{number}",
            reconsume_times=17,
            consumer_group=group,
            fail_class=cause,
            fail_text=f"{cause} of order {number}",
            fail_at_ms=1,
        )
        producer.produce(names.dead_letter(group), b"%d" % number, b"k%d" % (number % 50), headers=encode(envelope))
    assert producer.flush(DEADLINE_S) == 0
