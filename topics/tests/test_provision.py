"""What the cluster refuses becomes a typed error that says what to do; the real cluster is in integration_tests."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim_topics import (
    BrokerUnavailableError,
    ClusterError,
    DelayLevels,
    Layout,
    NotAuthorizedError,
    TopicMissingError,
    TopicNames,
)
from rocketshim_topics.layout import TopicSpec
from rocketshim_topics.provision import apply, create_on_use, ensure_topics, plan, read_topics

LAYOUT = Layout(TopicNames(), DelayLevels.default())
SPECS = LAYOUT.for_group("payments", with_log=False)
UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART


def answered(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, int | KafkaError):
        future.set_exception(KafkaException(KafkaError(value) if isinstance(value, int) else value))
    else:
        future.set_result(value)
    return future


class Cluster:
    """An admin client of a cluster that answers with fixed errors, and knows the topics it was asked to create."""

    def __init__(
        self,
        *,
        describe: int = UNKNOWN,
        create: int | KafkaError | None = None,
        configs: int | None = None,
        led: bool = True,
        broker: dict[str, str] | None = None,
        refuses: tuple[str, ...] = (),
    ) -> None:
        self.refuses = set(refuses)
        self.broker = broker or {}
        self.led = led
        self.describe = describe
        self.create = create
        self.configs = configs
        self.there: dict[str, Any] = {}
        self.asked: list[str] = []

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        return {name: answered(self.there.get(name, self.describe)) for name in topics.topic_names}

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        settings = {"cleanup.policy": SimpleNamespace(value="delete"), "secret": SimpleNamespace(value=None)}
        settings |= {name: SimpleNamespace(value=value) for name, value in self.broker.items()}
        return {resource: answered(settings if self.configs is None else self.configs) for resource in resources}

    def describe_cluster(self, **_: Any) -> Future[Any]:
        return answered(SimpleNamespace(nodes=[SimpleNamespace(id=1)]))

    def create_topics(self, topics: list[Any], **_: Any) -> dict[str, Future[Any]]:
        if refused := [topic for topic in topics if self.refuses & topic.config.keys()]:
            accepted = [topic for topic in topics if topic not in refused]
            answers = self.create_topics(accepted) if accepted else {}
            return answers | {topic.topic: answered(KafkaError.POLICY_VIOLATION) for topic in refused}
        if sum(1 + topic.num_partitions + len(topic.config) for topic in topics) > 10_000:
            return {topic.topic: answered(KafkaError.POLICY_VIOLATION) for topic in topics}
        self.asked += [topic.topic for topic in topics]
        if self.create in {None, KafkaError.TOPIC_ALREADY_EXISTS}:
            self.there |= {topic.topic: described(topic.num_partitions, led=self.led) for topic in topics}
        return {topic.topic: answered(self.create) for topic in topics}


def described(partitions: int, *, led: bool = True) -> Any:
    node = SimpleNamespace(id=1)
    partition = SimpleNamespace(leader=node if led else None, replicas=[node])
    return SimpleNamespace(partitions=[partition] * partitions)


DENIED = [
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
]
AWAY = [
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._DESTROY_BROKER,
]


@pytest.mark.parametrize(
    ("code", "error"),
    [(code, NotAuthorizedError) for code in DENIED]
    + [(code, BrokerUnavailableError) for code in AWAY]
    + [(KafkaError.POLICY_VIOLATION, ClusterError), (KafkaError.INVALID_CONFIG, ClusterError)],
)
def test_refusal_is_a_typed_error_that_names_the_topic(code: int, error: type[ClusterError]) -> None:
    for cluster in (Cluster(describe=code), Cluster(create=code)):
        with pytest.raises(error, match=r"cannot .* rmq\.retry\.payments") as caught:
            apply(cluster, plan(cluster, SPECS, timeout_s=0.1), timeout_s=0.1)  # type: ignore[arg-type]
        assert type(caught.value) is error
        assert isinstance(caught.value.__cause__, KafkaException)


def test_a_setting_that_only_costs_speed_is_left_out_where_it_is_refused() -> None:
    cluster, (*_, log) = Cluster(refuses=("segment.ms",)), LAYOUT.for_group("payments", with_log=True)
    assert apply(cluster, plan(cluster, [log])) == (log.name,)  # type: ignore[arg-type]
    assert cluster.asked == [log.name]


def test_a_setting_that_matters_is_not_left_out() -> None:
    cluster, (*_, log) = Cluster(refuses=("cleanup.policy",)), LAYOUT.for_group("payments", with_log=True)
    with pytest.raises(ClusterError, match="What it should have: rocketshim init --group payments --with-log"):
        apply(cluster, plan(cluster, [log]))  # type: ignore[arg-type]
    assert cluster.asked == []


def test_a_refused_setting_names_the_way_out() -> None:
    cluster = Cluster(create=KafkaError.POLICY_VIOLATION)
    with pytest.raises(ClusterError, match="What it should have: rocketshim init --group payments"):
        ensure_topics(cluster, SPECS)  # type: ignore[arg-type]


def test_brokers_without_a_default_number_of_copies_are_said_with_the_option() -> None:
    """The text is librdkafka's (2.16, on Kafka 1.1)."""
    text = "Default replication factor (KIP-464) not supported by broker, requires broker version <= 2.4.0"
    cluster = Cluster(create=KafkaError(KafkaError._UNSUPPORTED_FEATURE, text))
    with pytest.raises(ClusterError, match=r"before Kafka 2\.4 .*rocketshim init --replication-factor N"):
        ensure_topics(cluster, SPECS)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", DENIED[:2])
def test_program_without_the_right_to_create_is_told_who_does_it_and_how(code: int) -> None:
    with pytest.raises(TopicMissingError, match="rocketshim init --group payments") as caught:
        ensure_topics(Cluster(create=code), SPECS)  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, NotAuthorizedError)


def test_program_that_may_not_create_does_not_try() -> None:
    cluster = Cluster()
    with pytest.raises(TopicMissingError, match=r"rmq\.retry\.payments, rmq\.dlq\.payments"):
        ensure_topics(cluster, SPECS, create=False)  # type: ignore[arg-type]
    assert cluster.asked == []


def test_topic_that_somebody_else_created_meanwhile_is_no_error() -> None:
    cluster = Cluster(create=KafkaError.TOPIC_ALREADY_EXISTS)
    assert apply(cluster, plan(cluster, SPECS)) == ()  # type: ignore[arg-type]
    assert cluster.asked == [spec.name for spec in SPECS]


def test_topics_of_a_thousand_groups_are_created_in_requests_that_a_controller_accepts() -> None:
    cluster = Cluster()
    specs = [spec for number in range(1_000) for spec in LAYOUT.for_group(f"g{number}", with_log=True)]
    assert list(apply(cluster, plan(cluster, specs))) == cluster.asked == [spec.name for spec in specs]  # type: ignore[arg-type]


@pytest.mark.parametrize("code", DENIED[:2])
def test_settings_that_may_not_be_read_do_not_stop_a_program(code: int) -> None:
    cluster = Cluster(configs=code)
    cluster.there = {spec.name: described(1) for spec in SPECS}
    assert ensure_topics(cluster, SPECS).unread == tuple(spec.name for spec in SPECS)  # type: ignore[arg-type]
    assert cluster.asked == []


ON_USE = {"auto.create.topics.enable": "true", "num.partitions": "3"}


def test_missing_topics_are_created_where_the_cluster_creates_topics_on_use() -> None:
    cluster = Cluster(broker=ON_USE)
    cluster.there = {"orders": described(1)}
    assert create_on_use(cluster, ["orders", "refunds"])  # type: ignore[arg-type]
    assert cluster.asked == ["refunds"]
    assert len(cluster.there["refunds"].partitions) == 3


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(broker={"auto.create.topics.enable": "false"}),
        Cluster(broker=ON_USE, configs=DENIED[0]),
        Cluster(broker=ON_USE, create=DENIED[0]),
    ],
    ids=["it does not", "its settings may not be read", "topics may not be created"],
)
def test_no_topic_is_created_where_the_cluster_creates_none_on_use(cluster: Cluster) -> None:
    assert not create_on_use(cluster, ["orders"])  # type: ignore[arg-type]
    assert not cluster.there


def test_settings_without_a_value_are_left_out() -> None:
    cluster = Cluster()
    cluster.there = {"t": described(3)}
    state = read_topics(cluster, ["t", "other"])["t"]  # type: ignore[arg-type]
    assert (state.partitions, state.config) == (3, {"cleanup.policy": "delete"})


def test_partition_without_a_leader_is_waited_for_and_then_an_error() -> None:
    cluster = Cluster(led=False)
    planned = plan(cluster, [TopicSpec("t", 1)])  # type: ignore[arg-type]
    with pytest.raises(BrokerUnavailableError, match=r"not every broker knows all leaders of t$"):
        apply(cluster, planned, timeout_s=0.0)  # type: ignore[arg-type]
