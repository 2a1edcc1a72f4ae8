"""Spans of a message that fails once: `python examples/tracing.py`, without a broker.

Needs `pip install 'rocketshim[opentelemetry]' opentelemetry-sdk`. In production, give the provider an exporter of your
own, and let `Producer` and `PushConsumer` connect to Kafka: `instrument` is all that changes.
"""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rocketshim import ConsumeConcurrentlyContext, Message, MessageView, PushConsumer
from rocketshim.contrib.opentelemetry import instrument
from rocketshim.harness import Harness

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

consumer = PushConsumer("localhost:9092", group="payments")


@consumer.listener("orders")
def charge(message: MessageView, context: ConsumeConcurrentlyContext) -> None:
    """Charge a card; the bank does not answer at the first attempt."""
    del context
    if message.reconsume_times == 0:
        raise OSError("the bank does not answer")


instrument(consumer, tracer_provider=provider)

with Harness() as harness:
    harness.topic("orders")
    instrument(harness.producer, tracer_provider=provider)
    harness.run(consumer)
    harness.send(Message("orders", b"o-7"))
    harness.pass_time("1m")  # the retry comes after 10 s

for span in sorted(exporter.get_finished_spans(), key=lambda each: each.start_time or 0):
    error = (span.attributes or {}).get("error.type", "no error")
    relation = "child of the send" if span.parent else "linked to the send" if span.links else "begins the trace"
    print(f"{span.name}: {relation}, {error}")
