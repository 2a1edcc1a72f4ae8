"""Spans and metrics as an exporter gets them, over sends, delays, retries, batches and asyncio."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rocketshim import LitePullConsumer, Message, MessageView, PushConsumer
from rocketshim.aio import AsyncProducer
from rocketshim.contrib.opentelemetry import instrument
from rocketshim.errors import ConfigError, SendError
from rocketshim.harness import Harness

ROOT = Path(__file__).parents[3]
OTHERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Telemetry:
    """What was exported."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meter_provider = MeterProvider([self._reader])

    def instrument(self, target: Any, **values: Any) -> None:
        instrument(target, tracer_provider=self.tracer_provider, meter_provider=self.meter_provider, **values)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        scopes = [scope for each in (data.resource_metrics if data else ()) for scope in each.scope_metrics]
        found = [metric for scope in scopes for metric in scope.metrics if metric.name == name]
        return [point for metric in found for point in metric.data.data_points]


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def harness() -> Iterator[Harness]:
    with Harness() as made:
        made.topic("orders")
        yield made


def consumer(group: str = "payments", **values: Any) -> PushConsumer:
    return PushConsumer("memory:1", group=group, **values)


def link(span: ReadableSpan) -> Any:
    (only,) = span.links
    return only.context.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_an_id_and_a_tag_that_are_not_utf8_become_attributes_that_can_be_exported(
    harness: Harness, telemetry: Telemetry
) -> None:
    payments = consumer()

    def fail(message: MessageView) -> None:
        raise ValueError(f"no such tag: {message.tag}")

    payments.register_message_listener("orders", fail)
    telemetry.instrument(payments)
    harness.run(payments)
    harness.kafka.append("orders", b"o-7", headers=[("UNIQ_KEY", b"\xfe1"), ("TAGS", b"tag\xe9")])
    harness.pass_time("1s")
    (processed, *_) = telemetry.spans("process orders")
    found = attributes(processed)
    (failure,) = processed.events
    assert "no such tag: tag\ufffd" in str(dict(failure.attributes or {}))
    str(dict(failure.attributes or {})).encode()  # no lone surrogate: it can be exported
    assert (found["messaging.message.id"], found["messaging.rocketmq.message.tag"]) == ("\ufffd1", "tag\ufffd")


def test_the_first_attempt_is_a_child_of_the_send_and_is_linked_to_it(harness: Harness, telemetry: Telemetry) -> None:
    payments = consumer()

    @payments.listener("orders")
    def charge(message: Any, context: Any) -> None:
        del message, context
        with telemetry.tracer_provider.get_tracer("shop").start_as_current_span("charge"):
            pass

    telemetry.instrument(payments)
    telemetry.instrument(harness.producer)
    harness.run(payments)
    (result,) = harness.send(Message("orders", b"o-7", key="k", tag="paid"))
    (sent,), (processed,), (charged,) = map(telemetry.spans, ("send orders", "process orders", "charge"))
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id == link(processed)
    assert charged.parent is not None
    assert charged.parent.span_id == processed.context.span_id
    assert attributes(sent) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.body.size": 3,
        "messaging.kafka.message.key": "k",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.message.id": result.msg_id,
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
    }
    assert attributes(processed) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "payments",
        "messaging.message.id": result.msg_id,
        "messaging.message.body.size": 3,
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "k",
        "messaging.rocketmq.message.tag": "paid",
        "rocketshim.reconsume_times": 0,
    }
    assert processed.status.status_code is StatusCode.UNSET


def test_a_delayed_message_keeps_its_context_and_begins_a_trace_of_its_own(
    harness: Harness, telemetry: Telemetry
) -> None:
    payments, seen = consumer(), []

    @payments.listener("orders")
    def charge(message: Any, context: Any) -> None:
        del context
        seen.append(message.properties["traceparent"])

    telemetry.instrument(payments)
    telemetry.instrument(harness.producer)
    harness.run(payments)
    harness.send(Message("orders", b"o-7", delay="3h"))
    harness.pass_time("4h")
    (sent,), (processed,) = map(telemetry.spans, ("send orders", "process orders"))
    assert [each.rpartition("-")[0] for each in seen] == [
        f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}"
    ]
    assert link(processed) == sent.context.span_id
    assert processed.parent is None
    assert processed.context.trace_id != sent.context.trace_id
    assert attributes(sent)["messaging.destination.name"] == "orders"
    assert attributes(sent)["rocketshim.delay_ms"] == 10_800_000
    assert "messaging.kafka.offset" not in attributes(sent)


def test_every_attempt_is_linked_to_the_send_and_a_failure_is_an_error(harness: Harness, telemetry: Telemetry) -> None:
    payments = consumer()

    @payments.listener("orders")
    def charge(message: Any, context: Any) -> None:
        del context
        if message.reconsume_times == 0:
            raise OSError("the bank does not answer")

    telemetry.instrument(payments)
    telemetry.instrument(harness.producer)
    harness.run(payments)
    harness.send(Message("orders", b"o-7"))
    harness.pass_time("1m")
    (sent,) = telemetry.spans("send orders")
    first, second = telemetry.spans("process orders")
    assert (link(first), link(second)) == (sent.context.span_id, sent.context.span_id)
    assert first.parent is not None
    assert second.parent is None
    assert first.status.status_code is StatusCode.ERROR
    assert attributes(first)["error.type"] == "OSError"
    assert [event.name for event in first.events] == ["exception"]
    assert second.status.status_code is StatusCode.UNSET
    assert [attributes(each)["rocketshim.reconsume_times"] for each in (first, second)] == [0, 1]
    assert attributes(first)["messaging.message.id"] == attributes(second)["messaging.message.id"]
    assert attributes(second)["messaging.destination.name"] == "orders"


@pytest.mark.parametrize(("parent", "children"), [("link", [False, False]), ("always", [True, True])])
def test_the_parent_can_be_chosen(harness: Harness, telemetry: Telemetry, parent: str, children: list[bool]) -> None:
    payments = consumer()

    @payments.listener("orders")
    def charge(message: Any, context: Any) -> None:
        del context
        if message.reconsume_times == 0:
            raise OSError

    telemetry.instrument(payments, parent=parent)
    telemetry.instrument(harness.producer)
    harness.run(payments)
    harness.send(Message("orders", b"o-7"))
    harness.pass_time("1m")
    assert [span.parent is not None for span in telemetry.spans("process orders")] == children


def test_a_message_that_has_a_context_keeps_it(harness: Harness, telemetry: Telemetry) -> None:
    payments, seen = consumer(), []

    @payments.listener("orders")
    def charge(message: Any, context: Any) -> None:
        del context
        seen.append([value for name, value in message.headers if name == "traceparent"])

    telemetry.instrument(harness.producer)
    harness.run(payments)
    harness.send(Message("orders", b"o-7", properties={"traceparent": OTHERS}))
    (sent,) = telemetry.spans("send orders")
    assert seen == [[OTHERS.encode()]]
    assert f"{link(sent):016x}" in OTHERS


def test_a_batch_has_one_span_with_a_link_for_each_message(harness: Harness, telemetry: Telemetry) -> None:
    payments = consumer(consume_message_batch_max_size=10)

    @payments.listener("orders")
    def charge(messages: Any, context: Any) -> None:
        del messages, context

    telemetry.instrument(payments)
    telemetry.instrument(harness.producer)
    harness.producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
    harness.run(payments)
    harness.pass_time("1s")
    sent = {span.context.span_id for span in telemetry.spans("send orders")}
    spans = telemetry.spans("process orders")
    assert {each.context.span_id for span in spans for each in span.links} == sent
    if len(spans) == 1:
        assert spans[0].parent is None
        assert attributes(spans[0])["messaging.batch.message_count"] == 2


def test_a_span_is_the_current_one_in_the_task_of_an_async_listener(harness: Harness, telemetry: Telemetry) -> None:
    payments, seen = consumer(), []

    @payments.listener("orders")
    async def charge(message: Any, context: Any) -> None:
        del message, context
        seen.append(trace.get_current_span().get_span_context().span_id)

    telemetry.instrument(payments)
    harness.run(payments)
    harness.send(Message("orders", b"1"), Message("orders", b"2"))
    assert sorted(seen) == sorted(span.context.span_id for span in telemetry.spans("process orders"))


def test_a_send_that_fails_is_an_error(telemetry: Telemetry, harness: Harness) -> None:
    from confluent_kafka import KafkaError

    telemetry.instrument(harness.producer)
    harness.kafka.fail_produce(KafkaError(KafkaError.KAFKA_STORAGE_ERROR), topic="orders")
    with pytest.raises(SendError):
        harness.producer.send(Message("orders", b"x"))
    (sent,) = telemetry.spans("send orders")
    assert sent.status.status_code is StatusCode.ERROR
    assert attributes(sent)["error.type"] == "SendError"


def test_durations_and_counts_are_metrics(harness: Harness, telemetry: Telemetry) -> None:
    payments = consumer()

    @payments.listener("orders")
    def charge(message: Any, context: Any) -> None:
        del context
        if message.body == b"bad":
            raise OSError

    telemetry.instrument(payments)
    telemetry.instrument(harness.producer)
    harness.run(payments)
    harness.send(Message("orders", b"1"), Message("orders", b"bad"))
    (sent,) = telemetry.points("messaging.client.sent.messages")
    assert (sent.value, dict(sent.attributes)["messaging.destination.name"]) == (2, "orders")
    (time_of_sends,) = telemetry.points("messaging.client.operation.duration")
    assert time_of_sends.count == 2
    consumed = telemetry.points("messaging.client.consumed.messages")
    assert {point.attributes.get("error.type"): point.value for point in consumed} == {None: 1, "OSError": 1}
    assert sum(point.count for point in telemetry.points("messaging.process.duration")) == 2


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("", {"messaging.system", "messaging.kafka.offset"}),
        ("http,messaging", {"messaging.system.name", "kafka.offset"}),
        ("messaging/dup", {"messaging.system", "messaging.system.name", "messaging.kafka.offset", "kafka.offset"}),
    ],
)
def test_the_environment_chooses_the_version_of_the_conventions(
    harness: Harness, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, wanted: str, names: set[str]
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", wanted)
    telemetry.instrument(harness.producer)
    harness.producer.send(Message("orders", b"x"))
    (sent,) = telemetry.spans("send orders")
    assert {name for name in attributes(sent) if "system" in name or "offset" in name} == names


def test_a_consumer_that_runs_is_refused(harness: Harness, telemetry: Telemetry) -> None:
    payments = consumer()

    @payments.listener("orders")
    def charge(message: Any, context: Any) -> None:
        del message, context

    (running,) = harness.run(payments)
    with pytest.raises(ConfigError):
        telemetry.instrument(running)


def test_the_producer_of_asyncio_is_instrumented_and_anything_else_is_refused(
    harness: Harness, telemetry: Telemetry
) -> None:
    producer = AsyncProducer("memory:1")
    telemetry.instrument(producer)
    harness.connect(producer)
    asyncio.run(producer.send("orders", b"o-7"))
    assert len(telemetry.spans("send orders")) == 1
    with pytest.raises(ConfigError, match="give a Producer, an AsyncProducer or a PushConsumer"):
        telemetry.instrument(LitePullConsumer("memory:1", group="payments"))


def test_a_program_without_it_does_not_load_it() -> None:
    program = (
        "import sys, rocketshim; rocketshim.Producer; sys.exit(any(n.startswith('opentelemetry') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0  # noqa: S603


def test_the_example_prints_one_trace_of_a_send_and_links_of_later_attempts() -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, ROOT / "examples" / "tracing.py"], capture_output=True, text=True, check=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["send orders", "process orders", "process orders"]
    assert "OSError" in lines[1]
    assert "linked to the send" in lines[2]
