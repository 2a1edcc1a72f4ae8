"""Records of a group's log: members, and the claims, renewals and releases of queues (format version 1).

One partition per group has these records, as JSON text in the value. Key and headers are not used. The fold
(`rocketshim.locks.fold`) decides what the records mean together, from their order and append times alone. This
module defines one record.

* `v` is the version. A reader that finds another version no longer knows who holds a queue: `decode_group_record`
  raises `UnknownVersionError`, and a consumer then stops holding queues. So a change of *meaning* needs a new version.
  Readers ignore unknown fields, so an additional field must not change any decision.
* Anything else that is not a record of version 1 raises `MalformedRecordError`. Every reader ignores such a record.
* An owner is `client_id` and `incarnation`, a random text of the process, so that two runs with one client id are two
  owners. `seq` numbers the records of one owner from 1. By it an owner recognises its own record when it reads it back.
* `lease_ms` is the length of the lease (claim, renew) or membership (member) that the record requests.
* `base` plus the offset of a claim is the fencing token of the queues that it wins. The writer repeats the base that
  its fold knows. A claim, renewal or release with another base was written for an earlier log and is ignored. Only a
  new member may not know the base yet.
* Renewals and releases give for each queue: its token; `confirmed_offset`, the offset of the owner's last record (claim
  or renewal) that it has read back; the position to continue from; and how often each unfinished message has failed
  (`reconsume_counts`: pairs of offset and count, counts of 1 and more), the first of them with its cause for people.
* A new field for people may have any value: one that a reader does not understand counts as absent. A version that does
  not know the field ignores it, and the two must not differ about the record.
* A command is written by a person, not by a member. It names one message and the token of the queue's owner. That owner
  alone obeys, and only while its lease holds; a command with another token does nothing, then or later. For all others,
  and for the fold of every member, it is a record that is ignored: a version that does not know commands agrees.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from rocketshim_topics.errors import MalformedRecordError, UnknownVersionError
from rocketshim_topics.limits import INT_MAX, LONG_MAX
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "BY_CHARS",
    "CAUSE_CHARS",
    "GROUP_LOG_VERSION",
    "LEASE_MAX_MS",
    "TRACE_CHARS",
    "ClaimRecord",
    "ClaimedQueue",
    "CommandRecord",
    "GroupRecord",
    "LeaseEntry",
    "LeaveRecord",
    "MemberRecord",
    "QueueCommand",
    "ReleaseRecord",
    "RenewRecord",
    "decode_group_record",
    "encode_group_record",
]

GROUP_LOG_VERSION: Final = 1
"""The version that this module reads and writes."""

LEASE_MAX_MS: Final = 86_400_000
"""The longest lease a record may ask for: one day, in ms."""

_Name = Annotated[str, Field(min_length=1, max_length=255)]
_Offset = Annotated[int, Field(ge=0, le=LONG_MAX)]
_Count = Annotated[int, Field(ge=1, le=INT_MAX)]


CAUSE_CHARS: Final = 200
"""The longest cause of a failing message."""

TRACE_CHARS: Final = 2_048
"""The longest stack trace of a failing message."""

BY_CHARS: Final = 300
"""The longest name of a person who gives a command."""


def _or_absent(value: object, check: ValidatorFunctionWrapHandler) -> object:
    try:
        return check(value)
    except ValidationError:
        return None


_ForPeople = WrapValidator(_or_absent)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class ClaimedQueue(_Part):
    """A queue in the log.

    Attributes:
        topic: logical topic name.
        queue_id: partition.
    """

    topic: _Name
    queue_id: Annotated[int, Field(ge=0, le=INT_MAX)]

    @property
    def queue(self) -> MessageQueue:
        """The queue as a `MessageQueue`."""
        return MessageQueue(self.topic, queue_id=self.queue_id)


class LeaseEntry(ClaimedQueue):
    """A queue that is renewed or released.

    Attributes:
        token: fencing token of its owner.
        confirmed_offset: offset in the group log of the owner's last record for this queue that it has read back as
            granted or renewed.
        next_offset: position from which a new owner continues; None: unchanged.
        reconsume_counts: (offset, failed attempts so far) of the unfinished messages, ascending.
        failing_ms: for how long the first of them has failed under this owner; None: not known. For people only.
        cause: class and text of its last failure, 200 characters at most; None: not known. For people only.
        trace: stack trace of that failure, the innermost frame last, 2,048 characters at most; None: there is none, or
            it is left out. For people only.
        call_offset: first message of a listener call that has run for long; None: there is none. For people only.
        call_ms: for how long that call has run; None: there is none. For people only.
    """

    token: _Offset
    confirmed_offset: _Offset
    next_offset: _Offset | None = None
    reconsume_counts: tuple[tuple[_Offset, _Count], ...] = ()
    failing_ms: _Offset | None = None
    cause: str | None = None
    trace: Annotated[str | None, Field(max_length=TRACE_CHARS), _ForPeople] = None
    call_offset: Annotated[_Offset | None, _ForPeople] = None
    call_ms: Annotated[_Offset | None, _ForPeople] = None


class _Record(_Part):
    v: Literal[1] = GROUP_LOG_VERSION
    kind: str
    client_id: _Name
    incarnation: _Name
    seq: Annotated[int, Field(ge=1, le=LONG_MAX)]
    lease_ms: Annotated[int, Field(ge=1, le=LEASE_MAX_MS)]
    base: _Offset | None = None


class ClaimRecord(_Record):
    """An owner claims queues. Each queue is granted or refused by itself."""

    kind: Literal["claim"] = "claim"
    base: _Offset
    queues: Annotated[tuple[ClaimedQueue, ...], Field(min_length=1)]


class RenewRecord(_Record):
    """An owner renews its leases from this record on, and reports its positions."""

    kind: Literal["renew"] = "renew"
    base: _Offset
    queues: Annotated[tuple[LeaseEntry, ...], Field(min_length=1)]


class ReleaseRecord(_Record):
    """An owner releases queues, after it has stopped, drained and committed them."""

    kind: Literal["release"] = "release"
    base: _Offset
    queues: Annotated[tuple[LeaseEntry, ...], Field(min_length=1)]


class MemberRecord(_Record):
    """A member's heartbeat.

    Attributes:
        strategy: name of the member's allocation strategy; None: Kafka's group protocol assigns queues. All members of
            a group use the same.
        version: version of the library; None: not known. For people only.
    """

    kind: Literal["member"] = "member"
    strategy: _Name | None = None
    version: str | None = None


class LeaveRecord(_Record):
    """A member leaves; its last record."""

    kind: Literal["leave"] = "leave"


GroupRecord = ClaimRecord | RenewRecord | ReleaseRecord | MemberRecord | LeaveRecord
"""What members write."""


class QueueCommand(StrEnum):
    """What the owner of a queue is to do with a message that keeps failing."""

    TRY_NOW = "try-now"
    """End its wait: the next attempt comes now."""
    DEAD_LETTER = "dead-letter"
    """Make it a dead letter without another attempt, and continue behind it when that is stored."""


class CommandRecord(_Part):
    """A person commands the owner of a queue.

    Attributes:
        do: what it is to do.
        topic: topic of the queue.
        queue_id: its partition.
        token: fencing token of the owner that is to obey.
        offset: of the message, which has failed and is not finished; otherwise nothing is done.
        by: the person, for people only.
    """

    v: Literal[1] = GROUP_LOG_VERSION
    kind: Literal["command"] = "command"
    do: QueueCommand
    topic: _Name
    queue_id: Annotated[int, Field(ge=0, le=INT_MAX)]
    token: _Offset
    offset: _Offset
    by: Annotated[str, Field(min_length=1, max_length=BY_CHARS)]

    @property
    def queue(self) -> MessageQueue:
        """The queue as a `MessageQueue`."""
        return MessageQueue(self.topic, queue_id=self.queue_id)


class _Envelope(_Part):
    v: int


_RECORD: Final[TypeAdapter[GroupRecord | CommandRecord]] = TypeAdapter(
    Annotated[GroupRecord | CommandRecord, Field(discriminator="kind")]
)


def encode_group_record(record: GroupRecord | CommandRecord) -> bytes:
    """Return the value of the Kafka record: JSON in UTF-8, fields in the order of this file, without absent ones."""
    return record.model_dump_json(exclude_none=True).encode()


def decode_group_record(value: bytes | None) -> GroupRecord | CommandRecord:
    """Decode the value of a record of the group log.

    Args:
        value: as fetched. None (no value) is malformed.

    Raises:
        UnknownVersionError: the record has an unknown version; the caller stops holding queues.
        MalformedRecordError: the record does not follow its version; every reader ignores it.
    """
    if value is None:
        raise MalformedRecordError("group-log:no-value", "a group-log record without a value")
    try:
        envelope = _Envelope.model_validate_json(value)
    except ValidationError as error:
        raise MalformedRecordError("group-log:envelope", f"not a group-log record: {_first(error)}") from error
    if envelope.v != GROUP_LOG_VERSION:
        raise UnknownVersionError(envelope.v, GROUP_LOG_VERSION)
    try:
        return _RECORD.validate_json(value)
    except ValidationError as error:
        raise MalformedRecordError("group-log:record", f"malformed group-log record: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    """Return the first error, without the input, which may be large and is not ours to print."""
    complaint = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, complaint['loc'])) or 'record'}: {complaint['msg']}"
