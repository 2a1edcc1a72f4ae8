"""Topics are created as the layout says, on a real broker; what exists is left alone unless told."""

import socket
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim_topics import (
    BrokerUnavailableError,
    ClusterError,
    DelayLevels,
    Layout,
    TopicMismatchError,
    TopicMissingError,
    TopicNames,
    ensure_topics,
)
from rocketshim_topics.provision import apply, plan, read_topics

Topic = Callable[..., str]


def layout_of(namespace: str, **changes: Any) -> Layout:
    return Layout(TopicNames(namespace), DelayLevels.default(), **changes)


def every_topic(layout: Layout) -> tuple[Any, ...]:
    return (*layout.shared(), *layout.for_group("payments", with_log=True))


def test_plan_changes_nothing(admin: AdminClient, namespace: str) -> None:
    specs = every_topic(layout_of(namespace))
    assert plan(admin, specs).missing == specs
    assert read_topics(admin, [spec.name for spec in specs]) == {}


def test_apply_creates_what_is_missing_and_the_second_time_nothing(admin: AdminClient, namespace: str) -> None:
    specs = every_topic(layout_of(namespace))
    assert apply(admin, plan(admin, specs)) == tuple(spec.name for spec in specs)
    found = read_topics(admin, [spec.name for spec in specs])
    for spec in specs:
        state = found[spec.name]
        assert state.partitions == spec.partitions
        assert state.config is not None
        assert spec.config.items() <= state.config.items()
    again = plan(admin, specs)
    assert again.is_done
    assert not again.differences
    assert apply(admin, again) == ()


def test_every_partition_has_a_leader_when_apply_returns(admin: AdminClient, broker: Any, namespace: str) -> None:
    layout = layout_of(namespace, lanes=2)
    ensure_topics(admin, layout.shared())
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30)
    partitions = metadata.topics[layout.names.schedule].partitions
    assert len(partitions) == 64
    assert all(partition.leader >= 0 for partition in partitions.values())


def test_many_at_once_create_each_topic_once_and_all_succeed(broker: Any, admin: AdminClient, namespace: str) -> None:
    layout = layout_of(namespace)
    specs = every_topic(layout)

    def start(_: int) -> bool:
        client = AdminClient({"bootstrap.servers": broker.bootstrap})
        ensure_topics(client, specs)
        return plan(client, specs).is_done

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(start, range(6))) == [True] * 6
    assert read_topics(admin, [layout.names.schedule])[layout.names.schedule].partitions == 32


def test_missing_topic_that_may_not_be_created_names_the_command(admin: AdminClient, namespace: str) -> None:
    specs = layout_of(namespace).for_group("payments", with_log=False)
    with pytest.raises(TopicMissingError, match=f"rocketshim init --namespace {namespace} --group payments"):
        ensure_topics(admin, specs, create=False)
    assert read_topics(admin, [spec.name for spec in specs]) == {}


def create(admin: AdminClient, name: str, partitions: int, config: dict[str, str]) -> None:
    topic = NewTopic(name, num_partitions=partitions, config=config)
    admin.create_topics([topic])[name].result(30)


def test_schedule_topic_without_append_time_is_refused_left_alone_and_fixed_when_asked(
    admin: AdminClient, namespace: str
) -> None:
    spec = layout_of(namespace).schedule()
    create(admin, spec.name, 32, {**spec.config, "message.timestamp.type": "CreateTime", "retention.ms": "5000"})
    with pytest.raises(TopicMismatchError, match=r"message\.timestamp\.type is CreateTime, should be LogAppendTime"):
        ensure_topics(admin, [spec])
    untold = plan(admin, [spec])
    assert {difference.setting for difference in untold.differences} == {"message.timestamp.type", "retention.ms"}
    assert apply(admin, untold) == ()
    assert plan(admin, [spec]).differences == untold.differences
    assert apply(admin, plan(admin, [spec], fix=True)) == ()
    assert not plan(admin, [spec]).differences
    assert not ensure_topics(admin, [spec]).fatal


def test_lanes_are_added_only_when_told(admin: AdminClient, namespace: str) -> None:
    one, two = layout_of(namespace).schedule(), layout_of(namespace, lanes=2).schedule()
    ensure_topics(admin, [one])
    assert [difference.setting for difference in ensure_topics(admin, [two]).differences] == ["partitions"]
    assert read_topics(admin, [one.name])[one.name].partitions == 32
    apply(admin, plan(admin, [two], grow=True))
    assert read_topics(admin, [one.name])[one.name].partitions == 64
    assert plan(admin, [one]).is_done, "more lanes than asked for are fine"


def test_topic_of_half_a_lane_is_refused(admin: AdminClient, namespace: str) -> None:
    spec = layout_of(namespace).schedule()
    create(admin, spec.name, 18, dict(spec.config))
    with pytest.raises(TopicMismatchError, match="partitions is 18, should be 32"):
        ensure_topics(admin, [spec])


def test_more_replicas_than_brokers_is_a_cluster_error_with_the_brokers_words(
    admin: AdminClient, namespace: str
) -> None:
    spec = layout_of(namespace, replication_factor=9).parked()
    with pytest.raises(ClusterError, match=r"cannot create .*rmq\.parked.*[Rr]eplication"):
        apply(admin, plan(admin, [spec]))


def test_illegal_name_is_a_cluster_error(admin: AdminClient) -> None:
    with pytest.raises(ClusterError):
        read_topics(admin, ["a b"])


def test_reading_a_topic_that_does_not_exist_does_not_create_it(admin: AdminClient) -> None:
    name = f"nobody-{uuid.uuid4().hex}"
    assert read_topics(admin, [name]) == {}
    assert read_topics(admin, [name]) == {}
    assert name not in admin.list_topics(timeout=30).topics


def test_no_broker_is_a_broker_unavailable_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        with pytest.raises(BrokerUnavailableError):
            plan(client, [layout_of("nobody").parked()], timeout_s=1.0)
