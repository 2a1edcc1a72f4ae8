"""Stack traces of exceptions of user code: one for the log, and a short one for the record of the failed message.

The short one has frames and the names of classes, but no texts of exceptions. It is made once for all exceptions that
were raised by the same path, so that a listener that always fails does not pay for it each time; their texts differ and
may be about other customers.
"""

import linecache
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from rocketshim.core.user_values import class_name
from rocketshim_topics.hops import MAX_FAIL_STACK_BYTES

__all__ = ["Cause", "PathTrace", "StackTraces", "full_trace"]

_FRAMES: Final = 30
_MAX_CHARS: Final = 16_384
_MAX_SOURCE_CHARS: Final = 200
_PATHS: Final = 256
_CHAIN: Final = 4  # exceptions of a chain of causes; user code may make a circle
# User code may have replaced these attributes in its class.
_traceback_of: Final[Callable[[BaseException], TracebackType | None]] = BaseException.__dict__["__traceback__"].__get__
_cause_of: Final[Callable[[BaseException], BaseException | None]] = BaseException.__dict__["__cause__"].__get__
_context_of: Final[Callable[[BaseException], BaseException | None]] = BaseException.__dict__["__context__"].__get__
_is_suppressed: Final[Callable[[BaseException], bool]] = BaseException.__dict__["__suppress_context__"].__get__


@dataclass(slots=True, eq=False)
class Cause:
    """The class of an exception and the line that raised it: many paths may lead there.

    Attributes:
        next_full_ms: when the full stack trace is taken again, as monotonic time in ms.
    """

    next_full_ms: int = 0


@dataclass(frozen=True, slots=True)
class PathTrace:
    """What all exceptions that were raised by the same path have in common.

    Attributes:
        name: class of the exception.
        place: file and line that raised; empty if the exception was never raised.
        cause: both of them, shared by all paths that lead there.
        stack_bytes: the short stack trace; empty if it is not wanted or cannot be made.
        objects: code and classes of the path. They are kept so that no other object gets their identity.
    """

    name: str
    place: str
    cause: Cause
    stack_bytes: bytes
    objects: tuple[Any, ...]


class StackTraces:
    """Makes the short stack trace of an exception, once for each path.

    Args:
        wants_stack: whether to make them; False: name and place only.

    Thread-safety: any thread.
    """

    __slots__ = ("_causes", "_known", "_wants_stack")

    def __init__(self, *, wants_stack: bool) -> None:
        self._wants_stack = wants_stack
        self._known: dict[tuple[int, ...], PathTrace] = {}
        self._causes: dict[tuple[str, str], Cause] = {}

    def of(self, error: BaseException) -> PathTrace:
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
                self._known, self._causes = {}, {}
            known = self._known[key] = self._make(error)
        return known

    def _make(self, error: BaseException) -> PathTrace:
        name, place, objects = class_name(error), "", []
        for each in _chain(error):
            objects += [type(each), *(trace.tb_frame.f_code for trace in _traces(each))]
        for trace in _traces(error):
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        cause = self._causes.setdefault((name, place), Cause())
        return PathTrace(name, place, cause, _short_trace(error) if self._wants_stack else b"", tuple(objects))


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


def full_trace(error: BaseException) -> str:
    """Return the stack trace of an exception, at most its last 30 frames and 16 KiB; it calls user code."""
    try:
        text = "".join(traceback.format_exception(type(error), error, _without_ours(error), limit=-_FRAMES))
    except BaseException as failed:  # noqa: BLE001 - `__str__`, `__cause__` and others are user code
        return f"(the stack trace cannot be formatted: {class_name(failed)})"
    return text[-_MAX_CHARS:]


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
