"""Which settings librdkafka gets, which are refused, and which are never displayed."""

import logging
import traceback
from io import StringIO
from typing import Any

import pytest
from confluent_kafka import Consumer
from rich.console import Console
from rich.pretty import Pretty

from rocketshim.errors import ConfigError
from rocketshim.kafka.client_config import (
    CODE_KEYS,
    PROTECTED_CONSUMER,
    PROTECTED_PRODUCER,
    client_settings,
    for_reading,
    mask,
    merge,
)
from rocketshim.settings.producer import ProducerSettings
from rocketshim.settings.worker import WorkerSettings

CANARY = "c4n4ry"


def merged(user: dict[str, Any], required: dict[str, Any], **more: Any) -> dict[str, Any]:
    return merge(user, defaults={"linger.ms": 1}, required=required, **more)


def test_user_settings_override_defaults_and_required_settings_override_both() -> None:
    settings = merged({"linger.ms": 9, "sasl.username": "u"}, {"acks": "all"})
    assert settings == {"linger.ms": 9, "sasl.username": "u", "acks": "all"}


@pytest.mark.parametrize("name", ["error_cb", "stats_cb", "throttle_cb"])
def test_what_a_callback_of_the_user_raises_does_not_reach_the_client(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[object] = []

    def fail(event: object) -> None:
        heard.append(event)
        raise ValueError("a bug")

    merged({name: fail}, {})[name]("event")
    assert heard == ["event"]
    (record,) = caplog.records
    assert record.getMessage() == f"client.callback-failed: callback={name} error=ValueError('a bug')"


@pytest.mark.parametrize("key", sorted(CODE_KEYS))
def test_a_setting_that_runs_code_is_refused_unless_it_is_allowed(key: str) -> None:
    with pytest.raises(ConfigError, match="allow_code_settings"):
        merged({key: "x"}, {})
    assert merged({key: "x"}, {}, allow_code_settings=True)[key] == "x"
    typed = client_settings([f"{key}=x"], allow_code_settings=True)
    assert merged({"log_level": 0, **typed}, {}) == merged({"log_level": 0}, {}) | {key: "x"}
    with pytest.raises(ConfigError, match="loads or runs code"):
        merged(client_settings([f"{key}=x", "allow.code.settings=true"]), {})


@pytest.mark.parametrize(
    ("user", "required"),
    [
        ({"enable.auto.commit": True}, {**PROTECTED_CONSUMER, "group.id": "g"}),
        ({"isolation.level": "read_uncommitted"}, {**PROTECTED_CONSUMER, "group.id": "g"}),
        ({"group.id": "other"}, {**PROTECTED_CONSUMER, "group.id": "g"}),
        ({"request.required.acks": 1}, PROTECTED_PRODUCER),
        ({"message.timeout.ms": 1_000}, {"delivery.timeout.ms": 30_000}),
        ({"partitioner": "consistent"}, PROTECTED_PRODUCER),
        ({"delivery.report.only.error": True}, PROTECTED_PRODUCER),
        ({"default.topic.config": {"partitioner": "random"}}, PROTECTED_PRODUCER),
        ({"default.topic.config": {"auto.offset.reset": "latest"}}, {"group.id": "g", "auto.offset.reset": "earliest"}),
    ],
)
def test_protected_settings_cannot_be_changed(user: dict[str, Any], required: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="guarantees depend on it"):
        merged(user, required)


@pytest.mark.parametrize("group", ["", " ", "\t\v\f\r\n", "\0a", " \0a", "\udcff", "a\udcff"])
def test_a_group_with_which_the_client_would_end_the_process_is_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of a group"):
        merged({}, {"group.id": group})


@pytest.mark.parametrize("group", ["g", " g ", "\u00a0", "%ff", "größe"])
def test_every_other_group_of_another_program_is_accepted(group: str) -> None:
    assert merged({}, {"group.id": group})["group.id"] == group


@pytest.mark.parametrize("user", [{"acks": -1}, {"acks": "ALL"}, {"enable.idempotence": "true"}])
def test_passing_a_protected_setting_with_our_value_is_accepted(user: dict[str, Any]) -> None:
    assert merged(user, dict(PROTECTED_PRODUCER))["acks"] == "all"


def test_nested_settings_of_topics_count_like_the_others() -> None:
    user = {"acks": "all", "default.topic.config": {"auto.offset.reset": "latest", "compression.type": "zstd"}}
    assert merged(user, dict(PROTECTED_PRODUCER)) == {
        **merged({}, dict(PROTECTED_PRODUCER)),
        "compression.type": "zstd",
    }
    assert merged(user, {"group.id": "g"})["auto.offset.reset"] == "latest"


def test_settings_of_consumers_do_not_reach_producers() -> None:
    user = {"session.timeout.ms": 6_000, "fetch.min.bytes": 1, "sasl.username": "u"}
    assert merged(user, dict(PROTECTED_PRODUCER)).keys() & user.keys() == {"sasl.username"}
    assert merged(user, {"group.id": "g"}).items() >= user.items()


OF_PRODUCERS: dict[str, Any] = {
    "acks": 1, "request.required.acks": 1, "retries": 5, "message.send.max.retries": 5, "linger.ms": 7,
    "queue.buffering.max.ms": 7, "queue.buffering.max.messages": 1_000, "queue.buffering.max.kbytes": 2_048,
    "queue.buffering.backpressure.threshold": 2, "queuing.strategy": "fifo", "batch.size": 20_000,
    "batch.num.messages": 100, "compression.type": "zstd", "compression.codec": "zstd", "compression.level": 1,
    "enable.idempotence": False, "enable.gapless.guarantee": False, "transactional.id": "t",
    "transaction.timeout.ms": 10_000, "partitioner": "random", "sticky.partitioning.linger.ms": 20,
    "produce.offset.report": True, "delivery.report.only.error": True, "message.timeout.ms": 20_000,
    "delivery.timeout.ms": 20_000, "request.timeout.ms": 20_000,
}  # fmt: skip
"""Every setting of librdkafka 2.16 that only producers have."""


def test_a_consumer_beside_producers_gets_none_of_their_settings_and_warns_of_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warned(settings: dict[str, Any]) -> bool:
        caplog.clear()
        where = {"group.id": "g", "bootstrap.servers": "127.0.0.1:1"}
        consumer = Consumer({**settings, **where}, logger=logging.getLogger("of-a-client"))
        consumer.poll(0)
        consumer.close()
        return "CONFWARN" in caplog.text

    shared = {"retry.backoff.ms": 110, "topic.metadata.propagation.max.ms": 20_000, "client.rack": "a"}
    assert for_reading({**OF_PRODUCERS, **shared, "dr_cb": print, "on_delivery": print}) == shared
    assert not warned(shared)
    assert [name for name, value in OF_PRODUCERS.items() if not warned({name: value})] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl.password": CANARY},
        {"ssl.key.password": CANARY},
        {"ssl.key.pem": CANARY},
        {"sasl.oauthbearer.client.secret": CANARY},
        {"sasl.jaas.config": CANARY},
        {"sasl.passwort": CANARY},
        {"sasl.oauthbearer.config": f"secret={CANARY}"},
        {"bootstrap.servers": f"sasl://user:{CANARY}@host:9092"},
    ],
)
def test_secrets_are_never_shown(settings: dict[str, str]) -> None:
    assert CANARY not in repr(mask(settings))
    worker = WorkerSettings.make(bootstrap="h:1", allow=("a",), client=settings)
    assert CANARY not in repr(worker)
    assert CANARY not in str(ProducerSettings.make(bootstrap="h:1", client=settings))


def test_rich_and_pydantic_show_no_secret_either() -> None:
    settings = {"sasl.password": CANARY}
    console = Console(file=StringIO())
    console.print(WorkerSettings.make(bootstrap="h:1", allow=("a",), client=settings))
    console.print(Pretty(ProducerSettings.make(bootstrap="h:1", client=settings)))
    assert CANARY not in console.file.getvalue()  # type: ignore[attr-defined]
    for wrong in ({"client": f"sasl.password={CANARY}"}, {"client": settings, "nonsense": 1}, {"client": [CANARY]}):
        with pytest.raises(ConfigError) as caught:
            ProducerSettings.make(bootstrap="h:1", **wrong)
        assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_settings_that_are_not_secret_are_displayed() -> None:
    harmless = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "security.protocol": "SSL", "ssl.ca.location": "/ca"}
    assert mask(harmless) == harmless


def test_an_error_about_settings_names_every_wrong_one_and_no_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerSettings.make(bootstrap="", allow=(), nonsense=1, client={"sasl.password": CANARY, 3: "x"})
    message = str(caught.value)
    assert CANARY not in message
    assert all(name in message for name in ("bootstrap", "allow", "nonsense"))


def test_another_worker_group_must_be_intended() -> None:
    with pytest.raises(ConfigError, match="deliver everything"):
        WorkerSettings.make(bootstrap="h:1", allow=("a",), group="mine")
    assert WorkerSettings.make(bootstrap="h:1", allow=("a",), group="mine", replay_everything=True).group == "mine"


@pytest.mark.parametrize(("namespace", "group"), [("", "rmq.sched"), ("pay", "pay.rmq.sched")])
def test_the_workers_own_group_may_be_named(namespace: str, group: str) -> None:
    assert WorkerSettings.make(bootstrap="h:1", allow=("a",), namespace=namespace, group=group).group == group
    with pytest.raises(ConfigError, match="not the worker group of the namespace"):
        WorkerSettings.make(bootstrap="h:1", allow=("a",), namespace=f"{namespace}x", group=group)
