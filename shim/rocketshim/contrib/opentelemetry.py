"""OpenTelemetry spans and metrics of producers and push consumers: `instrument(producer)`, `instrument(consumer)`.

* A send has a span `send orders`. The trace context goes into the message's `traceparent` header, unless the message
  has one already. The header is on every hop, so it survives delays, retries and redrives.
* A listener call has a span `process orders` with a link to the creation context of each of its messages. The first
  attempt of a single message that was sent without a delay is also a child of its send. All others begin traces of
  their own, because a trace that lasts for hours helps nobody.
* The worker has no spans: waiting is no work, and it never changes headers.

The names are those of the semantic conventions for messaging 1.44, which are in development. With
`OTEL_SEMCONV_STABILITY_OPT_IN=messaging` they are those of 1.45, with `messaging/dup` both are written.

The hooks run in the thread or task of the listener, so spans that the listener makes are children of its span.

Source: https://opentelemetry.io/docs/specs/semconv/messaging/.
"""

import os
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, get_args

import confluent_kafka
from opentelemetry import context as otel_context
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from rocketshim import ConsumeMessageContext, ConsumeReturnType, Message, MessageView, Producer, PushConsumer
from rocketshim.aio import AsyncProducer
from rocketshim.core.user_values import class_name, safe_text
from rocketshim.errors import ConfigError
from rocketshim.producer.hooks import SendMessageContext
from rocketshim_topics.wire import HOP_ID, read_headers

__all__ = ["Parent", "instrument"]

Parent = Literal["first", "link", "always"]
"""When a listener's span is a child of the send, besides its link."""

_Attributes = dict[str, str | int | float | bool]
_NAME: Final = "rocketshim"
_RENAMED: Final = {  # since version 1.45 of the conventions
    "messaging.system": "messaging.system.name",
    "messaging.kafka.offset": "kafka.offset",
    "messaging.kafka.message.key": "kafka.message.key",
    "messaging.rocketmq.message.tag": "rocketmq.message.tag",
    "messaging.rocketmq.message.delay_time_level": "rocketmq.message.delay_time_level",
    "messaging.rocketmq.message.delivery_timestamp": "rocketmq.message.delivery_timestamp",
}
_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_SPAN, _TOKEN, _BEGAN, _SHARED = "otel.span", "otel.token", "otel.began", "otel.shared"


def instrument(
    target: Producer | AsyncProducer | PushConsumer,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    parent: Parent = "first",
) -> None:
    """Make spans and metrics for each send of a producer, or for each listener call of a consumer.

    Args:
        target: a producer before its first send, or a consumer before its start.
        tracer_provider: of the spans; None: the global one.
        meter_provider: of the metrics; None: the global one.
        parent: when a listener's span is a child of the send: `first`: the first attempt of a single message that was
            sent without a delay; `always`: every attempt of a single message; `link`: never.

    Raises:
        ConfigError: the consumer has started, or the target or `parent` is none of these.
    """
    if isinstance(target, AsyncProducer):
        target = target.producer
    if not isinstance(target, Producer | PushConsumer):
        raise ConfigError(f"cannot instrument {target!r:.80}: give a Producer, an AsyncProducer or a PushConsumer")
    if confluent_kafka.Producer.__module__.startswith("opentelemetry"):
        warnings.warn(
            "the instrumentation of confluent-kafka adds a traceparent header at every hop: switch it off with "
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=confluent-kafka",
            RuntimeWarning,
            stacklevel=2,
        )
    if parent not in get_args(Parent):
        raise ConfigError(f"parent={parent!r:.80}: give one of {', '.join(get_args(Parent))}")
    hook = _Telemetry(tracer_provider, meter_provider, parent)
    if isinstance(target, Producer):
        target.register_send_message_hook(hook)
    else:
        target.register_consume_message_hook(hook)


class _Telemetry:
    """The hooks of one producer or consumer. Many threads call them at the same time; it has no state of its own."""

    def __init__(
        self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None, parent: Parent
    ) -> None:
        wanted = {each.strip() for each in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")}
        self._old_names = "messaging" not in wanted or "messaging/dup" in wanted
        self._new_names = bool(wanted & {"messaging", "messaging/dup"})
        self._parent = parent
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._send_times = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Time from a send to its result",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )  # fmt: skip
        self._process_times = meter.create_histogram(
            "messaging.process.duration", "s", "Time of a listener call", explicit_bucket_boundaries_advisory=_BOUNDS_S
        )
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages sent")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages given to a listener"
        )

    # --- producer ----------------------------------------------------------------------------------------------------

    def send_message_before(self, context: SendMessageContext) -> None:
        """Begin a span, and put its context into the message, unless the message has one."""
        message = context.message
        context.kept[_BEGAN] = time.perf_counter()
        context.kept[_SHARED] = shared = self._shared("send", message.topic)
        created = _creation_context({name: _text(value) for name, value in message.headers if value is not None})
        context.kept[_SPAN] = span = self._tracer.start_span(
            f"send {message.topic}",
            kind=SpanKind.PRODUCER,
            links=() if created is None else [Link(created)],
            attributes={**shared, **self._named(_sent_attributes(message))},
        )
        if created is None:
            carrier: dict[str, str] = {}
            propagate.inject(carrier, trace.set_span_in_context(span))
            added = [(name, value.encode()) for name, value in carrier.items()]
            context.message = replace(message, properties=[*message.headers, *added])

    def send_message_after(self, context: SendMessageContext) -> None:
        """End the span."""
        shared = dict(context.kept[_SHARED])
        span: Span = context.kept[_SPAN]
        if context.error is not None:
            shared |= _failed(span, context.error)
        elif context.result is not None:
            queue = context.result.message_queue
            where = {
                "messaging.destination.partition.id": str(queue.queue_id),
                "messaging.kafka.offset": context.result.queue_offset,
            }
            is_direct = queue.topic == context.message.topic  # a delayed message is in the schedule topic
            found: Mapping[str, Any] = where if is_direct else {}
            span.set_attributes(self._named({"messaging.message.id": context.result.msg_id, **found}))
        span.end()
        self._send_times.record(time.perf_counter() - context.kept[_BEGAN], shared)
        self._sent.add(1, shared)

    # --- consumer ----------------------------------------------------------------------------------------------------

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Begin a span and make it the current one, in the thread or task of the listener."""
        messages = context.messages
        first = messages[0]
        context.kept[_SHARED] = shared = self._shared("process", first.topic, group=context.group)
        links = []
        for message in messages:
            created = _creation_context(message.properties)
            if created is not None:
                links.append(Link(created, self._named(_received_attributes(message))))
        parent = Context()
        if len(messages) == 1 and self._is_child(first):
            parent = propagate.extract(dict(first.properties), Context())
        one = _received_attributes(first) if len(messages) == 1 else {"messaging.batch.message_count": len(messages)}
        span = self._tracer.start_span(
            f"process {first.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            links=links,
            attributes={**shared, **self._named(one)},
        )
        context.kept[_SPAN] = span
        context.kept[_TOKEN] = otel_context.attach(trace.set_span_in_context(span))

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """End the span: with an error, if the messages are tried again or are dead."""
        otel_context.detach(context.kept[_TOKEN])
        span: Span = context.kept[_SPAN]
        shared = dict(context.kept[_SHARED])
        if context.error is not None:
            shared |= _failed(span, context.error)
        elif context.return_type is not None and context.return_type is not ConsumeReturnType.SUCCESS:
            shared["error.type"] = context.return_type.value
            span.set_attribute("error.type", context.return_type.value)
            span.set_status(Status(StatusCode.ERROR, context.return_type.value))
        span.end()
        self._process_times.record(context.elapsed_ms / 1e3, shared)
        self._consumed.add(len(context.messages), shared)

    def _is_child(self, message: MessageView) -> bool:
        match self._parent:
            case "always":
                return True
            case "link":
                return False
            case "first":
                return message.reconsume_times == 0 and all(
                    name != HOP_ID for name, _ in read_headers(message.record) or ()
                )

    def _named(self, attributes: Mapping[str, Any]) -> _Attributes:
        """Return attributes, given by the names of 1.44 and without those that are None, by the names to write."""
        named: _Attributes = {}
        for name, value in attributes.items():
            if value is None:
                continue
            if self._old_names or name not in _RENAMED:
                named[name] = value
            if self._new_names and name in _RENAMED:
                named[_RENAMED[name]] = value
        return named

    def _shared(self, operation: str, topic: str, group: str | None = None) -> _Attributes:
        """Return the attributes that spans and metrics share."""
        return self._named(
            {
                "messaging.system": "kafka",
                "messaging.operation.name": operation,
                "messaging.operation.type": operation,
                "messaging.destination.name": topic,
                "messaging.consumer.group.name": group,
            }
        )


def _sent_attributes(message: Message) -> dict[str, Any]:
    return {
        "messaging.message.body.size": None if message.body is None else len(message.body),
        "messaging.kafka.message.key": _text(message.key_bytes),
        "messaging.rocketmq.message.tag": message.tag,
        "messaging.rocketmq.message.delay_time_level": message.delay_level,
        "messaging.rocketmq.message.delivery_timestamp": message.deliver_at_ms,
        "rocketshim.delay_ms": message.delay_ms,
    }


def _received_attributes(message: MessageView) -> dict[str, Any]:
    return {
        "messaging.message.id": _text(message.msg_id),
        "messaging.message.body.size": None if message.body is None else len(message.body),
        "messaging.destination.partition.id": str(message.queue_id),
        "messaging.kafka.offset": message.queue_offset,
        "messaging.kafka.message.key": _text(message.key),
        "messaging.rocketmq.message.tag": _text(message.tag),
        "rocketshim.reconsume_times": message.reconsume_times,
    }


def _creation_context(properties: Mapping[str, str | None]) -> trace.SpanContext | None:
    """Return the context in which a message was created; None: it has none."""
    carrier = {name: value for name, value in properties.items() if value is not None}
    found = trace.get_current_span(propagate.extract(carrier, Context())).get_span_context()
    return found if found.is_valid else None


def _failed(span: Span, error: BaseException) -> _Attributes:
    """Give a span an error; return the attribute that metrics get, too."""
    kind = class_name(error)
    texts = {"exception.message": safe_text(error), "exception.stacktrace": "".join(traceback.format_exception(error))}
    span.record_exception(error, {name: _text(text) for name, text in texts.items()})
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, kind))
    return {"error.type": kind}


def _text(value: bytes | str | None) -> str | None:
    """Return what a message has as text that an exporter can encode: it drops the whole batch of spans otherwise."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    return None if value is None else value.decode("utf-8", "replace")
