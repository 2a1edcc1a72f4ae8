import json
import shlex

import pytest

from rocketshim.admin.acls import Grant, Role, bindings, commands, grants
from rocketshim.cli import main
from rocketshim.errors import ConfigError
from rocketshim_topics import TopicNames

HARMLESS = {"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"}
EVERY = pytest.mark.parametrize("role", list(Role))


def of(role: Role, namespace: str = "pay") -> tuple[Grant, ...]:
    return grants(
        role, TopicNames(namespace), groups=["g"], topics=["orders", "bills-*"], producer_groups=["shop"], orderly=True
    )


@EVERY
def test_no_role_may_create_alter_or_delete(role: Role) -> None:
    assert {operation for grant in of(role) for operation in grant.operations} <= HARMLESS


@EVERY
def test_a_prefix_ends_at_a_separator_and_stays_in_its_namespace(role: Role) -> None:
    ours = [grant for grant in of(role) if grant.name not in {"orders", "bills-", "g", "kafka-cluster"}]
    assert all(grant.name.startswith("pay.") for grant in ours)
    assert all(grant.name.endswith(".") for grant in ours if grant.prefixed)


@EVERY
def test_no_grant_covers_another_groups_or_namespaces_topics_for_writing(role: Role) -> None:
    foreign = ["payroll", "SCHEDULE_TOPIC_XXXX", "rmq.parked", "__consumer_offsets", "pay2.rmq.retry.g"]
    if role is Role.CONSUMER:
        foreign += ["pay.rmq.retry.g1", "pay.rmq.dlq.g1", "pay.rmq.group.g1"]
    for grant in of(role):
        if grant.resource == "topic" and "WRITE" in grant.operations:
            assert not [name for name in foreign if grant.covers(name)], grant


@pytest.mark.parametrize("role", [Role.SPARK, Role.VIEWER])
def test_a_role_that_only_reads_never_gets_write(role: Role) -> None:
    assert {operation for grant in of(role) for operation in grant.operations} == {
        "READ",
        "DESCRIBE",
        "DESCRIBE_CONFIGS",
    }


def test_a_viewer_reads_everything_that_an_operator_reads_and_writes_nothing() -> None:
    def read(role: Role) -> set[tuple[str, str, str]]:
        granted = ((each.resource, each.name, operation) for each in of(role) for operation in each.operations)
        return {each for each in granted if each[2] != "WRITE"}

    assert read(Role.VIEWER) == read(Role.OPERATOR)


@pytest.mark.parametrize(("groups", "topics"), [([], ["orders"]), (["g"], [])])
def test_a_consumer_without_group_or_topic_is_refused(groups: list[str], topics: list[str]) -> None:
    with pytest.raises(ConfigError, match="--group and --topic"):
        grants(Role.CONSUMER, TopicNames(), groups=groups, topics=topics)


@pytest.mark.parametrize("topic", ["a b", "%RETRY%g", "a*b*", "..", ""])
def test_an_invalid_topic_name_is_refused(topic: str) -> None:
    with pytest.raises(ConfigError):
        grants(Role.WORKER, TopicNames(), topics=[topic])


@EVERY
@pytest.mark.parametrize("group", ["", "two\nlines"])
def test_an_invalid_group_name_is_refused(role: Role, group: str) -> None:
    with pytest.raises(ConfigError, match="is not a group name"):
        grants(role, TopicNames(), groups=["g", group], topics=["orders"])


def test_a_star_means_every_topic_and_a_prefix_means_topics_with_that_prefix() -> None:
    every, some = grants(Role.WORKER, TopicNames(), topics=["*", "orders*"])[-2:]
    assert (every.name, every.prefixed) == ("*", False)
    assert (some.name, some.prefixed) == ("orders", True)
    assert every.covers("x")
    assert some.covers("orders2")
    assert not some.covers("my-orders")


def test_commands_are_quoted_for_a_shell() -> None:
    one, _ = commands(of(Role.WORKER)[-2:], principal="User:CN=worker, O=shop", bootstrap="b:9092")
    assert shlex.split(one) == [
        "kafka-acls.sh", "--bootstrap-server", "b:9092", "--add", "--allow-principal", "User:CN=worker, O=shop",
        "--operation", "Write", "--topic", "orders",
    ]  # fmt: skip
    config = commands(of(Role.OPERATOR)[-1:], principal="User:o", bootstrap="b")[0]
    assert config.endswith(
        "--operation Read --operation DescribeConfigs --topic bills- --resource-pattern-type prefixed"
    )


def test_a_cluster_command_names_no_cluster() -> None:
    [line] = [each for each in commands(of(Role.OPERATOR), principal="User:o", bootstrap="b") if "--cluster" in each]
    assert line.endswith("--operation DescribeConfigs --cluster")


def test_json_has_one_binding_for_each_operation(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["acls", "--role", "consumer", "--group", "g", "--topic", "orders", "--principal", "User:c"]
    assert main([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    wanted = grants(Role.CONSUMER, TopicNames(), groups=["g"], topics=["orders"])
    assert shown == bindings(wanted, principal="User:c")
    assert {each["permission_type"] for each in shown} == {"ALLOW"}
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# consume"
    assert len(lines) == 2 * len(wanted)


def test_only_a_producer_of_a_group_may_read_its_checks_and_join_its_readers() -> None:
    found = {
        (role, grant.resource, grant.operations)
        for role in Role
        for grant in of(role)
        if grant.covers("pay.rmq.check.shop") and grant.name != "pay.rmq."
    }
    assert found == {
        (Role.PRODUCER, "topic", ("READ",)),
        (Role.PRODUCER, "group", ("READ",)),
        (Role.WORKER, "topic", ("WRITE",)),
        (Role.VIEWER, "topic", ("READ", "DESCRIBE_CONFIGS")),
        (Role.OPERATOR, "topic", ("READ", "DESCRIBE_CONFIGS")),
    }
    assert not [each for each in grants(Role.PRODUCER, TopicNames(), groups=["g"]) if "check" in each.name]
