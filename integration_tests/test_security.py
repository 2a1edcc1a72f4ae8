"""TLS, SASL and ACLs on a real broker with an authorizer: each role does its work with the rights that `acls` prints,
and nothing else is allowed; and no secret comes out anywhere.
"""

import json
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as PlainProducer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic
from rich.console import Console

from rocketshim import (
    ConsumeFromWhere,
    DelayWorker,
    LitePullConsumer,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    WorkerSettings,
    dropin,
)
from rocketshim.admin import redrive
from rocketshim.cli import main
from rocketshim.errors import NotAuthorizedError, RocketshimError
from rocketshim.kafka.acls import denied_topics
from rocketshim.kafka.clients import close_producer
from rocketshim.kafka.reports import DeliveryReports, store
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.look_up import OffsetLookup
from rocketshim.observe.snapshot import snapshot_of
from rocketshim.transactions import LocalTransactionState, TransactionMQProducer
from rocketshim_local import LocalCluster
from rocketshim_spark.sources import Cluster
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

from .waiting import await_ends_of_transactions

DEADLINE_S = 60.0
LEVELS = "1s 1s 1s"
NAMES = TopicNames("pay")
TOPIC, GROUP = "orders", "payments"
ROLES = ("producer", "consumer", "worker", "viewer", "operator", "spark")
DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
UNSEEN = {KafkaError._UNKNOWN_PARTITION, KafkaError._NOENT}
"""What librdkafka says of a topic that the cluster does not show to this user."""
Settings = dict[str, str]


def certificate(folder: Path) -> Path:
    """A PEM file with a key and its self-signed certificate for 127.0.0.1."""
    key, cert, both = folder / "key.pem", folder / "cert.pem", folder / "broker.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(key.read_text() + cert.read_text())
    return both


class Secured:
    """The cluster and the settings of each of its users."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.bootstrap = cluster.bootstrap
        self._config = {user: cluster.client_config(user) for user in ("admin", "stranger", "prober", *ROLES)}

    def client(self, user: str) -> Settings:
        return {name: value for name, value in self._config[user].items() if name != "bootstrap.servers"}

    def plain(self, user: str, **more: Any) -> dict[str, Any]:
        """For a plain Kafka client."""
        return {**self._config[user], "log_level": 0, **{key.replace("_", "."): value for key, value in more.items()}}

    def options(self, user: str) -> list[str]:
        """For the command line."""
        pairs = [word for item in self.client(user).items() for word in ("--client", "=".join(item))]
        return ["--bootstrap", self.bootstrap, "--namespace", NAMES.namespace, *pairs]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Secured]:
    """A TLS cluster with an authorizer; topics made by the admin, each role with the rights that `acls` prints."""
    users = {user: f"{user}-s3cret" for user in ("admin", "stranger", "prober", *ROLES)}
    pem = certificate(tmp_path_factory.mktemp("tls"))
    with LocalCluster(users=users, tls_pem=pem, properties={"connections.max.reauth.ms": "0"}) as cluster:
        secured = Secured(cluster)
        made = ["init", *secured.options("admin"), "--delay-levels", LEVELS, "--group", GROUP, "--with-log"]
        made += ["--producer-group", "shop", "--producer-group", "other"]
        assert main([*made, "--topic", TOPIC, "--topic", "payroll", "--group", "g1"]) == 0
        cluster.touch_internal_topics()
        capture: Any = request.config.pluginmanager.getplugin("capturemanager")
        admin = AdminClient(secured.plain("admin"))
        for role in ROLES:
            grant(admin, role, capture)
        for role in ROLES:
            await_rights(secured, role)
        yield secured


def grant(admin: AdminClient, role: str, capture: Any) -> None:
    """Create exactly the bindings that `rocketshim acls --json` prints."""
    words = ["acls", "--role", role, "--topic", TOPIC, "--group", GROUP, "--orderly", "--namespace", "pay", "--json"]
    words += ["--producer-group", "shop"] if role == "producer" else []
    words += ["--group", "g1"] if role == "viewer" else []  # it looks at every group that has a retry topic
    capture.read_global_capture()
    assert main(words) == 0
    printed = json.loads(capture.read_global_capture()[0])
    bindings = [
        AclBinding(
            ResourceType.BROKER if each["resource_type"] == "CLUSTER" else getattr(ResourceType, each["resource_type"]),
            each["resource_name"],
            getattr(ResourcePatternType, each["pattern_type"]),
            each["principal"],
            each["host"],
            getattr(AclOperation, each["operation"]),
            getattr(AclPermissionType, each["permission_type"]),
        )
        for each in printed
    ]
    for future in admin.create_acls(bindings).values():
        future.result(DEADLINE_S)


def await_rights(secured: Secured, role: str) -> None:
    """Rights take effect a moment after they were given: wait for the one given last, and for the user's topic."""
    admin = AdminClient(secured.plain(role))
    until = time.monotonic() + DEADLINE_S
    while TOPIC not in admin.list_topics(timeout=DEADLINE_S).topics:
        assert time.monotonic() < until


@contextmanager
def running(worker: DelayWorker) -> Iterator[None]:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()
        assert not failures


@pytest.mark.parametrize("exactly_once", [False, True])
def test_producer_worker_and_consumer_do_their_work(secured: Secured, exactly_once: bool) -> None:
    worker = DelayWorker(
        WorkerSettings.make(
            bootstrap=secured.bootstrap, namespace="pay", delay_levels=LEVELS, allow=(TOPIC,),
            client=secured.client("worker"), exactly_once=exactly_once, instance="one",
        )
    )  # fmt: skip
    consumer = PushConsumer(
        secured.bootstrap, group=GROUP, namespace="pay", delay_levels=LEVELS, client=secured.client("consumer"),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=1,
    )  # fmt: skip
    seen: set[tuple[bytes | None, int]] = set()
    mark = str(exactly_once).encode()
    wanted = {(mark + b"now", 0), (mark + b"level", 0), (mark + b"any", 0), (mark + b"named", 0)}
    wanted |= {(mark + b"bad", 0), (mark + b"bad", 1)}
    everything = threading.Event()

    @consumer.listener(TOPIC)
    def handle(message: Any, context: Any) -> None:
        del context
        seen.add((message.body, message.reconsume_times))
        if wanted <= seen:
            everything.set()
        if message.body.endswith(b"bad"):
            raise OSError("the bank does not answer")

    with running(worker), consumer:
        with Producer(
            secured.bootstrap, namespace="pay", delay_levels=LEVELS, client=secured.client("producer")
        ) as producer:
            for body, delay in (
                (b"now", {}),
                (b"level", {"delay_level": 1}),
                (b"any", {"delay": "1300ms"}),
                (b"named", {"delay": "1s", "timer": "o-7"}),
                (b"bad", {}),
            ):
                producer.send(Message(TOPIC, mark + body, key="k", **delay), timeout_s=DEADLINE_S)  # type: ignore[arg-type]
            producer.cancel(TOPIC, timer="o-8", timeout_s=DEADLINE_S)
        assert everything.wait(DEADLINE_S), seen
    assert consumer.send_back_counts.dead == 1


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_producer_is_asked_about_its_transactions(secured: Secured, exactly_once: bool) -> None:
    asked, received = threading.Event(), threading.Event()
    mark = b"paid-%d" % exactly_once
    worker = DelayWorker(
        WorkerSettings.make(
            bootstrap=secured.bootstrap, namespace="pay", delay_levels=LEVELS, allow=(TOPIC,),
            client=secured.client("worker"), exactly_once=exactly_once, instance="one",
        )
    )  # fmt: skip
    consumer = PushConsumer(
        secured.bootstrap, group=GROUP, namespace="pay", delay_levels=LEVELS, client=secured.client("consumer"),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )  # fmt: skip

    @consumer.listener(TOPIC)
    def handle(message: Any) -> None:
        if message.body == mark:
            received.set()

    def is_paid(message: MessageView) -> LocalTransactionState:
        if message.body == mark:
            asked.set()
        return LocalTransactionState.COMMIT_MESSAGE

    producer = TransactionMQProducer(
        secured.bootstrap, group="shop", listener=is_paid, namespace="pay", delay_levels=LEVELS,
        client=secured.client("producer"),
    )  # fmt: skip
    with running(worker), consumer, producer:
        producer.transaction(TOPIC, mark, check_after="8s", timeout_s=DEADLINE_S)
        assert asked.wait(DEADLINE_S)
        assert received.wait(DEADLINE_S)
    others = TransactionMQProducer(
        secured.bootstrap, group="none", listener=is_paid, namespace="pay", client=secured.client("producer")
    )
    with pytest.raises(NotAuthorizedError, match=r"pay\.rmq\.check\.none"):
        others.start()


def test_a_worker_with_the_rights_from_before_named_timers_delivers_all_others(secured: Secured) -> None:
    """It may not even see their topics, and not create them."""
    admin, everyone = AdminClient(secured.plain("admin")), AdminClient(secured.plain("worker"))
    hidden = [
        (ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:worker", "*", AclOperation.ALL)
        for name in (NAMES.timers, NAMES.timer_state)
    ]
    bindings = [AclBinding(*each, AclPermissionType.DENY) for each in hidden]
    for future in admin.create_acls(bindings).values():
        future.result(DEADLINE_S)
    try:
        until = time.monotonic() + DEADLINE_S
        while {NAMES.timers, NAMES.timer_state} & set(everyone.list_topics(timeout=DEADLINE_S).topics):
            assert time.monotonic() < until
        worker = DelayWorker(
            WorkerSettings.make(
                bootstrap=secured.bootstrap, namespace="pay", delay_levels=LEVELS, allow=(TOPIC,),
                client=secured.client("worker"),
            )
        )  # fmt: skip
        with (
            running(worker),
            Producer(
                secured.bootstrap, namespace="pay", delay_levels=LEVELS, client=secured.client("producer")
            ) as producer,
        ):
            before = worker.counts.delivered
            producer.send(Message(TOPIC, b"without a name", delay_level=1), timeout_s=DEADLINE_S)
            while worker.counts.delivered == before:
                assert time.monotonic() < until
                time.sleep(0.1)
    finally:
        filters = [AclBindingFilter(*each, AclPermissionType.DENY) for each in hidden]
        for future in admin.delete_acls(filters).values():
            future.result(DEADLINE_S)


def test_an_orderly_consumer_takes_its_locks(secured: Secured) -> None:
    consumer = PushConsumer(
        secured.bootstrap, group=GROUP, namespace="pay", delay_levels=LEVELS, client=secured.client("consumer"),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )  # fmt: skip
    got = threading.Event()

    @consumer.listener(TOPIC, orderly=True)
    def handle(message: Any, context: Any) -> None:
        del context
        if message.body == b"in order":
            got.set()

    with Producer(secured.bootstrap, namespace="pay", client=secured.client("producer")) as producer, consumer:
        producer.send(Message(TOPIC, b"in order"), timeout_s=DEADLINE_S)
        assert got.wait(DEADLINE_S)


def dead_letter(secured: Secured, body: bytes) -> None:
    """A dead letter of the group, as the admin writes it."""
    producer = PlainProducer(secured.plain("admin"))
    origin = [("RETRY_TOPIC", TOPIC.encode()), ("CONSUMER_GROUP", GROUP.encode()), ("RECONSUME_TIMES", b"17")]
    producer.produce(NAMES.dead_letter(GROUP), body, headers=origin)
    parked = [("REAL_TOPIC", TOPIC.encode()), ("PARK_REASON", b"forbidden-target"), ("PARK_FROM", b"x/0/1")]
    producer.produce(NAMES.parked, body, headers=parked)
    assert producer.flush(DEADLINE_S) == 0


def test_an_operator_has_every_tool(secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead_letter(secured, b"for the operator")
    there, group = secured.options("operator"), ["--group", GROUP]
    plan = str(tmp_path / "plan.json")
    commit_one(secured)
    for words, codes in [
        (["dlq", "ls", *group], {0}),
        (["dlq", "stats", *group], {0}),
        (["dlq", "plan", *group, "--out", plan], {0}),
        (["dlq", "apply", plan, *[word for word in there if word not in {"--namespace", "pay"}]], {0}),
        (["retry", "ls", *group], {0}),
        (["delayed", "ls"], {0}),
        (["delayed", "stats"], {0, 2}),
        (["parked", "ls"], {0}),
        (["parked", "plan", "--reason", ""], {0, 2}),
        (["timers", "ls"], {0}),
        (["timers", "show", TOPIC, "o-9"], {2}),
        (["timers", "cancel", TOPIC, "o-9", "--apply"], {2}),
        (["tx", "ls"], {0}),
        (["tx", "show", TOPIC, "tx-9"], {2}),
        (["tx", "rollback", TOPIC, "tx-9", "--apply"], {2}),
        (["trace", f"{NAMES.dead_letter(GROUP)}/0/0"], {0}),
        (["group", "lag", GROUP, "--count"], {0}),
        (["group", "subscriptions", GROUP], {0}),
        (["group", "locks", GROUP], {0, 2}),
        (["group", "members", GROUP], {0, 2}),
        (["doctor", "--topic", TOPIC, "--group", GROUP, "--role", "operator", "--json"], {0, 2}),
    ]:
        options = [] if "apply" in words else there
        if words[:2] == ["group", "lag"]:
            options = [word for word in there if word not in {"--namespace", "pay"}]
        assert main([*words, *options]) in codes, (words, capsys.readouterr().err)
        shown = capsys.readouterr()
        assert "s3cret" not in shown.out + shown.err
        assert not Path(plan).exists() or "s3cret" not in Path(plan).read_text(encoding="utf-8")
        if words[0] == "doctor":
            found = json.loads(shown.out)
            assert [each for each in found if each["check"] == "rights"] == []
            unread = [each["what"] for each in found if each["check"] == "not-looked-at"]
            assert [each for each in unread if "group g1:" not in each] == [], "it may read all that it judges"


def test_a_viewer_sees_everything_and_the_exporter_runs_with_its_rights(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead_letter(secured, b"for the viewer")
    commit_one(secured)
    there, group = secured.options("viewer"), ["--group", GROUP]
    plan = str(tmp_path / "plan.json")
    without_namespace = [word for word in there if word not in {"--namespace", "pay"}]
    for words, codes in [
        (["dlq", "ls", *group, *there], {0}),
        (["dlq", "stats", *group, *there], {0}),
        (["retry", "ls", *group, *there], {0}),
        (["delayed", "ls", *there], {0}),
        (["delayed", "stats", *there], {0, 2}),
        (["parked", "ls", *there], {0}),
        (["timers", "ls", *there], {0}),
        (["timers", "show", TOPIC, "o-9", *there], {2}),
        (["tx", "ls", *there], {0}),
        (["tx", "show", TOPIC, "tx-9", *there], {2}),
        (["trace", f"{NAMES.dead_letter(GROUP)}/0/0", *there], {0}),
        (["group", "lag", GROUP, "--count", *without_namespace], {0}),
        (["group", "locks", GROUP, *there], {0, 2}),
        (["doctor", "--topic", TOPIC, *group, "--role", "viewer", "--json", *there], {0, 2}),
    ]:
        assert main(words) in codes, (words, capsys.readouterr().err)
        shown = capsys.readouterr()
        if words[0] == "doctor":
            assert [each for each in json.loads(shown.out) if each["check"] == "rights"] == []
    assert main(["dlq", "plan", *group, "--out", plan, *there]) == 0
    assert main(["dlq", "apply", plan, *without_namespace]) != 0
    lookup = OffsetLookup(secured.bootstrap, NAMES, groups=(GROUP,), client=secured.client("viewer"))
    with closing(lookup):
        snapshot = snapshot_of(0, NAMES, DelayLevels.parse(LEVELS), lookup.look_up())
    assert {each.group for each in snapshot.groups} >= {GROUP}
    assert snapshot.parked is not None
    assert snapshot.parked.appended >= 1
    assert {each.group for each in snapshot.dead if each.appended} >= {GROUP}


def dead_letters(secured: Secured, mark: bytes, count: int, **topics: str) -> None:
    """Dead letters of a group that has none yet, three keys; `name=topic`: as many for each topic."""
    producer = PlainProducer(secured.plain("admin"))
    for number in range(count):
        for key, topic in topics.items():
            headers: list[tuple[str, str | bytes | None]] = [
                ("UNIQ_KEY", b"%s-%s-%d" % (mark, key.encode(), number)), ("RETRY_TOPIC", topic.encode()),
                ("CONSUMER_GROUP", b"g1"), ("RECONSUME_TIMES", b"17"),
            ]  # fmt: skip
            producer.produce(NAMES.dead_letter("g1"), b"%s %d" % (mark, number), b"%d" % (number % 3), headers=headers)
    assert producer.flush(DEADLINE_S) == 0


@contextmanager
def denied(secured: Secured, topic: str) -> Iterator[None]:
    """The operator may not write to a topic; both ends wait until the cluster says so itself."""
    admin, operator = AdminClient(secured.plain("admin")), AdminClient(secured.plain("operator"))
    named = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:operator", "*", AclOperation.WRITE)
    binding, chosen = AclBinding(*named, AclPermissionType.DENY), AclBindingFilter(*named, AclPermissionType.DENY)

    def wait_until_denied(wanted: set[str]) -> None:
        until = time.monotonic() + DEADLINE_S
        while denied_topics(operator, [topic], lambda *_, **__: None) != wanted:
            assert time.monotonic() < until

    admin.create_acls([binding])[binding].result(DEADLINE_S)
    try:
        wait_until_denied({topic})
        yield
    finally:
        admin.delete_acls([chosen])[chosen].result(DEADLINE_S)
        wait_until_denied(set())


def applied(secured: Secured, plan: str, *words: str) -> int:
    there = [word for word in secured.options("operator") if word not in {"--namespace", "pay"}]
    return main(["dlq", "apply", plan, *there, *words])


def arrived(secured: Secured, mark: bytes) -> list[tuple[bytes, int]]:
    """Key and number of what came to the group's retry topic."""
    with TopicReader(secured.bootstrap, client=secured.client("admin")) as reader:
        found = [each for each in reader.read([NAMES.retry("g1")]) if each.value().startswith(mark)]
    return [(each.key(), int(each.value().split()[1])) for each in found]


@pytest.mark.parametrize("at", ["committed", "produced"])
def test_a_target_that_is_denied_in_the_middle_ends_the_redrive_which_goes_on_later(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Sixty letters, twenty a transaction; the right is taken away at the second one, between two or inside it."""
    mark, plan, target = at.encode(), str(tmp_path / "plan.json"), NAMES.retry("g1")
    dead_letters(secured, mark, 60, x=TOPIC)
    assert main(["dlq", "plan", "--group", "g1", "--out", plan, *secured.options("operator")]) == 0
    real = redrive.Redriver
    with ExitStack() as stack:

        def interrupted(*args: Any, **settings: Any) -> Any:
            passed: list[str] = []

            def point(name: str) -> None:
                passed.append(name)
                if name == at and passed.count(at) == 2:
                    stack.enter_context(denied(secured, target))

            return real(*args, **{**settings, "report": point})

        monkeypatch.setattr(redrive, "Redriver", interrupted)
        capsys.readouterr()
        assert applied(secured, plan, "--rate", "20") == 1
        told = capsys.readouterr().err
        assert f"error: the principal may not write to {target}: grant it" in told
        sent = len(arrived(secured, mark))
        assert sent in ({40} if at == "committed" else {20, 40}), "an open transaction is there whole or not at all"
        assert f"{sent} letters were sent in this run, and are marked" in told
        assert applied(secured, plan, "--dry-run") == 1, "it is known before the first letter, now"
        assert len(arrived(secured, mark)) == sent
    monkeypatch.setattr(redrive, "Redriver", real)
    capsys.readouterr()
    assert applied(secured, plan, "--json") == 0
    last = json.loads(capsys.readouterr().out)
    assert (last["sent"], last["settled_before"], last["failed"]) == (60 - sent, sent, 0)
    await_ends_of_transactions(AdminClient(secured.plain("admin")))
    came = arrived(secured, mark)
    assert sorted(number for _, number in came) == list(range(60))
    for key in (b"0", b"1", b"2"):
        numbers = [number for each, number in came if each == key]
        assert numbers == sorted(numbers)


def test_one_denied_target_of_two_is_named_and_nothing_is_sent(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Operators write to no source topic unless that is granted: here to one of the two."""
    dead_letters(secured, b"two", 3, mine=TOPIC, others="payroll")
    plan, there = str(tmp_path / "plan.json"), secured.options("operator")
    admin = AdminClient(secured.plain("admin"))
    rights = [
        AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:operator", "*", operation,
            AclPermissionType.ALLOW,
        )
        for topic, operation in ((TOPIC, AclOperation.WRITE), ("payroll", AclOperation.DESCRIBE))
    ]  # fmt: skip
    for future in admin.create_acls(rights).values():
        future.result(DEADLINE_S)
    operator, until = AdminClient(secured.plain("operator")), time.monotonic() + DEADLINE_S
    while denied_topics(operator, [TOPIC, "payroll"], lambda *_, **__: None) != {"payroll"}:
        assert time.monotonic() < until
    assert main(["dlq", "plan", "--group", "g1", "--key", "0", "--to-source", "--out", plan, *there]) == 0
    capsys.readouterr()
    assert applied(secured, plan) == 1
    assert "error: the principal may not write to payroll: grant it" in capsys.readouterr().err
    with TopicReader(secured.bootstrap, client=secured.client("admin")) as reader:
        assert [each for each in reader.read([TOPIC, "payroll"]) if each.value().startswith(b"two")] == []
    for right in rights:
        chosen = AclBindingFilter(
            right.restype, right.name, right.resource_pattern_type, right.principal, right.host, right.operation,
            right.permission_type,
        )  # fmt: skip
        admin.delete_acls([chosen])[chosen].result(DEADLINE_S)
    while denied_topics(operator, [TOPIC], lambda *_, **__: None) != {TOPIC}:
        assert time.monotonic() < until + DEADLINE_S


def test_with_kip_848_a_consumer_whose_right_to_its_group_is_taken_away_says_so(secured: Secured) -> None:
    """The client gets a fatal error that does not say that it is fatal."""
    admin = AdminClient(secured.plain("admin"))
    right = AclBinding(
        ResourceType.GROUP, "guests", ResourcePatternType.LITERAL, "User:consumer", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    admin.create_acls([right])[right].result(DEADLINE_S)
    consumer = LitePullConsumer(
        secured.bootstrap, group="guests", namespace="pay", auto_commit=False,
        client={**secured.client("consumer"), "group.protocol": "consumer"},
    )  # fmt: skip
    until = time.monotonic() + DEADLINE_S
    with consumer:
        consumer.subscribe(TOPIC)
        while True:
            assert time.monotonic() < until
            try:
                consumer.poll(200)
            except RocketshimError:  # the right takes effect a moment after it was given
                continue
            if consumer.assignment():
                break
        taken = AclBindingFilter(
            right.restype, right.name, right.resource_pattern_type, right.principal, right.host, right.operation,
            right.permission_type,
        )  # fmt: skip
        admin.delete_acls([taken])[taken].result(DEADLINE_S)
        with pytest.raises(RocketshimError, match="Group authorization failed"):
            poll_until(consumer, time.monotonic() + DEADLINE_S)


def poll_until(consumer: LitePullConsumer, until: float) -> None:
    while time.monotonic() < until:
        consumer.poll(200)


def commit_one(secured: Secured) -> None:
    with closing(Consumer(secured.plain("consumer", group_id=GROUP, enable_auto_commit=False))) as member:
        member.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)


def test_spark_reads_everything_and_joins_no_group(secured: Secured) -> None:
    dead_letter(secured, b"for spark")
    topics = [TOPIC, NAMES.schedule, NAMES.dead_letter(GROUP), NAMES.retry(GROUP), NAMES.parked]
    client = secured.client("spark")
    cluster = Cluster(secured.bootstrap, client)
    assert {each.topic for each in cluster.bounds(topics)} == set(topics)
    assert set(cluster.retention_ms(topics)) == {NAMES.dead_letter(GROUP)}
    for group in (NAMES.worker_group, GROUP):
        assert {topic for topic, _ in cluster.committed(group, topics)} <= set(topics)  # it may ask
    with TopicReader(secured.bootstrap, client=client) as reader:
        assert b"for spark" in [record.value() for record in reader.read([NAMES.dead_letter(GROUP)])]


def test_a_drop_in_consumer_sends_back_with_a_consumers_rights_and_credentials_that_are_set_later(
    secured: Secured,
) -> None:
    mark = b"for the drop-in"
    producer = PlainProducer(secured.plain("producer"))
    producer.produce(TOPIC, mark)
    producer.produce(TOPIC, mark)
    assert producer.flush(DEADLINE_S) == 0
    spoiler = PlainProducer(secured.plain("admin"))
    spoiler.produce(NAMES.retry(GROUP), mark, headers=[("RECONSUME_TIMES", b"three")])
    assert spoiler.flush(DEADLINE_S) == 0
    config = secured.plain("consumer", group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False)
    ours = {"rocketshim.retry.enable": True, "rocketshim.namespace": "pay", "rocketshim.delay.levels": LEVELS}
    with dropin.Consumer({**config, **ours, "sasl.password": "expired"}) as consumer:
        consumer.set_sasl_credentials(config["sasl.username"], config["sasl.password"])
        consumer.subscribe([TOPIC])
        found: list[Any] = []
        until = time.monotonic() + DEADLINE_S
        while len(found) < 3:
            assert time.monotonic() < until
            message = consumer.poll(0.5)
            if message is not None and message.error() is None and message.value() == mark:
                found.append(message)
        later, never = [message for message in found if message.topic() == TOPIC]
        (spoilt,) = [message for message in found if message.topic() == NAMES.retry(GROUP)]
        consumer.reconsume_later(later, "later")  # returns when it is stored
        consumer.dead_letter(never, "never")
        consumer.reconsume_later(spoilt, "parked")
        consumer.commit(asynchronous=False)
    with TopicReader(secured.bootstrap, client=secured.client("operator")) as reader:
        for topic in (NAMES.schedule, NAMES.dead_letter(GROUP), NAMES.parked):
            assert mark in [record.value() for record in reader.read([topic])], topic


def test_the_doctor_names_the_rights_that_a_stranger_lacks(
    secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *secured.options("producer"), "--topic", TOPIC, "--role", "worker", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    lacking = {each["subject"]: each["what"] for each in found if each["check"] == "rights"}
    assert lacking[f"worker on topic {NAMES.schedule}"] == "the principal lacks READ"
    assert {each["check"] for each in found} >= {"rights", "not-looked-at", "topic-missing"}


PROBE_RIGHTS = {
    "CREATE on topics": ("TOPIC", "CREATE"),
    "DELETE on topics": ("TOPIC", "DELETE"),
    "DESCRIBE_CONFIGS on topics": ("TOPIC", "DESCRIBE_CONFIGS"),
    "READ on topics": ("TOPIC", "READ"),
    "WRITE on topics": ("TOPIC", "WRITE"),
    "DELETE on groups": ("GROUP", "DELETE"),
    "READ on groups": ("GROUP", "READ"),
    "WRITE on transactional ids": ("TRANSACTIONAL_ID", "WRITE"),
}
NOTHING_MADE = "; nothing was created"
NOT_MEASURED = {
    "": {"rights": f"CREATE on topics, DELETE on topics, DELETE on groups{NOTHING_MADE}"},
    "CREATE on topics": {"rights": f"CREATE on topics{NOTHING_MADE}"},
    "DELETE on topics": {"rights": "DELETE on topics"},
    "DESCRIBE_CONFIGS on topics": {"settings of topics": "DESCRIBE_CONFIGS on topics"},
    "READ on topics": {"rights": "READ on topics"},
    "WRITE on topics": {"rights": "WRITE on topics"},
    "DELETE on groups": {"rights": f"DELETE on groups{NOTHING_MADE}"},
    "READ on groups": {
        "transactions with positions": "READ on groups",
        "group.protocol=classic": "READ on groups",
    },
    "WRITE on transactional ids": {"transactions with positions": "WRITE on transactional ids"},
}
"""The right that a principal lacks, `""`: all of them; and what is not measured then, with the reason."""


@pytest.fixture(scope="module")
def probers(secured: Secured) -> dict[str, str]:
    """Right to the namespace in which the user `prober` lacks only that one for its probe."""
    namespaces = {lacking: f"prober{number}" for number, lacking in enumerate(NOT_MEASURED)}

    def allow(kind: str, name: str, operation: str) -> AclBinding:
        pattern = ResourcePatternType.PREFIXED
        allowed = getattr(AclOperation, operation), AclPermissionType.ALLOW
        return AclBinding(getattr(ResourceType, kind), name, pattern, "User:prober", "*", *allowed)

    bindings = [
        allow(kind, f"{namespace}.rmq.probe.", operation)
        for lacking, namespace in namespaces.items()
        for right, (kind, operation) in PROBE_RIGHTS.items()
        if lacking and right != lacking
    ]
    bindings += [allow("GROUP", "prober", "DESCRIBE"), allow("TOPIC", TOPIC, "DESCRIBE")]
    admin = AdminClient(secured.plain("admin"))
    for binding in bindings:  # one after the other: the last one is there last
        admin.create_acls([binding])[binding].result(DEADLINE_S)
    await_rights(secured, "prober")
    return namespaces


@pytest.mark.parametrize("lacking", NOT_MEASURED)
def test_the_probe_names_the_right_that_it_lacks_and_leaves_nothing(
    secured: Secured, probers: dict[str, str], lacking: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, a lack of READ was an error of the brokers ("append times"), and who may only create left a topic."""
    namespace = probers[lacking]
    words = ["doctor", *secured.options("prober"), "--namespace", namespace, "--probe", "--json"]
    assert main(words) == 2  # its topics do not exist
    found = json.loads(capsys.readouterr().out)
    expected = {
        subject: ("not-measured", "note", f"the principal lacks {what}")
        for subject, what in NOT_MEASURED[lacking].items()
    }
    checks = {"not-measured", "cluster-lacks", "append-time-not-kept"}
    admin = AdminClient(secured.plain("admin"))
    left = [name for name in admin.list_topics().topics if name.startswith(f"{namespace}.rmq.probe.")]
    if lacking == "DELETE on topics":  # known only once there is a topic
        [name] = left
        seen = f"{name} (Broker: Topic authorization failed) could not be deleted"
        expected["deletion"] = ("cluster-lacks", "warning", seen)
        fixes = {each["subject"]: each["fix"] for each in found}
        assert fixes["deletion"].startswith(f"kafka-topics.sh --delete --topic {name}")
        admin.delete_topics(left)[name].result(DEADLINE_S)
    else:
        assert left == []
    told = {each["subject"]: (each["check"], each["severity"], each["what"]) for each in found}
    assert {subject: what for subject, what in told.items() if what[0] in checks} == expected
    way_out = [each["fix"] for each in found if each["check"] == "not-measured"]
    assert all(f"all names that begin with {namespace}.rmq.probe." in fix for fix in way_out)
    groups = admin.list_consumer_groups().result(DEADLINE_S).valid
    assert not [each.group_id for each in groups if ".probe." in each.group_id]


def test_a_fatal_error_while_a_record_is_stored_is_an_error_of_the_call(secured: Secured) -> None:
    """Before, the callback was called with the exception pending: SystemError, or an exception that is no exception."""
    producer = PlainProducer(secured.plain("viewer", enable_idempotence=True))  # it may write nothing
    with pytest.raises(KafkaException) as refused:
        store(producer, DeliveryReports(), DEADLINE_S, TOPIC, b"x")
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    close_producer(producer, DEADLINE_S)


def test_a_group_that_may_not_be_seen_is_named_soon(secured: Secured) -> None:
    """Before, the answer came after 30 s: no broker answers."""
    began_s = time.monotonic()
    refused = pytest.raises(NotAuthorizedError, match=r"(?i)group authorization failed")
    with TopicReader(secured.bootstrap, client=secured.client("spark")) as reader, refused:
        reader.positions("another", [TopicPartitionKey(TOPIC, 0)])
    assert time.monotonic() - began_s < 25


# --- what is denied ----------------------------------------------------------------------------------------------


def code(ask: Callable[[], Any]) -> int | None:
    """The error of a call; None: it was allowed."""
    try:
        ask()
    except KafkaException as error:
        return int(error.args[0].code())
    return None


class Tries:
    """What one user tries; each returns Kafka's error, None if it was allowed."""

    def __init__(self, secured: Secured, user: str) -> None:
        self._secured, self._user = secured, user
        self._admin = AdminClient(secured.plain(user))
        self._producer = PlainProducer(secured.plain(user))

    def write(self, topic: str) -> int | None:
        errors: list[KafkaError | None] = []
        try:
            self._producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: errors.append(error))
        except KafkaException as error:  # so it is once the client knows
            return int(error.args[0].code())
        self._producer.flush(DEADLINE_S)
        [reported] = errors
        return None if reported is None else int(reported.code())

    def read(self, topic: str) -> int | None:
        with closing(Consumer(self._secured.plain(self._user, group_id="nobody"))) as reader:
            place = TopicPartition(topic, 0, 0)
            unseen = code(lambda: reader.get_watermark_offsets(place, timeout=DEADLINE_S))
            if unseen is not None:
                return unseen
            reader.assign([place])
            until = time.monotonic() + DEADLINE_S
            while time.monotonic() < until:
                message = reader.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    return None
                if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # of its name; it does not join
                    return int(error.code())
        return None

    def commit(self, group: str) -> int | None:
        asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(TOPIC, 0, 1)])]
        try:
            answer = self._admin.alter_consumer_group_offsets(asked)[group].result(DEADLINE_S)
        except KafkaException as error:
            return int(error.args[0].code())
        done = answer.topic_partitions[0].error
        return None if done is None else int(done.code())

    def transact(self, name: str) -> int | None:
        producer = PlainProducer(self._secured.plain(self._user, transactional_id=name))
        return code(lambda: producer.init_transactions(DEADLINE_S))

    def create(self, topic: str) -> int | None:
        return code(lambda: self._admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S))

    def delete(self, topic: str) -> int | None:
        return code(lambda: self._admin.delete_topics([topic])[topic].result(DEADLINE_S))

    def grow(self, topic: str) -> int | None:
        return code(lambda: self._admin.create_partitions([NewPartitions(topic, 64)])[topic].result(DEADLINE_S))

    def alter(self, topic: str) -> int | None:
        entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        return code(lambda: next(iter(self._admin.incremental_alter_configs([resource]).values())).result(DEADLINE_S))

    def truncate(self, topic: str) -> int | None:
        place = TopicPartition(topic, 0, 1)
        return code(lambda: next(iter(self._admin.delete_records([place]).values())).result(DEADLINE_S))

    def forget(self, group: str) -> int | None:
        return code(lambda: self._admin.delete_consumer_groups([group])[group].result(DEADLINE_S))

    def seize(self, user: str) -> int | None:
        """Give oneself all rights."""
        binding = AclBinding(
            ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, f"User:{user}", "*", AclOperation.ALL,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        return code(lambda: self._admin.create_acls([binding])[binding].result(DEADLINE_S))

    def spy(self, _: str) -> int | None:
        """Read the rights: without the right to, one gets an empty list, without an error."""
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        found = self._admin.describe_acls(everything).result(DEADLINE_S)
        return None if found else KafkaError.CLUSTER_AUTHORIZATION_FAILED


RETRY, DEAD, LOG = NAMES.retry(GROUP), NAMES.dead_letter(GROUP), NAMES.group_log(GROUP)
OTHERS = [NAMES.retry("g1"), NAMES.dead_letter("g1"), NAMES.group_log("g1")]
CHECKS, OTHER_CHECKS = NAMES.check("shop"), NAMES.check("other")
NEVER = [
    ("create", "new"), ("delete", TOPIC), ("delete", NAMES.schedule), ("grow", NAMES.schedule),
    ("alter", NAMES.schedule), ("truncate", NAMES.schedule), ("forget", NAMES.worker_group), ("forget", GROUP),
    ("seize", "me"), ("spy", ""), ("write", "payroll"), ("read", "payroll"), ("commit", "another-group"),
    ("transact", "another-id"), ("write", "__consumer_offsets"), ("write", "__transaction_state"),
]  # fmt: skip
FORBIDDEN: dict[str, list[tuple[str, str]]] = {
    "producer": [
        *(("write", name) for name in (RETRY, DEAD, LOG, NAMES.parked, NAMES.redrive_log, NAMES.timer_state)),
        *(("read", name) for name in (TOPIC, NAMES.schedule, RETRY, DEAD, NAMES.timers, NAMES.timer_state)),
        ("write", CHECKS), ("read", OTHER_CHECKS), ("commit", OTHER_CHECKS), ("commit", GROUP),
        ("commit", NAMES.worker_group), ("transact", f"{NAMES.worker_group}.one"),
    ],
    "consumer": [
        *(("write", name) for name in (TOPIC, RETRY, NAMES.redrive_log, NAMES.timers, NAMES.timer_state, *OTHERS)),
        *(("read", name) for name in (NAMES.schedule, DEAD, NAMES.parked, NAMES.timers, NAMES.timer_state, *OTHERS)),
        ("write", CHECKS), ("read", CHECKS), ("commit", CHECKS), ("commit", NAMES.worker_group), ("commit", "g1"),
        ("transact", f"{NAMES.worker_group}.one"),
    ],
    "worker": [
        *(("write", name) for name in (DEAD, LOG, NAMES.redrive_log, OTHERS[1], OTHERS[2])),
        *(("read", name) for name in (TOPIC, RETRY, DEAD, LOG, NAMES.parked, CHECKS)), ("commit", CHECKS),
        ("commit", GROUP), ("transact", f"{NAMES.worker_group}x"), ("transact", f"{NAMES.redrive_log}.x"),
    ],
    "viewer": [
        ("write", CHECKS), ("commit", CHECKS),
        *(("write", name) for name in (TOPIC, NAMES.schedule, RETRY, DEAD, NAMES.parked, LOG, NAMES.redrive_log)),
        *(("write", name) for name in (NAMES.timers, NAMES.timer_state)),
        ("commit", GROUP), ("commit", NAMES.worker_group), ("transact", f"{NAMES.redrive_log}.x"),
    ],
    "operator": [
        ("write", CHECKS), ("commit", CHECKS),
        *(("write", name) for name in (TOPIC, DEAD, NAMES.parked, NAMES.timer_state)),
        ("commit", GROUP), ("commit", NAMES.worker_group), ("transact", f"{NAMES.worker_group}.one"),
    ],
    "spark": [
        ("write", CHECKS), ("commit", CHECKS),
        *(("write", name) for name in (TOPIC, NAMES.schedule, RETRY, DEAD, NAMES.parked, LOG, NAMES.redrive_log)),
        *(("write", name) for name in (NAMES.timers, NAMES.timer_state)),
        ("commit", GROUP), ("commit", NAMES.worker_group), ("transact", f"{NAMES.worker_group}.one"),
    ],
    "stranger": [
        *(("write", name) for name in (TOPIC, NAMES.schedule, NAMES.timers)),
        *(("read", name) for name in (TOPIC, NAMES.schedule)),
        ("commit", GROUP),
    ],
}  # fmt: skip


def test_far_more_than_sixty_operations_are_tried(secured: Secured) -> None:
    there = AdminClient(secured.plain("admin")).list_topics(timeout=DEADLINE_S).topics
    named = {on for each in [*FORBIDDEN.values(), NEVER] for what, on in each if what in {"write", "read", "alter"}}
    assert named <= set(there), "nothing is denied only because it is not there"
    assert sum(len(each) + len(NEVER) for each in FORBIDDEN.values()) >= 120


@pytest.mark.parametrize("user", FORBIDDEN)
def test_everything_else_is_denied(secured: Secured, user: str) -> None:
    allowed = []
    tries = Tries(secured, user)
    for what, on in [*FORBIDDEN[user], *NEVER]:
        refused = DENIED | UNSEEN if what in {"read", "truncate"} else DENIED
        until = time.monotonic() + DEADLINE_S
        answer = getattr(tries, what)(on)
        while answer is not None and answer not in refused and time.monotonic() < until:
            answer = getattr(tries, what)(on)  # a busy broker may say first that it is busy
        if answer not in refused:
            allowed.append((what, on, answer))
    assert allowed == []


def test_the_tries_would_succeed_for_who_has_the_rights(secured: Secured) -> None:
    """So that "denied" does not mean that the try is broken."""
    tries = Tries(secured, "admin")
    assert tries.write("payroll") is None
    assert tries.read("payroll") is None
    assert tries.commit("admins-group") is None
    assert tries.transact("admins-id") is None
    assert tries.create("admins-topic") is None
    assert tries.grow("admins-topic") is None
    assert tries.alter("admins-topic") is None
    assert tries.write("admins-topic") is None
    assert tries.truncate("admins-topic") is None
    assert tries.delete("admins-topic") is None
    assert tries.forget("admins-group") is None
    assert tries.seize("nobody-we-know") is None
    assert tries.spy("") is None


def test_a_wrong_certificate_or_password_is_an_error_that_says_where_to_look(
    secured: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    right = secured.client("operator")
    unsafe = {key: value for key, value in right.items() if key != "ssl.ca.location"}
    letters, send = ["dlq", "ls", "--group", GROUP], ["send", TOPIC, "x", "--timeout", "1"]
    for words, wrong, reason in (
        (["doctor"], {**right, "sasl.password": "wr0ng-s3cret"}, "Authentication failed"),
        (letters, {**right, "sasl.password": "wr0ng-s3cret"}, "Authentication failed"),
        (letters, unsafe, "certificate verify failed"),
        (send, {**right, "sasl.password": "wr0ng-s3cret"}, ""),
        (send, unsafe, ""),
        (send, {}, ""),
    ):
        pairs = [word for item in wrong.items() for word in ("--client", "=".join(item))]
        assert main([*words, "--bootstrap", secured.bootstrap, *pairs]) == 1
        shown = "".join(capsys.readouterr())
        assert "error: " in shown
        assert reason in shown
        assert len(shown.splitlines()) == 1, "and not what librdkafka logs, twenty times a second"
        assert "s3cret" not in shown


CANARY = "c4n4ry"
SECRETS = {
    "sasl.password": CANARY,
    "ssl.key.password": CANARY,
    "ssl.keystore.password": CANARY,
    "sasl.oauthbearer.client.secret": CANARY,
    "sasl.oauthbearer.config": f"principal=me secret={CANARY}",
    "sasl.passwort": CANARY,
}
KEY = f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----"
COMMANDS = [
    ["init", "--group", "g"], ["doctor", "--json"], ["send", "orders", "x"], ["worker", "--allow", "orders"],
    ["delayed", "ls"], ["delayed", "stats", "--json"], ["delayed", "show", "0/0"], ["parked", "ls", "--json"],
    ["parked", "show", "0/0"], ["parked", "plan", "0/0"], ["dlq", "ls", "--group", "g", "--json"],
    ["dlq", "show", "0/0", "--group", "g"], ["dlq", "stats", "--group", "g"], ["dlq", "plan", "--group", "g"],
    ["dlq", "discard", "--group", "g"], ["dlq", "export", "--group", "g"], ["retry", "ls", "--group", "g"],
    ["trace", "x"], ["group", "lag", "g"], ["group", "subscriptions", "g"], ["group", "locks", "g"],
    ["group", "members", "g"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    "settings", [SECRETS, {"ssl.key.pem": KEY, "security.protocol": "SSL"}, {"ssl.engine.location": CANARY}]
)
def test_no_command_shows_a_secret_when_its_settings_are_refused(  # noqa: PLR0917 - fixtures
    words: list[str],
    settings: Settings,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its traceback, too, and what the client library itself writes."""
    monkeypatch.setenv("ROCKETSHIM_DEBUG", "1")
    caplog.set_level("DEBUG")
    file = tmp_path / "client.properties"
    lines = [f"{name}={value}" for name, value in settings.items() if "\n" not in value]
    file.write_text("\n".join(["# of a test", "", *lines]))
    pairs = [f"--client={name}={value}" for name, value in settings.items() if "\n" in value]
    ended = main([*words, "--bootstrap", "127.0.0.1:1", "--client", f"@{file}", *pairs])
    shown = "".join(capfd.readouterr()) + caplog.text
    assert ended == 1
    assert "ConfigError" in shown
    assert CANARY not in shown


def test_no_running_process_shows_a_secret(
    secured: Secured, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A worker, a consumer and a producer with a wrong password: in their errors, logs, states and `repr`."""
    caplog.set_level("DEBUG")
    client = {**secured.client("worker"), "sasl.password": CANARY}
    worker = DelayWorker(WorkerSettings.make(bootstrap=secured.bootstrap, allow=(TOPIC,), client=client))
    producer = Producer(secured.bootstrap, client=client)
    with pytest.raises(RocketshimError) as refused:
        producer.send(Message(TOPIC, b"x"), timeout_s=3.0)
    producer.close(timeout_s=1.0)
    looked_at = [worker, worker.settings, producer, producer.settings, refused.value, worker.state]
    pretty = Console(file=StringIO())
    pretty.print(*looked_at)
    shown = "".join(capfd.readouterr()) + caplog.text + pretty.file.getvalue()  # type: ignore[attr-defined]
    shown += "".join(f"{each!r} {each}" for each in looked_at) + "".join(traceback.format_exception(refused.value))
    assert CANARY not in shown
