"""Filters by the program's own code, and `compile_filter`, which creates the filter of a subscription.

A selector is a Python object of the program, passed by reference. Nothing is ever imported or looked up by a name from
a message or a setting. This replaces RocketMQ's class-filter mode, which ran code that clients sent.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from rocketshim.core.subscriptions import filter_digest
from rocketshim.core.user_values import call_problem
from rocketshim.errors import ConfigError, FilterEvaluationError
from rocketshim.filters.sql import SqlFilter
from rocketshim.filters.tag import TagFilter, check_tags
from rocketshim_topics import MalformedRecordError
from rocketshim_topics.wire import BAD_HEADER_KEY, coordinates, read_headers

__all__ = [
    "CallableFilter",
    "MessageFilter",
    "MessageSelector",
    "as_selector",
    "compile_filter",
    "matching",
    "unreadable_headers",
]


class CallableFilter:
    """A filter by a function of the program, which gets the whole message: properties and body.

    Args:
        selector: a function of one message that returns True or False, or an object with such a method `matches`. If an
            object has `matches` and `__call__`, `matches` is used. It runs for each message and should be fast. A
            class, a coroutine function, a name, or a function of other arguments is not accepted.

    Attributes:
        expression: qualified name of the function, or of the object's class.
        expression_type: always `"CALLABLE"`.
        selector: the given object.

    Raises:
        ConfigError: the selector is not one of these.

    Thread-safety: that of the selector; the filter has no state.
    """

    __slots__ = ("_select", "expression", "selector")

    expression_type: Final = "CALLABLE"

    def __init__(self, selector: Any) -> None:
        self._select = _selecting_function(selector)
        self.selector = selector
        self.expression = _qualified_name(selector)

    def matches(self, message: Any) -> bool:
        """Return whether the message is selected.

        Args:
            message: the message as listeners get it.

        Raises:
            FilterEvaluationError: the selector raised (`__cause__` is its exception), or returned something other than
                True or False. Unlike with SQL92, the message is not the reason, so the caller must not drop it.
        """
        try:
            selected = self._select(message)
        except Exception as error:
            raise FilterEvaluationError(f"selector {self.expression} raised {type(error).__name__}: {error}") from error
        if selected is True or selected is False:
            return selected
        raise FilterEvaluationError(f"selector {self.expression} returned {selected!r}: it must return True or False")

    def digest(self) -> str:
        """Return 16 hex digits of the qualified name; two selectors with the same name have the same digest."""
        return filter_digest(self.expression_type, self.expression)

    def __eq__(self, other: object) -> bool:
        """Return whether the selectors are equal."""
        return self.selector == other.selector if isinstance(other, CallableFilter) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.expression_type, self.expression))

    def __str__(self) -> str:
        return self.expression

    def __repr__(self) -> str:
        return f"CallableFilter({self.expression})"


MessageFilter = TagFilter | SqlFilter | CallableFilter
"""Any filter of a subscription. Tag and SQL filters have `matches_headers` and need no message object."""


class MessageSelector:
    """A filter for pull consumers: `MessageSelector.by_tag("A || B")`, `MessageSelector.by_sql("a > 5")`.

    Attributes:
        filter: the compiled filter.
        expression_type: `"TAG"` or `"SQL92"`.
        expression: the given text (`"*"` if all messages are selected).

    Thread-safety: any thread; immutable.
    Source: RocketMQ `MessageSelector`. Different on purpose: the expression is compiled here, so an invalid one raises.
        RocketMQ's pull consumer does not get an error, and gets every message.
    """

    __slots__ = ("filter",)

    def __init__(self, message_filter: TagFilter | SqlFilter) -> None:
        self.filter = message_filter

    @classmethod
    def by_tag(cls, expression: str | None) -> "MessageSelector":
        """Select by tag.

        Args:
            expression: tags separated by `||`; None, `""` and `"*"` select everything.

        Raises:
            FilterSyntaxError: the expression consists only of separators, or is meant as SQL or as another list.
        """
        return cls(check_tags(expression))

    @classmethod
    def by_sql(cls, expression: str) -> "MessageSelector":
        """Select by an SQL92 condition.

        Args:
            expression: the condition; not empty.

        Raises:
            FilterSyntaxError: the expression does not compile.
        """
        return cls(SqlFilter(expression))

    @property
    def expression_type(self) -> str:
        """`"TAG"` or `"SQL92"`."""
        return self.filter.expression_type

    @property
    def expression(self) -> str:
        """The text of the filter."""
        return self.filter.expression

    def __eq__(self, other: object) -> bool:
        return self.filter == other.filter if isinstance(other, MessageSelector) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.filter)

    def __repr__(self) -> str:
        return f"MessageSelector({self.filter!r})"


def compile_filter(tags: str | None = None, sql: str | None = None, selector: Any = None) -> MessageFilter:
    """Create the filter of a subscription from the arguments of `listener(…)`.

    Args:
        tags: a tag expression (see `TagFilter`); None: no filter by tag.
        sql: an SQL92 condition (see `SqlFilter`); None: no filter by SQL.
        selector: a function or an object with `matches` (see `CallableFilter`), or a `MessageSelector`; None: neither.

    Returns:
        The filter. If all three arguments are None, it selects everything.

    Raises:
        ConfigError: more than one argument is given, or the selector cannot be used.
        FilterSyntaxError: an expression does not compile.
    """
    given = [name for name, value in (("tags", tags), ("sql", sql), ("selector", selector)) if value is not None]
    if len(given) > 1:
        raise ConfigError(f"a subscription has one filter, but got {' and '.join(given)}: combine them into one")
    if sql is not None:
        return SqlFilter(sql)
    if isinstance(selector, MessageSelector):
        return selector.filter
    if selector is not None:
        return CallableFilter(selector)
    return check_tags(tags)


def _selecting_function(selector: Any) -> Callable[[Any], Any]:
    if isinstance(selector, type):
        raise ConfigError(f"selector {selector.__qualname__} is a class: give an instance of it")
    found = getattr(selector, "matches", None)
    function = found if callable(found) else selector
    if not callable(function):
        raise ConfigError(
            f"selector {selector!r} is neither a function nor an object with a method matches(message); "
            "pass the object itself, not its name"
        )
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise ConfigError(
            f"selector {_qualified_name(selector)} is a coroutine function: a filter must be a plain function"
        )
    problem = call_problem(function, 1)
    if problem:
        raise ConfigError(f"selector {_qualified_name(selector)}: {problem}; it gets one message")
    select: Callable[[Any], Any] = function
    return select


def _qualified_name(selector: Any) -> str:
    while isinstance(selector, functools.partial):
        selector = selector.func
    named = selector if hasattr(selector, "__qualname__") else type(selector)
    return f"{named.__module__}.{named.__qualname__}"


def matching(
    matches: Callable[[Any], bool], records: Iterable[Any], unreadable: Callable[[Any, Exception], None]
) -> Iterator[Any]:
    """Yield the records that a filter selects; call `unreadable` with each record whose headers cannot be read."""
    for record in records:
        try:
            wanted = matches(read_headers(record))
        except Exception as error:  # noqa: BLE001 - of the client: header names that are not UTF-8, and future errors
            unreadable(record, error)
        else:
            if wanted:
                yield record


def as_selector(expression: MessageSelector | str | None) -> MessageSelector:
    """Convert a filter argument of a pull consumer: a text is a tag expression, None selects everything."""
    return expression if isinstance(expression, MessageSelector) else MessageSelector.by_tag(expression)


def unreadable_headers(record: Any) -> MalformedRecordError:
    """Return the error of a pull consumer for a message that no filter can evaluate."""
    return MalformedRecordError(
        BAD_HEADER_KEY,
        f"{coordinates(record)} was skipped: a header name is not UTF-8, so no expression can be evaluated on it; read "
        "it without an expression",
    )
