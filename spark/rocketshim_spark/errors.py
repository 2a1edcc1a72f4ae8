"""Errors of the Spark jobs, part of rocketshim's error tree.

Added here::

    RocketshimError
    ├── ConfigError
    │   └── SessionError             the session lacks a setting that the jobs need: create it with `session.create`
    ├── ConnectorMissingError        Spark has no jars for Kafka or Delta: fetch or name them
    ├── LandingFailedError           a landing failed, and nothing of it was stored: run it again
    ├── LakeError                    the lake folder is missing, or was not written by a landing
    └── ClusterError
        └── TopicRecreatedError      a topic was deleted, or deleted and created again, since it was landed

Each message says what to do. No error leaves a change behind.
"""

from rocketshim_topics.errors import ClusterError, ConfigError, RocketshimError

__all__ = ["ConnectorMissingError", "LakeError", "LandingFailedError", "SessionError", "TopicRecreatedError"]


class SessionError(ConfigError):
    """A session that lacks a setting the jobs need. Nothing was read."""


class ConnectorMissingError(RocketshimError):
    """Missing jars for reading Kafka or Delta. No new session is left running; an earlier one is."""


class LakeError(RocketshimError):
    """A lake folder that is missing, or was not written by a landing. Nothing was changed."""


class LandingFailedError(RocketshimError):
    """A failure of a landing. Nothing of it was stored; the next landing reads the same records."""


class TopicRecreatedError(ClusterError):
    """A landed topic that no longer exists, or whose name another topic has now. Nothing was landed or sent."""
