"""Errors of the analysis, all in rocketshim's one tree.

Added here::

    RocketshimError
    ├── ConfigError
    │   └── SessionError             a session that lacks a setting these jobs rest on: make it with `session.create`
    ├── ConnectorMissingError        Spark has no jars for Kafka or Delta: fetch or name them
    ├── LandingFailedError           Spark failed in the midst of a landing: run it again
    ├── LakeError                    what lies in the lake folder is not what a landing left there
    └── ClusterError
        └── TopicRecreatedError      a topic was deleted, or deleted and made anew, since it was landed

Each message names the way out. None of them leaves anything changed, but for what a landing had committed.
"""

from rocketshim_topics.errors import ClusterError, ConfigError, RocketshimError

__all__ = ["ConnectorMissingError", "LakeError", "LandingFailedError", "SessionError", "TopicRecreatedError"]


class SessionError(ConfigError):
    """A session lacks a setting that these jobs rest on. Nothing was read."""


class ConnectorMissingError(RocketshimError):
    """The jars with which Spark reads Kafka and Delta are not there. No session was started, or not by us."""


class LakeError(RocketshimError):
    """A lake folder is not there, or is not what a landing left. Nothing was changed."""


class LandingFailedError(RocketshimError):
    """Spark failed while it landed. What was committed stays; landing again goes on there."""


class TopicRecreatedError(ClusterError):
    """A topic that was landed before is gone, or another topic has its name now. Nothing was landed."""
