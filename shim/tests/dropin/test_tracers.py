"""Tracers put classes of their own in place of those of `confluent_kafka`, before or after our import."""

import subprocess
import sys

import pytest

TRACER = """
import confluent_kafka


class TracedConsumer(confluent_kafka.Consumer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.polls = 0

    def poll(self, timeout=-1):
        self.polls += 1
        return super().poll(timeout)


class TracedProducer(confluent_kafka.Producer):
    def produce(self, topic, value=None, *args, **kwargs):
        kwargs["headers"].append(("traceparent", b"1"))
        super().produce(topic, value, *args, **kwargs)


confluent_kafka.Consumer, confluent_kafka.Producer = TracedConsumer, TracedProducer
"""
PROGRAM = """
from rocketshim import dropin

nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
headers = []
dropin.Producer(nowhere).produce("t", b"x", headers=headers)
dropin.Producer(nowhere).produce("t", b"x", tag="a", headers=headers)
with dropin.Consumer({**nowhere, "group.id": "g", "rocketshim.retry.enable": True}) as consumer:
    consumer.poll(0)
    assert type(consumer).__name__ == "Consumer"
    print(len(headers), getattr(consumer, "polls", 0))
"""


@pytest.mark.parametrize(
    ("program", "traced"),
    [(TRACER + PROGRAM, "1 1"), ("import rocketshim.dropin\n" + TRACER + PROGRAM, "0 0")],
    ids=["before", "after"],
)
def test_a_tracer_of_confluent_kafka_sees_the_calls_if_it_comes_first_and_disturbs_none(
    program: str, traced: str
) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout.strip()) == (0, traced), done.stderr
