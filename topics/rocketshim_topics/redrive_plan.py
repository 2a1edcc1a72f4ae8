"""Redrive plans: which dead letters to send again, where to, and which to discard; for a person to review. Pure.

Making a plan (`Planner`) only reads. A plan names each dead letter by partition, offset and digest, so that exactly
what was reviewed is applied: a record with another digest is not sent. A dead letter that was chosen but will not be
sent is in the plan, too, with the reason (`held_back`):

=========================  ============================================================================================
`redriven-by:<plan>`       another plan has sent it again; `again` sends it nevertheless
`discarded-by:<plan>`      another plan has discarded it; `again` sends it nevertheless
`replayed-already`         a record that was made from it exists, but the redrive log has no mark of it (found by Spark)
`marks-lost`               the redrive log has lost its first records, so whether it was sent or discarded is not known;
                           `again` sends it nevertheless, discarding it marks it as not to be sent
`replayed-too-often`       its `REPLAY_COUNT` has reached `max_replays`: it would only fail again (the loop guard)
`repeat-of:<p>/<o>`        a duplicate of the same failed attempt, as at-least-once delivery makes them; the other one
                           is in this plan, or an earlier plan has redriven or discarded it
`no-topic:<topic>`         the target does not exist
`no-key:<topic>`           it has no key, and the target is compacted: brokers refuse such records there
`no-target`                a parked record names no target: the worker would park it again
`no-message`               a parked command for a named timer carries no message
`by-reference`, `…:…`      it cannot be sent: no body, no target in its headers, or malformed (`MalformedRecordError`)
=========================  ============================================================================================

The id of a plan is a digest of its content, so that an edited plan is refused. `redrive_id` makes the `REPLAY_ID` of
each record sent. It contains the plan and the dead letter, so that a reader of the target knows where a record came
from.

The command line, the console and the Spark job make their plans by the same `Planner`, and use the same hop
(`rocketshim_topics.hops.redriven`), ids and marks (`rocketshim_topics.redrive_log`).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Container
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer

from rocketshim_topics.causes import fingerprint
from rocketshim_topics.errors import ConfigError, MalformedRecordError
from rocketshim_topics.hops import OutgoingRecord, redrive_count, redriven
from rocketshim_topics.limits import INT_MAX
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
    "redrive_id",
    "redriven_record",
]

PLAN_VERSION: Final = 1
DEFAULT_MAX_REPLAYS: Final = 3
"""How often a dead letter may be redriven before a plan holds it back."""


class PlannedLetter(NamedTuple):
    """A dead letter to send or discard.

    Attributes:
        partition: partition of the source topic.
        offset: its offset there.
        digest: its `record_digest`.
        target: physical topic to send it to; `""`: discard it.
        cause: exception class of its failure.
        id: id of its message. Here, in `cause` and in `text`, bytes that are not UTF-8 are escaped.
        text: fingerprint of the failure's text; `""`: it has none, or the plan was made before plans had texts.
    """

    partition: int
    offset: int
    digest: str
    target: str
    cause: str
    id: str
    text: str = ""


class HeldBack(NamedTuple):
    """A dead letter that was chosen and will not be sent.

    Attributes:
        partition: partition of the source topic.
        offset: its offset there.
        reason: see the module's docstring.
        cause: exception class of its failure.
    """

    partition: int
    offset: int
    reason: str
    cause: str


class RedriveRules(BaseModel):
    """What to do with the dead letters of a plan.

    Attributes:
        action: `redrive`: send again; `discard`: only mark.
        namespace: namespace of the shim's topics.
        group: group whose retry topic receives them; None: the group that each dead letter names, or `to_source`.
        to_source: send them to the topic of the first delivery, and so to every group.
        max_replays: hold back dead letters that were replayed this often.
        again: include dead letters that were redriven or discarded before.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    action: Literal["redrive", "discard"] = "redrive"
    namespace: str = ""
    group: str | None = None
    to_source: bool = False
    max_replays: Annotated[int, Field(ge=0, le=INT_MAX)] = DEFAULT_MAX_REPLAYS
    again: bool = False


class RedrivePlan(BaseModel):
    """A plan.

    Attributes:
        version: version of this format, 1.
        source: physical topic of the dead letters.
        cluster_id: Kafka's id of the cluster where it was made; `""`: not known.
        created_ms: time of creation, epoch ms.
        rules: what to do.
        choice: the selection as the user wrote it, for a person to read.
        letters: the dead letters to send or discard, by partition and offset.
        held_back: the dead letters that were chosen and will not be sent.
        log_end: the offset up to which the plan knows the redrive log; marks from there on tell what was sent since.
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
    log_end: Annotated[int, Field(ge=0)] = 0

    @field_serializer("letters")
    def _rows(self, letters: tuple[PlannedLetter, ...]) -> list[tuple[int | str, ...]]:
        """Write a letter without a text as in plans that were made before plans had texts: their ids stay valid."""
        return [letter if letter.text else letter[:-1] for letter in letters]

    @cached_property
    def id(self) -> str:
        """The first 20 hex digits of the SHA-256 of its content, computed once: that takes 25 ms for 10,000 letters."""
        left_out = None if self.log_end else {"log_end"}  # as in plans that were made before it existed
        return hashlib.sha256(self.model_dump_json(exclude=left_out).encode()).hexdigest()[:20]

    def summary(self) -> dict[str, Any]:
        """Return the numbers of dead letters by class, cause and target, and of those held back by reason."""
        causes = Counter((letter.cause or "unknown", letter.text) for letter in self.letters).most_common()
        return {
            "letters": len(self.letters),
            "by_cause": dict(Counter(letter.cause or "unknown" for letter in self.letters).most_common()),
            "causes": [{"cause": cause, "text": text, "count": count} for (cause, text), count in causes],
            "by_target": dict(Counter(letter.target for letter in self.letters if letter.target).most_common()),
            "held_back": dict(Counter(_kind(each.reason) for each in self.held_back).most_common()),
        }

    def to_json(self) -> str:
        """Return the plan's file: id and summary for a person, then the plan, one line for each dead letter."""
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
        """Parse a plan's file.

        Raises:
            ConfigError: it is not a plan, has another version, or was changed after it was made.
        """
        try:
            fields = json.loads(text)
            claimed = fields.pop("id")
            fields.pop("summary", None)
            plan = cls.model_validate_json(json.dumps(fields))
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
            first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"{error!r:.100}"
            raise ConfigError(f"this is not a redrive plan of version {PLAN_VERSION} ({first})") from error
        if claimed != plan.id:
            raise ConfigError(
                f"the plan was changed after it was made (its id is {claimed!r:.40}, its content's {plan.id}): make "
                "a new plan that selects what you want"
            )
        return plan


def _kind(reason: str) -> str:
    return reason.partition(":")[0]


def _json_safe(text: str) -> str:
    """Escape bytes that are not UTF-8, which `surrogateescape` keeps in texts: JSON cannot contain them."""
    return text.encode("utf-8", "backslashreplace").decode()


def redrive_id(plan: str, partition: int, offset: int) -> str:
    """Return the `REPLAY_ID` of a dead letter: `<plan>.<partition>.<offset>`, at most 51 characters."""
    return f"{plan}.{partition}.{offset}"


def redriven_record(
    record: Record, envelope: Envelope | None, rules: RedriveRules, *, replay_id: str
) -> OutgoingRecord:
    """Return the record that sends a dead letter again by these rules.

    Args:
        record: the dead letter as fetched.
        envelope: its headers, if they follow other rules than the wire format; None: decode them here.
        rules: the plan's rules.
        replay_id: `redrive_id` of the dead letter.

    Raises:
        MalformedRecordError: it cannot be sent; `reason` has the cause.
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
    """Makes a plan from dead letters or parked records, passed in the order of offsets within each partition.

    Decides: Which of the chosen dead letters are held back in a plan, and why? By the table at the top of this file.
        Which are chosen: `admin.record_filter`.

    Args:
        source: their physical topic.
        rules: what to do.
        log: the redrive log so far.
        topics: the existing topics; None: not known, so every target may exist.
        is_compacted: return whether a topic is compacted, as far as it is known; called for records without a key.

    Thread-safety: none; belongs to one thread.
    """

    def __init__(
        self,
        source: str,
        rules: RedriveRules,
        log: RedriveLog,
        topics: Container[str] | None,
        *,
        is_compacted: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._source = source
        names = TopicNames(rules.namespace)
        self._parked_to = names.schedule if source == names.parked else None
        self._rules = rules
        self._log = log
        self._topics = topics
        self._is_compacted = is_compacted
        self._letters: list[tuple[PlannedLetter, _Attempt | None]] = []
        self._held_back: list[HeldBack] = []
        self._settled_attempts: dict[_Attempt, str] = {}

    def add(
        self,
        record: Record,
        envelope: Envelope,
        *,
        malformed: str | None = None,
        opened: Record | None = None,
        known: str | None = None,
    ) -> None:
        """Add a dead letter that was selected.

        Args:
            record: as fetched.
            envelope: its headers, decoded as far as possible.
            malformed: why they could not be decoded; None: they could.
            opened: another project's dead letter: what to send of it; the envelope was read by that project's rules.
                None: it has our wire format.
            known: why it counts as redriven or discarded, if the caller knows it from elsewhere than `log`.
        """
        position = (record.partition() or 0, record.offset() or 0)
        digest = record_digest(record)
        cause = _json_safe(envelope.park_reason or envelope.fail_class or "")
        target, reason, attempt = "", self._settled(position, digest, known), None
        if reason is not None:
            self._remember(position, envelope)
        elif self._rules.action == "redrive" and not self._rules.again and self._log.may_have_lost(record):
            reason = "marks-lost"
        elif self._rules.action == "redrive":
            target, reason = self._judged(record, envelope, malformed, opened)
            attempt = None if self._parked_to else _attempt(envelope)
        if reason is not None:
            self._held_back.append(HeldBack(*position, reason, cause))
            return
        uniq_key = envelope.uniq_key or f"{record.topic()}/{position[0]}/{position[1]}"
        text = _json_safe(fingerprint(envelope.fail_text))
        self._letters.append((PlannedLetter(*position, digest, target, cause, _json_safe(uniq_key), text), attempt))

    def pass_over(self, record: Record, envelope: Envelope, *, known: str | None = None) -> None:
        """Pass over a dead letter that was not selected. If it was redriven before, its duplicates are held back.

        Args:
            record: as fetched.
            envelope: its headers, decoded as far as possible.
            known: as for `add`.
        """
        position = (record.partition() or 0, record.offset() or 0)
        if self._settled(position, record_digest(record), known) is not None:
            self._remember(position, envelope)

    def plan(self, *, cluster_id: str, created_ms: int, choice: dict[str, str]) -> RedrivePlan:
        """Return the plan."""
        letters, held_back = [], list(self._held_back)
        attempts = dict(self._settled_attempts)
        for letter, attempt in sorted(self._letters, key=lambda each: each[0]):
            position = f"{letter.partition}/{letter.offset}"
            first = position if attempt is None else attempts.setdefault(attempt, position)
            if first == position:
                letters.append(letter)
            else:
                held_back.append(HeldBack(letter.partition, letter.offset, f"repeat-of:{first}", letter.cause))
        return RedrivePlan(
            source=self._source,
            cluster_id=cluster_id,
            created_ms=created_ms,
            rules=self._rules,
            choice={name: _json_safe(text) for name, text in choice.items()},
            letters=tuple(letters),
            held_back=tuple(sorted(held_back)),
            log_end=self._log.end,
        )

    def _settled(self, position: tuple[int, int], digest: str, known: str | None) -> str | None:
        if self._rules.again:
            return None
        found = self._log.settled(*position, digest)
        return known if found is None else f"{found.state}-by:{found.plan}"

    def _judged(
        self, record: Record, envelope: Envelope, malformed: str | None, opened: Record | None
    ) -> tuple[str, str | None]:
        """Return the target of a dead letter, or why it is held back."""
        if self._parked_to is not None:  # the worker evaluates it again, malformed or not
            if envelope.timer_do is not None and record.value() is None:
                return "", "no-message"
            if not envelope.real_topic:
                return "", "no-target"
            names = TopicNames(self._rules.namespace)
            with suppress(ConfigError):  # a name that no topic can have: the worker parks it again
                if record.key() is None and self._is_compacted(target := names.physical(envelope.real_topic)):
                    return "", f"no-key:{target}"
            is_half = envelope.timer_asks is not None and envelope.timer_do is not None
            return (names.timers if is_half else self._parked_to), None
        if malformed is not None:
            return "", f"malformed:{malformed}"
        if redrive_count(envelope) >= self._rules.max_replays:
            return "", "replayed-too-often"
        try:
            read = None if opened is None else envelope
            made = redriven_record(record if opened is None else opened, read, self._rules, replay_id="-")
        except MalformedRecordError as error:
            return "", error.reason
        if self._topics is not None and made.topic not in self._topics:
            return "", f"no-topic:{made.topic}"
        if made.key is None and self._is_compacted(made.topic):
            return "", f"no-key:{made.topic}"
        return made.topic, None

    def _remember(self, position: tuple[int, int], envelope: Envelope) -> None:
        """Note the failed attempt of a dead letter that was redriven or discarded: its duplicates are held back.

        A record that is parked again after it was sent is no duplicate: it has the same headers.
        """
        attempt = None if self._parked_to else _attempt(envelope)
        if attempt is not None:
            self._settled_attempts.setdefault(attempt, f"{position[0]}/{position[1]}")


_Attempt = tuple[str | int | None, ...]


def _attempt(envelope: Envelope) -> _Attempt | None:
    """Return what duplicates of one failed attempt have in common; None if the headers do not tell."""
    if not envelope.uniq_key or envelope.origin_message_id is None:
        return None
    return (
        envelope.uniq_key,
        envelope.origin_message_id,
        envelope.consumer_group,
        envelope.reconsume_times,
        envelope.replay_id,
    )
