"""The class of confluent_kafka that the drop-in consumer extends.

A tracer may put a class of its own in place of `confluent_kafka.Consumer`, also later. `Consumer` and its part for
retries have to extend the same one.
"""

import confluent_kafka

__all__ = ["OriginalConsumer"]

OriginalConsumer = confluent_kafka.Consumer
