"""`rocketshim timers apply`: recurring messages that a file declares.

    topics = ["archive"]             # topics that the file owns, too, although it has no message for them

    [[message]]
    topic = "reports"
    timer = "daily"
    cron = "0 9 * * 1-5"
    tz = "Europe/Berlin"
    body = "daily"

Each message has the options of `Producer.send`. The plan compares it with the message that is pending under its name:
what is unchanged is not sent again. The file owns the recurring messages of its topics, and no other message.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from rocketshim.core.timer_history import PendingTimer
from rocketshim.errors import ConfigError, RocketshimError
from rocketshim.settings import advice
from rocketshim_topics import DelayLevels, Message, TopicNames, decode, parse_duration_ms
from rocketshim_topics.durations import duration_text
from rocketshim_topics.hops import delayed_record
from rocketshim_topics.wire import Envelope, read_headers

if TYPE_CHECKING:
    from rocketshim.producer.producer import Producer
    from rocketshim.producer.result import SendResult

__all__ = ["Step", "planned", "read_declarations"]

_HEADING: Final = re.compile(r"^\s*\[\[\s*message\s*\]\]", re.MULTILINE)


class _Declared(BaseModel):
    """A `[[message]]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    topic: str
    timer: str
    body: str
    cron: str | None = None
    tz: str | None = None
    every: str | None = None
    late: str | None = None
    key: str | None = None
    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    max_reconsume_times: int | None = None

    def message(self) -> Message:
        """Return the message; raise the error of a send."""
        if self.cron is None and self.every is None:
            raise ConfigError('it does not recur: give cron = "0 9 * * 1-5" or every = "15m"')
        return Message(**self.model_dump() | {"body": self.body.encode()})


class _File(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    topics: list[str] = []
    message: list[_Declared] = []


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of a name."""

    action: Literal["new", "changed", "unchanged", "not in the file", "remove"]
    topic: str
    name: str
    message: Message | None  # to send; None: nothing is sent, or a cancel
    recurs: str
    next_ms: int | None  # when it comes next, epoch ms; None: it does not come any more
    differs: tuple[str, ...] = ()  # in what it is not the pending one

    @property
    def changes(self) -> bool:
        """Whether something has to be sent."""
        return self.message is not None or self.action == "remove"

    def send(self, producer: "Producer") -> "SendResult":
        """Do it."""
        if self.message is None:
            return producer.cancel(self.topic, timer=self.name, timeout_s=30.0)
        return producer.send(self.message, timeout_s=30.0)


def read_declarations(path: Path, names: TopicNames) -> tuple[dict[tuple[str, str], Message], frozenset[str]]:
    """Return the messages that a file declares, by topic and name, and the topics whose recurring messages it owns.

    Raises:
        ConfigError: the file cannot be read, or is not legal as a whole. The text names each entry, with its line.
    """
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    try:
        file = _File.model_validate(given)
    except ValidationError as error:
        found = "; ".join(_problem(each, text, given) for each in error.errors(include_url=False))
        raise ConfigError(f"{path}: {found}. Nothing was sent") from None
    if not file.message:
        raise ConfigError(f"{path} has no [[message]]; to cancel what recurs: rocketshim timers cancel TOPIC NAME")
    messages: dict[tuple[str, str], Message] = {}
    problems = []
    for number, each in enumerate(file.message):
        try:
            message = each.message()
            _wanted(message, names)
            if (each.topic, each.timer) in messages:
                raise ConfigError("the name is declared twice: give each message of a topic its own name")
            messages[each.topic, each.timer] = message
        except RocketshimError as error:
            problems.append(f"{_entry(number, text, given)}: {error}")
    if problems:
        raise ConfigError(f"{path}: {'; '.join(problems)}. Nothing was sent")
    return messages, frozenset([*file.topics, *(topic for topic, _ in messages)])


def planned(
    declared: Mapping[tuple[str, str], Message],
    pending: Mapping[tuple[str, str], tuple[PendingTimer, Any]],
    names: TopicNames,
    now_ms: int,
    *,
    remove_others: bool,
) -> list[Step]:
    """Return the steps that make the pending messages those of the file. `pending` is from `read_recurring`."""
    steps = []
    for (topic, name), message in declared.items():
        state, record = pending.get((topic, name), (None, None))
        wanted = _wanted(message, names)
        found = (
            {} if record is None else _content(record.key(), record.value(), decode(read_headers(record), trusted=True))
        )
        differs = tuple(each for each, value in wanted.items() if found and found[each] != value)
        first_ms = message.recurrence.next_ms(now_ms, now_ms) if message.recurrence is not None else None
        if state is None:
            steps.append(Step("new", topic, name, message, _recurs(wanted), first_ms))
        elif differs or not found:
            unknown = () if found else ("unknown, as the log does not have it any more",)
            steps.append(Step("changed", topic, name, message, _recurs(wanted), first_ms, differs or unknown))
        else:
            steps.append(Step("unchanged", topic, name, None, _recurs(wanted), state.due_ms))
    for (topic, name), (state, record) in sorted(pending.items()):
        if (topic, name) not in declared:
            found = {} if record is None else _content(None, None, decode(read_headers(record), trusted=True))
            action: Literal["remove", "not in the file"] = "remove" if remove_others else "not in the file"
            next_ms = None if remove_others else state.due_ms
            steps.append(Step(action, topic, name, None, _recurs(found), next_ms))
    return steps


def _wanted(message: Message, names: TopicNames) -> dict[str, Any]:
    """Return the content of the message that a send would store; raise what the send would raise."""
    out = delayed_record(message, names, DelayLevels.default(), uniq_key="", born_ms=0, now_ms=None, lane=0)
    return _content(out.key, out.value, decode(out.headers, trusted=True))


def _content(key: bytes | None, body: bytes | None, envelope: Envelope) -> dict[str, Any]:
    """Return what a person declares of a message, from a record that set it."""
    return {
        "recurrence": envelope.timer_repeat,
        "tz": envelope.timer_tz or "UTC",
        "late": envelope.timer_late or "once",
        "body": body,
        "key": key,
        "tag": envelope.tags,
        "keys": envelope.keys,
        "properties": envelope.user,
        "max_reconsume_times": envelope.max_reconsume_times,
    }


def _recurs(content: Mapping[str, Any]) -> str:
    """Return when a message recurs, for a person; `""`: that is not known."""
    line = content.get("recurrence") or ""
    if " " in line:
        return f"{line} {content['tz']}"
    return f"every {duration_text(parse_duration_ms(line))}" if line else ""


def _entry(number: int, text: str, given: Mapping[str, Any]) -> str:
    """Return which entry of the file this is, for an error: its number, line, topic and name."""
    lines = [text.count("\n", 0, each.end()) + 1 for each in _HEADING.finditer(text)]
    found = given["message"][number]
    name = "/".join(str(found[each]) for each in ("topic", "timer") if isinstance(found, dict) and each in found)
    line = f" in line {lines[number]}" if len(lines) == len(given["message"]) else ""
    return f"[[message]] {number + 1}{line} ({name or 'without a name'})"


def _problem(error: Mapping[str, Any], text: str, given: Mapping[str, Any]) -> str:
    """Describe one error of pydantic, for a person who writes the file."""
    place, name = list(error["loc"]), str(error["loc"][-1])
    is_entry = place[0] == "message" and len(place) > 1
    known = _Declared.model_fields if is_entry else _File.model_fields
    if error["type"] == "extra_forbidden":
        what = f"{name} is not an option; {advice(name, known) or 'known: ' + ', '.join(known)}"
    elif error["type"] == "missing":
        what = f"{name} is missing"
    else:
        what = f"{'.'.join(map(str, place[2:] if is_entry else place))}: {error['msg']}".removeprefix(": ")
    return f"{_entry(place[1], text, given)}: {what}" if is_entry else what
