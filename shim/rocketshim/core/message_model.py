"""CLUSTERING or BROADCASTING. Source: `MessageModel` of RocketMQ."""

from enum import Enum

__all__ = ["MessageModel"]


class MessageModel(Enum):
    """How the members of a group share messages."""

    CLUSTERING = "clustering"
    """Each message goes to one member; failed ones come back."""
    BROADCASTING = "broadcasting"
    """Each message goes to every member; failed ones are dropped, positions are kept in a local file."""
