"""What is taken out of a client's configuration."""

import pytest

from rocketshim.dropin.settings import (
    ConsumerDropinSettings,
    ProducerDropinSettings,
    connection,
    inner_producer_config,
    is_true,
    take,
)
from rocketshim.errors import ConfigError


def test_arguments_without_our_keys_come_back_as_the_same_objects() -> None:
    args, kwargs = ({"group.id": "g"},), {"logger": None}
    values, left, named = take(args, kwargs)
    assert (values, left is args, named is kwargs) == ({}, True, True)
    odd = (["no dict"], 3)
    assert take(odd, {})[1] is odd


def test_our_keys_are_removed_from_a_copy_and_keywords_win() -> None:
    config = {
        "group.id": "g",
        "rocketshim.retry.enable": "false",
        "rocketshim.producer.linger.ms": 5,
    }
    before = dict(config)
    values, (left,), named = take((config,), {"rocketshim.retry.enable": "true", "client.id": "c"})
    assert values == {"retry_enable": "true", "producer": {"linger.ms": 5}}
    assert (left, named, config) == ({"group.id": "g"}, {"client.id": "c"}, before)


def test_settings_of_the_inner_producer_may_be_a_dict_which_stays_unchanged() -> None:
    own = {"acks": "all", "linger.ms": 5}
    values, _, _ = take(({"rocketshim.producer": own, "rocketshim.producer.linger.ms": 7},), {})
    assert (values, own) == ({"producer": {"acks": "all", "linger.ms": 7}}, {"acks": "all", "linger.ms": 5})
    values, _, _ = take(({"rocketshim.producer": "x", "rocketshim.producer.linger.ms": 7},), {})
    with pytest.raises(ConfigError, match=r"rocketshim\.producer=…: .*dictionary"):
        ConsumerDropinSettings.make(**values)


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = ConsumerDropinSettings.make()
    assert not settings.retry_enable
    assert (settings.max_reconsume_times, settings.namespace, settings.create_topics) == (16, "", True)
    assert (settings.hop_timeout_ms, settings.delay_levels.max_level) == (30_000, 18)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retry_enabled": True},
        {"retry_enable": "maybe"},
        {"hop_timeout_ms": 1},
        {"hop_timeout_ms": 2**31},
        {"delay_levels": "1x"},
        {"max_reconsume_times": True},
    ],
)
def test_an_unknown_key_or_a_value_out_of_range_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ConsumerDropinSettings.make(**wrong)


def test_booleans_are_read_as_librdkafka_reads_them() -> None:
    assert [is_true(value) for value in (True, "true", "T", "1", False, "false", "0")] == [True] * 4 + [False] * 3


def test_the_inner_producer_inherits_only_the_connection() -> None:
    def told(error: object) -> None:
        del error

    config = {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.username": "u",
        "ssl.ca.location": "/ca",
        "error_cb": told,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "on_commit": told,
    }
    assert connection(config).keys() == config.keys() - {"group.id", "auto.offset.reset", "on_commit"}
    made = inner_producer_config(config, ConsumerDropinSettings.make(hop_timeout_ms=500, producer={"linger.ms": 9}))
    assert (made["linger.ms"], made["delivery.timeout.ms"], made["acks"], made["enable.idempotence"]) == (
        9, 500, "all", True,
    )  # fmt: skip
    assert made["topic.metadata.refresh.interval.ms"] == 5_000
    with pytest.raises(ConfigError, match="acks"):
        inner_producer_config(config, ConsumerDropinSettings.make(producer={"acks": 1}))


def test_errors_do_not_show_settings_of_the_inner_producer() -> None:
    values, _, _ = take(({"rocketshim.producer.sasl.password": "secret"},), {})
    with pytest.raises(ConfigError, match="there is no such setting") as caught:
        ProducerDropinSettings.make(**values)
    assert "secret" not in str(caught.value)
