"""Topic names: logical names (`%RETRY%g`, as RocketMQ's users know them) and the physical names on the cluster.

`%` is illegal in Kafka's topic names. The API, the command line, headers and documents use logical names. This module
alone maps them to physical names. Nothing maps back: code that needs the group reads it from a header.

=====================  ======================================
logical                physical, namespace `""`; `pay.` before each in namespace `pay`
=====================  ======================================
SCHEDULE_TOPIC_XXXX    SCHEDULE_TOPIC_XXXX
%RETRY%g               rmq.retry.<g>
%DLQ%g                 rmq.dlq.<g>
(group log of g)       rmq.group.<g>
(parked records)       rmq.parked
(redrive log)          rmq.redrive
(named timers)         rmq.timers
(pending names)        rmq.timers.state
(checks of producers)  rmq.check.<g>
anything else          itself, in every namespace
=====================  ======================================

`<g>` is the group itself if it matches `[A-Za-z0-9_-]{1,150}` and does not end in `-` and 16 hex digits. Any other
group is encoded: each other character becomes `-`, the result is cut to 120 characters, then `-` and the first 16 hex
digits of the SHA-256 of the group's UTF-8 bytes follow. So two groups never share a topic, not even under Kafka's rule
that `.` and `_` collide, since an encoded group has no dot. Each name is legal and at most 249 characters long.

Invariant across namespaces: a namespace has no dot and no part `rmq` between underscores. So the first part `rmq` of a
name ends its namespace, also where `.` and `_` collide.
"""

import hashlib
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rocketshim_topics.errors import ConfigError
from rocketshim_topics.limits import CONTROL_CHARACTERS

__all__ = [
    "DEAD_LETTER_PREFIX",
    "MAX_GROUP_BYTES",
    "RETRY_PREFIX",
    "SCHEDULE_TOPIC",
    "SHIM_TOPIC",
    "TopicNames",
    "check_consumer_group",
    "check_group",
    "check_topic",
    "dead_letter_topic",
    "group_of",
    "init_command",
    "is_dead_letter_topic",
    "retry_topic",
]

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
MAX_GROUP_BYTES: Final = 255
"""Longest group name in bytes of UTF-8 (RocketMQ: 255 characters), so that the shim's headers stay within 4 KiB."""

SHIM_TOPIC: Final = re.compile(
    r"(?:[A-Za-z0-9._-]+\.)?(?:SCHEDULE_TOPIC_XXXX|rmq\.(?:parked|redrive|timers(?:\.state)?)"
    r"|rmq\.(?:retry|dlq|group|check)\.[A-Za-z0-9_-]+)"
)
"""The physical name of a shim topic, in any namespace, with any prefix that MirrorMaker 2 gave it."""

_FAILURE_TOPIC: Final = re.compile(r"(?:[A-Za-z0-9._-]+\.)?rmq\.(?P<kind>retry|dlq|check)\.[A-Za-z0-9_-]+")
_OURS: Final = re.compile(
    r"(?:(?P<namespace>[A-Za-z0-9_-]{1,64})\.)?"
    r"(?:SCHEDULE_TOPIC_XXXX|rmq\.(?:parked|redrive|timers(?:\.state)?)|rmq\.(?P<kind>retry|dlq|group|check)\.(?P<group>[A-Za-z0-9_-]+))"
)
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PLAIN_GROUP: Final = re.compile(r"[A-Za-z0-9_-]{1,150}")
_WORKER_GROUP: Final = re.compile(r"(?:[A-Za-z0-9_-]{1,64}\.)?rmq\.sched")
_LOOKS_ENCODED: Final = re.compile(r".*-[0-9A-Fa-f]{16}", re.DOTALL)
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_-]")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def retry_topic(group: str) -> str:
    """Return the logical retry topic of a group, `%RETRY%<group>`; raise `ConfigError` for an illegal group."""
    return RETRY_PREFIX + check_group(group)


def dead_letter_topic(group: str) -> str:
    """Return the logical dead-letter topic of a group, `%DLQ%<group>`; raise `ConfigError` for an illegal group."""
    return DEAD_LETTER_PREFIX + check_group(group)


def group_of(logical: str) -> str | None:
    """Return the group in a logical `%RETRY%<group>` or `%DLQ%<group>`; None for any other name."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if logical.startswith(prefix):
            return logical.removeprefix(prefix)
    return None


def is_dead_letter_topic(physical: str) -> bool:
    """Return whether a physical name is that of a dead-letter topic, of any group and namespace, mirrored or not."""
    found = _FAILURE_TOPIC.fullmatch(physical)
    return found is not None and found["kind"] == "dlq"


def init_command(topic: str, *words: str) -> str:
    """Return the `rocketshim init` command that creates a topic, or with `--fix` among the words corrects it.

    Args:
        topic: physical name. A topic of rocketshim gives the namespace and the group; `GROUP` stands for a group whose
            topics do not show its name. For any other topic, `N` stands for its number of partitions.
        words: options before these.
    """
    command = ["rocketshim", "init", *words]
    found = _OURS.fullmatch(topic)
    if found is None:
        return shlex.join([*command, "--topic", topic, "--partitions", "N"])
    if found["namespace"]:
        command += ["--namespace", found["namespace"]]
    if found["group"]:
        option = "--producer-group" if found["kind"] == "check" else "--group"
        command += [option, "GROUP" if _LOOKS_ENCODED.fullmatch(found["group"]) else found["group"]]
    if found["kind"] == "group":
        command.append("--with-log")
    return shlex.join(command)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def check_topic(topic: str) -> str:
    """Return an ordinary topic name, or raise `ConfigError` if Kafka would refuse it."""
    if not _is_text(topic) or _TOPIC.fullmatch(topic) is None or topic in {".", ".."}:
        raise ConfigError(
            f"{topic!r:.80} is not a topic name: Kafka accepts 1 to 249 of [a-zA-Z0-9._-], but not '.' and '..' "
            f"(logical names are {RETRY_PREFIX}<group> and {DEAD_LETTER_PREFIX}<group>)"
        )
    return topic


@lru_cache(maxsize=1_024)
def check_group(group: str) -> str:
    """Return a group name, or raise `ConfigError`.

    A group is 1 to 255 bytes of UTF-8 without control characters, and not blank; but not `DEFAULT_CONSUMER`, which
    RocketMQ refuses.
    """
    if not _is_text(group) or not group.strip():
        raise ConfigError(f"{group!r:.80} is not a group name: give a text that is not blank")
    try:
        encoded = group.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{group!r:.80} is not a group name: it is not Unicode text") from error
    if len(encoded) > MAX_GROUP_BYTES:
        raise ConfigError(f"{group!r:.80} is not a group name: {len(encoded)} bytes are more than {MAX_GROUP_BYTES}")
    if CONTROL_CHARACTERS.search(group) is not None:
        raise ConfigError(f"{group!r:.80} is not a group name: it has control characters")
    if group == "DEFAULT_CONSUMER":
        raise ConfigError("'DEFAULT_CONSUMER' is not a group name: RocketMQ reserves it, choose another")
    return group


def check_consumer_group(group: str) -> str:
    """Return the name of a group that consumes messages, or raise `ConfigError`.

    The group of a worker is refused, of any namespace: its members share the delay queues with the worker, and commit
    in them, so that delayed messages would not be delivered.
    """
    if _WORKER_GROUP.fullmatch(check_group(group)) is not None:
        raise ConfigError(f"{group!r} is the group of the delay-redelivery worker: choose another name")
    return group


@lru_cache(maxsize=1_024)
def _encoded(group: str) -> str:
    check_group(group)
    if _PLAIN_GROUP.fullmatch(group) is not None and _LOOKS_ENCODED.fullmatch(group) is None:
        return group
    digest = hashlib.sha256(group.encode()).hexdigest()[:16]
    return f"{_NOT_PLAIN.sub('-', group)[:120]}-{digest}"


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The physical names of one namespace.

    Args:
        namespace: `""` (default) for the plain names, or 1 to 64 of `[A-Za-z0-9_-]` with no part `rmq` between
            underscores. Each namespace has its own topics and its own worker.

    Raises:
        ConfigError: an illegal namespace, or, from the methods, an illegal group or topic.

    Thread-safety: immutable.
    """

    namespace: str = ""

    def __post_init__(self) -> None:
        if self.namespace == "":
            return
        if not _is_text(self.namespace) or _NAMESPACE.fullmatch(self.namespace) is None:
            raise ConfigError(f"{self.namespace!r:.80} is not a namespace: give 1 to 64 of [A-Za-z0-9_-], or nothing")
        if "rmq" in self.namespace.split("_"):
            raise ConfigError(f"{self.namespace!r} is not a namespace: a part 'rmq' makes its topics ambiguous")

    @property
    def prefix(self) -> str:
        """Prefix of each name: `""` or `<namespace>.`."""
        return f"{self.namespace}." if self.namespace else ""

    @property
    def schedule(self) -> str:
        """The topic of the delay queues."""
        return self.prefix + SCHEDULE_TOPIC

    @property
    def parked(self) -> str:
        """The topic of schedule records that can never be delivered."""
        return f"{self.prefix}rmq.parked"

    @property
    def redrive_log(self) -> str:
        """The topic that records which dead letters were sent again or discarded.

        Its name is also the prefix of the `transactional.id`s of redrives.
        """
        return f"{self.prefix}rmq.redrive"

    @property
    def timers(self) -> str:
        """The log of commands for named timers; see `rocketshim_topics.hops.timers`."""
        return f"{self.prefix}rmq.timers"

    @property
    def timer_state(self) -> str:
        """The compacted topic of the names that are pending, partition by partition of `timers`."""
        return f"{self.prefix}rmq.timers.state"

    @property
    def worker_group(self) -> str:
        """The Kafka consumer group of the namespace's worker."""
        return f"{self.prefix}rmq.sched"

    @property
    def retry_prefix(self) -> str:
        """What the physical retry topics of all groups begin with, and no other topic of this namespace."""
        return f"{self.prefix}rmq.retry."

    @property
    def dead_letter_prefix(self) -> str:
        """What the physical dead-letter topics of all groups begin with, and no other topic of this namespace."""
        return f"{self.prefix}rmq.dlq."

    @property
    def check_prefix(self) -> str:
        """What the physical topics of `check` of all groups begin with, and no other topic of this namespace."""
        return f"{self.prefix}rmq.check."

    def retry(self, group: str) -> str:
        """The physical retry topic of a group."""
        return self.retry_prefix + _encoded(group)

    def dead_letter(self, group: str) -> str:
        """The physical dead-letter topic of a group."""
        return self.dead_letter_prefix + _encoded(group)

    def group_log(self, group: str) -> str:
        """The physical topic of a group's members and locks."""
        return f"{self.prefix}rmq.group.{_encoded(group)}"

    def check(self, producer_group: str) -> str:
        """The physical topic of the questions to a group of producers; their consumer group has the same name."""
        return self.check_prefix + _encoded(producer_group)

    def physical(self, logical: str) -> str:
        """Return the physical name of a logical one: `%RETRY%g`, `%DLQ%g`, `SCHEDULE_TOPIC_XXXX` mapped, others kept.

        Raises:
            ConfigError: not a name that Kafka accepts, or an illegal group.
        """
        if not _is_text(logical):
            raise ConfigError(f"{logical!r:.80} is not a topic name: give one text; several topics need several calls")
        if logical.startswith(RETRY_PREFIX):
            return self.retry(logical.removeprefix(RETRY_PREFIX))
        if logical.startswith(DEAD_LETTER_PREFIX):
            return self.dead_letter(logical.removeprefix(DEAD_LETTER_PREFIX))
        if logical == SCHEDULE_TOPIC:
            return self.schedule
        return check_topic(logical)

    def is_ours(self, physical: str) -> bool:
        """Return whether a physical name has the form of a shim topic, of this or any other namespace.

        Topic patterns and target rules use this: such a name is never a user's topic. It may have more prefixes:
        MirrorMaker 2 puts the name of the source cluster before the names of the topics that it copies.
        """
        return SHIM_TOPIC.fullmatch(physical) is not None

    def has_failures(self, physical: str) -> bool:
        """Return whether a physical name is that of a retry, dead-letter or check topic, of any group and namespace.

        A reader believes every header of the shim there, whatever its own group is.
        """
        return _FAILURE_TOPIC.fullmatch(physical) is not None
