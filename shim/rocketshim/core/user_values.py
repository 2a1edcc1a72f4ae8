"""Read the objects of user code with care: `str()` may raise, an attribute may be a property, a class may lie."""

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, Final

from rocketshim.errors import ConfigError

__all__ = ["as_int", "attribute", "check_hook", "class_name", "safe_text"]

_MAX_SHOWN_CHARS: Final = 4_096  # a record stores 1 KiB, and a log line needs no more
_QUALNAME: Final = type.__dict__["__qualname__"]


def safe_text(value: object, how: Callable[[Any], str] = str) -> str:
    """Return an object of user code as text, whatever its `str` or `repr` does; at most 4,096 characters.

    Args:
        value: anything.
        how: `str` or `repr`.
    """
    try:
        return str.__str__(how(value))[:_MAX_SHOWN_CHARS]  # a plain text, also of a subclass
    except BaseException as error:  # noqa: BLE001 - user code; the text reports the error
        return f"({how.__name__}() of a {class_name(value)} raised {class_name(error)})"


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


def as_int(value: object) -> int | None:
    """Return a whole number that user code has set, including numpy's; None: it is not a whole number."""
    try:
        return index(value)  # type: ignore[arg-type]  # it raises for any other type
    except BaseException:  # noqa: BLE001 - `__index__` is user code
        return None
