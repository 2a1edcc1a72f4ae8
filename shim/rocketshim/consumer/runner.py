"""What the runners of concurrent and of orderly listeners share."""

from collections.abc import Callable
from dataclasses import replace
from types import CoroutineType
from typing import Any

from rocketshim.codecs import UndecodableBody
from rocketshim.consumer.reader.partition_queue import PartitionQueue
from rocketshim.core.clock import Clock
from rocketshim.core.next_hop import NO_LISTENER
from rocketshim.core.subscriptions import Subscription
from rocketshim.core.user_values import safe_text
from rocketshim.failures import FailureMaker
from rocketshim.settings import PushConsumerSettings
from rocketshim_topics import Failure, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["Runner", "WithoutContext"]


class WithoutContext:
    """A listener that takes the message alone; the hot path calls `function` itself."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, message: Any, context: object) -> Any:
        """Call the function with the message."""
        del context
        return self.function(message)


class Runner:
    """Runs what a listener thread gets through its listeners.

    Args:
        settings: of the consumer. With `consume_message_batch_max_size` above 1 listeners get lists.
        subscription_of: finds the subscription of a logical topic; None: it has no listener.
        clock: monotonic time, the same as for leases, and wall time of failures.

    Thread-safety: immutable, except for what user code does; every listener thread uses the same object.
    """

    __slots__ = (
        "_batch_count", "_clock", "_failures", "_group", "_levels", "_queues", "_retry_topic", "_subscription_of",
    )  # fmt: skip

    def __init__(
        self, settings: PushConsumerSettings, subscription_of: Callable[[str], Subscription | None], clock: Clock
    ) -> None:
        self._group = settings.group
        self._subscription_of = subscription_of
        self._retry_topic = TopicNames(settings.namespace).retry(settings.group)
        self._batch_count = settings.consume_message_batch_max_size
        self._levels = settings.delay_levels
        self._clock = clock
        self._failures = FailureMaker(clock, wants_stack=settings.fail_stack)
        self._queues: dict[TopicPartitionKey, MessageQueue] = {}  # made once; a few hundred bytes a partition

    def _message_queue(self, queue: PartitionQueue) -> MessageQueue:
        key = TopicPartitionKey.of(queue)
        known = self._queues.get(key)
        if known is None:
            known = self._queues[key] = MessageQueue(queue.topic, queue_id=queue.partition)
        return known

    def _no_status(self, returned: object, status: str) -> Failure:
        """Return the failure of a call that returned something other than a status: a mistake of the program."""
        text = f"the listener returned {safe_text(returned, repr):.200}"
        if type(returned) is CoroutineType:
            returned.close()  # it would warn that it was never awaited
            text += ": make the listener itself an `async def` function"
        else:
            text += f": it returns nothing or a {status}, and raises to fail"
        return Failure("ReturnedNoStatus", text, self._clock.wall_ms())

    def _no_listener(self, topic: str) -> Failure:
        """Return the failure of a message that this member has no listener for, and another one might have."""
        text, is_retry = f"no listener for {topic!r} in this consumer", topic != self._retry_topic
        return Failure(NO_LISTENER, text, self._clock.wall_ms(), unhandled=is_retry)

    def _failure_of_call(self, error: BaseException, topic: str) -> Failure:
        """Return the failure of a call that raised, for a message of this physical topic."""
        failure = self._failures.of(error)
        if topic == self._retry_topic and issubclass(type(error), UndecodableBody):
            return replace(failure, unhandled=True)  # the member that sent it back may have decoded it
        return failure
