"""The lines of a history: one JSON object a line, one file a process.

Every type below is one kind of line, told apart by `type`. Reading refuses unknown fields, so that a misspelt one is
found where it is written. README.md explains the format with an example.

* Times named `_ns` are readings of the host's monotonic clock in nanoseconds: one clock for all processes of one host.
* Times named `_ms` are epoch milliseconds of a broker, as stored in a record.
* `where` is a record's coordinates, `topic/partition/offset`, with the physical topic; `queue` is `topic/partition`.
* A field that may be None is None where it is left out.
* Keys and header values are base64 or null. A value appears as its digest: 16 hex digits of SHA-256, null for None.
"""

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, with_config

__all__ = [
    "ENDED_BY_ITSELF",
    "OVERLOAD",
    "Commit",
    "End",
    "Fault",
    "FoldSeen",
    "Group",
    "Invoke",
    "Line",
    "Process",
    "Record",
    "Role",
    "Sample",
    "Setup",
    "SinkWrite",
    "TimerCommand",
    "digest_of",
    "encoded",
    "headers_to_json",
    "parse_line",
    "to_json",
]

Role = Literal["sender", "consumer", "dropin", "worker", "redrive", "sink", "broker", "harness"]
Mode = Literal["concurrent", "orderly", "orderly-by-key", "broadcasting", "drop-in"]
JsonHeaders = tuple[tuple[str, str | None], ...]
TimerCommand = Literal["SET", "SET-IF-ABSENT", "CANCEL", "NOW"]
Count = Annotated[int, Field(ge=0)]

OVERLOAD: Final = "overload"
"""Kind of a fault that nobody does: brokers were slow to answer the harness."""
ENDED_BY_ITSELF: Final = "ended-by-itself"
"""Kind of a fault that nobody does: a process ended, and was replaced."""
_STRICT: Final = ConfigDict(extra="forbid")


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A consumer group of the run.

    Attributes:
        name: Kafka's group id, and RocketMQ's.
        mode: how its members consume.
        topics: physical topics it subscribes to; its retry topic is not named.
        limit: most failed attempts before a message is dead; None: no limit.
        send_on_ms: for how long a retried message that a member cannot handle is sent on before it is dead.
    """

    name: str
    mode: Mode
    topics: tuple[str, ...]
    limit: int | None = None
    send_on_ms: Count = 86_400_000


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the run was: exactly one such line in a history.

    Attributes:
        namespace: of all shim topics.
        levels: the delay-level table.
        groups: every group that consumes.
        allow: the worker's allow-list: topics, or prefixes that end in `*`.
        exactly_once: whether every worker ran with `--exactly-once`.
        drained: whether the harness waited at the end until nothing was pending; then nothing may wait any more.
        recovery_ms: for how long after its end a fault still explains duplicates.
        broker_minus_host_ns: brokers' epoch time minus the monotonic clock, in ns; None: not known, then nothing that
            needs both clocks is judged.
        lag_gone: a group's lag counts as gone when it is at most this.
        memory_slope_mib_per_min: allowed growth of resident memory.
        memory_limit_mib: most resident memory of one process; None: not judged.
        fleeting: topics that faults delete or empty. What was in them is gone, so it is not judged.
    """

    type: Literal["setup"] = "setup"
    namespace: str = ""
    levels: str
    groups: tuple[Group, ...]
    allow: tuple[str, ...]
    exactly_once: bool = False
    drained: bool = True
    recovery_ms: Count = 30_000
    broker_minus_host_ns: int | None = None
    lag_gone: Count = 0
    memory_slope_mib_per_min: float = 1.0
    memory_limit_mib: float | None = None
    fleeting: tuple[str, ...] = ()


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Who writes the lines below: the first line of every file. A restarted process is a new process, with a new file.

    Attributes:
        name: unique in the run.
        role: what it does; faults explain duplicates by it.
        group: its consumer group; None: it has none.
        client_id: the one it uses in its group's log; None: its name.
    """

    type: Literal["process"] = "process"
    name: str
    role: Role
    group: str | None = None
    client_id: str | None = None


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Invoke:
    """An operation begins. It ends with the `ok`, `fail` or `info` line of the same `op`, or its end is not known.

    Attributes:
        op: number of the operation, unique in its file.
        f: what is done: `send`, `deliver` (a listener call for one message), `commit`, or `hop` (a consumer stores the
            next record of a failed message).
        at_ns: when.
        topic: send: target topic. hop: topic that is written to.
        key: send, deliver.
        digest: send, deliver: of the value.
        headers: send, deliver: the user's headers only.
        delay_ms: send: relative delay, None: none.
        deliver_at_ms: send: absolute time, None: none.
        timer: send: name of a named timer; None: it has none.
        command: send: what the record asks of its name; None: it has none.
        group: deliver, commit, hop.
        where: deliver: coordinates of the record. hop: of the record that failed.
        id: deliver: `UNIQ_KEY`, or the coordinates of a record without one.
        attempt: deliver: failed attempts before this one.
        replay: deliver: `REPLAY_ID`.
        token: deliver: fencing token of an orderly call.
        epoch: commit: number of the assignment in which it is made, growing in each process.
        positions: commit: next offset by queue.
    """

    type: Literal["invoke"] = "invoke"
    op: Count
    f: Literal["send", "deliver", "commit", "hop"]
    at_ns: int
    topic: str | None = None
    key: str | None = None
    digest: str | None = None
    headers: JsonHeaders = ()
    delay_ms: Count | None = None
    deliver_at_ms: Count | None = None
    timer: str | None = None
    command: TimerCommand | None = None
    group: str | None = None
    where: str | None = None
    id: str | None = None
    attempt: Count | None = None
    replay: str | None = None
    token: Count | None = None
    epoch: Count | None = None
    positions: dict[str, Count] | None = None


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an operation ended.

    Attributes:
        type: `ok`: it took effect. `fail`: it did not. `info`: that is not known. For a delivery `ok` is the
            listener's success and `fail` its failure.
        op: the number of its `invoke`.
        at_ns: when.
        where: send, hop: coordinates of the stored record.
        id: send: the message's id.
        then: a delivery that failed: what the listener asked for, `retry`, `dead` (letter), or `again` in place.
        why: for a person.
    """

    type: Literal["ok", "fail", "info"]
    op: Count
    at_ns: int
    where: str | None = None
    id: str | None = None
    then: Literal["retry", "dead", "again"] | None = None
    why: str | None = None


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkWrite:
    """The sink was written to by an orderly listener; lines are in the order in which the sink saw them.

    Attributes:
        at_ns: when.
        group: of the writer.
        where: coordinates of the message that was written.
        token: fencing token of the writer.
        by: name of the writing process.
        accepted: False: refused, since the sink had seen a higher token of this queue.
    """

    type: Literal["sink"] = "sink"
    at_ns: int
    group: str
    where: str
    token: Count
    by: str
    accepted: bool


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class FoldSeen:
    """What a member's own fold of its group's log said.

    Attributes:
        at_ns: when.
        group: whose log.
        next_offset: position of the fold: what it had read ends before it.
        queue: which queue it speaks of, as the log names it: `topic/partition`, physical topic.
        owner: client id of the owner; None: it has none.
        token: of the owner, or the last one; None: none yet.
    """

    type: Literal["fold"] = "fold"
    at_ns: int
    group: str
    next_offset: Count
    queue: str
    owner: str | None = None
    token: Count | None = None


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something was done to the system.

    Attributes:
        kind: name in the table of faults.
        target: name of a process; `broker-<n>`, `cluster`, or `group:<name>` (a rebalance that was forced).
        begin_ns: when it began.
        end_ns: when it ended: of a kill, when the process's successor had been started.
    """

    type: Literal["fault"] = "fault"
    kind: str
    target: str
    begin_ns: int
    end_ns: int


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of the dump at the end; of a group log also those that were truncated or deleted before.

    Attributes:
        where: its coordinates.
        ms: its timestamp.
        stamp: who made the timestamp: the sender (`create`) or the broker (`append`).
        key: of the record.
        digest: of its value.
        headers: all of them, in order.
        committed: whether `read_committed` shows it; False: only `read_uncommitted` does.
        value: the value itself, base64; only of the group logs and the redrive log, whose content is judged.
        lost: n: it was in a group log when that was lost for the nth time; 0: it was there at the end.
    """

    type: Literal["record"] = "record"
    where: str
    ms: int
    stamp: Literal["create", "append"]
    key: str | None = None
    digest: str | None = None
    headers: JsonHeaders = ()
    committed: bool = True
    value: str | None = None
    lost: Count = 0


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One position as `__consumer_offsets` has it; lines of one group are in the order of that topic.

    Attributes:
        group: whose.
        queue: of what.
        position: next offset.
        ms: when the coordinator took it.
        metadata: what came with it.
    """

    type: Literal["commit"] = "commit"
    group: str
    queue: str
    position: Count
    ms: int
    metadata: str = ""


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A figure, measured again and again.

    Attributes:
        what: `lag` (of a group, in records), `rss_bytes`, `threads` or `handles` (of a process).
        of: name of the group or process.
        at_ns: when.
        value: the figure.
    """

    type: Literal["sample"] = "sample"
    what: Literal["lag", "rss_bytes", "threads", "handles"]
    of: str
    at_ns: int
    value: Count


Line = Setup | Process | Invoke | End | SinkWrite | FoldSeen | Fault | Record | Commit | Sample

_LINE: Final[TypeAdapter[Line]] = TypeAdapter(Annotated[Line, Field(discriminator="type")])


def parse_line(text: bytes | str) -> Line:
    """Read one line.

    Raises:
        pydantic.ValidationError: it is no line of a history.
    """
    return _LINE.validate_json(text)


def to_json(line: Line) -> bytes:
    """Format one line, without the line feed; fields that are None are left out."""
    return _LINE.dump_json(line, exclude_none=True)


def digest_of(value: bytes | None) -> str | None:
    """The digest by which a value appears in a history."""
    return None if value is None else hashlib.sha256(value).hexdigest()[:16]


def encoded(content: bytes | None) -> str | None:
    """A key or header value as it appears in a history."""
    return None if content is None else base64.b64encode(content).decode()


def headers_to_json(headers: Iterable[tuple[str, Any]] | None) -> JsonHeaders:
    """A record's headers as they appear in a history."""
    return tuple((name, encoded(value)) for name, value in headers or ())
