"""SQL92 expressions over message properties, evaluated as RocketMQ 5.3's broker evaluates them.

The pieces: `sql_lexer` and `sql_parser` (text to tree, all compile-time rules), `sql_ast` (the tree), `sql_evaluator`
(tree to closures), `java_text` (how properties become numbers). This module puts them behind one class and keeps the
last compiled expressions, refused ones too, as RocketMQ does.

Properties are the record's headers, decoded from UTF-8; what RocketMQ shows as properties (`TAGS`, `KEYS`, `UNIQ_KEY`)
are headers here, and so visible. Four rules say which text a name stands for:

* the first header of that name counts, as everywhere on the wire;
* an empty value, or none, is a missing property (RocketMQ loses empty ones on the way, so `a IS NULL` is true);
* a reserved name `X` that was the user's own travels as `USER.X` on the shim's topics, and goes before a header `X`,
  which then is the shim's: so a filter sees the same on a message's retries as on its first delivery. Not so `TAGS`,
  `KEYS` and `UNIQ_KEY`, which are the message's own everywhere: `USER.TAGS` is a repeat that never counted;
* bytes that are not UTF-8 become U+FFFD: a header that others wrote must not stop a consumer.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rocketshim.errors import FilterEvaluationError, FilterSyntaxError
from rocketshim.filters.digest import subscription_digest
from rocketshim.filters.sql_ast import Expression, property_names
from rocketshim.filters.sql_evaluator import Test, compile_test
from rocketshim.filters.sql_parser import parse
from rocketshim_topics.wire import RESERVED, SENT_TEXTS, USER_PREFIX

__all__ = ["CACHED_EXPRESSIONS", "SqlFilter"]

CACHED_EXPRESSIONS: Final = 100
"""How many compiled expressions are kept, refused ones included; the least recently used goes first."""

_CACHED_CHARACTERS: Final = 4_096
"""Longer expressions are compiled each time: the cache is bounded in size too, not in number only."""


class _Compiled(NamedTuple):
    tree: Expression
    test: Test
    names: frozenset[str]


class _Refused(NamedTuple):
    """A syntax error, kept as what it says: raising one exception object again would grow its traceback for ever."""

    message: str
    position: int
    token: str
    expected: str


class SqlFilter:
    """Selects messages by an SQL92 condition on their properties. Immutable.

    Args:
        expression: the condition, at most 32,768 characters long and 100 levels deep.

    Attributes:
        expression: the text as given.
        expression_type: always `"SQL92"`.
        tree: the parsed condition (`rocketshim.filters.sql_ast`), for tools that translate it.
        properties: the names of all properties that the expression mentions.

    Raises:
        FilterSyntaxError: with position, token and what was expected instead.

    Thread-safety: any thread.
    Source: RocketMQ 5.3.3 `SelectorParser`, `ComparisonExpression`, `ExpressionMessageFilter`; measured against its
        filter module. Different on purpose: text after a complete expression is refused, not ignored.
    """

    __slots__ = ("_test", "_user_names", "_wanted", "expression", "properties", "tree")

    expression_type: Final = "SQL92"

    def __init__(self, expression: str) -> None:
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
        """The truth value for these properties: True, False, or None for unknown.

        Raises:
            FilterEvaluationError: RocketMQ's evaluation fails here, for example because a property that is compared
                with an integer is not the text of one.
        """
        return self._test(properties.get)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties is selected: evaluation gives True. Unknown and errors are not.

        Args:
            properties: the message's properties; one with an empty text counts as missing.
        """
        try:
            return self._test(properties.get) is True
        except FilterEvaluationError:
            return False

    def matches_headers(self, headers: Sequence[tuple[str, bytes | None]] | None) -> bool:
        """Whether a record with these headers is selected. Decodes the headers that the expression names, no other.

        Args:
            headers: the headers as the Kafka client hands them out; None if there are none.
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
        """16 hex digits that are equal for equal texts, in every process and version."""
        return subscription_digest(self.expression_type, self.expression)

    def __eq__(self, other: object) -> bool:
        """Equal if the texts are: two ways to write one condition are two filters."""
        return self.expression == other.expression if isinstance(other, SqlFilter) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.expression_type, self.expression))

    def __reduce__(self) -> tuple[type["SqlFilter"], tuple[str]]:
        """Travels to other processes as its text."""
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
