"""Describe and log what failed in user code, for push consumers and the drop-in.

`FailureMaker` describes an exception: its class, its text, where it was raised, a short stack trace for the record of
the failed message, and now and then the full one for the log. The short one has frames and the names of classes, but no
texts of exceptions. It is made once for all exceptions that were raised by the same path, so that a listener that
always fails does not pay for it each time; their texts differ and may be about other customers. Formatting the full one
costs as much as a millisecond, so it is taken for the first failure of a cause in a minute only. A cause is the class
of the exception and the line that raised it. The texts are made in the listener's thread: an exception that is kept
would keep the frames that it passed, and with them everything that user code had in hand.

`FailureLog` logs which message failed, which attempt, why, and when the message comes back. The message of such a log
record is a sentence, so that a program that has not set up logging shows it, too. The event is the attribute `event`,
and the facts are attributes as always. `FailureWindows` limits how many lines a cause gets.
"""

import linecache
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from rocketshim.core.clock import Clock
from rocketshim.core.listener_answers import DeadLetter, RetryLater
from rocketshim.core.log_limits import WINDOW_MS, FailureWindows
from rocketshim.core.next_hop import Hop, HopKind, HopMaker
from rocketshim.core.retry_policy import AtLevel, effective_limit
from rocketshim.core.user_values import class_name, one_line, safe_text
from rocketshim.kafka.membership import WorkerWatch
from rocketshim.logs import SafeLogger
from rocketshim_topics import Failure, MalformedRecordError, MessageView, wire
from rocketshim_topics.durations import duration_text
from rocketshim_topics.hops import MAX_FAIL_STACK_BYTES
from rocketshim_topics.wire import coordinates

__all__ = ["Attempt", "FailureLog", "FailureMaker"]

_REQUESTS: Final = (RetryLater, DeadLetter)
_MAX_TEXT_CHARS: Final = 300
_DEAD: Final = "message-dead"
_SENT_ON: Final = "sent-on"
_NOT_LOGGED: Final = "failures-not-logged"
_FRAMES: Final = 30
_MAX_TRACE_CHARS: Final = 16_384
_MAX_SOURCE_CHARS: Final = 200
_PATHS: Final = 256
_CHAIN: Final = 4  # exceptions of a chain of causes; user code may make a circle
# User code may have replaced these attributes in its class.
_traceback_of: Final[Callable[[BaseException], TracebackType | None]] = BaseException.__dict__["__traceback__"].__get__
_cause_of: Final[Callable[[BaseException], BaseException | None]] = BaseException.__dict__["__cause__"].__get__
_context_of: Final[Callable[[BaseException], BaseException | None]] = BaseException.__dict__["__context__"].__get__
_is_suppressed: Final[Callable[[BaseException], bool]] = BaseException.__dict__["__suppress_context__"].__get__


@dataclass(frozen=True, slots=True)
class _PathTrace:
    """What all exceptions that were raised by the same path have in common."""

    name: str
    place: str  # file and line that raised; empty if the exception was never raised
    stack_bytes: bytes  # empty if it is not wanted or cannot be made
    objects: tuple[Any, ...]  # code and classes of the path, kept so that no other object gets their identity


class FailureMaker:
    """Makes a `Failure` of an exception; without `wants_stack` it has no short stack trace.

    Thread-safety: any thread; it has no lock, since every listener thread may fail at the same time.
    """

    __slots__ = ("_clock", "_full_ms", "_known", "_wants_stack")

    def __init__(self, clock: Clock, *, wants_stack: bool = True) -> None:
        self._clock = clock
        self._wants_stack = wants_stack
        self._known: dict[tuple[int, ...], _PathTrace] = {}
        self._full_ms: dict[tuple[str, str], int] = {}  # when a cause's full trace is taken again, monotonic

    def of(self, error: BaseException) -> Failure:
        """Return what is known about an exception; a request (`RetryLater`, `DeadLetter`) has no stack trace."""
        path = self._path_of(error)
        if issubclass(type(error), _REQUESTS):
            return Failure(path.name, safe_text(error), self._clock.wall_ms(), path.place)
        stack, now_ms = "", self._clock.monotonic_ns() // 1_000_000
        cause = path.name, path.place  # many paths may lead there
        if now_ms >= self._full_ms.get(cause, 0):  # two threads may both take it; no failure waits for a lock
            self._full_ms[cause] = now_ms + WINDOW_MS
            stack = _full_trace(error)
        return Failure(path.name, safe_text(error), self._clock.wall_ms(), path.place, stack, path.stack_bytes)

    def _path_of(self, error: BaseException) -> _PathTrace:
        """Return the trace of the path by which an exception was raised. The first time it reads source lines."""
        path: list[int] = []
        add, each = path.append, error
        for _ in range(_CHAIN):  # `_chain`, written out: this runs for every failure
            add(id(type(each)))
            trace = _traceback_of(each)
            while trace is not None:
                add(id(trace.tb_frame.f_code))
                add(trace.tb_lasti)
                trace = trace.tb_next
            following = _cause_of(each)  # compared by identity: the truth of an exception is user code
            if following is None and not _is_suppressed(each):
                following = _context_of(each)
            if following is None:
                break
            each = following
        key = tuple(path)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _PATHS:
                self._known, self._full_ms = {}, {}
            known = self._known[key] = self._make(error)
        return known

    def _make(self, error: BaseException) -> _PathTrace:
        name, place, objects = class_name(error), "", []
        for each in _chain(error):
            objects += [type(each), *(trace.tb_frame.f_code for trace in _traces(each))]
        for trace in _traces(error):
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        return _PathTrace(name, place, _short_trace(error) if self._wants_stack else b"", tuple(objects))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its cause, the cause of that, and so on: what Python's stack traces show."""
    found: BaseException | None = error
    for _ in range(_CHAIN):
        if found is None:
            return
        yield found
        cause = _cause_of(found)
        found = cause if cause is not None or _is_suppressed(found) else _context_of(found)


def _traces(error: BaseException) -> Iterator[TracebackType]:
    trace = _traceback_of(error)
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _without_ours(error: BaseException) -> TracebackType | None:
    """Return the traceback from the first frame that is not rocketshim's."""
    trace = _traceback_of(error)
    while trace is not None and trace.tb_next is not None and _is_ours(trace):
        trace = trace.tb_next
    return trace


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__")).startswith("rocketshim.")


def _full_trace(error: BaseException) -> str:
    """Return the stack trace of an exception, at most its last 30 frames and 16 KiB; it calls user code."""
    try:
        text = "".join(traceback.format_exception(type(error), error, _without_ours(error), limit=-_FRAMES))
    except BaseException as failed:  # noqa: BLE001 - `__str__`, `__cause__` and others are user code
        return f"(the stack trace cannot be formatted: {class_name(failed)})"
    return text[-_MAX_TRACE_CHARS:]


def _short_trace(error: BaseException) -> bytes:
    """Return the frames of an exception and of its causes, the innermost last, as the last whole lines of 2 KiB."""
    lines: list[str] = []
    try:
        for each in reversed(list(_chain(error))):
            trace, frames = _without_ours(each), []
            while trace is not None:
                frames.append(trace)
                trace = trace.tb_next
            for frame in frames[-_FRAMES:]:
                lines += _frame_lines(frame)
            lines.append(class_name(each))
    except BaseException:  # noqa: BLE001 - a module's loader is user code: no trace, and the failure is sent back
        return b""
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
    return text if len(text) <= MAX_FAIL_STACK_BYTES else text[-MAX_FAIL_STACK_BYTES:].partition(b"\n")[2]


def _frame_lines(trace: TracebackType) -> list[str]:
    code = trace.tb_frame.f_code
    found = [f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}']
    source = linecache.getline(code.co_filename, trace.tb_lineno, trace.tb_frame.f_globals).strip()
    return [*found, f"    {source[:_MAX_SOURCE_CHARS]}"] if source else found


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt, and what follows."""

    record: str
    msg_id: str
    number: int  # the first attempt is 1
    limit: int | None  # None: it is never dead
    delay_ms: int | None  # None: there is no next attempt
    level: int | None = None
    event: str = _DEAD  # last part of the event's name if there is no next attempt
    end: str = ""  # what became of the message then


class FailureLog:
    """Logs the failed messages of one consumer; `prefix` begins the names of its events: `consumer` or `dropin`.

    Thread-safety: any thread may call every method; nothing is logged under its lock.
    """

    def __init__(
        self,
        log: SafeLogger,
        rules: HopMaker,
        *,
        prefix: str = "consumer",
        worker: WorkerWatch | None = None,
    ) -> None:
        self._log = log
        self._worker = worker
        self._rules = rules
        self._group = rules.group
        self._sent_on_causes: set[tuple[str, str]] = set()
        self._prefix = prefix
        self._lock = threading.Lock()
        self._windows: FailureWindows[tuple[str, str, bool]] = FailureWindows()

    def hop(self, hop: Hop, now_ms: int) -> None:
        """Log that a message has failed, and its next hop."""
        failure = hop.failed.failure
        if hop.kind is HopKind.SENT_ON:
            self._sent_on(hop, failure)
            return
        count = self.add(failure, now_ms, is_final=hop.kind is not HopKind.RETRY)
        if count:
            self.write(failure, self._attempt(hop), count)

    def _sent_on(self, hop: Hop, failure: Failure) -> None:
        """Log, once for a topic and a cause, that messages are sent on that this member cannot handle."""
        topic = safe_text((dict(hop.out.headers).get(wire.RETRY_TOPIC) or b"").decode("utf-8", "replace"))
        cause = topic, failure.exception_class
        with self._lock:
            if cause in self._sent_on_causes:
                return
            self._sent_on_causes.add(cause)
        event, after = f"{self._prefix}.{_SENT_ON}", duration_text(self._rules.send_on_timeout_ms)
        sentence = (
            f"{event}: this member of group {self._group} cannot handle retried messages of {one_line(topic)}: "
            f"{one_line(failure.exception_class)}: {one_line(failure.text[:_MAX_TEXT_CHARS])}; it sends them on to the "
            f"other members, uncounted, and makes them dead letters after {after}. "
            "Further ones of this topic are not logged"
        )
        facts = {
            "event": event,
            "group": self._group,
            "topic": topic,
            "error_class": failure.exception_class,
            "error": failure.text[:_MAX_TEXT_CHARS],
            "record": coordinates(hop.failed.message),
        }
        self._log.log(logging.ERROR, "%s", sentence, extra=facts)

    def _attempt(self, hop: Hop) -> Attempt:
        record = coordinates(hop.failed.message)
        if hop.kind is HopKind.PARKED:
            end = f"it is parked in {self._rules.names.parked} ({hop.reason})"
            return Attempt(record, record, max(1, hop.reconsume_times), None, None, event="message-parked", end=end)
        is_unlimited = self._rules.limit == -1 and hop.failed.reconsume_times is not None  # counted by an orderly queue
        attempts = None if is_unlimited else max(1, effective_limit(self._rules.limit, hop.message_limit) + 1)
        delay_ms: int | None = None
        level: int | None = None
        if hop.kind is HopKind.RETRY:
            delay_ms = int(dict(hop.out.headers)[wire.DELAY_MS] or 0)  # the one that was asked for may be longer
            if isinstance(hop.decision, AtLevel):
                level = self._rules.levels.clamp(hop.decision.level)
        end = f"it is a dead letter now, in {self._rules.names.dead_letter(self._group)}"
        msg_id = safe_text(hop.msg_id or record)
        return Attempt(record, msg_id, hop.reconsume_times, attempts, delay_ms, level, end=end)

    def add(self, failure: Failure, now_ms: int, *, is_final: bool) -> int:
        """Count a failure; return how many there were of its cause within a minute, or 0 if it is not to be logged."""
        with self._lock:
            return self._windows.note((failure.exception_class, failure.place, is_final), now_ms)

    def write(self, failure: Failure, attempt: Attempt, count: int) -> None:
        """Log a failure with the count that `add` returned: an error if the message is dead, else a warning."""
        name = "listener-failed" if attempt.delay_ms is not None else attempt.event
        event = f"{self._prefix}.{name}"
        text = one_line(failure.text[:_MAX_TEXT_CHARS])
        number = f"{attempt.number}" if attempt.limit is None else f"{attempt.number} of {attempt.limit}"
        message = attempt.record if attempt.msg_id == attempt.record else f"{attempt.msg_id} ({attempt.record})"
        sentence = (
            f"{event}: attempt {number} of message {one_line(message)} in group {self._group} failed: "
            f"{one_line(failure.exception_class)}: {text}; "
            + _what_follows(attempt, failure.at_ms, has_worker=self._worker is None or not self._worker.is_missing)
        )
        if count > 1:
            sentence += f" (failure {count} of this cause within a minute)"
        facts: dict[str, Any] = {
            "event": event,
            "group": self._group,
            "record": attempt.record,
            "msg_id": attempt.msg_id,
            "attempt": attempt.number,
            "attempts": attempt.limit,
            "delay_ms": attempt.delay_ms,
            "level": attempt.level,
            "error_class": failure.exception_class,
            "error": failure.text[:_MAX_TEXT_CHARS],
            "place": failure.place,
            "count": count,
            "traceback": failure.stack,
        }
        lines = [sentence, *(f"  {one_line(line)}" for line in failure.stack.rstrip().split("\n") if failure.stack)]
        self._log.log(
            logging.ERROR if name == _DEAD else logging.WARNING,
            "%s",
            "\n".join(lines),
            extra={name: value for name, value in facts.items() if value not in (None, "")},
        )

    def suspended(self, message: Any, failure: Failure, number: int, delay_ms: int, now_ms: int) -> None:
        """Log that a message of an orderly queue has failed, the `number`-th time, and holds up what is behind it."""
        count = self.add(failure, now_ms, is_final=False)
        if count:
            self.write(failure, Attempt(coordinates(message), _id_of(message), number, None, delay_ms), count)

    def dropped(self, message: Any, failure: Failure, now_ms: int) -> None:
        """Log that a message has failed where nothing is tried again."""
        count = self.add(failure, now_ms, is_final=True)
        if count:
            record, end = coordinates(message), "it is dropped, as always in BROADCASTING"
            self.write(failure, Attempt(record, record, 1, 1, None, event="dropped", end=end), count)

    def turn(self, now_ms: int) -> None:
        """Log how many failures of the minutes that have ended were not logged one by one."""
        with self._lock:
            ended = self._windows.ended(now_ms)
        for (name, place, is_final), count in ended:
            event = f"{self._prefix}.{_NOT_LOGGED}"
            what = "are not tried again" if is_final else "are tried again"
            where = f" at {place}" if place else ""
            self._log.warning(
                "%s",
                f"{event}: {count} more messages of group {self._group} failed within a minute: "
                f"{one_line(name)}{one_line(where)}; they {what}",
                extra={
                    "event": event,
                    "group": self._group,
                    "error_class": name,
                    "place": place,
                    "count": count,
                    "is_final": is_final,
                },
            )


def _id_of(message: Any) -> str:
    try:
        return safe_text(MessageView(message, trusted=True).msg_id)
    except MalformedRecordError:
        return coordinates(message)


def _what_follows(attempt: Attempt, failed_ms: int, *, has_worker: bool) -> str:
    if attempt.delay_ms is None:
        return attempt.end
    if not has_worker:
        return f"no worker runs: next attempt when one does, in {duration_text(attempt.delay_ms)} at the earliest"
    at = time.strftime("%H:%M:%S", time.localtime((failed_ms + attempt.delay_ms) // 1_000))
    level = "" if attempt.level is None else f" (level {attempt.level})"
    return f"next attempt in {duration_text(attempt.delay_ms)}{level}, at {at}"
