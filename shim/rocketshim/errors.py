"""Every error of the runtime; the tree's root and the contract's part of it stand in `rocketshim_topics.errors`.

Added here::

    RocketshimError
    ├── SendError                  a send that did not end in a delivery report of success
    │   ├── SendTimeoutError       no report in time: the message may or may not be stored
    │   └── ClosedError            the object is closed; nothing was done
    ├── ConfigError                (of the contract's tree)
    │   └── FeatureNotEnabledError a setting that switches the feature on is not set; nothing was done
    ├── NotSupportedError          a call that has no meaning here, by design; the message says what to do instead
    ├── StaleMessageError          a message of an assignment that is over; nothing was sent
    ├── ConsumerError              the consumer cannot go on
    │   └── OffsetStoreError       the local file of positions cannot be used
    ├── WorkerError                the worker cannot go on
    ├── RedriveError               a redrive cannot go on; what was sent is marked
    ├── LocalBrokerError           the local broker cannot be prepared or started
    └── FilterError                a filter expression
        ├── FilterSyntaxError      it does not compile: position, token, what was expected  (also a ValueError)
        └── FilterEvaluationError  it cannot be evaluated for these properties
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
    """A send did not end in a delivery report of success. The message is not stored."""


class SendTimeoutError(SendError):
    """No delivery report came in time. The message may or may not be stored: send again with the same identity."""


class ClosedError(SendError):
    """The object is closed. Nothing was done."""


class FeatureNotEnabledError(ConfigError):
    """A feature was called whose setting is not switched on; the message names the setting. Nothing was done."""


class NotSupportedError(RocketshimError):
    """A call that cannot mean here what it means elsewhere; the message says what to do instead. Nothing was done."""


class StaleMessageError(RocketshimError):
    """A message of an assignment that is over: somebody else gets it again. Nothing was sent."""


class ConsumerError(RocketshimError):
    """The consumer cannot go on; what was committed stays as it is."""


class OffsetStoreError(ConsumerError):
    """The local file of positions (BROADCASTING) cannot be used: in use, not whole, another cluster's, not writable."""


class WorkerError(RocketshimError):
    """The worker cannot go on; what was committed stays as it is."""


class RedriveError(RocketshimError):
    """A redrive cannot go on. What was sent is marked: apply the plan again for the rest."""


class LocalBrokerError(RocketshimError):
    """The local broker could not be prepared or started. The message names the way out."""


class FilterError(RocketshimError):
    """A filter expression cannot be used."""


class FilterSyntaxError(FilterError, ValueError):
    """A filter expression does not compile. Nothing was subscribed.

    Attributes:
        expression: the text as given.
        position: 0-based character position of the offending token.
        token: the offending token, `""` at the end of the text.
        expected: what would have been allowed there, for a person to read.
    """

    def __init__(self, message: str, *, expression: str, position: int, token: str, expected: str) -> None:
        super().__init__(message)
        self.expression = expression
        self.position = position
        self.token = token
        self.expected = expected


class FilterEvaluationError(FilterError):
    """A compiled expression cannot be evaluated for these properties (RocketMQ counts that as not matched)."""
