"""A Kafka in memory and a clock that stands still: what tests and simulations of the shim run on.

`InMemoryKafka` makes clients that behave as `confluent_kafka.Consumer` and `Producer` were measured to behave, and lets
a test order what goes wrong. `VirtualClock` is the time of all of it.
"""

from rocketshim.testing.broker import CommitRecord
from rocketshim.testing.clock import VirtualClock
from rocketshim.testing.consumer import InMemoryConsumer
from rocketshim.testing.kafka import InMemoryKafka
from rocketshim.testing.producer import InMemoryProducer

__all__ = ["CommitRecord", "InMemoryConsumer", "InMemoryKafka", "InMemoryProducer", "VirtualClock"]
