"""Read queues ahead for `PullConsumer`: the messages that were fetched and that no pull has returned yet.

RocketMQ's broker answers each pull separately. Kafka's client fetches ahead. So each queue that was pulled has a
*prefetch buffer*. Rules:

* A pull that continues where the last pull of its queue ended takes messages from the buffer. Every other offset is
  first compared with the queue's bounds (`OFFSET_ILLEGAL`); then the buffer is emptied and the queue is read from that
  offset.
* The queue of a full buffer is paused, so that a pull of one queue does not fill the memory with messages of others.
* An empty buffer proves nothing. `NO_NEW_MSG` is returned only if the end of the log is not above the position: a pull
  finds every message that was stored before the call. Transaction markers may follow the last message; the client's
  end-of-partition event tells how far they reach.
"""

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.core.prefetch_buffer import PrefetchBuffer
from rocketshim.kafka.client_errors import ErrorLines
from rocketshim.kafka.clients import ConsumerClient, is_fatal
from rocketshim.kafka.queue_lookup import QueueLookup, cluster_errors
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import DENIED, MISSING
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["FETCH_COUNT", "Prefetch"]

_LOG = safe_logger("rocketshim.consumer")
FETCH_COUNT: Final = 256
_PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - no public spelling
_OFFSET_RESET: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001


class Prefetch:
    """The prefetch buffers of one pull consumer by topic and partition, filled by its reading client."""

    def __init__(
        self, client: Callable[[], ConsumerClient], lookup: QueueLookup, errors: ErrorLines, now_ms: Callable[[], int]
    ) -> None:
        self.buffers: dict[tuple[str, int], PrefetchBuffer] = {}  # found per message by a plain tuple
        self._client = client
        self._lookup = lookup
        self._errors = errors
        self._now_ms = now_ms

    def read_from(
        self, queue: MessageQueue, key: TopicPartitionKey, offset: int, bounds: tuple[int, int]
    ) -> PrefetchBuffer:
        """Read a queue from this offset; return its new, empty buffer."""
        consumer = self._client()
        at = TopicPartition(*key, offset)
        with cluster_errors(f"{key} cannot be read from offset {offset}"):
            if self.buffers.pop(key, None) is not None:
                consumer.incremental_unassign([TopicPartition(*key)])
            consumer.incremental_assign([at])
            consumer.resume([at])  # the client keeps a pause across assignments
        buffer = self.buffers[key] = PrefetchBuffer(queue, key, offset, bounds)
        return buffer

    def fetch(self, wanted: PrefetchBuffer, wait_s: float) -> None:
        """Put what the client has fetched into the buffers; pause the full ones, resume the wanted one."""
        consumer = self._client()
        if wanted.is_paused and not wanted.is_full:
            wanted.is_paused = False
            consumer.resume([TopicPartition(*wanted.key)])
        try:
            first = consumer.poll(wait_s)
            fetched = () if first is None else (first, *consumer.consume(FETCH_COUNT - 1, 0))
            failures = [self._put(message, wanted) for message in fetched]
        except BaseException:  # for example of a signal handler: what was fetched is lost, so all is read again
            consumer.unassign()
            self.buffers.clear()
            raise
        for key, each in self.buffers.items():
            if each.is_full and not each.is_paused:
                each.is_paused = True
                consumer.pause([TopicPartition(*key)])
        for failure in failures:
            if failure is not None:
                with cluster_errors(f"{wanted.queue} cannot be read"):
                    raise KafkaException(failure)

    def is_at_end(self, buffer: PrefetchBuffer) -> bool:
        """Return whether the queue has no message that a pull has not returned; look up its bounds for that.

        Decides: May a pull answer "no new message"? Only if a look-up says that the position is the queue's end.
        """
        if buffer.messages or buffer.is_illegal:
            return False
        buffer.bounds = self._lookup.bounds(buffer.queue)
        if buffer.end_at is not None and buffer.end_at >= buffer.bounds[1]:
            buffer.next_offset = buffer.end_at  # skip what no reader sees: transaction markers, aborted messages
        return buffer.next_offset >= buffer.bounds[1]

    def _put(self, message: Any, wanted: PrefetchBuffer) -> KafkaError | None:
        """Put a message into its buffer; return an error event that ends the pull."""
        buffer = self.buffers.get((message.topic(), message.partition()))
        error: KafkaError | None = message.error()
        if error is None:
            if buffer is not None:
                buffer.put(message)
        elif buffer is not None and error.code() == _PARTITION_EOF:
            buffer.end_at = message.offset()
        elif buffer is not None and error.code() == _OFFSET_RESET:
            buffer.is_illegal = True
        else:
            if (facts := self._errors.facts(error, message.topic(), self._now_ms())) is not None:
                _LOG.warning("consumer.client-error", extra=facts)
            concerns_pull = message.topic() in {wanted.key.topic, None}
            if is_fatal(error) or (concerns_pull and error.code() in DENIED | MISSING):
                return error
        return None
