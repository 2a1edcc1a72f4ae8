"""`rocketshim doctor` on a real broker: each check finds what is broken, and says nothing where all is well."""

import json
import re
import shlex
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as PlainProducer
from confluent_kafka.admin import AdminClient

from rocketshim import DelayWorker, Message, Producer, PushConsumer, WorkerSettings
from rocketshim.admin.doctor import CHECKS, Severity, examine, gather
from rocketshim.cli import main
from rocketshim.core.worker_notes import levels_metadata
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.groups import GroupReader
from rocketshim.observe.snapshot import FailingMessage, Snapshot
from rocketshim_local import Broker, LocalCluster
from rocketshim_local.startup_kit import startup_kit
from rocketshim_topics import DelayLevels, TopicNames, TopicSpec, provision
from rocketshim_topics.coordinates import TopicPartitionKey

from .running import killed_at_last
from .waiting import wait_until

DEADLINE_S = 60.0
LEVELS = "1s 5s 10m"
LOADING = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE}
Findings = list[dict[str, Any]]


def doctor(bootstrap: str, *words: str) -> tuple[int, Findings]:
    """The exit code and what `doctor --json` found."""
    command = [sys.executable, "-m", "rocketshim", "doctor", "--bootstrap", bootstrap, "--json", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * DEADLINE_S)
    assert run.returncode in {0, 2}, run.stderr
    return run.returncode, json.loads(run.stdout)


def create(admin: AdminClient, name: str, partitions: int, replication: int | None = None, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    provision.ensure_topics(admin, [TopicSpec(name, partitions, settings, replication_factor=replication)])


def commit(bootstrap: str, group: str, *places: TopicPartition) -> None:
    """Commit; a broker that has just started may still be loading the group's positions."""
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})) as member:
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                member.commit(offsets=list(places), asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() not in LOADING or time.monotonic() > until:
                    raise
            else:
                return


def write(bootstrap: str, topic: str, *, partition: int, count: int = 1, **record: Any) -> None:
    producer = PlainProducer({"bootstrap.servers": bootstrap, "acks": "all"})
    for _ in range(count):
        producer.produce(topic, b"x", partition=partition, **record)
    assert producer.flush(DEADLINE_S) == 0


@pytest.fixture(scope="module")
def space(admin: AdminClient) -> Iterator[str]:
    unique = f"ns{uuid.uuid4().hex[:10]}"
    yield unique
    made = [name for name in admin.list_topics(timeout=DEADLINE_S).topics if name.startswith(unique)]
    for future in admin.delete_topics(made).values():
        future.result(DEADLINE_S)


@pytest.fixture(scope="module")
def broken(broker: Broker, admin: AdminClient, space: str) -> Iterator[tuple[list[str], Findings]]:
    """A namespace in which everything is wrong that can be on one broker, and what the doctor says of it."""
    namespace = f"{space}bad"
    names, orders, there = TopicNames(namespace), f"{namespace}.orders", broker.bootstrap
    create(
        admin, names.schedule, 18, retention_ms="500000", retention_bytes="100000", max_message_bytes="2000",
        message_timestamp_type="CreateTime",
    )  # fmt: skip
    create(admin, names.parked, 1)
    create(admin, names.timers, 1)  # as a broker creates it by itself
    create(admin, names.timer_state, 1, message_timestamp_type="LogAppendTime")
    create(admin, names.retry("payments"), 1, cleanup_policy="compact", retention_ms="60000")
    create(admin, names.group_log("payments"), 2, segment_ms="3600000")  # and no dead-letter topic
    create(admin, orders, 4, cleanup_policy="compact,delete", max_message_bytes="2097152")

    with Producer(there, namespace=namespace, delay_levels="1s 5s 10s 60s") as producer:
        for level in (1, 3, 4):
            producer.send(Message(orders, b"x", key="k", delay_level=level), timeout_s=DEADLINE_S)
    for number in range(20):
        write(there, orders, partition=0, key=f"k{number}")
    write(there, names.parked, partition=0)
    write(there, names.parked, partition=0, headers=[("PARK_REASON", b"forbidden-target:not-allowed")])
    write(there, names.schedule, partition=0, count=3)
    create(admin, names.retry("renamed"), 1)
    write(there, names.retry("renamed"), partition=0, timestamp=time.time_ns() // 1_000_000 - 2 * 3_600_000)
    rolling = [TopicPartition(orders, 2 + at, 0, metadata=f"rs1;{at};4;{orders}=*{', new=*' * at}") for at in (0, 1)]
    commit(there, "renamed", TopicPartition(names.retry("renamed"), 0, 0), *rolling)
    half = {"REAL_TOPIC": orders.encode(), "TIMER": b"tx-1", "TIMER_SET_AT": b"1", "TIMER_ASKED": b"3"}
    for group in ("shop", "silent"):
        state = half | {"TIMER_ASKS": group.encode()}
        write(there, names.timer_state, partition=0, key=group.encode() * 3, headers=[*state.items()])
    create(admin, names.check("silent"), 4)
    ran_with = levels_metadata(DelayLevels.parse("1s 6s"))
    commit(there, names.worker_group, TopicPartition(names.schedule, 0, 0, metadata=ran_with))
    mine = [
        TopicPartition(orders, number, 1 - number, metadata=f"rs1;{number};4;{orders}={number}") for number in (0, 1)
    ]
    commit(there, "payments", *mine)
    for future in admin.delete_records([TopicPartition(names.schedule, 0, 2), TopicPartition(orders, 0, 5)]).values():
        future.result(DEADLINE_S)

    held = PlainProducer({"bootstrap.servers": there, "transactional.id": namespace, "transaction.timeout.ms": 600_000})
    held.init_transactions(DEADLINE_S)
    held.begin_transaction()
    held.produce(orders, b"x", key=b"held", partition=3, timestamp=(time.time_ns() // 1_000_000) - 300_000)
    held.flush(DEADLINE_S)

    words = ["--namespace", namespace, "--topic", orders, "--topic", f"{namespace}.nowhere", "--delay-levels", LEVELS]
    for setting in (
        "isolation.level=read_uncommitted",
        "partitioner=consistent_random",
        "sasl.password=s3cret-canary",
        "fetch.min.bytes=100000",
    ):
        words += ["--client", setting]
    code, found = doctor(there, *words, "--consume-timeout", "15m")
    assert code == 2
    yield ["--namespace", namespace, "--topic", orders, "--delay-levels", LEVELS], found
    held.abort_transaction(DEADLINE_S)


@pytest.fixture(scope="module")
def sound(broker: Broker, space: str) -> Iterator[list[str]]:
    """A namespace as `init` makes it, with a worker that runs, messages that wait, and a group that has consumed."""
    namespace, there = f"{space}good", broker.bootstrap
    names, orders = TopicNames(namespace), f"{namespace}.orders"
    common = ["--bootstrap", there, "--namespace", namespace, "--delay-levels", LEVELS]
    assert main(["init", *common, "--topic", orders, "--partitions", "4", "--group", "billing"]) == 0
    with Producer(there, namespace=namespace, delay_levels=LEVELS) as producer:
        for number in range(40):
            producer.send(Message(orders, b"x", key=f"k{number}"), timeout_s=DEADLINE_S)
        producer.send(Message(orders, b"x", delay="1h"), timeout_s=DEADLINE_S)
        producer.send(Message(orders, b"x", delay_level=3), timeout_s=DEADLINE_S)
    with TopicReader(there) as reader:
        ends = [(number, reader.bounds(orders, number)[1]) for number in range(4)]
    commit(there, "billing", *(TopicPartition(orders, n, end, metadata=f"rs1;d;4;{orders}=*") for n, end in ends))
    worker = DelayWorker(
        WorkerSettings.make(bootstrap=there, namespace=namespace, delay_levels=LEVELS, allow=(orders,))
    )
    worker.start()
    stopping = threading.Event()

    def work() -> None:
        while not stopping.is_set():
            worker.step()
        worker.close()

    thread = threading.Thread(target=work)
    thread.start()
    assert names.worker_group == worker.group
    with TopicReader(there) as reader:
        groups = GroupReader(reader)
        wait_until(
            lambda: len(groups.read(names.worker_group).partitions) == 40, "the worker's commits", within_s=DEADLINE_S
        )
    yield ["--namespace", namespace, "--topic", orders, "--delay-levels", LEVELS]
    stopping.set()
    worker.stop()
    thread.join()


ONE_BROKER = {
    "topic-missing": ("rmq.dlq.payments", "error"),
    "timestamp-type": ("SCHEDULE_TOPIC_XXXX", "error"),
    "compaction": ("rmq.retry.payments", "error"),
    "retention": ("SCHEDULE_TOPIC_XXXX", "error"),
    "retention-bytes": ("SCHEDULE_TOPIC_XXXX", "error"),
    "message-size": ("rmq.retry.payments", "error"),
    "segment": ("rmq.group.payments", "note"),
    "partition-count": ("SCHEDULE_TOPIC_XXXX", "error"),
    "target-compacted": ("orders", "warning"),
    "worker-missing": ("rmq.sched", "error"),
    "retention-overtook": ("SCHEDULE_TOPIC_XXXX", "error"),
    "group-behind": ("renamed", "warning"),
    "retention-backlog": ("SCHEDULE_TOPIC_XXXX/2", "error"),
    "level-removed": ("SCHEDULE_TOPIC_XXXX", "warning"),
    "level-changed": ("SCHEDULE_TOPIC_XXXX/2", "error"),
    "level-table": ("rmq.sched", "warning"),
    "transactions-unanswered": ("silent", "warning"),
    "parked": ("rmq.parked", "warning"),
    "parked-not-allowed": ("rmq.parked", "warning"),
    "open-transaction": ("orders/3", "error"),
    "subscriptions-differ": ("orders", "error"),
    "topics-differ": ("orders", "note"),
    "partitioner": ("orders", "warning"),
    "client-setting": ("isolation.level", "error"),
    "poll-interval": ("max.poll.interval.ms", "error"),
}


ELSEWHERE = {
    "worker-late": "test_a_worker_that_is_there_and_does_not_work_is_late",
    "timers-late": "test_a_worker_that_does_not_read_the_commands_of_timers_is_late",
    "clock-skew": "test_a_clock_that_is_off_is_measured",
    **dict.fromkeys(
        ("queue-blocked", "target-missing", "dead-letters-rising"),
        "test_verdict.py::test_five_breakages_are_named_soon_and_end",
    ),
    **dict.fromkeys(
        ("worker-not-ready", "target-avoided"), "test_verdict.py::test_one_fault_is_one_finding_with_cost_and_way_out"
    ),
    "session-timeout": "test_a_session_that_the_brokers_refuse_is_found_and_the_one_named_is_accepted",
    "marks-lost": "test_records_whose_marks_are_gone_are_found_until_the_ways_out_are_taken",
    "append-time-not-kept": "test_probe.py::test_a_broker_that_does_not_keep_append_times_is_found_by_a_record",
    "cluster-lacks": "test_checks.py::test_one_fault_is_one_finding",
    "not-measured": "test_security.py::test_the_probe_names_the_right_that_it_lacks_and_leaves_nothing",
    **dict.fromkeys(
        ("copies", "min-in-sync", "no-leader", "in-sync", "offsets-retention", "auto-create", "transaction-timeout"),
        "test_copies_and_brokers_that_are_away_are_found",
    ),
    **dict.fromkeys(
        ("rights", "not-looked-at"), "test_security.py::test_the_doctor_names_the_rights_that_a_stranger_lacks"
    ),
}
"""Where the others are broken: they need a member that hangs, a clock, three brokers, an authorizer, or a broker that
is none of Kafka's (`cluster-lacks`, `append-time-not-kept`: in memory). All is well in
`test_nothing_is_said_where_all_is_well`, for copies in the three brokers' test, for rights also in
`test_security.py::test_an_operator_has_every_tool`."""


def test_each_check_of_the_page_is_broken_on_a_real_broker() -> None:
    page = (Path(__file__).parents[1] / "docs" / "operations.md").read_text(encoding="utf-8")
    heads = "| check | finds |\n", "| finding | is there |\n"
    rows = [row for head in heads for row in page.partition(head)[2].partition("\n\n")[0].splitlines()]
    listed = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert listed == {*ONE_BROKER, *ELSEWHERE}
    unit = Path(__file__).parents[1] / "shim" / "tests" / "admin" / "doctor"
    files = (
        Path(__file__),
        Path(__file__).parent / "test_security.py",
        Path(__file__).parent / "test_verdict.py",
        unit.parents[1] / "observe" / "test_verdict.py",
        unit / "test_probe.py",
        unit / "test_checks.py",
    )
    here = "".join(file.read_text(encoding="utf-8") for file in files)
    assert all(f"def {test.rpartition('::')[2]}(" in here for test in ELSEWHERE.values())


@pytest.mark.parametrize("check", ONE_BROKER)
def test_what_is_broken_is_found_with_its_cost_and_what_fixes_it(
    check: str, broken: tuple[list[str], Findings]
) -> None:
    subject, severity = ONE_BROKER[check]
    found = [each for each in broken[1] if each["check"] == check and each["subject"].endswith(subject)]
    assert [each["severity"] for each in found] == [severity], broken[1]
    assert all(each["what"] and each["cost"] and each["fix"] for each in found)


@pytest.mark.parametrize(
    ("check", "subject"),
    [
        ("topic-missing", "nowhere"),
        ("timestamp-type", "rmq.group.payments"),
        ("timestamp-type", "rmq.timers"),
        ("partition-count", "rmq.timers"),
        ("partition-count", "rmq.timers.state"),
        ("compaction", "rmq.timers.state"),
        ("partition-count", "rmq.group.payments"),
        ("retention", "rmq.retry.payments"),
        ("retention-overtook", "orders/0"),
        ("client-setting", "partitioner"),
        ("client-setting", "fetch.min.bytes"),
        ("client-setting", "security.protocol"),
    ],
)
def test_what_else_is_broken_is_found_too(check: str, subject: str, broken: tuple[list[str], Findings]) -> None:
    assert [each for each in broken[1] if each["check"] == check and each["subject"].endswith(subject)]


def test_what_changed_in_the_table_is_said_level_by_level(broken: tuple[list[str], Findings]) -> None:
    [found] = [each for each in broken[1] if each["check"] == "level-table"]
    assert found["what"].endswith("level 2 is 6000 ms there and 5000 ms here; levels 3 are added here")


def test_a_running_workers_table_is_known_from_its_commits(broker: Broker, sound: list[str]) -> None:
    """The worker has committed at its assignment, before anything was due."""
    _, found = doctor(broker.bootstrap, *sound, "--delay-levels", "1s 5s")
    assert "levels 3 are removed here" in next(each["what"] for each in found if each["check"] == "level-table")


def test_no_password_is_shown(broken: tuple[list[str], Findings]) -> None:
    assert "s3cret-canary" not in json.dumps(broken[1])


def test_nothing_is_said_where_all_is_well(broker: Broker, sound: list[str], admin: AdminClient) -> None:
    roles = [word for role in ("producer", "consumer", "worker", "operator", "spark") for word in ("--role", role)]
    safe = ["--client", "linger.ms=5", "--consume-timeout", "1m"]
    assert doctor(broker.bootstrap, *sound, *roles, *safe, "--probe") == (0, [])
    assert not [name for name in admin.list_topics(timeout=DEADLINE_S).topics if ".probe." in name]
    groups = admin.list_consumer_groups(request_timeout=DEADLINE_S).result(DEADLINE_S)
    assert not [each.group_id for each in groups.valid if ".probe." in each.group_id]


def test_people_get_text_and_a_count(broker: Broker, sound: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--bootstrap", broker.bootstrap, *sound]) == 0
    assert capsys.readouterr().out == f"{len(CHECKS)} checks on 8 topics, 2 groups, 1 broker: all is well\n"
    assert main(["doctor", "--bootstrap", broker.bootstrap, *sound, "--topic", "nowhere"]) == 2
    shown = capsys.readouterr().out
    assert "error   topic-missing  nowhere" in shown
    assert "  fix   rocketshim init --topic nowhere" in shown


FIXED = {
    "topic-missing", "timestamp-type", "compaction", "retention", "retention-bytes", "message-size", "segment",
    "partition-count", "target-compacted", "retention-backlog", "worker-missing",
}  # fmt: skip
"""Checks whose findings are gone when their commands have run. The others name commands that show more, or name what no
command can do."""


def run_kafka_configs(command: list[str], logs: Path) -> None:
    """Kafka's own tool, whose script is not among the jars."""
    java = startup_kit().java_command(64, logs)
    done = subprocess.run([*java, "kafka.admin.ConfigCommand", *command[1:]], check=False, capture_output=True)
    assert done.returncode == 0, (command, done.stdout, done.stderr)


def test_the_commands_that_fix_do_fix(
    broker: Broker,
    admin: AdminClient,
    broken: tuple[list[str], Findings],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each command of each finding runs as it is printed; only the words in capitals are replaced."""
    words, found = broken
    log = f"{words[1]}.rmq.group.payments"
    admin.delete_topics([log])[log].result(DEADLINE_S)  # "stop the group, delete the topic, then"
    texts = dict.fromkeys(each["fix"] for each in found if "nowhere" not in each["subject"])
    filled = {"TOPIC": words[3], "N": "4", "FILE": str(tmp_path / "plan.json")}
    named = [
        [filled.get(word, word) for word in shlex.split(command)]
        for text in sorted(texts)
        for command in re.findall(r"(?:rocketshim|kafka-configs\.sh) [^;)]*--bootstrap[^;)]*", text)
    ]
    workers = [command for command in named if command[1] == "worker"]
    for command in named:
        if command[0] == "kafka-configs.sh":
            run_kafka_configs(command, tmp_path)
        elif command not in workers:
            assert main(command[1:]) in {0, 2}, (command, capsys.readouterr())
    [worker] = workers
    with killed_at_last(subprocess.Popen([sys.executable, "-m", *worker], stderr=subprocess.DEVNULL)):
        left: Findings = []

        def is_fixed() -> bool:
            left[:] = [each for each in doctor(broker.bootstrap, *words)[1] if each["check"] in FIXED]
            return not left

        wait_until(is_fixed, lambda: str(left), within_s=DEADLINE_S)
    assert {command[0] for command in named} == {"rocketshim", "kafka-configs.sh"}


def test_a_worker_that_is_there_and_does_not_work_is_late(broker: Broker, admin: AdminClient, space: str) -> None:
    namespace = f"{space}late"
    names = TopicNames(namespace)
    create(admin, names.schedule, 32, message_timestamp_type="CreateTime")
    ages_ago_ms = time.time_ns() // 1_000_000 - 300_000
    write(broker.bootstrap, names.schedule, partition=0, timestamp=ages_ago_ms, headers={"REAL_TOPIC": b"orders"})
    stuck = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": names.worker_group})
    with closing(stuck):
        stuck.subscribe([names.schedule])
        until = time.monotonic() + DEADLINE_S
        while not stuck.assignment() and time.monotonic() < until:
            stuck.poll(0.1)
        _, found = doctor(broker.bootstrap, "--namespace", namespace)
    [late] = [each for each in found if each["check"] == "worker-late"]
    assert late["since_ms"] <= ages_ago_ms + 2_000
    assert "worker-missing" not in {each["check"] for each in found}


def test_a_worker_that_does_not_read_the_commands_of_timers_is_late(
    broker: Broker, admin: AdminClient, space: str
) -> None:
    namespace = f"{space}names"
    names = TopicNames(namespace)
    create(admin, names.schedule, 32, message_timestamp_type="LogAppendTime")
    create(admin, names.timers, 4, message_timestamp_type="CreateTime", retention_ms=f"{3_600_000}")
    create(admin, names.timer_state, 8)
    ages_ago_ms = time.time_ns() // 1_000_000 - 300_000
    write(broker.bootstrap, names.timers, partition=2, timestamp=ages_ago_ms, headers={"REAL_TOPIC": b"orders"})
    _, found = doctor(broker.bootstrap, "--namespace", namespace)
    [missing] = [each for each in found if each["check"] == "worker-missing"]
    assert "1 offset waits" in missing["what"]
    wrong = {each["check"] for each in found if each["subject"] in {names.timers, names.timer_state}}
    assert {"partition-count", "timestamp-type", "retention", "compaction"} <= wrong
    with closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": names.worker_group})) as stuck:
        stuck.subscribe([names.timers])
        until = time.monotonic() + DEADLINE_S
        while not stuck.assignment() and time.monotonic() < until:
            stuck.poll(0.1)
        _, found = doctor(broker.bootstrap, "--namespace", namespace)
    [late] = [each for each in found if each["check"] == "timers-late"]
    assert late["since_ms"] <= ages_ago_ms + 2_000


def test_a_clock_that_is_off_is_measured(broker: Broker, sound: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock is put an hour back for the doctor: the broker's is an hour ahead then."""
    right_ms = gather._now_ms
    monkeypatch.setattr(gather, "_now_ms", lambda: right_ms() - 3_600_000)
    facts = gather.gather(broker.bootstrap, TopicNames(sound[1]), DelayLevels.parse(LEVELS), probe=True)
    [(node, ahead_ms)] = facts.clocks_ms.items()
    assert abs(ahead_ms - 3_600_000) < 60_000
    assert [each.subject for each in examine(facts) if each.check == "clock-skew"] == [f"broker {node}"]


def test_a_look_that_is_there_is_not_taken_again(broker: Broker, sound: list[str]) -> None:
    here = broker.bootstrap, TopicNames(sound[1]), DelayLevels.parse(LEVELS)
    look = Snapshot(7, failing=(FailingMessage("payments", "orders", 0, 1, 3),))
    assert gather.gather(*here, look=look).look == look
    taken = gather.gather(*here, look=replace(look, error="no broker answered")).look
    assert taken is not None
    assert taken.failing == ()


def test_only_a_group_that_is_named_is_asked_for_the_topics_of_other_groups(
    broker: Broker, admin: AdminClient, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = TopicNames(f"{space}two")
    bill, ship = names.retry("bill"), names.retry("ship")
    for retry in (bill, ship):
        create(admin, retry, 1)
    asked: set[tuple[str, str]] = set()
    committed = TopicReader.committed

    def noting(reader: TopicReader, group: str, partitions: Iterable[TopicPartitionKey]) -> Any:
        wanted = list(partitions)
        asked.update((group, each.topic) for each in wanted)
        return committed(reader, group, wanted)

    monkeypatch.setattr(TopicReader, "committed", noting)
    gather.gather(broker.bootstrap, names, DelayLevels.parse(LEVELS), groups=["ship"])
    assert asked & {("bill", bill), ("bill", ship), ("ship", bill)} == {("bill", bill), ("ship", bill)}


def test_no_broker_is_an_error_and_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--bootstrap", "127.0.0.1:1"]) == 1
    assert "no broker at 127.0.0.1:1 answered" in capsys.readouterr().err


def test_a_setting_that_is_none_is_an_error_without_its_value(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--bootstrap", broker.bootstrap, "--client", "sasl.passwort=s3cret-canary"]
    assert main(words) == 1
    shown = "".join(capsys.readouterr())
    assert "sasl.passwort" in shown
    assert "s3cret-canary" not in shown


def test_a_session_that_the_brokers_refuse_is_found_and_the_one_named_is_accepted(namespace: str) -> None:
    with LocalCluster(properties={"group.max.session.timeout.ms": "9000"}) as cluster:
        there, scope = cluster.bootstrap, ["--namespace", namespace]
        cluster.touch_internal_topics()
        assert main(["init", "--bootstrap", there, *scope, "--topic", "orders", "--group", "g"]) == 0

        def joins(**client: str) -> bool:
            consumer = PushConsumer(there, group="g", namespace=namespace, client=client)
            consumer.listener("orders")(lambda *_: None)
            with consumer:
                return consumer.wait_assigned(5)

        _, found = doctor(there, *scope)
        (refused,) = [each for each in found if each["check"] == "session-timeout"]
        assert not joins()
        setting, value = re.findall(r"(session\.timeout\.ms)=(\d+)", refused["fix"])[0]
        assert joins(**{setting: value})
        _, found = doctor(there, *scope, "--client", f"{setting}={value}")
        assert "session-timeout" not in {each["check"] for each in found}


def test_records_whose_marks_are_gone_are_found_until_the_ways_out_are_taken(
    broker: Broker, admin: AdminClient, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, where, group = TopicNames(namespace), ["--bootstrap", broker.bootstrap], "payments"
    scope, plan = [*where, "--namespace", namespace], str(tmp_path / "plan.json")
    assert main(["init", *scope, "--group", group]) == 0
    for topic in (names.dead_letter(group), names.parked):
        write(broker.bootstrap, topic, partition=0, count=3, headers={"REAL_TOPIC": b"orders", "PARK_REASON": b"x"})
    assert main(["dlq", "discard", *scope, "--group", group, "--out", plan]) == 0
    assert main(["dlq", "apply", plan, *where, "--max", "1"]) == 0

    def found() -> Findings:
        return [each for each in doctor(broker.bootstrap, *scope[2:])[1] if each["check"] == "marks-lost"]

    assert found() == []
    everything = TopicPartition(names.redrive_log, 0, -1)
    admin.delete_records([everything])[everything].result(DEADLINE_S)
    lost = found()
    assert [each["subject"] for each in lost] == [names.dead_letter(group), names.parked]
    assert all("3 records here" in each["what"] for each in lost)
    for each in lost:
        for command in re.findall(r"rocketshim ([^;(]*--bootstrap[^;(]*)", each["fix"]):
            filled = {"PARTITION/OFFSET": ["0/0", "0/1", "0/2"], "NAME": ["after-the-loss"], "FILE": [plan]}
            words = [each for word in shlex.split(command) for each in filled.get(word, [word])]
            assert main(words) in {0, 2}, (words, capsys.readouterr())
    assert found() == []


def test_copies_and_brokers_that_are_away_are_found() -> None:
    """Three brokers, topics with too few copies, one broker killed; and unsuitable settings of brokers."""
    unsafe = {
        "offsets.retention.minutes": "60", "auto.create.topics.enable": "true", "transaction.max.timeout.ms": "10000",
    }  # fmt: skip
    with LocalCluster(3, properties=unsafe) as cluster:
        admin = AdminClient(cluster.client_config())
        create(admin, "one", 1, 1)
        create(admin, "two", 1, 2, min_insync_replicas="2")
        create(admin, "three", 1, 3, min_insync_replicas="1")
        create(admin, "safe", 1, 3, min_insync_replicas="2")
        cluster.touch_internal_topics()
        topics = ["one", "two", "three", "safe"]
        there = cluster.client_config()["bootstrap.servers"]
        names, levels = TopicNames(), DelayLevels.default()
        facts = gather.gather(there, names, levels, topics=topics)
        assert {(each.check, each.subject, each.severity) for each in examine(facts)} - {
            ("topic-missing", "SCHEDULE_TOPIC_XXXX", Severity.ERROR),
            ("topic-missing", "rmq.parked", Severity.ERROR),
        } == {
            ("copies", "one", Severity.ERROR),
            ("copies", "two", Severity.WARNING),
            ("min-in-sync", "two", Severity.WARNING),
            ("min-in-sync", "three", Severity.WARNING),
            ("offsets-retention", "broker", Severity.WARNING),
            ("auto-create", "broker", Severity.NOTE),
            ("transaction-timeout", "transaction.max.timeout.ms", Severity.ERROR),
        }
        cluster.kill(cluster.leader("one"))
        until = time.monotonic() + DEADLINE_S  # until the controller has noticed
        while admin.list_topics("one", timeout=DEADLINE_S).topics["one"].partitions[0].leader >= 0:
            assert time.monotonic() < until
        facts = gather.gather(there, names, levels, topics=topics)
        found = {(each.check, each.subject, each.severity) for each in examine(facts)}
        assert {("no-leader", "one", Severity.ERROR), ("in-sync", "safe", Severity.WARNING)} <= found
        refused = replace(facts.topics["safe"], config={"min.insync.replicas": "3"})
        worse = examine(replace(facts, topics={"safe": refused}))
        assert ("in-sync", Severity.ERROR) in {(each.check, each.severity) for each in worse}
