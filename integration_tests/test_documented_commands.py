"""Every `rocketshim` command of README and docs runs as it stands, on a real broker, from an empty folder.

A page's commands run in their order, with the address in `ROCKETSHIM_BOOTSTRAP`, and with files by relative names.
Words in capitals, which the reader fills in, and addresses are replaced. `NOT_HERE` lists the others, each with its
reason. A command that is named without any argument has to exist. `PROGRAMS` names the test that runs the programs of a
page.
"""

import json
import logging
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as PlainProducer

import rocketshim
import rocketshim.dropin
from rocketshim import ConsumeFromWhere, DeadLetter, Message, Producer, PushConsumer
from rocketshim.cli import main
from rocketshim_local import LocalCluster
from rocketshim_topics import DelayLevels, TopicNames

from .running import patient_worker, running
from .waiting import wait_until

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DEADLINE_S = 60.0
ORDERS = b'{"body": "1"}\n'

NOT_HERE: dict[str, str] = {
    r"dev\b": "runs until Ctrl-C: test_dev.py",
    r"(worker|run|console|exporter|top)\b": "runs until it is stopped: test_worker_cli.py, test_stopping.py, "
    "test_console.py, test_observe.py",
    r"spark\b": "needs Spark: test_spark_flights.py, test_spark_land.py, test_spark_jobs.py",
    r"--install-completion": "changes the shell of the user: shim/tests/cli/test_manners.py",
    r"healthcheck\b": "needs a running worker: test_worker_cli.py",
    r".*(--profile|@FILE|@/etc/)": "needs a configuration file: shim/tests/cli/test_profiles.py",
    r"acls --role spark --group …": "left out on purpose: …",
}
FILLED_IN = {
    "ID": "the-id", "PARTITION/OFFSET": "0/0", "GROUP": "payments", "G": "payments", "TOPIC": "orders", "T": "orders",
    "TOPIC/PARTITION/OFFSET": "orders/0/0", "N": "3", "K": "o-1", "TIME": "2h",
    "localhost:9092": "", "kafka:9092": "", "127.0.0.1:9092": "",
}  # fmt: skip


def blocks(text: str) -> tuple[list[str], str]:
    """Return the lines of all code blocks that are no program, and the text without blocks."""
    lines: list[str] = []
    prose: list[str] = []
    language: str | None = None
    for line in text.splitlines():
        fence = re.match(r"\s*```(\w*)", line)
        if fence is not None:
            language = (fence[1] or "shell") if language is None else None
        elif language is None:
            prose.append(line)
        elif language in {"shell", "bash", "console"}:
            lines.append(line)
    return lines, "\n".join(prose)


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a page: those of blocks in their order, then those within sentences."""
    lines, prose = blocks(text)
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        found = re.match(r"\s*(?:\d:\d\d )?(?:\$ )?(?:cat orders.jsonl \| )?rocketshim (.*)$", line)
        if found is not None:
            yield re.sub(r"(^|\s+)#.*$", "", found[1]).strip()
    for found_text in re.findall(r"`rocketshim ([^`]+)`", prose):
        yield " ".join(found_text.split())


def why_not_here(command: str) -> str | None:
    return next((reason for pattern, reason in NOT_HERE.items() if re.match(pattern, command)), None)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster of this file alone, with the topics and groups of the pages, and something of everything in it."""
    with LocalCluster(1, properties={"auto.create.topics.enable": "true"}) as cluster:
        cluster.touch_internal_topics()
        there = ["--bootstrap", cluster.bootstrap]
        for words in (
            ["--topic", "orders", "--partitions", "8", "--group", "payments", "--group", "billing", "--with-log"],
            ["--topic", "order-timeouts", "--topic", "orders-dlt", "--group", "order-timeout"],
            ["--topic", "reports", "--topic", "reindex", "--topic", "dlq.payments"],
        ):
            assert main(["init", *there, *words]) == 0
        fill(cluster)
        yield cluster


def fill(cluster: LocalCluster) -> None:
    """Dead letters, positions of groups, waiting and parked messages."""
    there, names = cluster.bootstrap, TopicNames()
    handled = threading.Semaphore(0)
    consumer = PushConsumer(there, group="payments", consume_from_where=ConsumeFromWhere.FIRST_OFFSET)

    def charge(message: object) -> None:
        del message
        handled.release()
        raise DeadLetter("no such card")

    consumer.listener("orders")(charge)
    with Producer(there) as producer:
        for number in range(20):
            producer.send(Message("orders", b"%d" % number, key=f"o-{number}"), timeout_s=DEADLINE_S)
        producer.send(Message("orders", b"later", delay="2h"), timeout_s=DEADLINE_S)
    consumer.start()
    for _ in range(20):
        assert handled.acquire(timeout=DEADLINE_S)
    consumer.stop()
    plain = PlainProducer({"bootstrap.servers": there})
    plain.produce(names.schedule, b"no target", partition=0)
    plain.produce("orders-dlt", b"x", headers={"kafka_dlt-original-topic": b"orders", "kafka_dlt-exception-fqcn": b"E"})
    assert plain.flush(DEADLINE_S) == 0
    worker = patient_worker(there, "", str(DelayLevels.default()))
    with running(worker):
        wait_until(lambda: worker.counts.parked != {}, "a parked record", within_s=DEADLINE_S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_runs_from_an_empty_folder(
    page: Path,
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", cluster.bootstrap)
    for name in ("ROCKETSHIM_NAMESPACE", "ROCKETSHIM_PROFILE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    declared = re.search(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if declared is not None:
        (tmp_path / "cron.toml").write_text(declared[1], encoding="utf-8")
    failed = []
    for command in dict.fromkeys(commands(page.read_text(encoding="utf-8"))):
        if why_not_here(command) is not None or "…" in command:
            continue
        words = [FILLED_IN.get(word, word) or cluster.bootstrap for word in shlex.split(command)]
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(ORDERS)))
        code = main(words)
        shown = capsys.readouterr()
        if code == 1 and re.fullmatch(r"[a-z-]+( [a-z-]+)?", command):
            code = main([*words, "--help"])  # a sentence names a command without its arguments
        if code not in {0, 2}:
            failed.append((command, code, shown.err[-300:]))
    assert not failed


PROGRAMS: dict[str, tuple[int, str]] = {
    "README.md": (2, "shim/tests/test_documentation.py"),
    "consumer.md": (8, "shim/tests/test_documentation.py"),
    "dropin.md": (6, "here"),
    "filters.md": (1, "shim/tests/test_documentation.py"),
    "from-rocketmq-python.md": (5, "here"),
    "idempotent.md": (3, "shim/tests/docs/test_programs.py"),
    "order-timeout.md": (3, "shim/tests/docs/test_programs.py"),
    "orderly.md": (2, "shim/tests/test_documentation.py"),
    "pull.md": (3, "shim/tests/test_documentation.py"),
    "recipes.md": (8, "shim/tests/docs/test_programs.py"),
    "sending.md": (6, "shim/tests/docs/test_programs.py"),
    "spark.md": (1, "integration_tests/test_spark_jobs.py"),
    "testing.md": (4, "shim/tests/testing/test_documentation.py"),
    "timers.md": (5, "shim/tests/docs/test_programs.py"),
    "transactions.md": (2, "shim/tests/docs/test_programs.py"),
    "wire-format.md": (1, "here"),
}
"""How many programs a page has, and which test runs them. Of the pages `here` these do not run: a program called
"before", of another library, and fragments of dropin.md that need a schema registry or stand within a coroutine of the
reader."""


def programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_every_program_of_a_page_has_a_test() -> None:
    found = {page.name: page.read_text(encoding="utf-8").count("```python\n") for page in PAGES}
    assert {name: count for name, count in found.items() if count} == {name: each[0] for name, each in PROGRAMS.items()}
    for name, (_, test) in PROGRAMS.items():
        assert test == "here" or name.removesuffix(".md") in (ROOT / test).read_text(encoding="utf-8") or name in {
            "spark.md", "README.md",
        }, name  # fmt: skip


class Turns:
    """`running` of a program: true as long as something is missing."""

    def __init__(self, is_done: Callable[[], bool]) -> None:
        self._is_done = is_done
        self._until_s = time.monotonic() + DEADLINE_S

    def __bool__(self) -> bool:
        assert time.monotonic() < self._until_s, "the program has not handled everything in time"
        return not self._is_done()


def run(program: str, **names: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "documentation", **names}
    exec(compile(program, "documentation", "exec"), scope)  # noqa: S102 - our own pages
    return scope


def own(program: str, cluster: LocalCluster, group: str) -> str:
    """Put in the address, and a group of this test that begins at the start of its topics."""
    start = f'"group.id": "{group}", "auto.offset.reset": "earliest"'
    return program.replace('"..."', f'"{cluster.bootstrap}"').replace('"group.id": "payments"', start)


@pytest.mark.parametrize("page", ["dropin.md", "from-rocketmq-python.md"])
def test_the_loops_of_the_drop_in(page: str, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    class NoSuchCustomer(Exception):  # noqa: N818 - the name in the page
        pass

    charged: list[object] = []

    def charge(message: object) -> bool:
        charged.append(message)
        if len(charged) == 1 and page == "dropin.md":
            raise NoSuchCustomer
        if len(charged) == 2 and page == "dropin.md":
            raise ConnectionError
        return len(charged) > 2

    group = f"loop-{page[:6]}"
    number = 1 if page == "dropin.md" else 4
    scope = run(
        own(programs(page)[number], cluster, group), running=Turns(lambda: len(charged) >= 15), charge=charge,
        NoSuchCustomer=NoSuchCustomer, rocketshim=rocketshim, log=logging.getLogger("documentation"),
    )  # fmt: skip
    scope["consumer"].close()
    there = ["--bootstrap", cluster.bootstrap, "--json"]
    capsys.readouterr()
    assert main(["delayed", "ls", "--topic", f"%RETRY%{group}", *there]) == 0
    assert len(capsys.readouterr().out.splitlines()) == (1 if page == "dropin.md" else 2)
    if page == "dropin.md":
        assert main(["dlq", "ls", "--group", group, *there]) == 0
        assert "NoSuchCustomer" in capsys.readouterr().out


def test_senders_of_the_pages(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    scope = run(own(programs("dropin.md")[2], cluster, "g"))
    assert scope["producer"].flush(DEADLINE_S) == 0
    run(programs("wire-format.md")[0].replace("localhost:9092", cluster.bootstrap))
    capsys.readouterr()
    assert main(["delayed", "ls", "--topic", "orders", "--bootstrap", cluster.bootstrap, "--json"]) == 0
    waiting = map(json.loads, capsys.readouterr().out.splitlines())
    assert {each["due_ms"] - each["stored_ms"] for each in waiting} >= {45_000, 1_800_000}


def test_a_program_of_rocketmqs_python_client_with_the_two_lines_changed(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after, in_order, *_ = programs("from-rocketmq-python.md")
    run(in_order.replace("localhost:9092", cluster.bootstrap), rocketshim=rocketshim, charge=print)
    imported, _, address, *_ = after.splitlines()
    program = "\n".join([imported, *before.splitlines()[1:]]).replace("message.set_delay_time_level(3)\n", "")
    scope = run(program.replace("127.0.0.1:9876", cluster.bootstrap))
    assert "127.0.0.1:9092" in address
    consumer = scope["consumer"]
    try:
        assert re.match(r"[0-9A-Fa-f]+\n", capsys.readouterr().out)
    finally:
        consumer.shutdown()
        scope["producer"].shutdown()


def test_what_does_not_run_here_is_in_a_page_and_has_an_existing_test() -> None:
    everything = [command for page in PAGES for command in commands(page.read_text(encoding="utf-8"))]
    for pattern, reason in NOT_HERE.items():
        assert any(re.match(pattern, command) for command in everything), f"no page has {pattern} any more"
        for test in re.findall(r"[\w/]*test_\w+\.py", reason):
            assert (ROOT / test).exists() or (ROOT / "integration_tests" / test).exists(), test
