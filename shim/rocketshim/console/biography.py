"""The biography of a message as a picture: where each circle and label stands. Pure; the template draws it.

The records stand in the order in which they were stored, one column each, whatever time lies between: a wait of two
hours takes as much space as one of a second, and is written into the gap. Each lane is a kind of topic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rocketshim.admin.record_view import RecordView
from rocketshim.admin.trace import Missing, missing_text, step_text
from rocketshim_topics import Origin, TopicNames
from rocketshim_topics.durations import duration_text

__all__ = ["Biography", "Kind", "Lane", "Step", "biography"]

Kind = Literal["made", "waits", "failed", "dead", "missing"]
_MARKS: Final[dict[Kind, str]] = {"made": "✓", "waits": "…", "failed": "✗", "dead": "✗", "missing": "?"}
_LANES: Final = ("source", "schedule", "retry", "dead", "parked")
_LEFT, _COLUMN, _TOP, _ROW = 90, 84, 34, 44


@dataclass(frozen=True, slots=True)
class Lane:
    """A kind of topic: its name and its height in the picture."""

    name: str
    y: int


@dataclass(frozen=True, slots=True)
class Step:
    """A record of the message, or one that is missing."""

    number: int  # from 1, as in the list below the picture
    x: int  # the centre of its circle
    y: int
    lane: str  # the kind of its topic
    kind: Kind  # what happened
    mark: str  # a sign for it, so that the colour alone need not tell
    at: str  # its coordinates
    link: tuple[str, int, int] | None  # topic, partition and offset; None: the record is missing
    stored_ms: int | None  # when it was stored; None: missing
    failures: int | None  # failed attempts before it; None: missing
    text: str
    wait: str  # the time between the previous record and this one; `""`: not known, or less than a second


@dataclass(frozen=True, slots=True)
class Biography:
    """The picture."""

    lanes: list[Lane]  # the lanes that are used, from the top
    steps: list[Step]  # the records, in order
    width: int
    height: int


def biography(hops: Sequence[RecordView | Missing], names: TopicNames) -> Biography:
    """Lay out the history of a message.

    * `hops`: what `rocketshim.admin.trace.history` returns.
    """
    used = [_lane(_topic(hop), names) for hop in hops]
    lanes = [Lane(name, _TOP + _ROW * row) for row, name in enumerate(name for name in _LANES if name in used)]
    heights = {lane.name: lane.y for lane in lanes}
    steps: list[Step] = []
    last_ms: int | None = None
    for number, (hop, lane) in enumerate(zip(hops, used, strict=True), start=1):
        x, y = _LEFT + _COLUMN * (number - 1), heights[lane]
        if isinstance(hop, Missing):
            text = f"missing: {missing_text(hop)}"
            steps.append(Step(number, x, y, lane, "missing", "?", hop.at, None, None, None, text, ""))
            continue
        entry, kind = hop, _kind(hop, lane)
        wait_ms = 0 if last_ms is None else (entry.stored_ms - last_ms) // 1_000 * 1_000
        wait = duration_text(wait_ms) if wait_ms > 0 else ""
        last_ms = entry.stored_ms
        at = (entry.topic, entry.partition, entry.offset)
        text, failures = step_text(hop, names), entry.envelope.reconsume_times or 0
        steps.append(Step(number, x, y, lane, kind, _MARKS[kind], entry.at, at, entry.stored_ms, failures, text, wait))
    return Biography(lanes, steps, _LEFT + _COLUMN * len(steps), _TOP + _ROW * len(lanes))


def _topic(hop: RecordView | Missing) -> str:
    if isinstance(hop, RecordView):
        return hop.topic
    try:
        return Origin.parse(hop.at).topic
    except ValueError:
        return ""


def _lane(topic: str, names: TopicNames) -> str:
    if topic in {names.schedule, names.parked}:
        return "schedule" if topic == names.schedule else "parked"
    for lane, prefix in (("retry", names.retry_prefix), ("dead", names.dead_letter_prefix)):
        if topic.startswith(prefix):
            return lane
    return "source"


def _kind(hop: RecordView, lane: str) -> Kind:
    if lane in {"dead", "parked"}:
        return "dead"
    if hop.due_ms is not None:
        return "failed" if hop.envelope.fail_class else "waits"
    return "made"
