"""Five breakages of a real installation: `status`, the console's overview and a metric name each one soon.

Each is then ended by the command of its finding or of its runbook, and the finding goes.
"""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from rocketshim import DeadLetter, MessageView, Producer, PushConsumer
from rocketshim.cli import main
from rocketshim_local import Broker
from test_support.ports import free_ports

from .console_stage import Browser, console
from .waiting import wait_until

WITHIN_S = 30.0  # 10 s on a machine that does nothing else
DEADLINE_S = 25.0


class Installation:
    """A namespace with a worker, an exporter and a console, and everything that says what is wrong."""

    def __init__(self, broker: Broker, namespace: str, browser: Browser, port: int) -> None:
        self.bootstrap, self.namespace = broker.bootstrap, namespace
        self.where = ["--bootstrap", broker.bootstrap, "--namespace", namespace]
        self._browser, self._port = browser, port
        self.seconds: dict[str, dict[str, float]] = {}

    def status(self) -> dict[str, str]:
        command = [sys.executable, "-m", "rocketshim", "status", *self.where, "--json"]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        found: dict[str, str] = {}
        for each in json.loads(run.stdout)["findings"]:
            found[each["check"]] = f"{found.get(each['check'], '')} {each['what']}"
        return found

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def named(self, check: str, subject: str, text: str) -> dict[str, float]:
        """Wait until all three name a finding; return after how many seconds each did."""
        began_s, found = time.monotonic(), dict[str, float]()
        looks: dict[str, Callable[[], bool]] = {
            "status": lambda: text in self.status().get(check, ""),
            "overview": lambda: text in self._browser.get("/"),
            "metric": lambda: f'rocketshim_finding{{check="{check}"' in self.metrics() and subject in self.metrics(),
        }

        def look(name: str) -> None:
            wait_until(looks[name], f"{check} in {name}", within_s=DEADLINE_S)
            found[name] = time.monotonic() - began_s

        threads = [threading.Thread(target=look, args=(name,), daemon=True) for name in looks]
        for each in threads:
            each.start()
        for each in threads:
            each.join(DEADLINE_S)
        assert found.keys() == looks.keys(), (found, self.status(), self.metrics())
        self.seconds[check] = found
        return found

    def gone(self, check: str) -> None:
        wait_until(lambda: check not in self.status(), f"no {check}", within_s=DEADLINE_S)


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", "rocketshim", *words])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def consuming(consumer: PushConsumer) -> Iterator[None]:
    consumer.start()
    try:
        yield
    finally:
        consumer.stop()


def test_five_breakages_are_named_soon_and_end(  # noqa: C901, PLR0915 - a story
    broker: Broker, admin: AdminClient, namespace: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    shipments, orders, invoices, reports = (f"{namespace}.{name}" for name in ("ship", "orders", "invoices", "reports"))
    where = ["--bootstrap", broker.bootstrap, "--namespace", namespace]
    shipping, payments, mailer = (f"{name}-{namespace}" for name in ("shipping", "payments", "mailer"))
    words = [word for topic in (shipments, orders, invoices) for word in ("--topic", topic)]
    words += [word for group in (shipping, payments, mailer) for word in ("--group", group)]
    assert main(["init", *where, *words, "--with-log"]) == 0
    assert main(["init", *where, "--topic", reports, "--partitions", "8"]) == 0
    there = broker.bootstrap
    is_slow, has_customers, paid = threading.Event(), threading.Event(), threading.Semaphore(0)

    def ship(message: MessageView) -> None:
        if message.body == b"poison":
            raise ConnectionError("warehouse 7 does not answer")

    def pay(_: MessageView) -> None:
        if not has_customers.is_set():
            raise DeadLetter("it was cancelled by its customer")
        paid.release()

    def mail(_: MessageView) -> None:
        if is_slow.is_set():
            time.sleep(0.2)

    def mailers() -> PushConsumer:
        made = PushConsumer(there, group=mailer, namespace=namespace, consume_thread_min=1, consume_thread_max=1)
        made.listener(reports)(mail)
        return made

    consumers = {
        shipping: PushConsumer(there, group=shipping, namespace=namespace),
        payments: PushConsumer(there, group=payments, namespace=namespace),
        mailer: mailers(),
    }
    consumers[shipping].listener(shipments, orderly=True)(ship)
    consumers[payments].listener(orders)(pay)
    worker = ["worker", *where, "--allow", f"{namespace}*"]
    exporter = ["exporter", *where, "--listen", str(port), "--every", "2", "--doctor-every", "0"]
    with ExitStack() as stack:
        stack.enter_context(running(*exporter))
        browser = stack.enter_context(console(broker, namespace, tmp_path))[1]
        here = Installation(broker, namespace, browser, port)
        first = stack.enter_context(running(*worker))
        producer = stack.enter_context(Producer(there, namespace=namespace))
        for consumer in consumers.values():
            stack.enter_context(consuming(consumer))
        for topic in (shipments, reports):
            producer.send(topic, b"x")
        for name in (None, "pay"):
            producer.send(invoices, b"x", delay="1h", timer=name)
        calm = {"worker-not-ready"}  # the console asks a worker that is none
        wait_until(lambda: not here.status().keys() - calm, "all is well", within_s=DEADLINE_S)

        first.terminate()  # a worker that is killed is a member of its group for 10 s more
        first.wait()
        here.named("worker-missing", "rmq.sched", "no worker is running")
        stack.enter_context(running(*worker))
        here.gone("worker-missing")

        producer.send(shipments, b"poison")
        producer.send(shipments, b"behind it")
        here.named("queue-blocked", shipments, "ConnectionError: warehouse 7 does not answer")
        assert main(["group", "dead-letter", shipping, f"{shipments}/0/1", *where, "--apply"]) == 0
        here.gone("queue-blocked")

        admin.delete_topics([invoices])[invoices].result(DEADLINE_S)
        here.named("target-missing", invoices, "does not exist, and waiting messages go to it, 2 at least")
        assert main(["init", *where, "--topic", invoices]) == 0
        here.gone("target-missing")

        for _ in range(3):
            producer.send(orders, b"x")
        here.named("dead-letters-rising", payments, "DeadLetter: it was cancelled by its customer")
        has_customers.set()
        plan = str(tmp_path / "plan.json")
        assert main(["dlq", "plan", *where, "--group", payments, "--out", plan]) == 0
        assert main(["dlq", "apply", plan, "--bootstrap", there]) == 0
        for _ in range(3):  # the finding stays until they are 15 minutes old
            assert paid.acquire(timeout=DEADLINE_S)

        is_slow.set()
        stop = threading.Event()

        def flood() -> None:
            while not stop.wait(0.04):
                producer.send(reports, b"x")

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            here.named("group-behind", mailer, "and growing")
            for _ in range(7):
                stack.enter_context(consuming(mailers()))
            wait_until(lambda: 'check="group-behind"' not in here.metrics(), "more consumers help", within_s=60.0)
        finally:
            stop.set()
            flooding.join()
        here.gone("group-behind")
    print(json.dumps(here.seconds))  # noqa: T201 - the measured seconds, with -s
    assert max(each for found in here.seconds.values() for each in found.values()) < WITHIN_S, here.seconds
