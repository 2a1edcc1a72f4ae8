"""Where a consumer group begins on a partition, and what its commits must carry to decide this later. Pure.

RocketMQ reads the offset store; where nothing is stored, `consume_from_where` decides (`computePullFromWhere…`). Two
things are different on Kafka and have lost messages elsewhere:

* A partition that was added after the group began must be read from its start, even with LAST_OFFSET: its first records
  were written to a topic that this group was already consuming. A partition that existed when the group began follows
  the policy.
* Kafka records this difference only if we write it down. So the metadata of each commit carries two facts. The first is
  the number of partitions the topic had when the group began on it (`born`); every later commit repeats it. The second
  is a digest of the group's subscription, by which two members with different subscriptions detect each other. (The
  metadata also carries the token of a lock, and a `core.process_deaths.Handling`.)

The rules of `resolve_starts`, in order:

1. A committed offset is used.
2. The group's own retry topic begins at its earliest record.
3. No partition of the topic has a commit: the group is new here, and the policy decides.
4. Some have a commit with `born`. A partition below it existed at the beginning and its first owner has not committed
   yet, so the policy decides. A partition at or above it was added later: earliest.
5. Some have a commit, but none with our metadata (a plain Kafka consumer's, before the change to this one): earliest.
   If uncertain: repeat, never lose.

**Look-ups of starts** (`LookupRotation`): which to try next, so that one that fails does not delay the others. New
things are tried together, which is the usual and cheapest case. If that fails, each of them is tried alone,
immediately. A thing that fails alone is tried again after 0.1 s, 0.2 s … 1 s, or after ten times the duration of the
try, whichever is longer. A try blocks its thread, so tries take no more than a tenth of the thread's time. Each try
alone waits longer for an answer than the one before, because a slow cluster still answers.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar
from urllib.parse import quote, unquote

from rocketshim.core.clock import Backoff
from rocketshim.core.process_deaths import Handling, decode_handling, encode_handling

__all__ = [
    "Commit",
    "CommitMetadata",
    "ConsumeFromWhere",
    "LookupRotation",
    "Start",
    "StartRules",
    "decode_metadata",
    "digest_conflict",
    "encode_metadata",
    "has_same_filter",
    "is_other_filter",
    "latest_offset",
    "led_by",
    "resolve_starts",
    "timestamp_or_default",
    "topics_of",
]

_MARK: Final = "rs1"
_DEFAULT_TIMESTAMP_AGE_MS: Final = 1_800_000
_MAX_DIGEST: Final = 64
_MAX_SUBSCRIPTION: Final = 300
_NEXT_ENTRY: Final = re.compile(r", (?=(?:[A-Za-z0-9._-]{1,249}|\^[^,]*?)=)")  # in `core.subscriptions.text_of`


class ConsumeFromWhere(Enum):
    """Where a group begins on a topic that it has never consumed. Source: `ConsumeFromWhere` of RocketMQ."""

    LAST_OFFSET = "last"
    FIRST_OFFSET = "first"
    TIMESTAMP = "timestamp"


Start = int | ConsumeFromWhere
"""Where a partition starts: at a committed offset, or as a policy says (FIRST_OFFSET: at the earliest record there is).

LAST_OFFSET means the end of the log as it is now, or the start of a young log (`latest_offset`).
"""


@dataclass(frozen=True, slots=True)
class StartRules:
    """Where the partitions of a group start, and what its commits tell about the subscription."""

    retry_topic: str
    where: ConsumeFromWhere
    timestamp_ms: int
    digest: str = ""
    subscription: str = ""
    young_queue_max_messages: int = 0
    allocates: bool = False
    """The members allocate the queues themselves, also those of a topic that they do not subscribe to."""
    compare_every_ms: int = 20_000
    """Interval between two comparisons of what the members subscribe to."""


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The metadata that our commits carry."""

    digest: str
    born: int
    """Partitions that the topic had when the group began on it, 1 or more; 0: not known."""
    subscription: str = ""
    token: int | None = None
    """Fencing token of the lock under which the commit was made; None: without a lock (concurrent mode)."""
    handling: Handling | None = None


Commit = tuple[int, CommitMetadata | None]
"""A committed offset, and its metadata; None: they are not in our format."""


def timestamp_or_default(timestamp_ms: int | None, now_ms: int) -> int:
    """Return the time at which `ConsumeFromWhere.TIMESTAMP` begins, in epoch ms; None: half an hour ago."""
    return now_ms - _DEFAULT_TIMESTAMP_AGE_MS if timestamp_ms is None else timestamp_ms


def resolve_starts(
    partitions: Iterable[int],
    commits: Mapping[int, Commit],
    *,
    where: ConsumeFromWhere,
    is_retry_topic: bool,
    partition_count: int,
) -> tuple[dict[int, Start], int]:
    """Return where the group begins on partitions of a topic, and the `born` that its commits carry from now on.

    `commits` are those of the whole topic: a partition without one is compared with the others.

    Decides: Where does a consumer group begin on a partition? At its commit. A new group begins at the end, but at the
        start of a young queue (`core.start_position.latest_offset`), and of a partition that was added later: commits
        carry the number of partitions at the group's birth.
    """
    known = [metadata.born for _, metadata in commits.values() if metadata is not None and metadata.born > 0]
    born = min(known) if known else (0 if commits else partition_count)
    starts: dict[int, Start] = {}
    for partition in partitions:
        if partition in commits:
            starts[partition] = commits[partition][0]
        elif is_retry_topic or (commits and (not known or partition >= born)):
            starts[partition] = ConsumeFromWhere.FIRST_OFFSET
        else:
            starts[partition] = where
    return starts, born


def latest_offset(first_offset: int, end_offset: int, young_queue_max_messages: int) -> int:
    """Return where a new group begins with LAST_OFFSET: the end of the log, or the start of a young log.

    A log is young if nothing was ever deleted from it and it has at most `young_queue_max_messages` records, with
    markers and aborted records of transactions. RocketMQ's broker does the same as long as a queue's first message is
    still in its memory.

    Source: `ConsumerManageProcessor#queryConsumerOffset`.
    """
    return 0 if first_offset == 0 and end_offset <= young_queue_max_messages else end_offset


def encode_metadata(metadata: CommitMetadata) -> str:
    """Return the text that a commit carries; at most 1,000 ASCII characters and the handling (Kafka accepts 4,096)."""
    text = quote(metadata.subscription[:_MAX_SUBSCRIPTION], safe=" =|*,.-_()<>'", errors="backslashreplace")
    text = text[: _MAX_SUBSCRIPTION * 3]
    token = "" if metadata.token is None else f"{metadata.token}"
    parts = [_MARK, metadata.digest[:_MAX_DIGEST], str(metadata.born), text]
    if metadata.handling is not None:
        parts += [token, encode_handling(metadata.handling)]
    elif token:
        parts.append(token)
    return ";".join(parts)


def decode_metadata(text: str | None) -> CommitMetadata | None:
    """Return the metadata of a commit, or None if the text is not in our format.

    A handling that cannot be read counts as none, so that a later version may write more of it.
    """
    parts = (text or "").split(";")
    if len(parts) not in {3, 4, 5, 6} or parts[0] != _MARK or not _is_number(parts[2], digits=9):
        return None
    text, token = parts[3] if len(parts) > 3 else "", parts[4] if len(parts) > 4 else ""
    if not _is_number(token, digits=19) and (token or len(parts) == 5):
        return None
    handling = decode_handling(parts[5]) if len(parts) == 6 else None
    return CommitMetadata(parts[1], int(parts[2]), unquote(text), int(token) if token else None, handling)


def _is_number(text: str, *, digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits


def digest_conflict(mine: str, found: CommitMetadata | None) -> str | None:
    """Return the digest of a different subscription in this group, or None: it is the same one, or not known.

    Decides: Do the members of a group subscribe differently? What others have committed tells
        (`consumer.reader.group_offsets.StartOffsets`); it is logged, not refused. Messages of a topic are lost if its
        filters differ (`has_same_filter`), not if only other topics do.
    """
    return None if found is None or found.digest in {"", mine} else found.digest


def has_same_filter(topic: str, one: str, other: str) -> bool:
    """Return whether two different subscriptions, as text, certainly lose no message of a topic.

    They have the same filter of the topic, or one does not have the topic. A text that may be cut, and two patterns
    that may match the topic, count as different filters.
    """
    if one == other or not (one and other):
        return False  # filters of two types may have one text
    mine, theirs = (_filter_of(topic, text) for text in (one, other))
    return mine == theirs if mine and theirs else mine is not None and theirs is not None


def is_other_filter(topic: str, one: str, other: str) -> bool:
    """Return whether two different subscriptions certainly filter a topic differently: both name it."""
    named = (topics_of(one) or frozenset()) & (topics_of(other) or frozenset())
    return topic in named and not has_same_filter(topic, one, other)


def topics_of(subscription: str) -> frozenset[str] | None:
    """Return the topics and patterns of a subscription as text; None: the text may be cut, or is empty."""
    return frozenset(_entries(subscription)) if subscription and not _may_be_cut(subscription) else None


def led_by(topic: str, subscription: str) -> str:
    """Return a subscription as the commits of a topic carry it: one that will be cut begins with this topic."""
    if not _may_be_cut(subscription):
        return subscription
    entries = _entries(subscription)
    names = sorted(entries, key=lambda name: (name != topic, name))
    return ", ".join(f"{name}={entries[name]}" for name in names)


def _filter_of(topic: str, subscription: str) -> str | None:
    """Return the filter of a topic in a subscription; "": it does not have the topic; None: it is not known."""
    entries, is_cut = _entries(subscription), _may_be_cut(subscription)
    if is_cut and entries:
        entries.popitem()
    if topic in entries:
        return f"={entries[topic]}"
    patterns = [f"{name}={entries[name]}" for name in entries if name.startswith("^")]
    return None if is_cut else ", ".join(patterns)


def _entries(subscription: str) -> dict[str, str]:
    entries = (entry.partition("=") for entry in _NEXT_ENTRY.split(subscription) if entry)
    return {name: expression for name, _, expression in entries}


def _may_be_cut(subscription: str) -> bool:
    return len(subscription) >= _MAX_SUBSCRIPTION or not subscription.isascii()


T = TypeVar("T")

_TOGETHER_S: Final = 10.0
_ALONE_MS: Final = Backoff(1_000, 10_000)
_AGAIN_MS: Final = Backoff(100, 1_000)
_AGAIN_TIMES: Final = 10


class LookupRotation(Generic[T]):
    """The order of tries among waiting things.

    Thread-safety: none; one owner thread.
    """

    def __init__(self) -> None:
        self._failures: dict[T, int] = {}
        self._again_ms = 0

    def pick(self, waiting: Iterable[T], now_ms: int) -> tuple[list[T], float]:
        """Return what to try now: all new things, one, or nothing; and how many seconds to wait for an answer.

        What is missing in `waiting` is forgotten. Call `tried` afterwards.
        """
        self._failures = {each: self._failures.get(each, 0) for each in waiting}
        new = [each for each, count in self._failures.items() if not count]
        if new:
            return new, _TOGETHER_S
        due = {each: count for each, count in self._failures.items() if count == 1 or now_ms >= self._again_ms}
        if not due:
            return [], 0.0
        first = min(due, key=due.__getitem__)
        return [first], _ALONE_MS.pause(due[first] - 1) / 1_000

    def tried(self, picked: Collection[T], *, failed: bool, began_ms: int, now_ms: int) -> None:
        """Record whether some or all of what `pick` returned failed."""
        counts = [self._failures.get(each, 0) for each in picked]
        if any(counts):  # this was a single thing, because new things are picked together
            wait_ms = max(_AGAIN_MS.pause(counts[0] - 1), _AGAIN_TIMES * (now_ms - began_ms))
            self._again_ms = now_ms + (wait_ms if failed else 0)
        if failed:
            self._failures |= {each: count + 1 for each, count in zip(picked, counts, strict=True)}
