"""Read, check and show what comes from user code and from records.

*Objects of user code*: `str()` may raise, an attribute may be a property, a class may lie.

*Texts of records* (failure texts, header names, ids, names of members): anybody may write records. A control character
would steer the terminal, and a line end would begin a line that looks like our own. So each log line, terminal line and
page shows them through `one_line` or `printable_lines`.
"""

import inspect
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, Final

from rocketshim.errors import ConfigError

__all__ = [
    "as_int",
    "attribute",
    "call_problem",
    "check_hook",
    "class_name",
    "count_text",
    "one_line",
    "printable_lines",
    "safe_text",
    "signature_of",
    "takes",
]

_MAX_SHOWN_CHARS: Final = 4_096  # a record stores 1 KiB, and a log line needs no more
_QUALNAME: Final = type.__dict__["__qualname__"]


def count_text(count: int, noun: str) -> str:
    """Return a number of things for a person: `1 dead letter`, `2 dead letters`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def safe_text(value: object, how: Callable[[Any], str] = str) -> str:
    """Return an object of user code as text, whatever its `str` or `repr` does; at most 4,096 characters."""
    try:
        return str.__str__(how(value))[:_MAX_SHOWN_CHARS]  # a plain text, also of a subclass
    except BaseException as error:  # noqa: BLE001 - user code; the text reports the error
        return f"({how.__name__}() of a {class_name(value)} raised {class_name(error)})"


def one_line(text: str) -> str:
    """Return an untrusted text as one line, with line ends, tabs and other non-printable characters escaped."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """Apply `one_line` to each line; use it only where a text may take several lines."""
    return "\n".join(map(one_line, text.split("\n")))


def class_name(value: object) -> str:
    """Return the qualified name of an object's class, even if its class or metaclass lies about it."""
    return str.__str__(_QUALNAME.__get__(type(value)))


def attribute(value: object, name: str, default: object = None) -> object:
    """Return an attribute of an object of user code; return the default if it cannot be read."""
    try:
        return getattr(value, name, default)
    except BaseException:  # noqa: BLE001 - `__getattribute__` and properties are user code
        return default


def check_hook(hook: object, methods: Sequence[str]) -> None:
    """Raise a ConfigError if an object lacks one of the methods of a hook."""
    missing = [name for name in methods if isinstance(hook, type) or not callable(attribute(hook, name))]
    if missing:
        raise ConfigError(
            f"{safe_text(hook, repr):.80} is not a hook: pass an object with the method {' and '.join(missing)}"
        )
    for name in methods:
        problem = call_problem(attribute(hook, name), 1)
        if problem:
            raise ConfigError(f"{safe_text(hook, repr):.80} is not a hook: {problem}; write {name}(self, context)")


def call_problem(function: object, count: int) -> str:
    """Return why a function of a program cannot be called with `count` arguments for a plain value; `""` if it can.

    Such a mistake of a program would otherwise look like a failure of each message.
    """
    if not callable(function):
        return f"{safe_text(function, repr):.80} cannot be called"
    for each in (function, attribute(function, "__call__")):
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            return f"{_name_of(function)} is an async function, and nothing awaits it"
        if inspect.isgeneratorfunction(each):
            return f"{_name_of(function)} is a generator function, because it contains yield"
    if not takes(function, count):
        return f"{_name_of(function)} does not take {count} argument{'s'[: count != 1]}"
    return ""


def takes(function: Callable[..., object], count: int) -> bool:
    """Return whether a function takes a number of positional arguments; True also if that is not known."""
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Return the arguments that a function can be called with.

    A decorator with `functools.wraps` shows those of the function in it. They count only if it passes on what it gets;
    otherwise it adds arguments of its own, such as a session of a database.

    Raises:
        TypeError, ValueError: they are not known, as of some functions in C.
    """
    own = inspect.signature(function, follow_wrapped=False)
    passes_on = any(each.kind is each.VAR_POSITIONAL for each in own.parameters.values())
    return inspect.signature(function) if passes_on else own


def _name_of(function: object) -> str:
    name = attribute(function, "__qualname__")
    return name if isinstance(name, str) else safe_text(function, repr)[:80]


def as_int(value: object) -> int | None:
    """Return a whole number that user code has set, including numpy's; None: it is not a whole number."""
    try:
        return index(value)  # type: ignore[arg-type]  # it raises for any other type
    except BaseException:  # noqa: BLE001 - `__index__` is user code
        return None
