"""A naive model of the jobs, as plain loops over records; tests compare Spark's transforms with it.

It follows the docstrings of the modules, not their code, and uses the runtime's decoder.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rocketshim_spark.events import kind_of
from rocketshim_topics import Envelope, decode, hops
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import MalformedRecordError

from .histories import NAMES, Stored

WAIT, PARKED, DELIVERED, DEAD = 0, 1, 2, 3
STEPS = {"schedule": WAIT, "parked": PARKED, "dlq": DEAD}


@dataclass(frozen=True)
class Read:
    """A record and its decoded headers."""

    stored: Stored
    kind: str
    says: Envelope

    @property
    def group(self) -> str | None:
        return None if self.kind == "source" else self.says.consumer_group

    @property
    def uid(self) -> str:
        return self.says.uniq_key or self.stored.where

    @property
    def step(self) -> tuple[int, int, int]:
        return self.says.replay_count or 0, self.says.reconsume_times or 0, STEPS.get(self.kind, DELIVERED)

    @property
    def source_topic(self) -> str | None:
        if self.kind == "source":
            return self.stored.topic()
        return self.says.retry_topic or self.says.real_topic


def read(stored: Sequence[Stored]) -> list[Read]:
    """Decode the records, and leave out malformed ones."""
    found = []
    for each in stored:
        kind = kind_of(each.topic())
        assert kind is not None
        try:
            found.append(Read(each, kind, decode(each.headers(), trusted=kind != "source")))
        except MalformedRecordError:
            continue
    return found


@dataclass(frozen=True)
class Lifecycle:
    """The lifecycle of a message in a group."""

    state: str
    copies: int
    rooted: bool
    broken: bool
    revived: bool
    origin: str | None
    failed: bool
    sent_back: bool
    attempts: int
    deliveries: int
    took_ms: int | None
    topic: str | None
    began_at: int | None
    last_at: int


def lifecycles(
    records: Sequence[Read], committed: Mapping[str, Mapping[TopicPartitionKey, int]]
) -> dict[tuple[str | None, str], Lifecycle]:
    consuming: dict[str | None, set[str]] = defaultdict(set)
    for name, keys in committed.items():
        if name != NAMES.worker_group:
            for key in keys:
                consuming[key.topic].add(name)
    histories: dict[tuple[str | None, str], list[Read]] = defaultdict(list)
    for each in records:
        groups: Sequence[str | None] = (
            [each.group] if each.group is not None else sorted(consuming[each.source_topic]) or [None]
        )
        for group in groups:
            histories[group, each.uid].append(each)
    known = set().union(*consuming.values())
    topics_of = {group: {topic for topic, groups in consuming.items() if group in groups} for group in known}
    return {pair: lifecycle(pair[0], history, committed, topics_of) for pair, history in histories.items()}


def lifecycle(
    group: str | None,
    history: list[Read],
    committed: Mapping[str, Mapping[TopicPartitionKey, int]],
    topics_of: Mapping[str, set[str | None]],
) -> Lifecycle:
    def reached(each: Read) -> bool:
        owner = NAMES.worker_group if each.kind == "schedule" else group
        key = TopicPartitionKey(each.stored.topic(), each.stored.partition())
        return committed.get(owner or "", {}).get(key, 0) > each.stored.offset()

    history = sorted(history, key=lambda each: (each.step, each.stored.at_ms, each.stored.where))
    newest = history[-1].step
    _, attempt, step = newest
    under_way = any(not reached(each) for each in history if each.step == newest)
    failed = any(each.step[1] > 0 for each in history) or history[-1].says.fail_class is not None
    if step == DEAD:
        state = "dead"
    elif step == PARKED:
        state = "parked"
    elif step == WAIT:
        state = "lost" if not under_way else "retrying" if failed else "scheduled"
    elif group not in topics_of:
        state = "open"
    else:
        state = "acknowledged" if not under_way else "retrying" if failed else "pending"
    moved = [each.step for each in history if each.step[2] != WAIT]
    runs = {each.step[:2] for each in history}
    deliveries = [each for each in history if each.step[2] == DELIVERED]
    first = history[0]
    # If the group is not known to consume the topic, its deliveries there are no part of this.
    least = 0 if group is None or first.source_topic in topics_of.get(group, set()) else 1
    sent_at = min(each.says.born_timestamp_ms or each.stored.at_ms for each in history)
    return Lifecycle(
        state=state,
        copies=len(moved) - len(set(moved)),
        rooted=least == 1 or (0, 0) in runs,
        broken=any(each.step[1] > 0 and each.step[2] != DEAD for each in history)
        and any(number > least and (of, number - 1) not in runs for of, number in runs),
        revived=any(
            dead.step[2] == DEAD
            and each.step[2] != DEAD
            and each.step[0] == dead.step[0]
            and each.step[1] >= dead.step[1]
            for dead in history
            for each in history
        ),
        origin=_origin(first) or _origin(history[-1]) or (deliveries[0].stored.where if deliveries else None),
        failed=any(each.step[1] > 0 for each in history),
        sent_back=any(each.step[1] > 0 and each.step[2] != DEAD for each in history),
        attempts=attempt,
        deliveries=len(deliveries),
        took_ms=history[-1].stored.at_ms - sent_at if state in {"acknowledged", "dead"} else None,
        topic=first.source_topic,
        began_at=deliveries[0].stored.at_ms if deliveries else sent_at,
        last_at=history[-1].stored.at_ms,
    )


def _origin(each: Read) -> str | None:
    """Return the coordinates of the first delivery that a record names."""
    return None if each.kind == "source" else each.says.origin_message_id


def residuals(
    found: Mapping[tuple[str | None, str], Lifecycle], gaps: Sequence[tuple[str, int, int]]
) -> set[tuple[str | None, str, str, bool]]:
    """Return group, message, reason, and whether a gap explains it. In these histories shim topics have no gaps."""
    missing = set()
    places = {f"{topic}/{partition}/{offset}" for topic, partition, offset in gaps}
    for (group, uid), each in found.items():
        if each.state == "lost":
            missing.add((group, uid, "lost", each.attempts == 0 and each.topic in {topic for topic, *_ in gaps}))
        elif not each.rooted:
            missing.add((group, uid, "no-source-record", each.origin in places))
        elif each.broken:
            missing.add((group, uid, "missing-attempt", False))
    return missing


def outcomes(
    stored: Sequence[Stored], worker: Mapping[TopicPartitionKey, int], *, now_ms: int, grace_ms: int
) -> dict[str, tuple[str, int | None, int, bool]]:
    """Return outcome, lateness, repeats and overtaken for each schedule record.

    Malformed records count as deliveries too: their `HOP_ID` names the record that they were made from.
    """
    after: dict[str, list[tuple[str | None, Stored]]] = defaultdict(list)
    for record in stored:
        for name, value in record.headers():
            if name == "HOP_ID" and value is not None:
                after[value.decode()].append((kind_of(record.topic()), record))
    found: dict[str, tuple[str, int | None, int, bool]] = {}
    left: list[tuple[Stored, list[Stored]]] = []
    for each in read(stored):
        if each.kind != "schedule":
            continue
        where, key = each.stored.where, _partition_of(each.stored)
        due = hops.due_ms(each.says, each.stored.at_ms, 0)  # in these histories each has a due time
        made = [record for kind, record in after[where] if kind in {"source", "retry"}]
        if made:
            left.append((each.stored, sorted(made, key=lambda one: (one.at_ms, *_partition_of(one), one.offset()))))
            found[where] = ("delivered", min(one.at_ms for one in made) - due, len(made) - 1, False)
        elif any(kind == "schedule" for kind, _ in after[where]):
            found[where] = ("hopped", None, 0, False)
        elif any(kind == "parked" for kind, _ in after[where]):
            found[where] = ("parked", None, 0, False)
        elif worker.get(key, 0) > each.stored.offset():
            found[where] = ("never", None, 0, False)
        else:
            found[where] = ("stuck" if due < now_ms - grace_ms else "waiting", None, 0, False)
    passed = _passed(left)
    return {where: (*each[:3], where in passed) for where, each in found.items()}


def _passed(left: Sequence[tuple[Stored, Sequence[Stored]]]) -> set[str]:
    """Return the schedule records that were delivered once, and after a later record of their queue."""
    ways = defaultdict(list)
    for waited, made in left:
        ways[_partition_of(waited), _partition_of(made[0])].append(
            (waited.offset(), made[0].offset(), len(made), waited.where)
        )
    return {
        where
        for same in ways.values()
        for at, first, times, where in same
        if times == 1 and any(other > at and earlier < first for other, earlier, *_ in same)
    }


def _partition_of(record: Stored) -> TopicPartitionKey:
    return TopicPartitionKey(record.topic(), record.partition())


def failures(records: Sequence[Read]) -> Counter[tuple[str, str]]:
    """Count the failed attempts of each group and class."""
    first: dict[tuple[Any, ...], Read] = {}
    for each in sorted(records, key=lambda each: each.stored.at_ms):
        # A redriven dead letter keeps its FAIL_* headers. The headers of a parked record do not count.
        is_failure = each.kind != "parked" and each.says.fail_class is not None and each.says.reconsume_times != 0
        if each.group is not None and is_failure:
            first.setdefault((each.group, each.uid, each.says.reconsume_times, each.says.replay_id), each)
    return Counter((each.group or "", each.says.fail_class or "") for each in first.values())


def letters(records: Sequence[Read], stored: Sequence[Stored]) -> dict[str, str | None]:
    """Return why each dead letter is skipped: `replayed-already`, or the one it repeats; None: it is sent.

    In these histories there are no other reasons.
    """
    first: dict[tuple[Any, ...], str] = {}
    found: dict[str, str | None] = {}
    carried = [dict(each.headers()) for each in stored if kind_of(each.topic()) == "retry"]  # malformed ones, too
    again = {(each["HOP_ID"] or b"").decode() for each in carried if "REPLAY_ID" in each}
    dead = [each for each in records if each.kind == "dlq"]
    for each in sorted(dead, key=lambda each: each.stored.offset()):
        says = each.says
        same = (each.stored.topic(), each.uid, says.origin_message_id, says.reconsume_times, says.replay_id)
        where = f"{each.stored.partition()}/{each.stored.offset()}"
        is_first = first.setdefault(same, where) == where
        known = "replayed-already" if each.stored.where in again else None
        found[each.stored.where] = known if known or is_first else f"repeat-of:{first[same]}"
    return found


def overtaken(
    found: Mapping[tuple[str | None, str], Lifecycle], keys: Mapping[str, bytes]
) -> dict[tuple[str | None, bytes], tuple[int, int, int, int, int]]:
    """Return messages, failed, dead, consecutive failures and overtaken messages of each group and key."""
    results: dict[tuple[str | None, bytes], tuple[int, int, int, int, int]] = {}
    of_key: dict[tuple[str | None, bytes], list[Lifecycle]] = defaultdict(list)
    for (group, uid), each in found.items():
        if group is not None:
            of_key[group, keys[uid]].append(each)
    for place, messages in of_key.items():
        consecutive = count = 0
        for _, same in groupby(sorted(messages, key=_at), key=lambda each: _at(each)[:2]):
            in_order, run = list(same), 0
            for number, each in enumerate(in_order):
                run = run + 1 if each.failed else 0
                consecutive = max(consecutive, run)
                later = [other for other in in_order[number + 1 :] if other.state == "acknowledged"]
                count += each.sent_back and any((other.began_at or 0) < each.last_at for other in later)
        failed, dead = sum(each.failed for each in messages), sum(each.state == "dead" for each in messages)
        results[place] = (len(messages), failed, dead, consecutive, count)
    return results


def _at(each: Lifecycle) -> tuple[str, int, int]:
    topic, number, offset = (each.origin or "//").split("/")
    return topic, int(number or -1), int(offset or -1)
