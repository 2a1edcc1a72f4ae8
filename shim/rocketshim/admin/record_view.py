"""One record of a shim topic for a person or a program: decoded as far as it can be, never failing.

A record that breaks the wire format is shown too: what can be read of it, and the reason. Values are not decoded; they
are shown as text where they are UTF-8, else as base64.
"""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rocketshim.admin.decoder import DeadLetterRecord
from rocketshim_topics import Envelope, MalformedRecordError, decode, encode
from rocketshim_topics.redrive_log import RedriveLog, record_digest
from rocketshim_topics.wire import RESERVED, headers_shown, own_name, read_headers

__all__ = ["RecordView", "as_read", "time_text"]

_SHOWN: Final = 200


def time_text(at_ms: int | None) -> str:
    """An instant for a person: UTC, milliseconds; `""` for None. One that no calendar has is said as it was written."""
    if at_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms after 1970"


@dataclass(frozen=True, slots=True)
class RecordView:
    """A record as read.

    Attributes:
        topic, partition, offset: coordinates.
        stored_ms: its timestamp, epoch ms.
        key, value: as stored.
        headers: as stored.
        envelope: decoded; empty where the record breaks the wire format.
        malformed: why it could not be decoded; None where it could.
        state: `dead`, or what the redrive log says became of it: `redriven`, `discarded`; `""`: not asked.
        plan: id of the plan that did it; None: none did.
        dialect: whose letter it is; None: ours.
    """

    topic: str
    partition: int
    offset: int
    stored_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    envelope: Envelope
    malformed: str | None
    state: str = ""
    plan: str | None = None
    dialect: str | None = None

    @classmethod
    def of(cls, message: Any, *, trusted: bool = True) -> "RecordView":
        """The entry of a Kafka message; `trusted`: it lies in a topic of the shim's own."""
        malformed = None
        try:
            envelope = decode(read_headers(message), trusted=trusted)
        except MalformedRecordError as error:
            envelope, malformed = Envelope(), error.reason
        at = (message.topic(), message.partition(), message.offset())
        headers = tuple(headers_shown(message))
        return cls(*at, message.timestamp()[1], message.key(), message.value(), headers, envelope, malformed)

    @classmethod
    def opened(cls, letter: DeadLetterRecord, *, log: RedriveLog | None = None) -> "RecordView":
        """The entry of a letter.

        Args:
            letter: as opened.
            log: what became of letters; None: not asked.
        """
        message, record = letter.message, letter.record
        at = (message.topic() or "", message.partition() or 0, message.offset() or 0)
        state, plan = "", None
        if log is not None:
            settled = log.settled(*at, record_digest(message)) if log.is_marked(*at) else None
            state, plan = ("dead", None) if settled is None else (settled.state, settled.plan)
        return cls(
            *at,
            stored_ms=message.timestamp()[1],
            key=record.key(),
            value=record.value(),
            headers=tuple(headers_shown(message)),
            envelope=letter.envelope,
            malformed=letter.malformed,
            state=state,
            plan=plan,
            dialect=letter.dialect,
        )

    @property
    def at(self) -> str:
        """`topic/partition/offset`."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def id(self) -> str:
        """The message's id, the same on every hop; its coordinates where it has none."""
        return self.envelope.uniq_key or self.at

    @property
    def cause(self) -> str:
        """Class of the last failure, `""` for none."""
        return self.envelope.fail_class or ""

    @property
    def properties(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers that filters look at: a letter of another project's in our words."""
        return self.headers if self.dialect is None else tuple(encode(self.envelope))

    @property
    def user_headers(self) -> list[tuple[str, bytes | None]]:
        """The user's own headers under their own names."""
        if self.malformed is not None:
            return [each for each in self.headers if each[0] not in RESERVED]
        return [(own_name(name), value) for name, value in self.envelope.user]

    def as_json(self, *, body: bool = True) -> dict[str, Any]:
        """For programs; bytes as text where they are UTF-8, else `{"base64": …}`.

        Args:
            body: with the value.
        """
        envelope = self.envelope
        facts: dict[str, Any] = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "stored_ms": self.stored_ms,
            "id": self.id,
            "key": _json_bytes(self.key),
            "tag": envelope.tags,
            "keys": (envelope.keys or "").split(),
            "born_ms": envelope.born_timestamp_ms,
            "group": envelope.consumer_group,
            "origin_topic": envelope.retry_topic,
            "origin": envelope.origin_message_id,
            "made_from": envelope.hop_id,
            "reconsume_times": envelope.reconsume_times,
            "fail_class": envelope.fail_class,
            "fail_text": envelope.fail_text,
            "fail_at_ms": envelope.fail_at_ms,
            "replay_id": envelope.replay_id,
            "replay_count": envelope.replay_count,
            "malformed": self.malformed,
            "state": self.state or None,
            "plan": self.plan,
            "dialect": self.dialect,
            "headers": [[name, _json_bytes(value)] for name, value in self.user_headers],
            "size_bytes": len(self.value or b""),
        }
        if body:
            facts["value"] = _json_bytes(self.value)
        return facts

    def value_text(self) -> str:
        """The value for a person, cut to 200 characters."""
        if self.value is None:
            return "(no value)"
        try:
            text = self.value.decode()
        except UnicodeDecodeError:
            return f"({len(self.value)} bytes, not text)"
        printable = "".join(char if char.isprintable() else "�" for char in text)
        return printable if len(printable) <= _SHOWN else printable[: _SHOWN - 1] + "…"


def as_read(message: Any) -> dict[str, Any]:
    """Key, headers and value of a Kafka message for programs; bytes as `RecordView.as_json` has them."""
    headers = [[name, _json_bytes(value)] for name, value in headers_shown(message)]
    return {"key": _json_bytes(message.key()), "headers": headers, "value": _json_bytes(message.value())}


def _json_bytes(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
