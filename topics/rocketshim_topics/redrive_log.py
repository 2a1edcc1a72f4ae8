"""The redrive log: which dead letters were sent again or discarded (format version 1). Pure.

Kafka cannot delete a single record, so a dead letter stays on its topic. A *mark* in the topic `rmq.redrive` of the
namespace records that it was sent again or discarded. The topic has one partition of JSON text; key and headers are not
used. A mark is written in the same Kafka transaction as the records that it describes: with `read_committed` a reader
sees both or neither.

There are two kinds of records:

* `begin`: a process starts to redrive the dead letters of one topic (`source`). `session` is a random text of that
  process. A process that reads its own `begin` back with `read_committed` has read every mark that was committed before
  it. A later `begin` of another session means that the other process has taken over.
* `mark`: dead letters of `source`, by partition, offset and digest, and their `state`: `redriven` or `discarded`. A
  mark counts only if the digest matches: a topic that was deleted and created again has other records at the same
  offsets.

`v` is the version. A reader that finds another version does not know what was sent, and stops. Readers ignore unknown
fields, and records that are not of version 1.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from rocketshim_topics.errors import MalformedRecordError, RocketshimError
from rocketshim_topics.limits import INT_MAX, LONG_MAX
from rocketshim_topics.wire import UNREADABLE, Record, read_headers

__all__ = [
    "REDRIVE_LOG_VERSION",
    "BeginRecord",
    "MarkRecord",
    "RedriveLog",
    "RedriveRecord",
    "Settled",
    "State",
    "decode_redrive_record",
    "encode_redrive_record",
    "record_digest",
]

REDRIVE_LOG_VERSION: Final = 1
"""The version that this module reads and writes."""

State = Literal["redriven", "discarded"]

_CLOCKS_MS: Final = 60_000  # the clocks of two brokers differ by less

_Name = Annotated[str, Field(min_length=1, max_length=300)]
_Partition = Annotated[int, Field(ge=0, le=INT_MAX)]
_Offset = Annotated[int, Field(ge=0, le=LONG_MAX)]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    v: Literal[1] = REDRIVE_LOG_VERSION
    kind: str
    source: _Name
    plan: _Name
    session: _Name
    by: Annotated[str, Field(max_length=300)] = ""


class BeginRecord(_Record):
    """A process begins to apply a plan.

    Attributes:
        source: physical topic of the dead letters.
        plan: id of the plan.
        session: random text of the process.
        by: `user@host`, for a person to read.
    """

    kind: Literal["begin"] = "begin"


class MarkRecord(_Record):
    """Dead letters that were sent again or discarded in the transaction of this record.

    Attributes:
        state: `redriven` or `discarded`.
        letters: partition, offset and digest of each.
    """

    kind: Literal["mark"] = "mark"
    state: State
    letters: tuple[tuple[_Partition, _Offset, _Digest], ...]


RedriveRecord = BeginRecord | MarkRecord


class _Version(BaseModel):
    v: int


_RECORD: Final[TypeAdapter[RedriveRecord]] = TypeAdapter(Annotated[RedriveRecord, Field(discriminator="kind")])


def encode_redrive_record(record: RedriveRecord) -> bytes:
    """Return the value of the Kafka record: JSON in UTF-8."""
    return record.model_dump_json().encode()


def decode_redrive_record(value: bytes | None) -> RedriveRecord | None:
    """Decode the value of a record of the redrive log; return None for a record to ignore.

    Raises:
        RocketshimError: the record has an unknown version.
    """
    if value is None:
        return None
    try:
        version = _Version.model_validate_json(value).v
        if version == REDRIVE_LOG_VERSION:
            return _RECORD.validate_json(value)
    except ValidationError:
        return None
    raise RocketshimError(
        f"the redrive log has a record of version {version}; this program knows {REDRIVE_LOG_VERSION} only, and so "
        "cannot tell what was already sent: update rocketshim"
    )


def record_digest(record: Record) -> str:
    """Return 16 hex digits of the SHA-256 of key, value and headers, to recognise a record."""
    digest = hashlib.sha256()
    parts = [record.key(), record.value()]
    try:
        headers = read_headers(record) or ()
    except MalformedRecordError:
        headers = UNREADABLE
    for name, value in headers:
        parts += [name.encode("utf-8", "surrogateescape"), value]
    for part in parts:
        digest.update(b"-" if part is None else b"%d:" % len(part))
        digest.update(part or b"")
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Settled:
    """What was done with a dead letter.

    Attributes:
        state: `redriven` or `discarded`.
        plan: id of the last plan that did it.
        digest: of the dead letter.
    """

    state: State
    plan: str
    digest: str


class RedriveLog:
    """What the redrive log says about the dead letters of one topic. Equal records give equal answers.

    Args:
        source: physical topic of the dead letters.
        records: the first records, as for `add`.

    Attributes:
        last_begin: the last `begin` for the topic; None: there is none.
        end: the offset up to which the log was read; set by its reader.
        lost_until_ms: the first records of the log are gone, so a dead letter that was stored before this time (epoch
            ms) may have had a mark; 0: the log is whole. Set by `lost_before`.

    Thread-safety: none; belongs to one thread.
    """

    def __init__(self, source: str, records: Iterable[RedriveRecord | None] = ()) -> None:
        self.last_begin: BeginRecord | None = None
        self.end = 0
        self.lost_until_ms = 0
        self._source = source
        self._settled: dict[tuple[int, int], tuple[State, str, str]] = {}
        self._by_plan: dict[str, set[tuple[int, int]]] = {}
        self._sessions: set[str] = set()
        for record in records:
            self.add(record)

    def add(self, record: RedriveRecord | None) -> None:
        """Apply the next record of the log; a record about another topic and None (one to ignore) change nothing."""
        if record is None or record.source != self._source:
            return
        if isinstance(record, BeginRecord):
            self.last_begin = record
            self._sessions.add(record.session)
        else:
            state, plan = record.state, record.plan
            letters = {(partition, offset): (state, plan, digest) for partition, offset, digest in record.letters}
            self._settled.update(letters)
            self._by_plan.setdefault(plan, set()).update(letters)

    def settled(self, partition: int, offset: int, digest: str | None) -> Settled | None:
        """Return what was done with a dead letter; None if nothing.

        Args:
            partition: its partition.
            offset: its offset.
            digest: of the record there; None: not known and not compared.
        """
        found = self._settled.get((partition, offset))
        return None if found is None or digest not in {None, found[2]} else Settled(*found)

    def lost_before(self, first_ms: int | None) -> None:
        """Note that the records before the first one are gone; `first_ms`: its append time, None: all are gone."""
        self.lost_until_ms = LONG_MAX if first_ms is None else first_ms + _CLOCKS_MS

    def may_have_lost(self, record: Any) -> bool:
        """Return whether a dead letter without a mark may have had one that is gone: whether it was sent is unknown."""
        return self.lost_until_ms > 0 and record.timestamp()[1] < self.lost_until_ms

    def settled_record(self, record: Record) -> Settled | None:
        """Return what was done with a record, None if nothing; its digest is computed only if its offset has a mark."""
        at = (record.partition() or 0, record.offset() or 0)
        return self.settled(*at, record_digest(record)) if self.is_marked(*at) else None

    def is_done(self, plan: str, partition: int, offset: int) -> bool:
        """Return whether this plan has already redriven or discarded a dead letter.

        Decides: Was a dead letter sent again or discarded? By this plan; by any plan:
            `rocketshim_topics.redrive_log.RedriveLog.settled`.
        """
        return (partition, offset) in self._by_plan.get(plan, ())

    def is_marked(self, partition: int, offset: int) -> bool:
        """Return whether an offset has any mark, so that computing the digest is worthwhile."""
        return (partition, offset) in self._settled

    def has_marks(self) -> bool:
        """Return whether the topic has any mark."""
        return bool(self._settled)

    def has_begun(self, session: str) -> bool:
        """Return whether the log has a `begin` of this session."""
        return session in self._sessions
