"""Records of a group's log: who is a member, who claims, renews and releases which queue (format version 1).

One partition per group carries these records as JSON text in the record's value; key and headers are not used. What
they mean together is decided by the fold (`rocketshim.core.group_log`) from their order and append times alone; this
module says what one record may look like.

* `v` is the version. A reader that meets another one cannot know who holds what any more: `decode_group_record`
  raises `UnknownVersionError`, and a consumer then stops holding queues. So a change of *meaning* takes a new version.
  Fields a reader does not know are ignored; they must be such that ignoring them changes no decision.
* Anything else that is not a record of version 1 raises `MalformedRecordError`: every reader counts it as void.
* An owner is `client_id` and `incarnation`, a random text made by the process, so that two runs under one client id
  are two owners. `seq` numbers the records of one owner from 1: by it the owner knows its own record when it reads it
  back.
* `lease_ms` is the length of the lease (claim, renew) or membership (member) that the record asks for.
* `base` + the offset of a claim is the token of what it wins. The writer repeats the base its fold knows; a claim,
  renewal or release for another base was written for a former log and is void. Only a member may not know it yet.
* Renewals and releases name for each queue its token, `confirmed_offset` (offset of the last record of this owner by
  which it knows that it holds the queue: the claim or a renewal, read back), the position to go on from, and how often
  each unfinished message has been tried (`reconsume_counts`, pairs of offset and count, counts of 1 and more).
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from rocketshim_topics.errors import MalformedRecordError, UnknownVersionError
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "GROUP_LOG_VERSION",
    "LEASE_MAX_MS",
    "ClaimRecord",
    "ClaimedQueue",
    "GroupRecord",
    "HeldQueue",
    "LeaveRecord",
    "MemberRecord",
    "ReleaseRecord",
    "RenewRecord",
    "decode_group_record",
    "encode_group_record",
]

GROUP_LOG_VERSION: Final = 1
"""The version that this module reads and writes."""

LEASE_MAX_MS: Final = 86_400_000
"""The longest lease a record may ask for: one day, in ms."""

_INT64 = 2**63 - 1
_Name = Annotated[str, Field(min_length=1, max_length=255)]
_Offset = Annotated[int, Field(ge=0, le=_INT64)]
_Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class ClaimedQueue(_Part):
    """A queue as the log names it.

    Attributes:
        topic: logical topic name.
        queue_id: partition.
    """

    topic: _Name
    queue_id: Annotated[int, Field(ge=0, le=2**31 - 1)]

    @property
    def queue(self) -> MessageQueue:
        """The queue as a `MessageQueue`."""
        return MessageQueue(self.topic, queue_id=self.queue_id)


class HeldQueue(ClaimedQueue):
    """A queue that is renewed or released.

    Attributes:
        token: fencing token by which it is held.
        confirmed_offset: offset in the group log of the owner's last record for this queue that it has read back as
            granted or renewed.
        next_offset: position from which a new owner goes on; None: nothing new to say.
        reconsume_counts: (offset, failed attempts so far) of the messages that are not finished, ascending.
    """

    token: _Offset
    confirmed_offset: _Offset
    next_offset: _Offset | None = None
    reconsume_counts: tuple[tuple[_Offset, _Count], ...] = ()


class _Record(_Part):
    v: Literal[1] = GROUP_LOG_VERSION
    kind: str
    client_id: _Name
    incarnation: _Name
    seq: Annotated[int, Field(ge=1, le=_INT64)]
    lease_ms: Annotated[int, Field(ge=1, le=LEASE_MAX_MS)]
    base: _Offset | None = None


class ClaimRecord(_Record):
    """An owner asks for queues. Granted or refused queue by queue."""

    kind: Literal["claim"] = "claim"
    base: _Offset
    queues: Annotated[tuple[ClaimedQueue, ...], Field(min_length=1)]


class RenewRecord(_Record):
    """An owner prolongs its leases from here on, and says how far it is."""

    kind: Literal["renew"] = "renew"
    base: _Offset
    queues: Annotated[tuple[HeldQueue, ...], Field(min_length=1)]


class ReleaseRecord(_Record):
    """An owner gives queues back: it has stopped, drained and committed."""

    kind: Literal["release"] = "release"
    base: _Offset
    queues: Annotated[tuple[HeldQueue, ...], Field(min_length=1)]


class MemberRecord(_Record):
    """A heartbeat.

    Attributes:
        strategy: name of the allocation strategy by which this member shares queues out; None: Kafka's group protocol
            does. One group uses one way.
    """

    kind: Literal["member"] = "member"
    strategy: _Name | None = None


class LeaveRecord(_Record):
    """A member ends: its last record."""

    kind: Literal["leave"] = "leave"


GroupRecord = ClaimRecord | RenewRecord | ReleaseRecord | MemberRecord | LeaveRecord


class _Envelope(_Part):
    v: int


_RECORD: Final[TypeAdapter[GroupRecord]] = TypeAdapter(Annotated[GroupRecord, Field(discriminator="kind")])


def encode_group_record(record: GroupRecord) -> bytes:
    """The value of the Kafka record: JSON in UTF-8, fields in the order of this file, absent ones left out."""
    return record.model_dump_json(exclude_none=True).encode()


def decode_group_record(value: bytes | None) -> GroupRecord:
    """Read the value of a Kafka record of the group log.

    Args:
        value: as fetched; None (no value) is malformed.

    Raises:
        UnknownVersionError: a version this module does not know; the caller stops holding queues.
        MalformedRecordError: no record of the version it claims; every reader counts it as void.
    """
    if value is None:
        raise MalformedRecordError("group-log:no-value", "a group-log record without a value")
    try:
        envelope = _Envelope.model_validate_json(value)
    except ValidationError as error:
        raise MalformedRecordError("group-log:envelope", f"no group-log record: {_first(error)}") from error
    if envelope.v != GROUP_LOG_VERSION:
        raise UnknownVersionError(envelope.v, GROUP_LOG_VERSION)
    try:
        return _RECORD.validate_json(value)
    except ValidationError as error:
        raise MalformedRecordError("group-log:record", f"group-log record breaks its form: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    """The first complaint, without the input: that may be large, and its text is another's."""
    complaint = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, complaint['loc'])) or 'record'}: {complaint['msg']}"
