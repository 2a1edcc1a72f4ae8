"""Redrive plans: which dead letters would be sent again where, or discarded, frozen for a person to read. Pure.

A plan is made by reading (`Planner`) and changes nothing. It names each letter by partition, offset and digest, so
that what is applied is what was reviewed: a letter that is another one by then is not sent. What was chosen and will
not be sent is in the plan too, with the reason (`held_back`):

=========================  ============================================================================================
`redriven-by:<plan>`       sent again before, by another plan; `again` sends it all the same
`discarded-by:<plan>`      discarded before; likewise
`replayed-too-often`       its `REPLAY_COUNT` has reached `max_replays`: it would only come back (the loop guard)
`repeat-of:<p>/<o>`        the same attempt of the same delivery, dead twice (at least once does that): one is enough,
                           in this plan or settled by one before
`no-topic:<topic>`         the target is not there
`by-reference`, `…:…`      it cannot be sent: no body, no target in its headers, or malformed (`MalformedRecordError`)
=========================  ============================================================================================

The id of a plan is a digest of its content: a plan that was edited is refused. `replay_id` is the `REPLAY_ID` of each
letter: unique to it and the plan, and it says both, so whoever reads a target finds out what came from which plan.

Whatever sends letters again (this project's command line by such a plan, its Spark job by one that lies in a lake) uses
the same hop (`rocketshim_topics.hops.redriven`), the same ids and the same marks (`rocketshim_topics.redrive_log`).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Container
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rocketshim_topics.errors import ConfigError, MalformedRecordError
from rocketshim_topics.hops import OutgoingRecord, redriven, replays
from rocketshim_topics.names import TopicNames
from rocketshim_topics.redrive_log import RedriveLog, record_digest
from rocketshim_topics.wire import Envelope, Record

__all__ = [
    "DEFAULT_MAX_REPLAYS",
    "HeldBack",
    "PlannedLetter",
    "Planner",
    "RedrivePlan",
    "RedriveRules",
    "next_hop",
    "replay_id",
]

PLAN_VERSION: Final = 1
DEFAULT_MAX_REPLAYS: Final = 3
"""How often a letter may have been redriven before it is held back."""


class PlannedLetter(NamedTuple):
    """A letter that would be sent, or discarded.

    Attributes:
        partition: of the source topic.
        offset: in it.
        digest: `record_digest` of it.
        target: physical topic it goes to; `""`: it is discarded.
        cause: class of its failure.
        id: of its message.
    """

    partition: int
    offset: int
    digest: str
    target: str
    cause: str
    id: str


class HeldBack(NamedTuple):
    """A letter that was chosen and would not be sent.

    Attributes:
        partition: of the source topic.
        offset: in it.
        reason: see the module.
        cause: class of its failure.
    """

    partition: int
    offset: int
    reason: str
    cause: str


class RedriveRules(BaseModel):
    """What is done with the letters of a plan.

    Attributes:
        action: `redrive`: send again; `discard`: only mark.
        namespace: of the shim's topics.
        group: whose retry topic they go to; None: the one each letter names, or `to_source`.
        to_source: to the topic of the first delivery, and so to every group.
        max_replays: letters that were replayed so often are held back.
        again: also those that were redriven or discarded before.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    action: Literal["redrive", "discard"] = "redrive"
    namespace: str = ""
    group: str | None = None
    to_source: bool = False
    max_replays: Annotated[int, Field(ge=0, le=2**31 - 1)] = DEFAULT_MAX_REPLAYS
    again: bool = False


class RedrivePlan(BaseModel):
    """A plan.

    Attributes:
        version: of this form, 1.
        source: physical topic of the dead letters.
        cluster_id: Kafka's id of the cluster it was made on; `""`: not known.
        created_ms: when, epoch ms.
        rules: what is done.
        choice: what the letters were chosen by, as it was written, for a person.
        letters: by partition and offset.
        held_back: chosen and not to be sent.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    version: Literal[1] = PLAN_VERSION
    source: str
    cluster_id: str
    created_ms: int
    rules: RedriveRules
    choice: dict[str, str]
    letters: tuple[PlannedLetter, ...]
    held_back: tuple[HeldBack, ...]

    @property
    def id(self) -> str:
        """20 hex digits of the SHA-256 of its content."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:20]

    def summary(self) -> dict[str, Any]:
        """How many letters, by cause and target, and how many are held back why."""
        return {
            "letters": len(self.letters),
            "by_cause": dict(Counter(letter.cause or "unknown" for letter in self.letters).most_common()),
            "by_target": dict(Counter(letter.target for letter in self.letters if letter.target).most_common()),
            "held_back": dict(Counter(_kind(each.reason) for each in self.held_back).most_common()),
        }

    def to_json(self) -> str:
        """The plan's file: id and summary for a person, then the plan with one letter a line."""
        fields = self.model_dump(mode="json")
        lists = {name: fields.pop(name) for name in ("letters", "held_back")}
        head = json.dumps({"id": self.id, "summary": self.summary(), **fields}, indent=1, ensure_ascii=False)
        rows = (
            f' "{name}": [\n  ' + ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in found) + "\n ]"
            if found
            else f' "{name}": []'
            for name, found in lists.items()
        )
        return head.removesuffix("\n}") + ",\n" + ",\n".join(rows) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> "RedrivePlan":
        """Read a plan's file.

        Raises:
            ConfigError: it is none, of another version, or was changed after it was made.
        """
        try:
            fields = json.loads(text)
            claimed = fields.pop("id")
            fields.pop("summary", None)
            plan = cls.model_validate_json(json.dumps(fields))
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"{error!r:.100}"
            raise ConfigError(f"this is no redrive plan of version {PLAN_VERSION} ({first})") from error
        if claimed != plan.id:
            raise ConfigError(
                f"the plan was changed after it was made (its id is {claimed!r:.40}, its content's {plan.id}): make "
                "another one that chooses what you want"
            )
        return plan


def _kind(reason: str) -> str:
    return reason.partition(":")[0]


def replay_id(plan: str, partition: int, offset: int) -> str:
    """The `REPLAY_ID` of a letter: `<plan>.<partition>.<offset>`, at most 51 characters."""
    return f"{plan}.{partition}.{offset}"


def next_hop(record: Record, envelope: Envelope | None, rules: RedriveRules, *, replay_id: str) -> OutgoingRecord:
    """The record that sends a letter again by these rules.

    Args:
        record: the letter as fetched.
        envelope: what was read of its headers by other rules than the wire format's; None: they are decoded.
        rules: of the plan.
        replay_id: `replay_id` of the letter.

    Raises:
        MalformedRecordError: it cannot be sent; `reason` says why.
    """
    return redriven(
        record,
        TopicNames(rules.namespace),
        replay_id=replay_id,
        group=rules.group,
        to_source=rules.to_source,
        envelope=envelope,
    )


class Planner:
    """Makes a plan of the letters that it is shown, by partition and offset in any order of partitions.

    Args:
        source: physical topic they lie in.
        rules: what is to be done.
        log: what became of letters so far.
        topics: the topics there are.

    Thread-safety: none; belongs to one thread.
    """

    def __init__(self, source: str, rules: RedriveRules, log: RedriveLog, topics: Container[str]) -> None:
        self._source = source
        self._rules = rules
        self._log = log
        self._topics = topics
        self._letters: list[tuple[PlannedLetter, _Attempt | None]] = []
        self._held_back: list[HeldBack] = []
        self._settled_attempts: dict[_Attempt, str] = {}

    def add(
        self, record: Record, envelope: Envelope, *, malformed: str | None = None, opened: Record | None = None
    ) -> None:
        """One letter that was chosen.

        Args:
            record: as fetched.
            envelope: its headers, decoded as far as they can be.
            malformed: why they could not be decoded; None: they could.
            opened: another project's letter: what would be sent of it, and the envelope was read by their rules.
                None: it is in the wire format.
        """
        place = (record.partition() or 0, record.offset() or 0)
        digest = record_digest(record)
        cause = envelope.fail_class or ""
        target, reason, attempt = "", self._settled(place, digest), None
        if reason is not None:
            self._remember(place, envelope)
        elif self._rules.action == "redrive":
            target, reason = self._judged(record, envelope, malformed, opened)
            attempt = _attempt(envelope)
        if reason is not None:
            self._held_back.append(HeldBack(*place, reason, cause))
            return
        uniq_key = envelope.uniq_key or f"{record.topic()}/{place[0]}/{place[1]}"
        self._letters.append((PlannedLetter(*place, digest, target, cause, uniq_key), attempt))

    def pass_over(self, record: Record, envelope: Envelope) -> None:
        """One letter that was not chosen. If it was settled before, what repeats its attempt is held back.

        Args:
            record: as fetched.
            envelope: its headers, decoded as far as they can be.
        """
        place = (record.partition() or 0, record.offset() or 0)
        if self._settled(place, record_digest(record)) is not None:
            self._remember(place, envelope)

    def plan(self, *, cluster_id: str, created_ms: int, choice: dict[str, str]) -> RedrivePlan:
        """The plan of all that was shown."""
        letters, held_back = [], list(self._held_back)
        attempts = dict(self._settled_attempts)
        for letter, attempt in sorted(self._letters, key=lambda each: each[0]):
            place = f"{letter.partition}/{letter.offset}"
            first = place if attempt is None else attempts.setdefault(attempt, place)
            if first == place:
                letters.append(letter)
            else:
                held_back.append(HeldBack(letter.partition, letter.offset, f"repeat-of:{first}", letter.cause))
        return RedrivePlan(
            source=self._source,
            cluster_id=cluster_id,
            created_ms=created_ms,
            rules=self._rules,
            choice=choice,
            letters=tuple(letters),
            held_back=tuple(sorted(held_back)),
        )

    def _settled(self, place: tuple[int, int], digest: str) -> str | None:
        found = self._log.settled(self._source, *place, digest)
        if found is None or self._rules.again:
            return None
        return f"{found.state}-by:{found.plan}"

    def _judged(
        self, record: Record, envelope: Envelope, malformed: str | None, opened: Record | None
    ) -> tuple[str, str | None]:
        """Where a letter would go, or why it would not."""
        if malformed is not None:
            return "", f"malformed:{malformed}"
        if replays(envelope) >= self._rules.max_replays:
            return "", "replayed-too-often"
        try:
            read = None if opened is None else envelope
            target = next_hop(record if opened is None else opened, read, self._rules, replay_id="-").topic
        except MalformedRecordError as error:
            return "", error.reason
        if target not in self._topics:
            return "", f"no-topic:{target}"
        return target, None

    def _remember(self, place: tuple[int, int], envelope: Envelope) -> None:
        """The attempt of a letter that is settled."""
        attempt = _attempt(envelope)
        if attempt is not None:
            self._settled_attempts.setdefault(attempt, f"{place[0]}/{place[1]}")


_Attempt = tuple[str | int | None, ...]


def _attempt(envelope: Envelope) -> _Attempt | None:
    """What letters have in common that are one failed attempt of one delivery; None: their headers do not say."""
    if not envelope.uniq_key or envelope.origin_message_id is None:
        return None
    return (
        envelope.uniq_key,
        envelope.origin_message_id,
        envelope.consumer_group,
        envelope.reconsume_times,
        envelope.replay_id,
    )
