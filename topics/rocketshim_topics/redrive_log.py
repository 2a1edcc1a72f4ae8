"""The redrive log: what became of dead letters (format version 1). Pure.

A dead letter is never deleted: Kafka cannot take a record out. That it was sent again, or discarded, is said by a
*mark* in the topic `rmq.redrive` of the namespace: one partition of JSON text, key and headers not used. A mark is
written in the same Kafka transaction as the records it speaks of, so it is there if and only if they are; read with
`read_committed` it is the whole truth about what was sent.

Two kinds of records:

* `begin`: somebody starts to work on the dead letters of one topic (`source`). The `session` is a random text of the
  process. Whoever reads their own `begin` back with `read_committed` has read every mark that was committed before it;
  a `begin` of another session behind it says who took the work over.
* `mark`: letters of `source`, by partition, offset and digest, and their `state`: `redriven` or `discarded`. A letter
  counts as marked only if its digest is the same: a topic that was created anew has other letters at the same places.

`v` is the version. A reader that meets another one cannot know what was sent: it stops. Fields a reader does not know
are ignored. What is no record of version 1 is not ours, and void.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from rocketshim_topics.errors import MalformedRecordError, RocketshimError
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

_Name = Annotated[str, Field(min_length=1, max_length=300)]
_Partition = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Offset = Annotated[int, Field(ge=0, le=2**63 - 1)]
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
    """Somebody begins to apply a plan.

    Attributes:
        source: physical topic of the dead letters.
        plan: id of the plan.
        session: random text of the process.
        by: who, for a person (`user@host`).
    """

    kind: Literal["begin"] = "begin"


class MarkRecord(_Record):
    """Letters that were sent again or discarded in the transaction of this record.

    Attributes:
        state: which of the two.
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
    """The value of the Kafka record: JSON in UTF-8."""
    return record.model_dump_json().encode()


def decode_redrive_record(value: bytes | None) -> RedriveRecord | None:
    """Read the value of a record of the redrive log; None: it is void.

    Raises:
        RocketshimError: a version this module does not know.
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
        f"the redrive log holds a record of version {version}, this program knows {REDRIVE_LOG_VERSION} only, and so "
        "cannot tell what was sent already: update rocketshim"
    )


def record_digest(record: Record) -> str:
    """16 hex digits of SHA-256 over key, value and headers: to tell that a record is still the same one."""
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
    """What became of a letter.

    Attributes:
        state: `redriven` or `discarded`.
        plan: id of the plan that did it last.
        digest: of the letter that was meant.
    """

    state: State
    plan: str
    digest: str


class RedriveLog:
    """The redrive log, folded: same records, same answers.

    Thread-safety: none; belongs to one thread.
    """

    def __init__(self, records: Iterable[RedriveRecord | None] = ()) -> None:
        self._settled: dict[str, dict[tuple[int, int], Settled]] = {}
        self._by_plan: set[tuple[str, str, int, int]] = set()
        self._last: dict[str, BeginRecord] = {}
        self._sessions: set[str] = set()
        for record in records:
            self.add(record)

    def add(self, record: RedriveRecord | None) -> None:
        """The next record of the log; None (a void one) changes nothing."""
        if isinstance(record, BeginRecord):
            self._last[record.source] = record
            self._sessions.add(record.session)
        elif isinstance(record, MarkRecord):
            letters = self._settled.setdefault(record.source, {})
            for partition, offset, digest in record.letters:
                letters[partition, offset] = Settled(record.state, record.plan, digest)
                self._by_plan.add((record.source, record.plan, partition, offset))

    def settled(self, source: str, partition: int, offset: int, digest: str | None) -> Settled | None:
        """What became of a letter; None: nothing yet.

        Args:
            source: physical topic.
            partition: its partition.
            offset: its offset.
            digest: of the record that lies there; None: not known, and not compared.
        """
        found = self._settled.get(source, {}).get((partition, offset))
        return found if found is not None and digest in {None, found.digest} else None

    def is_done(self, plan: str, source: str, partition: int, offset: int) -> bool:
        """Whether this very plan has settled a letter."""
        return (source, plan, partition, offset) in self._by_plan

    def is_marked(self, source: str, partition: int, offset: int) -> bool:
        """Whether there is any mark for a place, so that the digest is worth computing."""
        return (partition, offset) in self._settled.get(source, {})

    def has_marks(self, source: str) -> bool:
        """Whether there is any mark for a topic."""
        return bool(self._settled.get(source))

    def has_begun(self, session: str) -> bool:
        """Whether a `begin` of this session is in the log."""
        return session in self._sessions

    def last_begin(self, source: str) -> BeginRecord | None:
        """Who began last to work on the letters of a topic."""
        return self._last.get(source)
