"""SQL92 expressions on message properties, evaluated as in the broker of RocketMQ 5.3.

The parts are `sql_parser` (text to tree, all compile-time rules), `sql_ast` (the tree), `sql_compiler` (tree to
closures) and `java_text` (conversion of properties to numbers). This module combines them in one class. Like RocketMQ,
it caches the last compiled expressions, including invalid ones.

The properties are the headers of the record, decoded from UTF-8. RocketMQ's system properties (`TAGS`, `KEYS`,
`UNIQ_KEY`) are headers here, so expressions can use them. Four rules determine the value of a property:

* The first header of that name counts, as everywhere in the wire format.
* A header with an empty value, or without a value, is a missing property. (RocketMQ loses empty properties on the way,
  so there `a IS NULL` is true.)
* If a user sets a property with a reserved name `X`, the topics of rocketshim carry it as `USER.X`. `USER.X` takes
  precedence over a header `X`, which then belongs to rocketshim. So a filter sees the same value on the retries of a
  message as on its first delivery. `TAGS`, `KEYS` and `UNIQ_KEY` are excluded: they always belong to the message, and
  `USER.TAGS` is only a repeated header that never counted.
* Bytes that are not UTF-8 become U+FFFD, because a header that someone else wrote must not stop a consumer.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rocketshim.core.subscriptions import filter_digest
from rocketshim.errors import ConfigError, FilterEvaluationError, FilterSyntaxError
from rocketshim.filters.sql_ast import Expression, property_names
from rocketshim.filters.sql_comparison import Test
from rocketshim.filters.sql_compiler import compile_test
from rocketshim.filters.sql_parser import parse
from rocketshim_topics.wire import RESERVED, SENT_TEXTS, USER_PREFIX

__all__ = ["CACHED_EXPRESSIONS", "SqlFilter"]

CACHED_EXPRESSIONS: Final = 100
"""Maximum number of cached expressions, including invalid ones; the least recently used one is removed first."""

_CACHED_CHARACTERS: Final = 4_096
"""Longer expressions are not cached, so that the cache is limited in size and not only in number."""


class _Compiled(NamedTuple):
    tree: Expression
    test: Test
    names: frozenset[str]


class _Refused(NamedTuple):
    """The content of a syntax error. If one exception object were raised again, its traceback would keep growing."""

    message: str
    position: int
    token: str
    expected: str


class SqlFilter:
    """A filter by an SQL92 condition on the properties of a message. Immutable.

    Args:
        expression: the condition, at most 32,768 characters long and 100 levels deep.

    Attributes:
        expression: the given text.
        expression_type: always `"SQL92"`.
        tree: the parsed condition (`rocketshim.filters.sql_ast`), for tools that translate it.
        properties: names of all properties in the expression.

    Raises:
        FilterSyntaxError: the expression is invalid; the error has the position, the token and what was expected.

    Thread-safety: any thread.
    Source: RocketMQ 5.3.3 `SelectorParser`, `ComparisonExpression`, `ExpressionMessageFilter`; measured against its
        filter module. Different on purpose: text after a complete expression is an error and not ignored.
    """

    __slots__ = ("_test", "_user_names", "_wanted", "expression", "properties", "tree")

    expression_type: Final = "SQL92"

    def __init__(self, expression: str) -> None:
        given: object = expression
        if not isinstance(given, str):
            raise ConfigError(f'{given!r:.80} is not an SQL condition: give one text, such as "price > 10"')
        compile_now = _compile if len(expression) <= _CACHED_CHARACTERS else _compile.__wrapped__
        outcome = compile_now(expression)
        if isinstance(outcome, _Refused):
            raise FilterSyntaxError(
                outcome.message,
                expression=expression,
                position=outcome.position,
                token=outcome.token,
                expected=outcome.expected,
            )
        self.expression = expression
        self.tree, self._test, self.properties = outcome
        self._user_names = frozenset(USER_PREFIX + name for name in (self.properties & RESERVED) - SENT_TEXTS)
        self._wanted = self.properties.union(self._user_names)

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Return the truth value for these properties: True, False, or None for unknown.

        Raises:
            FilterEvaluationError: RocketMQ's evaluation fails in this case, for example because a property is compared
                with an integer and its text is not an integer.
        """
        return self._test(properties.get)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether the condition is True for these properties; False if it is unknown or evaluation fails.

        Args:
            properties: properties of the message; a property with an empty text counts as missing.
        """
        try:
            return self._test(properties.get) is True
        except FilterEvaluationError:
            return False

    def matches_headers(self, headers: Sequence[tuple[str, bytes | None]] | None) -> bool:
        """Return whether a record with these headers is selected. Only headers that the expression names are decoded.

        Args:
            headers: the headers as the Kafka client returns them; None if there are none.

        Decides: What if a filter cannot be evaluated? An SQL condition that is unknown or on a value that is not a
            number does not match, so the message is finished. Not every condition on a missing property is unknown:
            `filters.sql_compiler`. If a selector raises, the message has failed (`consumer.listeners.wants`). A message
            with an unreadable header name is parked, as no hop can be made of it.
        """
        found: dict[str, str] = {}
        if headers is not None:
            wanted = self._wanted
            for name, value in headers:
                if name in wanted and name not in found:
                    found[name] = value.decode("utf-8", "replace") if value else ""
            for name in self._user_names:
                if name in found:
                    found[name.removeprefix(USER_PREFIX)] = found[name]
        try:
            return self._test(found.get) is True
        except FilterEvaluationError:
            return False

    def digest(self) -> str:
        """Return 16 hex digits that are equal for equal texts, in every process and version."""
        return filter_digest(self.expression_type, self.expression)

    def __eq__(self, other: object) -> bool:
        """Return whether the texts are equal; two texts for the same condition are two different filters."""
        return self.expression == other.expression if isinstance(other, SqlFilter) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.expression_type, self.expression))

    def __reduce__(self) -> tuple[type["SqlFilter"], tuple[str]]:
        """Pickle the filter as its text."""
        return type(self), (self.expression,)

    def __str__(self) -> str:
        return self.expression

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"


@functools.lru_cache(maxsize=CACHED_EXPRESSIONS)
def _compile(expression: str) -> _Compiled | _Refused:
    try:
        tree = parse(expression)
    except FilterSyntaxError as error:
        return _Refused(str(error), error.position, error.token, error.expected)
    return _Compiled(tree, compile_test(tree, expression), property_names(tree))
