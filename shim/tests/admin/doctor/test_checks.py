"""The findings of each check on hand-made facts. integration_tests/test_doctor.py tests them on a real broker."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.admin.acls import Role
from rocketshim.admin.doctor import Facts, Finding, Severity, examine
from rocketshim.admin.doctor.facts import PartitionFacts, TopicFacts
from rocketshim.admin.doctor.probe import APPEND_TIME, Capability
from rocketshim.core.start_position import CommitMetadata, encode_metadata
from rocketshim.core.worker_notes import clock_ahead_ms_of, levels_metadata, levels_of
from rocketshim.observe.snapshot import DelayQueue, GroupStanding, PartitionStanding, Snapshot, WaitingRecord
from rocketshim_topics import DelayLevels, Layout, TopicNames

NOW_MS = 1_800_000_000_000
LEVELS = DelayLevels.parse("1s 5s 10s")
WELL = PartitionFacts(leader=1, replicas=3, in_sync=3)


def sound(**changes: Any) -> Facts:
    """Return the facts of a sound set-up, with some values changed."""
    layout = Layout(TopicNames(), LEVELS)
    specs = [*layout.shared(), *layout.timers(), *layout.for_group("g", with_log=True)]
    topics = {
        spec.name: TopicFacts((WELL,) * spec.partitions, {**spec.config, "min.insync.replicas": "2"}) for spec in specs
    }
    topics["orders"] = TopicFacts((WELL,) * 4, {"cleanup.policy": "delete", "min.insync.replicas": "2"})
    values: dict[str, Any] = {
        "bootstrap": "b:9092",
        "layout": layout,
        "now_ms": NOW_MS,
        "brokers": (1, 2, 3),
        "broker_config": {"offsets.retention.minutes": "10080", "auto.create.topics.enable": "false"},
        "groups": ("g",),
        "user_topics": ("orders",),
        "topics": topics,
        "standings": {
            "rmq.sched": worker(levels_metadata(LEVELS)),
            "g": GroupStanding("g", "STABLE", ("c@h",), (partition("orders"),)),
        },
        "queues": (queue(2, waiting(7, NOW_MS - 3_000, 3, 10_000)),),
        "is_clock_sure": True,
        "parked": 0,
        "keys": {"orders": (100, 0)},
        "clocks_ms": {1: 12, 2: -40},
    }
    values |= changes
    standings = values.pop("standings")
    workers = standings.get("rmq.sched")
    read = () if workers is None else (DelayQueue(each.partition, 1_000, each) for each in workers.partitions)
    look = Snapshot(
        at_ms=NOW_MS,
        queues=(*values.pop("queues"), *read),
        worker=workers,
        groups=tuple(each for each in standings.values() if each.group != "rmq.sched"),
        is_clock_sure=values.pop("is_clock_sure"),
    )
    return Facts(look=look, **values)


def partition(topic: str, number: int = 0, **changes: Any) -> PartitionStanding:
    values: dict[str, Any] = {"position": 5, "low": 0, "end": 9, "member": "c@h", "metadata": None}
    return PartitionStanding(topic, number, **(values | changes))


def worker(*metadata: str, members: tuple[str, ...] = ("w@h",)) -> GroupStanding:
    rows = tuple(partition("SCHEDULE_TOPIC_XXXX", n, metadata=text) for n, text in enumerate(metadata))
    return GroupStanding("rmq.sched", "STABLE", members, rows)


def queue(number: int, *head: WaitingRecord) -> DelayQueue:
    first_ms = head[0].appended_ms if head else None
    standing = partition("SCHEDULE_TOPIC_XXXX", number, position=8, first_unread_ms=first_ms)
    return DelayQueue(number, LEVELS.queue_delay_ms(number), standing, head)


def waiting(offset: int, appended_ms: int, level: int | None, delay_ms: int | None, **failed: Any) -> WaitingRecord:
    return WaitingRecord(f"0/{offset}", appended_ms, delay_level=level, delay_ms=delay_ms, **failed)


def overtaken() -> GroupStanding:
    """Return a worker that was away while retention deleted all that waited."""
    row = partition("SCHEDULE_TOPIC_XXXX", position=5, low=9, end=9, metadata=levels_metadata(LEVELS))
    return GroupStanding("rmq.sched", "STABLE", ("w@h",), (row,))


def topics(**changes: TopicFacts | None) -> dict[str, TopicFacts]:
    """Return the topics of a sound set-up with some replaced; None: it does not exist. Dots are two underscores."""
    named = {name.replace("__", "."): topic for name, topic in changes.items()}
    return {name: topic for name, topic in {**sound().topics, **named}.items() if topic is not None}


def with_config(name: str, **config: str) -> dict[str, TopicFacts]:
    topic = sound().topics[name]
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return {**sound().topics, name: TopicFacts(topic.partitions, {**(topic.config or {}), **settings})}


def measured(
    name: str, *, works: bool | None, severity: Severity = Severity.ERROR
) -> dict[str, tuple[Capability, ...]]:
    fine = Capability("settings of topics", works=True, seen="all are accepted", needed_by="delays")
    return {"capabilities": (fine, Capability(name, works=works, seen="seen", needed_by="it", severity=severity))}


def only(facts: Facts) -> Finding:
    [finding] = examine(facts)
    return finding


def test_a_sound_set_up_has_no_findings() -> None:
    assert examine(sound()) == []


def test_facts_that_could_not_be_read_give_only_a_note() -> None:
    blind = sound(
        topics={name: TopicFacts(topic.partitions) for name, topic in sound().topics.items()},
        broker_config=None, standings={}, queues=(), parked=None, keys={}, clocks_ms={}, unread=("settings: denied",),
    )  # fmt: skip
    finding = only(blind)
    assert (finding.check, finding.severity, finding.what) == ("not-looked-at", Severity.NOTE, "settings: denied")


BROKEN: list[tuple[str, str, Severity, dict[str, Any]]] = [
    ("topic-missing", "rmq.parked", Severity.ERROR, {"topics": topics(rmq__parked=None), "parked": None}),
    ("topic-missing", "rmq.dlq.g", Severity.ERROR, {"topics": topics(rmq__dlq__g=None)}),
    ("topic-missing", "orders", Severity.ERROR, {"topics": topics(orders=None)}),
    ("topic-missing", "rmq.timers", Severity.NOTE,
     {"topics": topics(rmq__timers=None, rmq__timers__state=None)}),
    ("topic-missing", "rmq.timers.state", Severity.ERROR, {"topics": topics(rmq__timers__state=None)}),
    (
        "timestamp-type", "SCHEDULE_TOPIC_XXXX", Severity.ERROR,
        {"topics": with_config("SCHEDULE_TOPIC_XXXX", message_timestamp_type="CreateTime")},
    ),
    ("timestamp-type", "rmq.group.g", Severity.ERROR,
     {"topics": with_config("rmq.group.g", message_timestamp_type="CreateTime")}),
    ("timestamp-type", "rmq.timers", Severity.ERROR,
     {"topics": with_config("rmq.timers", message_timestamp_type="CreateTime")}),
    ("compaction", "rmq.timers", Severity.ERROR, {"topics": with_config("rmq.timers", cleanup_policy="compact")}),
    ("compaction", "rmq.timers.state", Severity.ERROR,
     {"topics": with_config("rmq.timers.state", cleanup_policy="delete")}),
    ("retention", "rmq.timers", Severity.WARNING, {"topics": with_config("rmq.timers", retention_ms="86400000")}),
    ("retention", "rmq.timers.state", Severity.ERROR,
     {"topics": with_config("rmq.timers.state", delete_retention_ms="60000")}),
    ("compaction", "rmq.dlq.g", Severity.ERROR, {"topics": with_config("rmq.dlq.g", cleanup_policy="compact")}),
    ("retention", "SCHEDULE_TOPIC_XXXX", Severity.WARNING,
     {"topics": with_config("SCHEDULE_TOPIC_XXXX", retention_ms="86400000")}),
    ("retention", "rmq.retry.g", Severity.WARNING, {"topics": with_config("rmq.retry.g", retention_ms="60000")}),
    ("retention-bytes", "rmq.retry.g", Severity.ERROR,
     {"topics": with_config("rmq.retry.g", retention_bytes="1000")}),
    ("message-size", "rmq.dlq.g", Severity.ERROR, {"topics": with_config("rmq.dlq.g", max_message_bytes="1048588")}),
    ("segment", "rmq.group.g", Severity.NOTE, {"topics": with_config("rmq.group.g", segment_ms="604800000")}),
    ("partition-count", "SCHEDULE_TOPIC_XXXX", Severity.ERROR,
     {"topics": topics(SCHEDULE_TOPIC_XXXX=TopicFacts((WELL,) * 40)) }),
    ("partition-count", "rmq.timers", Severity.ERROR,
     {"topics": topics(rmq__timers=TopicFacts((WELL,) * 1))}),
    ("partition-count", "rmq.timers.state", Severity.NOTE,
     {"topics": topics(rmq__timers__state=TopicFacts((WELL,) * 12))}),
    ("partition-count", "rmq.group.g", Severity.ERROR, {"topics": topics(rmq__group__g=TopicFacts((WELL,) * 2))}),
    ("no-leader", "orders", Severity.ERROR, {"topics": topics(orders=TopicFacts((PartitionFacts(None, 3, 0),)))}),
    ("in-sync", "orders", Severity.WARNING, {"topics": topics(orders=TopicFacts((PartitionFacts(1, 3, 2),)))}),
    ("in-sync", "orders", Severity.ERROR,
     {"topics": topics(orders=TopicFacts((PartitionFacts(1, 3, 1),), {"min.insync.replicas": "2"}))}),
    ("copies", "orders", Severity.ERROR, {"topics": topics(orders=TopicFacts((PartitionFacts(1, 1, 1),)))}),
    ("copies", "orders", Severity.WARNING, {"topics": topics(orders=TopicFacts((PartitionFacts(1, 2, 2),)))}),
    ("min-in-sync", "orders", Severity.WARNING, {"topics": with_config("orders", min_insync_replicas="1")}),
    ("min-in-sync", "orders", Severity.WARNING, {"topics": with_config("orders", min_insync_replicas="3")}),
    ("target-compacted", "orders", Severity.WARNING, {"topics": with_config("orders", cleanup_policy="compact")}),
    ("offsets-retention", "broker", Severity.WARNING, {"broker_config": {"offsets.retention.minutes": "60"}}),
    ("auto-create", "broker", Severity.NOTE, {"broker_config": {"auto.create.topics.enable": "true"}}),
    ("level-removed", "SCHEDULE_TOPIC_XXXX", Severity.WARNING,
     {"queues": (queue(8, waiting(1, NOW_MS - 500, 9, 50_000)),)}),
    ("level-changed", "SCHEDULE_TOPIC_XXXX/2", Severity.WARNING,
     {"queues": (queue(2, waiting(1, NOW_MS - 500, 3, 30_000)),)}),
    ("level-changed", "SCHEDULE_TOPIC_XXXX/2", Severity.ERROR,
     {"queues": (queue(2, waiting(1, NOW_MS - 500, 3, 4_000)),)}),
    ("level-table", "rmq.sched", Severity.WARNING,
     {"standings": {"rmq.sched": worker(levels_metadata(DelayLevels.parse("1s 5s")))}}),
    ("topic-missing", "rmq.check.shop", Severity.ERROR, {"transactions": {"shop": (1, 0)}}),
    ("topic-missing", "rmq.check.shop", Severity.ERROR, {"transactions": {"shop": (4, 4)}}),
    ("transactions-unanswered", "shop", Severity.WARNING,
     {"transactions": {"shop": (4, 1), "billing": (9, 0)},
      "topics": topics(rmq__check__shop=TopicFacts((WELL,) * 4), rmq__check__billing=TopicFacts((WELL,) * 4))}),
    ("parked", "rmq.parked", Severity.WARNING, {"parked": 3}),
    ("parked-not-allowed", "rmq.parked", Severity.WARNING, {"parked": 2, "parked_not_allowed": 2}),
    ("marks-lost", "rmq.dlq.g", Severity.WARNING, {"marks_lost": {"rmq.dlq.g": 3}}),
    ("marks-lost", "rmq.parked", Severity.WARNING, {"marks_lost": {"rmq.parked": 1}}),
    ("clock-skew", "broker 2", Severity.WARNING, {"clocks_ms": {1: 5, 2: -1_500}}),
    ("clock-skew", "c@h", Severity.WARNING,
     {"standings": {"rmq.sched": worker(levels_metadata(LEVELS, -7_200_000))}}),
    ("clock-skew", "a consumer of g", Severity.WARNING,
     {"queues": (queue(2, waiting(7, NOW_MS - 3_000, 3, 10_000, group="g", failed_ms=NOW_MS + 86_397_000)),)}),
    ("open-transaction", "orders/1", Severity.ERROR, {"open_transactions_ms": {"orders/1": 61_000, "orders/2": 9}}),
    ("subscriptions-differ", "g on orders", Severity.ERROR,
     {"standings": {"g": GroupStanding("g", "STABLE", (), tuple(
         partition("orders", n, metadata=encode_metadata(CommitMetadata(f"d{n}", 4, f"orders={n}"))) for n in (0, 1)
     ))}}),
    ("topics-differ", "g on orders", Severity.NOTE,
     {"standings": {"g": GroupStanding("g", "STABLE", (), tuple(
         partition("orders", n, metadata=encode_metadata(CommitMetadata(f"d{n}", 4, text)))
         for n, text in enumerate(("orders=paid", "orders=paid, refunds=*"))
     ))}}),
    ("partitioner", "orders", Severity.WARNING, {"keys": {"orders": (100, 70)}}),
    ("client-setting", "acks", Severity.ERROR, {"client": {"acks": "1"}}),
    ("append-time-not-kept", "append times", Severity.ERROR, measured(APPEND_TIME, works=False)),
    ("cluster-lacks", "transactions", Severity.WARNING,
     measured("transactions", works=False, severity=Severity.WARNING)),
    ("not-measured", "transactions", Severity.NOTE, measured("transactions", works=None)),
    ("client-setting", "enable.ssl.certificate.verification", Severity.ERROR,
     {"client": {"enable.ssl.certificate.verification": "false"}}),
    ("client-setting", "security.protocol", Severity.ERROR, {"client": {"sasl.mechanisms": "PLAIN"}}),
    ("client-setting", "security.protocol", Severity.WARNING, {"client": {"security.protocol": "SASL_PLAINTEXT"}}),
    ("client-setting", "auto.offset.reset", Severity.ERROR, {"client": {"auto.offset.reset": "latest"}}),
    ("client-setting", "session.timeout.ms", Severity.WARNING, {"client": {"session.timeout.ms": "1000"}}),
    ("poll-interval", "max.poll.interval.ms", Severity.ERROR, {"consume_timeout_ms": 900_000}),
    ("session-timeout", "session.timeout.ms", Severity.ERROR,
     {"broker_config": {"group.min.session.timeout.ms": "6000", "group.max.session.timeout.ms": "20000"}}),
    ("transaction-timeout", "transaction.max.timeout.ms", Severity.ERROR,
     {"broker_config": {"transaction.max.timeout.ms": "10000"}}),
    ("rights", "worker on topic rmq.retry.g", Severity.ERROR,
     {"roles": ("worker",),
      "topics": topics(rmq__retry__g=TopicFacts((WELL,), operations=frozenset({"READ", "DESCRIBE"})))}),
    ("rights", "consumer on group g", Severity.ERROR,
     {"roles": ("consumer",),
      "standings": {**sound().standings, "g": GroupStanding("g", "STABLE", ("c@h",), (), frozenset({"DESCRIBE"}))}}),
]  # fmt: skip


ONE_OF_MANY = re.compile(r"(?<![\w.,/-])1 (?!ms )[a-z]+s\b")


@pytest.mark.parametrize(("check", "subject", "severity", "broken"), BROKEN)
def test_one_fault_is_one_finding(check: str, subject: str, severity: Severity, broken: dict[str, Any]) -> None:
    finding = only(sound(**broken))
    assert (finding.check, finding.subject, finding.severity) == (check, subject, severity)
    assert finding.what
    assert finding.cost
    assert finding.fix
    assert not ONE_OF_MANY.search(f"{finding.what} {finding.cost}"), "one thing is not plural"


def test_a_retention_shorter_than_the_longest_level_is_an_error_in_two_ways() -> None:
    found = examine(sound(topics=with_config("SCHEDULE_TOPIC_XXXX", retention_ms="9000")))
    assert [(each.check, each.severity) for each in found] == [
        ("retention", Severity.ERROR),
        ("retention-backlog", Severity.ERROR),
    ]


@given(
    st.integers(1, 10**7),
    st.integers(0, 10**7),
    st.sampled_from(range(3)),
)
def test_backlog_is_an_error_exactly_where_retention_comes_first_or_half_of_it_is_gone(
    retention_ms: int, age_ms: int, level: int
) -> None:
    facts = sound(
        topics=with_config("SCHEDULE_TOPIC_XXXX", retention_ms=str(retention_ms)),
        queues=(queue(level, waiting(1, NOW_MS - age_ms, None, None)),),
    )
    delay_ms = LEVELS.delay_ms(level + 1)
    wanted = delay_ms >= retention_ms or (age_ms > delay_ms and age_ms > retention_ms // 2)
    assert any(each.check == "retention-backlog" for each in examine(facts)) == wanted


def test_unlimited_retention_is_never_too_short() -> None:
    assert examine(sound(topics=with_config("SCHEDULE_TOPIC_XXXX", retention_ms="-1"))) == []


@pytest.mark.parametrize(
    ("limits", "client", "refused", "fix"),
    [
        ((1_000, 1_800_000), {}, [], ""),
        ((6_000, 20_000), {}, ["but a consumer has 45000"], "=20000 in"),
        ((60_000, 90_000), {}, ["a worker has 10000, a consumer has 45000"], "=60000 in"),
        ((60_000, 90_000), {"group.protocol": "consumer"}, ["a worker has 10000"], "=60000 in"),
        ((6_000, 20_000), {"group.protocol": "consumer"}, [], ""),
        ((6_000, 20_000), {"session.timeout.ms": "20000"}, [], ""),
        ((6_000, 20_000), {"session.timeout.ms": "20001"}, ["a worker has 20001, a consumer has 20001"], "=20000 in"),
        ((6_000, 20_000), {"session.timeout.ms": "soon"}, [], ""),
        ((400_000, 500_000), {}, ["a worker"], "=400000 and max.poll.interval.ms=400000 in"),
    ],
)
def test_a_session_that_the_brokers_refuse_is_found_with_one_that_they_accept(
    limits: tuple[int, int], client: dict[str, str], refused: list[str], fix: str
) -> None:
    names = ("group.min.session.timeout.ms", "group.max.session.timeout.ms")
    facts = sound(client=client, broker_config=dict(zip(names, map(str, limits), strict=True)))
    found = [each for each in examine(facts) if each.check == "session-timeout"]
    assert bool(found) == bool(refused)
    for each in found:
        assert all(text in each.what for text in refused)
        assert fix in each.fix


def test_findings_are_sorted_by_severity() -> None:
    settings = {"auto.create.topics.enable": "true"}
    found = examine(sound(parked=1, broker_config=settings, standings={"rmq.sched": worker(members=())}))
    assert [each.severity for each in found] == [Severity.ERROR, Severity.WARNING, Severity.NOTE]


def test_a_suggested_command_is_quoted_for_a_shell() -> None:
    facts = sound(
        layout=Layout(TopicNames("pay"), DelayLevels.parse("1s 2s"), max_message_bytes=2_000_000),
        groups=("a b", "c"),
        topics={},
    )
    fix = next(each.fix for each in examine(facts) if each.subject == facts.names.retry("a b"))
    assert shlex.split(fix) == [
        "rocketshim", "init", "--delay-levels", "1s 2s", "--max-message-bytes", "2000000", "--group=a b",
        "--bootstrap", "b:9092", "--namespace", "pay",
    ]  # fmt: skip


def test_a_finding_about_a_topic_has_the_command_for_its_own_group_only() -> None:
    layout, groups = Layout(TopicNames(), LEVELS), [f"g{number}" for number in range(300)]
    specs = [spec for group in groups for spec in layout.for_group(group, with_log=True)]
    changed = {"retention.ms": "9", "min.insync.replicas": "2"}
    short = {spec.name: TopicFacts((WELL,), {**spec.config, **changed}) for spec in specs}
    found = [
        each for each in examine(sound(groups=groups, topics={**sound().topics, **short})) if each.subject in short
    ]
    assert len(found) == len(specs)
    for each in found:
        assert each.fix.count("--group=") == 1
        assert f"--group={each.subject.rpartition('.')[2]} --with-log " in each.fix


@pytest.mark.parametrize(("now", "wanted"), [("1209600000", "2419200000"), ("3600000", "604800000"), ("-1", "MS")])
def test_what_retention_overtook_is_fixed_by_keeping_records_longer(now: str, wanted: str) -> None:
    topics = {
        **with_config("SCHEDULE_TOPIC_XXXX", retention_ms=now),
        "orders": TopicFacts((WELL,), {"retention.ms": now}),
    }
    behind = GroupStanding("g", "EMPTY", (), (partition("orders", low=7),))
    facts = sound(topics=topics, standings={"rmq.sched": overtaken(), "g": behind}, queues=())
    fixes = {each.subject: each.fix for each in examine(facts) if each.check == "retention-overtook"}
    for subject, topic in (("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"), ("g on orders/0", "orders")):
        assert fixes[subject].endswith(f"--entity-name {topic} --add-config retention.ms={wanted}")


def test_the_command_for_a_worker_has_the_level_table() -> None:
    [finding] = [
        each for each in examine(sound(standings={"rmq.sched": worker(members=())})) if each.check == "worker-missing"
    ]
    assert "worker --allow TOPIC --delay-levels '1s 5s 10s' --bootstrap" in finding.fix


def test_no_value_of_a_secret_setting_is_shown() -> None:
    secrets = {"sasl.password": "canary", "ssl.key.pem": "canary", "sasl.oauthbearer.client.secret": "canary"}
    assert "canary" not in str(examine(sound(client=secrets)))


@given(st.lists(st.integers(0, 10**6), max_size=27), st.just(0) | st.integers(-(10**12), 10**12))
def test_a_level_table_and_a_wrong_clock_survive_encoding_as_commit_metadata(seconds: list[int], ahead_ms: int) -> None:
    levels = DelayLevels(tuple(each * 1_000 for each in seconds))
    text = levels_metadata(levels, ahead_ms)
    assert text.isascii()
    assert len(text) <= 4_096
    assert clock_ahead_ms_of(text) == ahead_ms
    assert levels_of(text) == levels


@pytest.mark.parametrize("text", [None, "", "rs1;d;4;t=*", "rs1-levels;soon", "rs1-levels; 1s"])
def test_invalid_commit_metadata_is_not_a_level_table(text: str | None) -> None:
    assert levels_of(text) is None
    assert clock_ahead_ms_of(text) == 0


def test_roles_are_those_that_acls_knows() -> None:
    everything = TopicFacts((WELL,), operations=frozenset())
    for role in Role:
        facts = sound(roles=(role.value,), topics=topics(SCHEDULE_TOPIC_XXXX=everything), groups=("g",))
        assert any(each.check == "rights" for each in examine(facts))


def test_the_page_lists_every_check() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = page.partition("| check | finds |\n")[2].partition("\n\n")[0].splitlines()
    listed = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert listed == {check for check, *_ in BROKEN} | {"retention-backlog", "not-looked-at"}
