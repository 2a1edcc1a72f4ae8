"""An in-memory Kafka and a virtual clock, for tests and simulations.

`InMemoryKafka` creates clients that behave as `confluent_kafka.Consumer` and `Producer` were measured to behave. A test
can inject faults. `VirtualClock` is the clock of the cluster and its clients.
"""

from rocketshim.testing.broker import CommitRecord
from rocketshim.testing.clock import VirtualClock
from rocketshim.testing.consumer import InMemoryConsumer
from rocketshim.testing.kafka import InMemoryKafka
from rocketshim.testing.producer import InMemoryProducer

__all__ = ["CommitRecord", "InMemoryConsumer", "InMemoryKafka", "InMemoryProducer", "VirtualClock"]
