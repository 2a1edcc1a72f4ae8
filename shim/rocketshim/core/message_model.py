"""How the members of a group share messages: CLUSTERING or BROADCASTING. Source: `MessageModel` of RocketMQ."""

from enum import Enum

__all__ = ["MessageModel"]


class MessageModel(Enum):
    """How the members of a group share messages."""

    CLUSTERING = "clustering"
    """Each message goes to one member; failed messages are delivered again."""
    BROADCASTING = "broadcasting"
    """Each message goes to every member; failed messages are dropped, and a local file stores the positions."""
