"""The root of the error tree; `rocketshim.errors` extends it.

Split by who can do something about it::

    RocketshimError
    ├── ConfigError                a setting, a level table, a name: fix the configuration  (also a ValueError)
    ├── MessageError               a message that may not be sent as it is: fix the caller  (also a ValueError)
    │   ├── ReservedHeaderError    a property name that belongs to the wire format
    │   └── MessageTooLargeError   larger than a later hop accepts
    ├── MalformedRecordError       a record on a topic that breaks the wire format: park it  (also a ValueError)
    ├── UnknownVersionError        a record of the group log has a newer version: the consumer stops holding queues
    └── ClusterError               a problem on the cluster: fix it there
        ├── TopicMissingError      a required topic does not exist, and may not be created
        ├── TopicMismatchError     a topic exists, but not as the layout needs it
        ├── NotAuthorizedError     the principal lacks a right
        └── BrokerUnavailableError no broker answered in time

Each message names the value, the rule and the way out. Raising any of these leaves the state of the object that
raised it as it was before the call.
"""

from typing import Any


class RocketshimError(Exception):
    """Root of every error that rocketshim raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle text and attributes; the constructor has other arguments than the text."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ConfigError(RocketshimError, ValueError):
    """A setting, level table or name breaks its rule. Nothing was started or changed."""


class MessageError(RocketshimError, ValueError):
    """A message cannot be sent as it is. Nothing was sent."""


class ReservedHeaderError(MessageError):
    """A user property carries a name that the wire format reserves, or one no header may have. Nothing was sent."""


class MessageTooLargeError(MessageError):
    """A message is larger than a later hop accepts. Nothing was sent."""


class MalformedRecordError(RocketshimError, ValueError):
    """A record breaks the wire format.

    Attributes:
        reason: a short, stable, machine-readable cause (`PARK_REASON` of the parked record), for example
            `duplicate-header:REAL_TOPIC`.
    """

    def __init__(self, reason: str, explanation: str) -> None:
        super().__init__(explanation)
        self.reason = reason


class UnknownVersionError(RocketshimError):
    """A record of the group log has a version that this reader does not know. The consumer stops holding queues.

    Attributes:
        version: the version in the record.
    """

    def __init__(self, version: int, known: int) -> None:
        super().__init__(
            f"a group-log record has version {version}, this process knows {known} only: it stops holding queues; run "
            "the same version of rocketshim in the whole group"
        )
        self.version = version


class ClusterError(RocketshimError):
    """The cluster is not set up as required."""


class TopicMissingError(ClusterError):
    """A required topic does not exist, and could not or may not be created."""


class TopicMismatchError(ClusterError):
    """A topic exists, but with partitions or settings that the layout cannot work with. Nothing was changed."""


class NotAuthorizedError(ClusterError):
    """The principal lacks a right that the step needs."""


class BrokerUnavailableError(ClusterError):
    """No broker answered in time."""
