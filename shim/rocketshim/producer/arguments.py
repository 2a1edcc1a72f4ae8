"""The arguments of a send: a `Message`, or what a `Message` is made of; and the first record of a message."""

import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final, TypedDict

from rocketshim.codecs import Codec, default_body, encode_body
from rocketshim.core.broker_clock import BrokerClock
from rocketshim.kafka.lanes import Lanes
from rocketshim.settings import advice, place_of
from rocketshim_topics.durations import Duration
from rocketshim_topics.errors import MessageError
from rocketshim_topics.hops import OutgoingRecord, delayed_record, timer_command
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message, Properties
from rocketshim_topics.names import TopicNames, group_of

__all__ = [
    "NO_BODY",
    "Half",
    "MessageOptions",
    "RecordMaker",
    "check_timeout",
    "is_delayed",
    "message_of",
    "messages_of",
]

NO_BODY: Final[Any] = object()
"""Stands for a body that was not given; None is a tombstone."""


class MessageOptions(TypedDict, total=False):
    """The options of a `Message` that are keyword arguments of a send, for editors and type checkers.

    `Message` documents the meaning, range and default of each.
    """

    key: bytes | str | None
    tag: str | None
    keys: Sequence[str]
    delay: Duration | None
    delay_level: int | None
    deliver_at: int | datetime | None
    timer: str | None
    if_absent: bool
    at_most: Duration | None
    recallable: bool
    cron: str | None
    tz: str | None
    every: Duration | None
    late: str | None
    properties: Properties | None
    max_reconsume_times: int | None


_OPTIONS: Final = frozenset(each.name for each in fields(Message) if each.kw_only)


def message_of(given: object, body: object, options: Mapping[str, Any], codec: Codec[Any] | None = None) -> Message:
    """Return the message to send: the given one as it is, or of a topic, a body and the options of a `Message`.

    Raises:
        MessageError: the arguments do not make a message; the text names the argument and what to give instead.
    """
    if isinstance(given, Message):
        extra = [*(["body"] if body is not NO_BODY else []), *options]
        if extra:
            raise MessageError(
                f"a Message and {', '.join(extra)} are given: give {extra[0]} to the Message, or send(topic, body, …)"
            )
        return given
    if not isinstance(given, str) or body is NO_BODY:
        raise MessageError(f"cannot send {given!r:.80}: give a Message(topic, body, …), or a topic and a body")
    if body is None:
        raise MessageError("body is None: give bytes, b'' for an empty body; a tombstone is a Message(topic, None)")
    unknown = next((name for name in options if name not in _OPTIONS), None)
    if unknown is not None:
        hint = advice(unknown, _OPTIONS, place_of) or f"the options are {', '.join(sorted(_OPTIONS))}"
        raise MessageError(f"a message has no option {unknown}: {hint}")
    if codec is None:
        plain: Any = body if isinstance(body, bytes) else default_body(body, given)
        return Message(given, plain, **options)
    Message(given, b"", **options)  # no codec is asked for the body of a message that is not legal
    encoded, headers = encode_body(codec, body, given)
    if headers:
        own = options.get("properties") or ()
        pairs = own.items() if isinstance(own, Mapping) else own
        options = {**options, "properties": [*pairs, *headers]}
    return Message(given, encoded, **options)


def messages_of(given: object) -> list[Message]:
    """Return the messages of a batch.

    Raises:
        MessageError: it is not several messages.
    """
    if isinstance(given, Message) or not isinstance(given, Iterable):
        raise MessageError(f"cannot send {given!r:.80} as a batch: give a list of messages, or send() one message")
    return [message_of(each, NO_BODY, {}) for each in given]


@dataclass(eq=False, slots=True)
class Half:
    """What makes a message the half message of a transaction, which has an id before it is sent.

    `message` is the one that was sent: a hook may have replaced it.
    """

    group: str  # of the producers that are asked
    msg_id: str
    message: Message


def check_timeout(timeout_s: object) -> float:
    """Return a time-out in seconds that Python can wait for; `math.inf` and the like become some hundred years.

    Raises:
        MessageError: it is not a number, or negative.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0:
        raise MessageError(f"timeout_s is {timeout_s!r:.80}: give seconds, 0 or more; math.inf waits without a limit")
    return min(timeout_s, threading.TIMEOUT_MAX)


def is_delayed(message: Message) -> bool:
    """Return whether a message has a delay, so that it may go to the schedule topic."""
    return bool(message.delay_ms) or (message.delay_level or 0) > 0 or message.deliver_at_ms is not None


class RecordMaker:
    """Gives each message of one producer an id, and a delayed one its lane and its first queue. Any thread may call it.

    It makes the commands for named messages, too.

    `time` knows what delivery reports of the schedule topic have shown; it chooses the queue of a `deliver_at`.
    """

    def __init__(
        self, names: TopicNames, levels: DelayLevels, max_delay_ms: int, *, lanes: Lanes, time: BrokerClock
    ) -> None:
        self._names = names
        self._levels = levels
        self._max_delay_ms = max_delay_ms
        self._lanes = lanes
        self._ids = (uuid.uuid4().hex[:20], itertools.count())
        self.time = time

    def make(
        self,
        message: Message,
        list_topics: Callable[..., Any],
        sent_ns: int,
        sent_ms: int,
        *,
        partition: int | None = None,
        timestamp_ms: int = 0,
        half: Half | None = None,
    ) -> tuple[OutgoingRecord, str]:
        """Return the record of a message that is sent at this time of both clocks, and its id.

        `list_topics` of the Kafka client is called for a delayed message if its topic is not known.
        `timestamp_ms` is when the message was born, and its timestamp at the target; 0: now, and the time of delivery.
        """
        lane, uniq_key = 0, self.new_id() if half is None else half.msg_id
        if half is not None:
            half.message = message
        if half is not None or (message.recallable and is_delayed(message)):
            message = replace(message, recallable=False, timer=uniq_key)
        if message.timer is not None:
            self._require_timers(list_topics)
        elif is_delayed(message):
            lane = self._lanes.choose(message.key_bytes, list_topics)
        out = delayed_record(
            message,
            self._names,
            self._levels,
            uniq_key=uniq_key,
            born_ms=timestamp_ms or sent_ms,
            now_ms=self.time.now_ms(sent_ns, sent_ms),
            sender_ms=sent_ms,
            lane=lane,
            real_qid=partition,
            max_delay_ms=self._max_delay_ms,
            timestamp_ms=timestamp_ms or None,
            asks=None if half is None else half.group,
        )
        return out, uniq_key

    def command(
        self, command: str, topic: str, timer: str, list_topics: Callable[..., Any], sent_ms: int
    ) -> tuple[OutgoingRecord, str]:
        """Return the record of a command for a name, and its id. The names that a send accepts are legal."""
        if group_of(Message(topic, b"").topic) is not None or self._names.is_ours(topic):
            raise MessageError(f"no message for {topic} waits under a name: it takes no delayed messages from senders")
        uniq_key = self.new_id()
        out = timer_command(self._names, topic, timer, command, uniq_key=uniq_key, born_ms=sent_ms)
        self._require_timers(list_topics)
        return out, uniq_key

    def new_id(self) -> str:
        """Return the id of a message."""
        prefix, counter = self._ids
        return f"{prefix}{next(counter):012X}"

    def _require_timers(self, list_topics: Callable[..., Any]) -> None:
        """Raise what `Lanes.count` raises; a record for a missing topic might create it, with other settings."""
        self._lanes.count(self._names.timers, list_topics)
