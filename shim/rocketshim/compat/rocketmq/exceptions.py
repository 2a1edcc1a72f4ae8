"""`rocketmq.exceptions` of `rocketmq-client-python` 2.0: the same names, in the same hierarchy.

::

    RocketMQException              any error of rocketshim (`rocketshim.errors.RocketshimError`)
    ├── NullPointerException       never raised here
    ├── MallocFailed               never raised here
    ├── ProducerException
    │   ├── ProducerStartFailed
    │   ├── ProducerSendSyncFailed
    │   ├── ProducerSendOnewayFailed
    │   ├── ProducerSendOrderlyFailed
    │   └── ProducerSendAsyncFailed   never raised here: as there, no method sends asynchronously
    └── ConsumerException
        └── PushConsumerStartFailed

The text of an error is that of the error of rocketshim, which is its `__cause__`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rocketshim.errors import RocketshimError

__all__ = [
    "ConsumerException",
    "MallocFailed",
    "NullPointerException",
    "ProducerException",
    "ProducerSendAsyncFailed",
    "ProducerSendOnewayFailed",
    "ProducerSendOrderlyFailed",
    "ProducerSendSyncFailed",
    "ProducerStartFailed",
    "PushConsumerStartFailed",
    "RocketMQException",
]

RocketMQException = RocketshimError
"""The name under which a program catches every error of rocketshim."""


class NullPointerException(RocketMQException):
    """An object of the C library could not be made. It only exists for programs that import it."""


class MallocFailed(RocketMQException):
    """The C library got no memory. It only exists for programs that import it."""


class ProducerException(RocketMQException):
    """A producer could not do what it was asked to."""


class ProducerStartFailed(ProducerException):
    """The producer did not start."""


class ProducerSendSyncFailed(ProducerException):
    """`send_sync` failed. The cause, a `rocketshim.SendError` for example, says whether the message is stored."""


class ProducerSendOnewayFailed(ProducerException):
    """`send_oneway` failed; nothing was sent."""


class ProducerSendOrderlyFailed(ProducerException):
    """`send_orderly_with_sharding_key` failed. The cause says whether the message is stored, as for `send_sync`."""


class ProducerSendAsyncFailed(ProducerException):
    """An asynchronous send failed. It only exists for programs that import it."""

    def __init__(self, msg: str, error: int, file: str, line: int, type: str) -> None:  # noqa: A002 - the other client's
        super().__init__(msg)
        self.error = error
        self.file = file
        self.line = line
        self.type = type


class ConsumerException(RocketMQException):
    """A consumer could not do what it was asked to."""


class PushConsumerStartFailed(ConsumerException):
    """The consumer did not start, and may be started again."""


@contextmanager
def raised_as(kind: type[RocketshimError]) -> Iterator[None]:
    """Raise errors of rocketshim, and of its full queue of unsent messages, as an exception of the other client."""
    try:
        yield
    except (RocketshimError, BufferError) as error:
        raise kind(str(error)) from error
