"""A record of one of rocketshim's topics for people and programs: decoded as far as possible, without ever failing.

A record that breaks the wire format is shown as far as it can be read, with the reason. Values are not decoded; they
are shown as text if they are UTF-8, and otherwise as base64.
"""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rocketshim.admin.dead_letter_formats import DeadLetterRecord
from rocketshim_topics import DelayLevels, Envelope, MalformedRecordError, decode, encode
from rocketshim_topics.hops import due_ms
from rocketshim_topics.levels import time_in_queue_ms
from rocketshim_topics.redrive_log import RedriveLog
from rocketshim_topics.wire import (
    HOP_ID,
    PARK_FROM,
    PARK_REASON,
    REAL_TOPIC,
    RESERVED,
    UNIQ_KEY,
    headers_shown,
    own_name,
    read_headers,
)

__all__ = ["RecordView", "time_text"]

_MAX_CHARS: Final = 200
_KEPT: Final = (UNIQ_KEY, HOP_ID, PARK_REASON, PARK_FROM, REAL_TOPIC)


def time_text(at_ms: int | None) -> str:
    """Return a time as text for a person: UTC with milliseconds; `""` for None.

    A time outside the calendar is written as `<at_ms> ms after 1970`.
    """
    if at_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms after 1970"


@dataclass(frozen=True, slots=True)
class RecordView:
    """A record as read.

    * `envelope`: the decoded headers; of a record that breaks the wire format only its id, where it came from and goes
      to, and why it was parked.
    """

    topic: str  # its coordinates
    partition: int
    offset: int
    stored_ms: int  # its timestamp, epoch ms
    key: bytes | None  # as stored
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]  # as stored
    envelope: Envelope
    malformed: str | None  # why it could not be decoded; None if it could
    state: str = ""  # `dead`, `parked`; by the redrive log `redriven`, `discarded`; `""`: the log was not read
    plan: str | None = None  # id of the plan that redrove or discarded it; None: no plan did
    dialect: str | None = None  # name of the other project's format; None: rocketshim's own
    due_ms: int | None = None  # when it is due, epoch ms of the broker's clock; None: it does not wait
    late_ms: int | None = None  # how long after its due time it was delivered; None: not known
    decision: str = ""  # what a command of the timer log did; `""`: it is none, or the log was not read

    @classmethod
    def of(cls, message: Any, *, trusted: bool = True, levels: DelayLevels | None = None) -> "RecordView":
        """Return the view of a Kafka message, with its due time by the `levels` of the worker of the schedule topic."""
        malformed = None
        try:
            envelope = decode(read_headers(message), trusted=trusted)
        except MalformedRecordError as error:
            envelope, malformed = _as_far_as_readable(message), error.reason
        at = (message.topic(), message.partition(), message.offset())
        stored_ms, headers = message.timestamp()[1], tuple(headers_shown(message))
        due = None
        if levels is not None and malformed is None:
            due = due_ms(envelope, stored_ms, time_in_queue_ms(levels, message.partition()))
        return cls(*at, stored_ms, message.key(), message.value(), headers, envelope, malformed, due_ms=due)

    @classmethod
    def opened(cls, letter: DeadLetterRecord, *, log: RedriveLog | None = None) -> "RecordView":
        """Return the view of a dead letter, with its state and plan by the redrive log of its topic."""
        message, record = letter.message, letter.record
        is_broken = letter.malformed is not None and letter.dialect is None
        at = (message.topic() or "", message.partition() or 0, message.offset() or 0)
        envelope = _as_far_as_readable(message) if is_broken else letter.envelope
        state, plan = "", None
        if log is not None:
            mark = log.settled_record(message)
            unsettled = "parked" if envelope.park_reason else "dead"
            state, plan = (unsettled, None) if mark is None else (mark.state, mark.plan)
        return cls(
            *at,
            stored_ms=message.timestamp()[1],
            key=record.key(),
            value=record.value(),
            headers=tuple(headers_shown(message)),
            envelope=envelope,
            malformed=letter.malformed,
            state=state,
            plan=plan,
            dialect=letter.dialect,
        )

    @property
    def at(self) -> str:
        """Return `topic/partition/offset`."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def id(self) -> str:
        """Return the message's id, which is the same on every hop; its coordinates if it has none."""
        return self.envelope.uniq_key or self.at

    @property
    def cause(self) -> str:
        """Return why it was parked, or the exception class of the last failure; `""` if there is neither."""
        return self.envelope.park_reason or self.envelope.fail_class or ""

    @property
    def properties(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return the headers that filters examine; those of another project's dead letter have rocketshim's names."""
        return self.headers if self.dialect is None else tuple(encode(self.envelope))

    @property
    def user_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the user's own headers under their own names."""
        if self.malformed is not None:
            return [each for each in self.headers if each[0] not in RESERVED]
        return [(own_name(name), value) for name, value in self.envelope.user]

    def facts(self) -> dict[str, Any]:
        """Return each field by the name that it has in JSON, in listings and in `show`; bytes as they are stored."""
        envelope = self.envelope
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "id": self.id,
            "at": self.at,
            "written_by": self.dialect,
            "state": self.state or None,
            "plan": self.plan,
            "stored_ms": self.stored_ms,
            "due_ms": self.due_ms,
            "target": envelope.real_topic,
            "timer": envelope.timer,
            "park_reason": envelope.park_reason,
            "park_from": envelope.park_from,
            "born_ms": envelope.born_timestamp_ms,
            "group": envelope.consumer_group,
            "origin_topic": envelope.retry_topic,
            "origin": envelope.origin_message_id,
            "made_from": envelope.hop_id,
            "failures": envelope.reconsume_times or 0,
            "cause": envelope.fail_class,
            "text": envelope.fail_text,
            "failed_ms": envelope.fail_at_ms,
            "stack_trace": envelope.fail_stack,
            "unhandled_since_ms": envelope.unhandled_since_ms,
            "target_timestamp_ms": envelope.target_timestamp_ms,
            "replay_id": envelope.replay_id,
            "replay_count": envelope.replay_count,
            "malformed": self.malformed,
            "key": self.key,
            "tag": envelope.tags,
            "keys": (envelope.keys or "").split(),
            "headers": self.user_headers,
            "size_bytes": len(self.value or b""),
            "body": self.value,
        }

    def as_json(self, *, body: bool = True) -> dict[str, Any]:
        """Return the record as JSON for programs; bytes as text if they are UTF-8, otherwise as `{"base64": …}`."""
        facts = self.facts()
        facts["headers"] = [[name, _json_bytes(value)] for name, value in self.user_headers]
        facts |= {name: _json_bytes(value) for name, value in facts.items() if isinstance(value, bytes)}
        if not body:
            del facts["body"]
        return facts

    def value_text(self) -> str:
        """Return the value as text for a person, cut to 200 characters."""
        if self.value is None:
            return "(no value)"
        try:
            text = self.value.decode()
        except UnicodeDecodeError:
            return f"({len(self.value)} bytes, not text)"
        printable = "".join(char if char.isprintable() else "�" for char in text)
        return printable if len(printable) <= _MAX_CHARS else printable[: _MAX_CHARS - 1] + "…"


def _as_far_as_readable(message: Any) -> Envelope:
    """Return the headers that say what a record that breaks the wire format is, and why it was parked."""
    first = {name: value for name, value in reversed(headers_shown(message)) if value is not None}
    texts = {name.lower(): first[name].decode("utf-8", "surrogateescape") for name in _KEPT if name in first}
    return Envelope(**texts)


def _json_bytes(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
