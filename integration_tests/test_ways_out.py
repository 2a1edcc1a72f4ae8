"""Each way out that an error, a finding of the doctor or a runbook names is run as it is printed, on a real broker.

A row makes a fault, tries what fails because of it, and takes the commands from the text that it gets. Then the
commands run as they stand, with the address in `ROCKETSHIM_BOOTSTRAP`, and the same try succeeds. Only words in
capitals, which the reader fills in, are replaced.
"""

import re
import shlex
import string
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from rocketshim import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    DeadLetter,
    DelayWorker,
    LitePullConsumer,
    Message,
    MessageView,
    Producer,
    PushConsumer,
)
from rocketshim.cli import main
from rocketshim.errors import RocketshimError
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, Layout, TopicNames, provision
from rocketshim_topics.layout import TopicState
from rocketshim_topics.partitioner import timer_partition

from .conftest import delete_topics
from .running import patient_worker, running
from .waiting import wait_until

FILLED_IN = {"N": "2", "GROUP": "other.group"}
WAIT_S = 60.0


def commands(text: str) -> list[list[str]]:
    """Return the `rocketshim` commands of a text, without their first word."""
    found = re.findall(r"rocketshim ((?:[a-z]+ )*[a-z]+\b[^`;)\n]*)", text)
    ends = [re.split(r"[.,:](?:\s|$)", each)[0].strip() for each in found]
    return [[FILLED_IN.get(word, word) for word in shlex.split(each)] for each in dict.fromkeys(ends)]


@dataclass
class Place:
    """A namespace of one test, with a topic of a user, and a worker or a consumer if the test has started one."""

    admin: AdminClient
    bootstrap: str
    namespace: str
    topic: str
    capsys: pytest.CaptureFixture[str]
    group: str = "payments"
    running: list[DelayWorker | PushConsumer] = field(default_factory=list)

    @property
    def names(self) -> TopicNames:
        return TopicNames(self.namespace)

    @property
    def layout(self) -> Layout:
        return Layout(self.names, DelayLevels.default())

    # --- faults ------------------------------------------------------------------------------------------------------

    def init(self, *, with_log: bool = False) -> None:
        groups = self.layout.for_group(self.group, with_log=with_log)
        provision.ensure_topics(self.admin, [*self.layout.shared(), *groups])

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(WAIT_S)
        self.await_seen(lambda state: state.partitions == partitions, topic)

    def alter(self, topic: str, setting: str, value: str) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
        self.await_seen(lambda state: (state.config or {}).get(setting) == value, topic)

    def await_seen(self, is_seen: Callable[[TopicState], bool], topic: str) -> None:
        """The controller answers before the brokers know."""
        wait_until(
            lambda: is_seen(provision.read_topics(self.admin, [topic])[topic]), f"changed {topic}", within_s=WAIT_S
        )

    def create(self, topic: str, partitions: int, **config: str) -> None:
        made = NewTopic(topic, partitions, config={name.replace("_", "."): value for name, value in config.items()})
        self.admin.create_topics([made])[topic].result(WAIT_S)
        wait_until(lambda: topic in self.admin.list_topics(timeout=WAIT_S).topics, "created", within_s=WAIT_S)

    def delete(self, *topics: str) -> None:
        delete_topics(self.admin, list(topics))
        wait_until(
            lambda: not set(topics) & set(self.admin.list_topics(timeout=WAIT_S).topics), "deletion", within_s=WAIT_S
        )

    # --- what fails, and then does not -------------------------------------------------------------------------------

    def worker(self, *, create: bool = True) -> None:
        worker = patient_worker(self.bootstrap, self.namespace, "1s 2s", create_topics=create)
        try:
            worker.start()
            worker.step(0)
        finally:
            worker.close()

    def running_worker(self) -> None:
        """A worker that runs, or ends: its first try goes on after the fault was made; the second has to deliver."""
        if not self.running:
            self.send(delay="1s")
            self.running.append(patient_worker(self.bootstrap, self.namespace, "1s 2s"))
        worker = self.running.pop()
        assert isinstance(worker, DelayWorker)
        try:
            worker.start()
            for _ in range(240):
                worker.step(500)
                if worker.counts.delivered:
                    return
            raise TimeoutError("the worker goes on and delivers nothing")
        finally:
            worker.close()

    def consumer(self, *, create: bool = False, topic: str = "", orderly: bool = False) -> None:
        consumer = PushConsumer(self.bootstrap, group=self.group, namespace=self.namespace, create_topics=create)
        if orderly:
            consumer.listener(topic or self.topic, orderly=True)(lambda *_: ConsumeOrderlyStatus.SUCCESS)
        else:
            consumer.listener(topic or self.topic)(lambda *_: None)
        try:
            consumer.start()
            consumer.wait_assigned(WAIT_S)
        finally:
            consumer.stop()

    def send(self, topic: str = "", delay: str = "", timer: str | None = None) -> None:
        with Producer(self.bootstrap, namespace=self.namespace) as producer:
            producer.send(Message(topic or self.topic, b"x", delay=delay or None, timer=timer), timeout_s=WAIT_S)

    def cancel(self) -> None:
        with Producer(self.bootstrap, namespace=self.namespace) as producer:
            name = next(each for each in string.ascii_letters if timer_partition(self.topic, each) != 0)
            producer.cancel(self.topic, timer=name, timeout_s=WAIT_S)

    def reader(self, topic: str) -> None:
        with LitePullConsumer(self.bootstrap, group=self.group, namespace=self.namespace) as consumer:
            consumer.subscribe(topic)
            consumer.poll(1_000)

    def shell(self, *words: str) -> None:
        """Run one of our commands; an error is raised as its text."""
        self.capsys.readouterr()
        code = main([*words, "--bootstrap", self.bootstrap, "--namespace", self.namespace])
        out, err = self.capsys.readouterr()
        if code == 1:
            raise RocketshimError(err)
        if code == 2 and "fix" in out:
            raise RocketshimError(out)


def is_deleted_while_it_runs(place: Place) -> None:
    """A worker that runs loses its topic."""
    place.init()
    worker = patient_worker(place.bootstrap, place.namespace, "1s 2s")
    place.running.append(worker)
    worker.start()
    for _ in range(20):
        worker.step(500)
    place.delete(place.names.schedule)


def is_stamped_by_senders_while_it_runs(place: Place) -> None:
    place.init()
    worker = patient_worker(place.bootstrap, place.namespace, "1s 2s")
    place.running.append(worker)
    worker.start()
    worker.step(0)
    place.alter(place.names.schedule, "message.timestamp.type", "CreateTime")
    place.send(delay="1s")


def is_compacted_while_it_runs(place: Place) -> None:
    place.init()
    worker = patient_worker(place.bootstrap, place.namespace, "1s 2s")
    place.running.append(worker)
    worker.start()
    worker.step(0)
    place.send(delay="5s")
    place.alter(place.names.schedule, "cleanup.policy", "compact")


Try = Callable[[Place], None]

FAULTS: dict[str, tuple[Try, Try]] = {
    "the schedule topic has 33 partitions; a worker starts": (
        lambda place: (place.init(), place.grow(place.names.schedule, 33), None)[-1],
        Place.worker,
    ),
    "the schedule topic has 18 partitions; a worker starts": (
        lambda place: place.create(place.names.schedule, 18, message_timestamp_type="LogAppendTime"),
        Place.worker,
    ),
    "the schedule topic is stamped by senders; a worker starts": (
        lambda place: place.create(place.names.schedule, 32),
        Place.worker,
    ),
    "the schedule topic is compacted; a worker starts": (
        lambda place: (place.init(), place.alter(place.names.schedule, "cleanup.policy", "compact"), None)[-1],
        Place.worker,
    ),
    "the schedule topic is compacted; init shows it": (
        lambda place: (place.init(), place.alter(place.names.schedule, "cleanup.policy", "compact"), None)[-1],
        lambda place: place.shell("init"),
    ),
    "the retry topic is compacted; a consumer starts": (
        lambda place: (place.init(), place.alter(place.names.retry(place.group), "cleanup.policy", "compact"), None)[
            -1
        ],
        Place.consumer,
    ),
    "the group log is stamped by members; an orderly consumer starts": (
        lambda place: (
            place.init(with_log=True),
            place.alter(place.names.group_log(place.group), "message.timestamp.type", "CreateTime"),
            None,
        )[-1],
        lambda place: place.consumer(orderly=True),
    ),
    "no topics; a worker that creates none": (lambda _: None, lambda place: place.worker(create=False)),
    "no topics; a consumer that creates none": (lambda _: None, Place.consumer),
    "no group log; an orderly consumer that creates none": (
        Place.init,
        lambda place: place.consumer(orderly=True),
    ),
    "no schedule topic; a consumer": (lambda _: None, lambda place: place.consumer(create=True)),
    "no schedule topic; a delayed send": (lambda _: None, lambda place: place.send(delay="1h")),
    "no log of timers; a send with a name": (Place.init, lambda place: place.send(delay="1h", timer="o-7")),
    "no log of timers; a cancel": (Place.init, Place.cancel),
    "the log of timers has one partition; a cancel": (
        lambda place: place.create(place.names.timers, 1, message_timestamp_type="LogAppendTime"),
        Place.cancel,
    ),
    "the state of timers is not compacted; init shows it": (
        lambda place: place.create(place.names.timer_state, 8, message_timestamp_type="LogAppendTime"),
        lambda place: place.shell("init"),
    ),
    "no topic of the user; a send": (lambda _: None, lambda place: place.send(f"{place.namespace}.none")),
    "no topic of the user; a consumer": (Place.init, lambda place: place.consumer(topic=f"{place.namespace}.none")),
    "no topic of the user; a reader": (Place.init, lambda place: place.reader(f"{place.namespace}.none")),
    "no schedule topic; delayed ls": (lambda _: None, lambda place: place.shell("delayed", "ls")),
    "no state of timers; timers ls": (lambda _: None, lambda place: place.shell("timers", "ls")),
    "no log of timers; timers show": (lambda _: None, lambda place: place.shell("timers", "show", place.topic, "o-7")),
    "no parking topic; parked ls": (lambda _: None, lambda place: place.shell("parked", "ls")),
    "the schedule topic is deleted under a worker": (is_deleted_while_it_runs, Place.running_worker),
    "the schedule topic is compacted under a worker": (is_compacted_while_it_runs, Place.running_worker),
    "the schedule topic is stamped by senders under a worker": (
        is_stamped_by_senders_while_it_runs,
        Place.running_worker,
    ),
}


@pytest.fixture
def place(  # noqa: PLR0917 - a fixture is called by pytest
    broker: Broker,
    admin: AdminClient,
    namespace: str,
    topic: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Place:
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", broker.bootstrap)
    return Place(admin, broker.bootstrap, namespace, topic(1), capsys)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_commands_of_an_error_remove_its_cause(fault: str, place: Place) -> None:
    make, attempt = FAULTS[fault]
    make(place)
    with pytest.raises(RocketshimError) as failed:
        attempt(place)
    named = [each for each in commands(str(failed.value)) if each[0] == "init"]
    assert named, f"no command in: {failed.value}"
    for command in named:
        assert main(command) in {0, 2}, (command, place.capsys.readouterr())
    attempt(place)


# --- runbooks --------------------------------------------------------------------------------------------------------


def section(heading: str) -> list[list[str]]:
    """The commands of a section of docs/runbooks.md, in order."""
    page = (Path(__file__).parents[1] / "docs" / "runbooks.md").read_text(encoding="utf-8")
    text = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [shlex.split(" ".join(each.split())) for each in re.findall(r"`rocketshim ([^`]+)`", text)]


def run_section(place: Place, heading: str, folder: Path, **filled_in: str) -> None:
    """Run the commands of a section as they stand; `filled_in` are the words in capitals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCKETSHIM_NAMESPACE", place.namespace)
        patch.chdir(folder)
        for command in section(heading):
            words = [filled_in.get(word.replace("/", "_"), word) for word in command]
            assert main(words) in {0, 2}, (words, place.capsys.readouterr())


def records(place: Place, topic: str) -> int:
    """The number of records of a topic, with markers of transactions."""
    ends = place.admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
    return sum(future.result(WAIT_S).offset for future in ends.values())


def test_the_runbook_of_parked_records_delivers_them(place: Place, tmp_path: Path) -> None:
    place.init()
    missing = f"{place.namespace}.missing"
    worker = patient_worker(place.bootstrap, place.namespace, "1s 2s", target_tries=1)
    with running(worker):
        place.send(missing, delay="1s")
        wait_until(lambda: worker.counts.parked != {}, "parked", within_s=WAIT_S)
        place.create(missing, 1)  # "its target did not exist: create it"
        run_section(place, "Parked", tmp_path, PARTITION_OFFSET="0/0")
        wait_until(lambda: records(place, missing) == 1, "delivered", within_s=WAIT_S)


def test_the_runbook_of_dead_letters_sends_them_again(place: Place, tmp_path: Path) -> None:
    place.init()
    place.send()
    handled: list[int] = []
    consumer = PushConsumer(
        place.bootstrap, group=place.group, namespace=place.namespace, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )

    def charge(message: MessageView) -> None:
        handled.append(message.reconsume_times)
        if len(handled) == 1:
            raise DeadLetter("no such card")

    consumer.listener(place.topic)(charge)
    consumer.start()
    try:
        dead = place.names.dead_letter(place.group)
        wait_until(lambda: records(place, dead) == 1, "a dead letter", within_s=WAIT_S)
        run_section(place, "NewDeadLetters", tmp_path, GROUP=place.group, PARTITION_OFFSET="0/0")
        wait_until(lambda: len(handled) == 2, "handled again", within_s=WAIT_S)
    finally:
        consumer.stop()


@contextmanager
def consuming(place: Place) -> Iterator[list[int]]:
    """A consumer of the group that handles everything; the offsets that it was given."""
    handled: list[int] = []
    consumer = PushConsumer(
        place.bootstrap, group=place.group, namespace=place.namespace, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.listener(place.topic)(lambda message: handled.append(message.queue_offset))
    consumer.start()
    try:
        yield handled
    finally:
        consumer.stop()


def lag(place: Place) -> int:
    return main(["group", "lag", place.group, "--bootstrap", place.bootstrap, "--max-lag", "0", "--quiet"])


def test_the_runbook_of_an_absent_worker_gives_its_group_positions_again(place: Place, tmp_path: Path) -> None:
    place.init()
    began = datetime.now(UTC).isoformat(timespec="seconds")
    worker = patient_worker(place.bootstrap, place.namespace, "1s 2s")
    with running(worker):
        place.send(delay="1s")
        wait_until(lambda: records(place, place.topic) == 1, "delivered", within_s=WAIT_S)
    group = place.names.worker_group
    place.admin.delete_consumer_groups([group])[group].result(WAIT_S)  # as the brokers do after 7 days
    place.send(delay="1s")
    run_section(place, "WorkerAbsent", tmp_path, **{"rmq.sched": group, "2026-11-10T08:00:00Z": began})
    move = ["group", "reset", group, "--topic", "SCHEDULE_TOPIC_XXXX", "--to", began, "--apply"]
    assert main([*move, "--bootstrap", place.bootstrap, "--namespace", place.namespace]) == 0
    with running(patient_worker(place.bootstrap, place.namespace, "1s 2s")):
        wait_until(lambda: records(place, place.topic) == 3, "the first again, and the second", within_s=WAIT_S)


def test_the_runbook_of_an_avoided_target_delivers_what_was_parked(place: Place, tmp_path: Path) -> None:
    place.init()
    place.alter(place.topic, "max.message.bytes", "100")
    worker = patient_worker(place.bootstrap, place.namespace, "1s 2s", target_tries=1)
    with running(worker):
        place.send(delay="1s")
        wait_until(lambda: worker.counts.parked != {}, "parked", within_s=WAIT_S)
        place.alter(place.topic, "max.message.bytes", "1048588")
        run_section(place, "TargetAvoided", tmp_path, TOPIC=place.topic)
        wait_until(lambda: records(place, place.topic) == 1, "delivered", within_s=WAIT_S)


def test_the_runbook_of_an_old_group_finds_its_lag_and_a_member_ends_it(place: Place, tmp_path: Path) -> None:
    place.init(with_log=True)
    place.send()
    with consuming(place) as handled:
        wait_until(lambda: handled == [0], "handled", within_s=WAIT_S)
    place.send()
    assert lag(place) == 2
    run_section(place, "GroupAge", tmp_path, GROUP=place.group)
    with consuming(place) as handled:
        wait_until(lambda: handled == [1], "handled", within_s=WAIT_S)
    assert lag(place) == 0


def test_the_runbook_of_retention_finds_what_is_gone(place: Place, tmp_path: Path) -> None:
    place.init()
    place.send()
    with consuming(place) as handled:
        wait_until(lambda: handled == [0], "handled", within_s=WAIT_S)
    for _ in range(3):
        place.send()
    gone = TopicPartition(place.topic, 0, 3)
    place.admin.delete_records([gone])[gone].result(WAIT_S)
    place.capsys.readouterr()
    assert lag(place) == 2
    assert "retention deleted 2 offsets" in place.capsys.readouterr().err
    run_section(place, "RetentionOvertook", tmp_path, GROUP=place.group, TOPIC=place.topic)
    place.send()
    with consuming(place) as handled:
        wait_until(lambda: handled[-1:] == [4], "handled", within_s=WAIT_S)
    assert lag(place) == 0


MADE_HERE = {
    "WorkerAbsent", "TargetAvoided", "Parked", "NewDeadLetters", "GroupAge", "RetentionOvertook"
}  # fmt: skip
NOT_MADE_HERE = {
    "Finding": "`status` names what helps: test_verdict.py",
    "ExporterDown": "nothing is repaired by a command: test_observe.py, test_security.py",
    "WorkerLate": "a slow broker, or a core that is full: test_worker_slow_brokers.py",
    "HeadLate": "something late for two minutes, as in WorkerAbsent and WorkerLate",
    "TransactionsAborting": "an option of the worker is changed: test_worker_exactly_once.py",
    "CommitsFailing": "a coordinator that is away, or a missing right: test_consumer_frozen.py, test_security.py",
    "ListenerStuck": "a call of ten minutes; the listener is changed",
    "OrderlyQueueFailing": "the listener is changed: test_orderly.py",
    "SubscriptionsDiffer": "a deployment is finished: test_group_cli.py",
    "RetriesSentOn": "a listener is deployed: test_topics_at_run_time.py",
    "DoctorFinding": "the faults above, and test_doctor.py",
    "Processes of a consumer die again and again": "takes minutes: test_process_deaths.py",
}


def test_every_runbook_is_run_here_or_listed_with_a_reason() -> None:
    page = (Path(__file__).parents[1] / "docs" / "runbooks.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^## (.*)$", page, flags=re.MULTILINE)) == sorted(MADE_HERE | NOT_MADE_HERE.keys())
    for reason in NOT_MADE_HERE.values():
        for test in re.findall(r"test_\w+\.py", reason):
            assert Path(__file__).with_name(test).exists(), test
