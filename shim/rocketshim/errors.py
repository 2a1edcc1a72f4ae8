"""Every error of rocketshim. `rocketshim_topics.errors` defines the root and the errors of topics and wire format.

This module adds::

    RocketshimError
    ├── SendError                  no delivery report confirmed the send
    │   ├── SendTimeoutError       no delivery report came in time: the message may or may not be stored
    │   └── ClosedError            the object is closed; nothing was done
    ├── ConfigError                (defined in `rocketshim_topics.errors`)
    │   └── FeatureNotEnabledError the setting that enables the feature is not set; nothing was done
    ├── NotSupportedError          the call has no meaning here, by design; the message names the alternative
    ├── StaleMessageError          the message belongs to an assignment that has ended; nothing was sent
    ├── ConsumerError              the consumer cannot continue
    │   └── OffsetStoreError       the local file of offsets cannot be used
    ├── GroupActiveError           members of the group are running; nothing was changed
    ├── WorkerError                the worker cannot continue
    ├── RedriveError               a redrive cannot continue; the redrive log records what was sent
    ├── LocalBrokerError           the local broker cannot be prepared or started
    └── FilterError                a filter expression cannot be used
        ├── FilterSyntaxError      it does not compile: position, token, what was expected  (also a ValueError)
        └── FilterEvaluationError  it cannot be evaluated for these properties

`rocketshim.compat.rocketmq.exceptions` derives the names of RocketMQ's Python client from `RocketshimError`.
"""

from rocketshim_topics.errors import (
    BrokerUnavailableError,
    ClusterError,
    ConfigError,
    MalformedRecordError,
    MessageError,
    MessageTooLargeError,
    NotAuthorizedError,
    ReservedHeaderError,
    RocketshimError,
    TopicMismatchError,
    TopicMissingError,
    UnknownVersionError,
)

__all__ = [
    "BrokerUnavailableError",
    "ClosedError",
    "ClusterError",
    "ConfigError",
    "ConsumerError",
    "FeatureNotEnabledError",
    "FilterError",
    "FilterEvaluationError",
    "FilterSyntaxError",
    "GroupActiveError",
    "LocalBrokerError",
    "MalformedRecordError",
    "MessageError",
    "MessageTooLargeError",
    "NotAuthorizedError",
    "NotSupportedError",
    "OffsetStoreError",
    "RedriveError",
    "ReservedHeaderError",
    "RocketshimError",
    "SendError",
    "SendTimeoutError",
    "StaleMessageError",
    "TopicMismatchError",
    "TopicMissingError",
    "UnknownVersionError",
    "WorkerError",
]


class SendError(RocketshimError):
    """No delivery report confirmed the send. The message is not stored, unless it is a `SendTimeoutError`.

    The report is about the last attempt of the client. An earlier one without an answer may have stored the message,
    while brokers fail (seen once, docs/reliability.md).
    """


class SendTimeoutError(SendError):
    """No delivery report came in time: the message may be stored or not. A producer sends it again with a new id."""


class ClosedError(SendError):
    """The object is closed. Nothing was done."""


class FeatureNotEnabledError(ConfigError):
    """The setting that enables a feature is not set; the message names the setting. Nothing was done."""


class NotSupportedError(RocketshimError):
    """A call cannot mean here what it means elsewhere; the message names the alternative. Nothing was done."""


class StaleMessageError(RocketshimError):
    """The message belongs to an assignment that has ended: another member gets it again. Nothing was sent."""


class ConsumerError(RocketshimError):
    """The consumer cannot continue. Committed offsets are unchanged."""


class OffsetStoreError(ConsumerError):
    """The local file of offsets (BROADCASTING) cannot be used.

    It is in use by another process, damaged, from another cluster, or not writable.
    """


class GroupActiveError(RocketshimError):
    """Members of the consumer group are running. Nothing was changed."""


class WorkerError(RocketshimError):
    """The worker cannot continue. Committed offsets are unchanged."""


class RedriveError(RocketshimError):
    """A redrive cannot continue. The redrive log records what was sent: apply the plan again for the other records."""


class LocalBrokerError(RocketshimError):
    """The local broker could not be prepared or started. The message says what to do."""


class FilterError(RocketshimError):
    """A filter expression cannot be used."""


class FilterSyntaxError(FilterError, ValueError):
    """A filter expression does not compile. Nothing was subscribed.

    Attributes:
        expression: the text as given.
        position: 0-based character position of the offending token.
        token: the offending token, `""` at the end of the text.
        expected: what is allowed at that position, as text for a person.
    """

    def __init__(self, message: str, *, expression: str, position: int, token: str, expected: str) -> None:
        super().__init__(message)
        self.expression = expression
        self.position = position
        self.token = token
        self.expected = expected


class FilterEvaluationError(FilterError):
    """A compiled expression cannot be evaluated for these properties. RocketMQ treats this as not matched."""
