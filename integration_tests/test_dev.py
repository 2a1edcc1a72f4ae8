"""`rocketshim dev` as a new user meets it: the lines of the quick start, and a consumer that changes while it runs."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration_tests import waiting
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.producer.producer import Producer
from rocketshim_topics import Message
from test_support.ports import free_ports, is_free

README = Path(__file__).parents[1] / "README.md"
SHOP = """
from rocketshim import PushConsumer

consumer = PushConsumer(group="payments")  # `rocketshim dev` gives it the address


@consumer.listener("orders")
def charge(message):
    print(f"{word} {{message.body.decode()}} at attempt {{message.reconsume_times + 1}}")
"""
RETRY_S = 30.0
"""The README promises that the message succeeds within this time; a new broker and its first retry take 15 s alone."""


def wait_until(condition: Callable[[], bool]) -> None:
    waiting.wait_until(condition, within_s=120.0)


class Running:
    """A command, and what it has printed so far."""

    def __init__(self, *words: str, folder: Path, python: str = sys.executable) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.pop("ROCKETSHIM_BOOTSTRAP", None)
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)  # it may name this checkout
        self.process = subprocess.Popen(
            [python, *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.text += line

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(120)
        self.read_all()
        return code

    def read_all(self) -> None:
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*words: str, **options: str) -> Running:
        started.append(Running(*words, folder=tmp_path, **options))
        return started[-1]

    yield start
    for each in reversed(started):
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        each.read_all()


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> str:
    """The interpreter of a new environment with the wheel in it; what the wheel depends on comes from this one."""
    folder = tmp_path / "venv"
    venv.create(folder)
    python = str(folder / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("platlib"))  # the .pth files in there do not count
    return python


def test_the_quick_start_from_the_wheel_shows_a_failure_its_retry_and_its_success(
    run: Callable[..., Running], installed: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    section = README.read_text().partition("## Your first retry")[2]
    program, lines = re.findall(r"^```(?:python)?\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1:3]
    (tmp_path / "first.py").write_text(program.replace("localhost:9092", f"localhost:{port}"))
    assert [line.split("#")[0].strip() for line in lines.splitlines()] == ["rocketshim dev", "python first.py"]
    where = run("-c", "import rocketshim, rocketshim_local; print(rocketshim, rocketshim_local)", python=installed)
    assert where.process.wait(60) == 0
    wait_until(lambda: where.text.count(str(tmp_path / "venv")) == 2)
    dev = run("-m", "rocketshim", "dev", "--port", str(port), python=installed)
    wait_until(lambda: "ready at" in dev.text and "worker.assigned" in dev.text)
    first = run("first.py", python=installed)
    wait_until(lambda: "consumer.listener-failed" in first.text)
    began = time.monotonic()  # before, the machine starts a program; the ten seconds are ours
    wait_until(lambda: "charged order 1 at attempt 2" in first.text)
    assert time.monotonic() - began < RETRY_S
    assert "consumer.listener-failed: attempt 1 of 17 of message " in first.text
    assert "ConnectionError: the bank does not answer; next attempt in 10 s (level 3), at " in first.text
    assert 'raise ConnectionError("the bank does not answer")' in first.text
    assert first.stop() == 0
    second = run("-m", "rocketshim", "dev", "--port", str(port))
    assert second.process.wait(60) == 1
    wait_until(lambda: f"error: port {port} is in use: stop the process that listens there" in second.text)
    assert dev.stop() == 0
    assert dev.text.endswith("dev      | stopped\n")
    assert "GETPID" not in dev.text


def test_a_consumer_that_starts_before_the_first_send_gets_it(run: Callable[..., Running], tmp_path: Path) -> None:
    (port,) = free_ports(1)
    program = SHOP.format(word="charged").replace("PushConsumer(", f"PushConsumer('127.0.0.1:{port}', ")
    (tmp_path / "shop.py").write_text(program + "\n\nconsumer.run()\n")
    dev = run("-m", "rocketshim", "dev", "--port", str(port))
    wait_until(lambda: "ready at" in dev.text)
    shop = run("shop.py")
    wait_until(lambda: "consumer.topics-created" in shop.text)
    with Producer(f"127.0.0.1:{port}") as producer:
        producer.send(Message("orders", b"order 1"), timeout_s=30)
    wait_until(lambda: "charged order 1 at attempt 1" in shop.text)
    assert shop.stop() == 0
    assert dev.stop() == 0


def test_a_delayed_message_creates_its_topic_as_any_other_does(run: Callable[..., Running]) -> None:
    (port,) = free_ports(1)
    dev = run("-m", "rocketshim", "dev", "--port", str(port))
    wait_until(lambda: "worker.assigned" in dev.text)
    with Producer(f"127.0.0.1:{port}") as producer, TopicReader(f"127.0.0.1:{port}") as reader:
        producer.send(Message("orders", b"order 1", delay="1s"), timeout_s=60)
        producer.send(Message("reminders", b"named", delay="1s", timer="o-7"), timeout_s=60)
        wait_until(lambda: {"orders", "reminders"} <= reader.topics().keys())
        wait_until(lambda: {each.value() for each in reader.read(["orders", "reminders"])} == {b"order 1", b"named"})
    assert dev.stop() == 0
    assert "parked" not in dev.text


def test_a_consumer_starts_again_when_its_code_changes_and_data_are_kept(
    run: Callable[..., Running], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    (tmp_path / "shop.py").write_text(SHOP.format(word="charged"))
    words = ("-m", "rocketshim", "dev", "shop:consumer", "--port", str(port), "--data", "kept")
    dev = run(*words)
    wait_until(lambda: "consumer.assigned" in dev.text)
    with Producer(f"127.0.0.1:{port}") as producer:
        producer.send(Message("orders", b"order 1"), timeout_s=60)
        wait_until(lambda: "consumer | charged order 1 at attempt 1" in dev.text)
        (tmp_path / "shop.py").write_text("consumer = broken")
        wait_until(lambda: "NameError" in dev.text and "the consumer ended with exit code 1" in dev.text)
        (tmp_path / "shop.py").write_text(SHOP.format(word="paid"))
        wait_until(lambda: "starting the consumer again" in dev.text)
        producer.send(Message("orders", b"order 2"), timeout_s=60)
        wait_until(lambda: "consumer | paid order 2 at attempt 1" in dev.text)
    assert dev.stop(signal.SIGTERM) == 0
    again = run(*words)
    wait_until(lambda: "consumer.assigned" in again.text)
    assert again.stop() == 0
    assert "paid" not in again.text, "the group goes on where it was"


def test_further_signals_do_not_cut_the_clean_shutdown_of_a_broker(run: Callable[..., Running], tmp_path: Path) -> None:
    (port,) = free_ports(1)
    broker = run("-m", "rocketshim", "broker", "run", "--port", str(port), "--data", "kept")
    wait_until(lambda: "for other terminals" in broker.text)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        broker.process.send_signal(number)
        wait_until(lambda number=number: broker.process.poll() is not None or not pending(broker.process.pid, number))  # type: ignore[misc]
    assert broker.process.wait(60) == 0
    broker.read_all()
    assert broker.text.endswith("stopped\n")
    data = tmp_path / "kept" / "node-1" / "data"
    assert (data / ".kafka_cleanshutdown").exists()  # Kafka removes it at start, and writes it last


def test_a_second_ctrl_c_ends_everything_without_waiting_for_the_consumer(
    run: Callable[..., Running], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    program = SHOP.format(word="charging").replace("print(", "print(__import__('os').getpid(), ")
    (tmp_path / "shop.py").write_text(program + "    __import__('threading').Event().wait()\n")
    dev = run("-m", "rocketshim", "dev", "shop:consumer", "--port", str(port))
    wait_until(lambda: "consumer.assigned" in dev.text)
    with Producer(f"127.0.0.1:{port}") as producer:
        producer.send(Message("orders", b"order 1"), timeout_s=60)
    wait_until(lambda: "charging order 1" in dev.text)
    consumer_pid = int(re.findall(r"consumer \| (\d+) charging", dev.text)[0])

    dev.process.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in dev.text)
    with pytest.raises(subprocess.TimeoutExpired):  # a signal that comes within a second counts as the same
        dev.process.wait(1.5)
    dev.process.send_signal(signal.SIGINT)
    wait_until(lambda: dev.process.poll() is not None)
    dev.read_all()
    assert dev.process.returncode == 0
    assert dev.text.endswith("dev      | stopped\n")
    assert "it is killed" not in dev.text, "nobody waited for the consumer"
    wait_until(lambda: not Path(f"/proc/{consumer_pid}").exists())
    assert is_free(port)


def pending(pid: int, number: signal.Signals) -> bool:
    """Return whether a signal is sent to a process, and not delivered yet."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return any(
        int(line.split()[1], 16) >> (number - 1) & 1
        for line in status.splitlines()
        if line.startswith(("SigPnd", "ShdPnd"))
    )
