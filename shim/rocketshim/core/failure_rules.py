"""Which exceptions of a listener are final: `dead_on` and `retry_on` of a listener.

What the listener asks for by itself (`RetryLater`, `DeadLetter`, its context) counts before these rules, `dead_on`
before `retry_on`. As with `except`, a class stands for its subclasses, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rocketshim.errors import ConfigError

__all__ = ["ExceptionTypes", "FailureRules", "Rules", "failure_rules"]

ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]
"""A class of exceptions or several, as in an `except` clause."""

_MRO: Final = type.__dict__["__mro__"]  # a metaclass of user code may have replaced it


@dataclass(frozen=True, slots=True)
class FailureRules:
    """The rules of one listener."""

    dead_on: tuple[type[BaseException], ...] = ()
    retry_on: tuple[type[BaseException], ...] | None = None  # None: all that are not in `dead_on`

    def is_final(self, kind: type[BaseException]) -> bool:
        """Return whether a message for which the listener raised this class is not tried again; calls no user code."""
        bases = {id(base) for base in _MRO.__get__(kind)}
        if _contain(bases, self.dead_on):
            return True
        return self.retry_on is not None and not _contain(bases, self.retry_on)


Rules = FailureRules | None


def _contain(bases: set[int], kinds: Iterable[type]) -> bool:
    return any(id(kind) in bases for kind in kinds)


def failure_rules(dead_on: ExceptionTypes | None, retry_on: ExceptionTypes | None) -> FailureRules | None:
    """Return the rules of a listener; None: it has none.

    An argument that is not an exception class or a tuple of them is a `ConfigError`, and so is a class in both.
    """
    if dead_on is None and retry_on is None:
        return None
    rules = FailureRules(
        () if dead_on is None else _checked("dead_on", dead_on),
        None if retry_on is None else _checked("retry_on", retry_on),
    )
    both = [kind.__name__ for kind in rules.dead_on if kind in (rules.retry_on or ())]
    if both:
        raise ConfigError(f"{both[0]} is in dead_on and in retry_on: leave it in one of them")
    return rules


def _checked(name: str, given: object) -> tuple[type[BaseException], ...]:
    kinds = given if isinstance(given, tuple) else (given,)
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise ConfigError(f"{name} has {kind!r:.80}: give classes of exceptions, as in {name}=(ValueError,)")
    return kinds
