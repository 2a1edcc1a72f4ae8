"""Settings refuse what they do not know, and the names an editor offers are the names there are."""

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from rocketshim.aio import AsyncProducer
from rocketshim.compat.rocketmq import client as compat
from rocketshim.consumer.pull.lite_pull_consumer import LitePullConsumer
from rocketshim.consumer.pull.pull_consumer import PullConsumer
from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.core.allocate import AllocateMessageQueueAveragely
from rocketshim.core.message_model import MessageModel
from rocketshim.core.retry_policy import AfterDelay
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.dropin.settings import ConsumerDropinSettings, ProducerDropinSettings
from rocketshim.errors import ConfigError
from rocketshim.producer.producer import Producer
from rocketshim.settings import ConnectionSettings, Settings
from rocketshim.settings.consumer import LitePullConsumerSettings, PushConsumerOptions, PushConsumerSettings
from rocketshim.settings.producer import ProducerOptions, ProducerSettings
from rocketshim.settings.worker import WorkerSettings
from rocketshim.worker.worker import DelayWorker


def test_the_options_of_a_producer_are_its_settings() -> None:
    assert set(ProducerOptions.__annotations__) == set(ProducerSettings.model_fields) - {"bootstrap"}


def test_a_producer_takes_its_settings_by_name() -> None:
    assert Producer("broker:9092", linger_ms=0, max_delay_ms=60_000).settings == ProducerSettings(
        bootstrap="broker:9092", linger_ms=0, max_delay_ms=60_000
    )


def test_a_producer_refuses_settings_and_their_fields_together() -> None:
    settings = ProducerSettings(bootstrap="broker:9092")
    for values in ({"namespace": "shop"}, {"client": {"acks": 1}}, {"bootstrap": "other:9092"}):
        with pytest.raises(ConfigError, match="not both"):
            Producer(settings=settings, **values)


@pytest.mark.parametrize("client", [Producer, PushConsumer, LitePullConsumer, PullConsumer])
def test_a_client_refuses_the_settings_of_another(client: Any) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{client.__name__} takes {client.__name__}Settings as settings=, not Worker"
    ):
        client(settings=WorkerSettings(bootstrap="broker:9092", allow=("orders",)))


def test_the_options_of_a_push_consumer_are_its_settings() -> None:
    fields = PushConsumerSettings.model_fields
    options = get_type_hints(PushConsumerOptions)
    assert set(options) == set(fields) - {"bootstrap", "group"}
    for name, kind in options.items():
        if name != "delay_levels":  # text is taken too
            assert fields[name].annotation == kind, name


def test_each_setting_of_a_push_consumer_is_described() -> None:
    documented = {
        line.strip().partition(":")[0]
        for settings in PushConsumerSettings.__mro__[:2]
        for line in (settings.__doc__ or "").splitlines()
    }
    assert [name for name in PushConsumerSettings.model_fields if name not in documented] == []


@pytest.mark.parametrize(
    "values",
    [
        {"consume_threads": 3},
        {"consume_thread_min": 0},
        {"consume_thread_min": 30, "consume_thread_max": 20},
        {"consume_message_batch_max_size": 1_025},
        {"pull_threshold_for_queue": 0},
        {"pull_threshold_for_topic": 0},
        {"consume_concurrently_max_span": 65_536},
        {"group": "DEFAULT_CONSUMER"},
        {"group": ""},
        {"bootstrap": ""},
        {"max_reconsume_times": True},
        {"consume_timestamp_ms": True},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        PushConsumerSettings.make(**{"bootstrap": "localhost:9092", "group": "g", **values})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"maxReconsumeTimes": 3}, "maxReconsumeTimes=3: there is no such setting; did you mean max_reconsume_times?"),
        ({"consume_thread_nums": 3}, "did you mean consume_thread_min?"),
        ({"quux": 3}, "quux=3: there is no such setting$"),
        ({"group": ""}, "PushConsumerSettings: group is empty; it is required$"),
        ({"consume_thread_max": 10}, "PushConsumerSettings: consume_thread_max=10 is below consume_thread_min=20$"),
        ({"consume_thread_min": 0}, "consume_thread_min=0: Input should be greater than or equal to 1"),
        ({"delay_levels": "1s,5s"}, "delay_levels=1s,5s: entry 1"),
        (
            {"allocate_message_queue_strategy": AllocateMessageQueueAveragely},
            r"is a class: pass an object, AllocateMessageQueueAveragely\(\)",
        ),
    ],
    ids=str,
)
def test_an_error_names_value_rule_and_solution(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PushConsumerSettings.make(**{"bootstrap": "localhost:9092", "group": "g", **values})


@pytest.mark.parametrize("moment", [20_260_101_000_000, "20260101000000", 1_767_225_600])
@pytest.mark.parametrize("settings", [PushConsumerSettings, LitePullConsumerSettings])
def test_a_start_in_seconds_or_as_the_digits_of_a_date_is_refused(settings: type[Settings], moment: object) -> None:
    values = {"bootstrap": "localhost:9092", "group": "g"}
    with pytest.raises(ConfigError, match=rf"consume_timestamp_ms={moment}: give epoch milliseconds"):
        settings.make(**values, consume_timestamp_ms=moment)
    for sound in (None, 0, 2_000_000, 1_767_225_600_000):
        settings.make(**values, consume_timestamp_ms=sound)


@pytest.mark.parametrize("text", ["FIRST_OFFSET", "first_offset", "CONSUME_FROM_FIRST_OFFSET"])
def test_a_start_and_a_message_model_may_be_given_by_name(text: Any) -> None:
    """As in a file or in a variable of the environment."""
    model: Any = "BROADCASTING"
    consumer = PushConsumer("broker:9092", group="g", consume_from_where=text, message_model=model)
    assert consumer.settings.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    assert consumer.settings.message_model is MessageModel.BROADCASTING


@pytest.mark.parametrize("address", ["a:1", "a:1,b:2", "PLAINTEXT://a:1, SASL_SSL://b:2", "[::1]:9092", "a"])
def test_what_the_kafka_client_accepts_as_an_address_is_accepted(address: str) -> None:
    assert Producer(address).settings.bootstrap == address


def test_a_policy_is_asked_for_the_attempts_that_there_are() -> None:
    """A list of two delays is enough for two retries."""

    class Two:
        def next_hop(self, reconsume_times: int, unit: float) -> AfterDelay:
            del unit
            return AfterDelay([10, 20][reconsume_times])

    PushConsumer("broker:9092", group="g", retry_policy=Two(), max_reconsume_times=2)
    with pytest.raises(ConfigError, match="raised IndexError"):
        PushConsumer("broker:9092", group="g", retry_policy=Two(), max_reconsume_times=3)


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"WorkerSettings: allow is required$"):
        WorkerSettings.make(bootstrap="localhost:9092")


def test_defaults_are_those_of_rocketmq() -> None:
    settings = PushConsumerSettings.make(bootstrap="localhost:9092", group="g")
    assert settings.consume_thread_min == 20
    assert settings.consume_message_batch_max_size == 1
    assert settings.max_reconsume_times == -1
    assert settings.consume_timeout_ms == 900_000
    assert settings.consume_concurrently_max_span == 2_000
    assert settings.pull_threshold_for_queue == 1_000
    assert settings.pull_threshold_size_for_queue_bytes == 100 * 1_048_576
    assert settings.persist_consumer_offset_interval_ms == 5_000


def test_an_address_of_a_web_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="Kafka's protocol is not HTTP"):
        Producer("http://broker:9092")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The variables that the commands read, too."""
    monkeypatch.setenv("ROCKETSHIM_BOOTSTRAP", "kafka-1:9092")
    monkeypatch.setenv("ROCKETSHIM_NAMESPACE", "shop")
    monkeypatch.setenv("ROCKETSHIM_DELAY_LEVELS", "1s 2s")
    monkeypatch.setenv("ROCKETSHIM_CLIENT", "security.protocol=SSL client.id=shop")
    return monkeypatch


CLASSES: dict[str, Callable[..., ConnectionSettings]] = {
    "Producer": lambda **values: Producer(**values).settings,
    "AsyncProducer": lambda **values: AsyncProducer(**values).producer.settings,
    "PushConsumer": lambda **values: PushConsumer(group="g", **values).settings,
    "LitePullConsumer": lambda **values: LitePullConsumer(group="g", **values).settings,
    "PullConsumer": lambda **values: PullConsumer(group="g", **values).settings,
    "ProducerSettings": ProducerSettings.make,
    "PushConsumerSettings": lambda **values: PushConsumerSettings.make(group="g", **values),
    "DelayWorker": lambda **values: DelayWorker(WorkerSettings.make(allow=("*",), **values)).settings,
}


@pytest.mark.parametrize("made", CLASSES.values(), ids=CLASSES)
@pytest.mark.usefixtures("environment")
def test_what_is_not_given_comes_from_the_environment_of_the_commands(made: Callable[..., ConnectionSettings]) -> None:
    settings = made()
    assert (settings.bootstrap, settings.namespace, str(settings.delay_levels)) == ("kafka-1:9092", "shop", "1s 2s")
    assert settings.client == {"security.protocol": "SSL", "client.id": "shop"}


@pytest.mark.parametrize("made", CLASSES.values(), ids=CLASSES)
@pytest.mark.usefixtures("environment")
def test_an_argument_wins_over_the_environment(made: Callable[..., ConnectionSettings]) -> None:
    settings = made(bootstrap="kafka-1:9092", namespace="", delay_levels="5s", client={})
    assert (settings.namespace, str(settings.delay_levels), settings.client) == ("", "5s", {})


@pytest.mark.parametrize("made", CLASSES.values(), ids=CLASSES)
@pytest.mark.usefixtures("environment")
def test_other_brokers_do_not_get_the_passwords_of_the_environment(made: Callable[..., ConnectionSettings]) -> None:
    settings = made(bootstrap="other:9092")
    assert (settings.bootstrap, settings.client, settings.namespace) == ("other:9092", {}, "shop")


@pytest.mark.parametrize("made", CLASSES.values(), ids=CLASSES)
def test_an_empty_variable_counts_as_not_set(
    made: Callable[..., ConnectionSettings], environment: pytest.MonkeyPatch
) -> None:
    for name in ("BOOTSTRAP", "NAMESPACE", "DELAY_LEVELS", "CLIENT"):
        environment.setenv(f"ROCKETSHIM_{name}", "")
    with pytest.raises(ConfigError, match=r"bootstrap is required: .*ROCKETSHIM_BOOTSTRAP"):
        made()
    settings = made(bootstrap="x:1")
    assert (settings.namespace, settings.client) == ("", {})


@pytest.mark.usefixtures("environment")
def test_the_drop_in_takes_namespace_and_levels_from_the_environment() -> None:
    for kind in (ConsumerDropinSettings, ProducerDropinSettings):
        settings: Any = kind.make()
        assert (settings.namespace, str(settings.delay_levels)) == ("shop", "1s 2s")
        assert kind.make(namespace="").namespace == ""


@pytest.mark.usefixtures("environment")
def test_the_other_client_takes_the_address_from_the_environment() -> None:
    producer = compat.Producer("g")
    producer.start()
    assert producer._running().settings.bootstrap == "kafka-1:9092"
    assert producer._running().settings.client["security.protocol"] == "SSL"


def test_settings_of_the_environment_name_their_variable_in_an_error(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ROCKETSHIM_CLIENT", "nonsense")
    with pytest.raises(ConfigError, match="ROCKETSHIM_CLIENT: write NAME=VALUE"):
        Producer()
