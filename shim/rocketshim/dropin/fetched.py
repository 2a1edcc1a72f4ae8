"""A message as the program gives it back: whether it was fetched, and what its headers say."""

from confluent_kafka import Message

from rocketshim_topics.message import MessageView
from rocketshim_topics.wire import read_again

__all__ = ["checked", "viewed"]


def checked(message: Message) -> Message:
    """Return the message if it is a fetched message.

    Raises:
        ValueError: it carries an error, or was never fetched.
    """
    error = message.error()
    if error is not None:
        raise ValueError(f"this is not a message but the event {error.name()}: check error() first")
    if message.topic() is None or message.partition() is None or message.offset() is None:
        raise ValueError("this message was never fetched: it has no topic, partition or offset")
    return message


def viewed(message: Message, *, trusted: bool) -> MessageView:
    """Return a view of a message, with its headers read.

    Args:
        message: as fetched.
        trusted: it comes from the retry topic.

    Raises:
        ValueError: it carries an error, or was never fetched.
        MalformedRecordError: a header name is not UTF-8, which the client cannot read.
    """
    read_again(checked(message))
    return MessageView(message, trusted)
