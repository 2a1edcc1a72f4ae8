"""Consumer filters translated into Spark columns, with the same result for every record.

A translated expression selects the same messages in a job as in a consumer; an expression that cannot be translated
exactly is refused. An SQL92 tree becomes two columns, because Spark evaluates all parts of an expression:

* `value` is the truth value: true, false, or null for unknown. It is null if a conversion fails.
* `failed` says whether RocketMQ's evaluation, left to right with short circuit, would have reached that failure.

A record is selected if `value` is true and `failed` is false. In `A AND B`, a failure of B counts unless A is false; in
`A OR B`, unless A is true. A chain of terms becomes a balanced tree: the operators are associative, failures included,
and Spark's analyzer is recursive, so a chain of a thousand terms would be too deep for it.

Numbers are checked before they are converted, because Spark's casts accept other texts than Java's `Integer.valueOf`
and `Double.valueOf` (blanks around integers, `5.0` as an integer, `nan` and `inf` in any case). The consumer's patterns
check the text, then `try_cast` converts it. Spark and Java order doubles alike except for −0.0, which Java puts before
0.0. This makes a difference only between two properties, so only there the sign is compared too.

`FilterNotTranslatedError` names the refused part: a comparison of truth values (`(a = 1) = TRUE`), a text test of a
truth value, or a minus before anything but a number. RocketMQ defines these, but they are not useful. A
`CallableFilter` is refused too, because no Python code runs in Spark's executors.

Texts are compared with the session's default collation, which must be Spark's default, `UTF8_BINARY`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim.errors import FilterError, FilterEvaluationError
from rocketshim.filters import MessageFilter, SqlFilter, TagFilter
from rocketshim.filters.sql_ast import (
    And,
    Between,
    Compare,
    Expression,
    In,
    IsNull,
    Literal,
    LiteralType,
    Negate,
    Not,
    Operator,
    Or,
    Property,
    TextOperation,
    TextTest,
    Truth,
    is_boolean,
    property_names,
    walk,
)
from rocketshim.filters.sql_compiler import compile_test
from rocketshim.filters.tag import TAG_HEADER
from rocketshim_spark.java_columns import PARSERS, java_order, to_double
from rocketshim_topics.wire import RESERVED, SENT_TEXTS, USER_PREFIX

__all__ = [
    "FilterNotTranslatedError",
    "PropertyColumn",
    "SqlOutcome",
    "header_property",
    "selects",
    "sql_outcome",
]

_MAX_COMPARISONS: Final = 64
"""Spark compiles a condition to one Java method; a thousand comparisons overflow its stack (measured with 4.0.0)."""

PropertyColumn = Callable[[str], Column]
"""Returns the string column of a property by its name; null or `""` where a record has no such property."""


class FilterNotTranslatedError(FilterError):
    """A filter that cannot be translated into a Spark column. Use another expression, or filter outside of Spark.

    Attributes:
        part: the part of the expression that has no translation.
    """

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"cannot translate this filter into a Spark column: {part!r:.200} {reason}")
        self.part = part


@dataclass(frozen=True, slots=True)
class SqlOutcome:
    """The result of evaluating a condition for each record.

    Attributes:
        value: boolean column, null for unknown; meaningless where `failed` is true.
        failed: boolean column, never null: whether RocketMQ's evaluation fails. None: it cannot fail.
    """

    value: Column
    failed: Column | None = None

    @property
    def selected(self) -> Column:
        """Boolean column, never null: whether the record is selected."""
        matched = F.coalesce(self.value, F.lit(False))  # noqa: FBT003  # a Spark literal
        return matched if self.failed is None else matched & ~self.failed


def selects(message_filter: MessageFilter, property_column: PropertyColumn) -> Column:
    """Return the condition of a filter as a column, for `DataFrame.where`.

    Args:
        message_filter: a `TagFilter` or `SqlFilter`.
        property_column: returns the column of a property, for example
            `lambda name: header_property(F.col("headers"), name)`. It is called once for each property that the filter
            names (`TAGS` for a tag filter). If the filter uses a property many times, put it into a column of its own
            first.

    Returns:
        A boolean column, never null, equal to `message_filter.matches` for every record.

    Raises:
        FilterNotTranslatedError: the filter cannot be translated exactly.

    Thread-safety: any thread with an active Spark session.
    """
    if isinstance(message_filter, TagFilter):
        if message_filter.matches_all:
            return F.lit(True)  # noqa: FBT003  # a Spark literal
        return F.coalesce(property_column(TAG_HEADER).isin(sorted(message_filter.tags)), F.lit(False))  # noqa: FBT003
    if isinstance(message_filter, SqlFilter):
        return sql_outcome(message_filter, property_column).selected
    raise FilterNotTranslatedError(str(message_filter), "is Python code, which does not run in Spark's executors")


def sql_outcome(sql_filter: SqlFilter, property_column: PropertyColumn) -> SqlOutcome:
    """Return the result of an SQL92 condition for each record, with failures in a column of their own.

    A consumer does not receive a message whose evaluation fails; this function lets a job count those messages.

    Args:
        sql_filter: the condition.
        property_column: as for `selects`.

    Raises:
        FilterNotTranslatedError: a part cannot be translated exactly.
    """
    terms = sum(isinstance(node, Compare | Between) for node in walk(sql_filter.tree))
    if terms > _MAX_COMPARISONS:
        reason = f"has {terms} comparisons; Spark can compile {_MAX_COMPARISONS}: use IN, or split the filter"
        raise FilterNotTranslatedError(sql_filter.expression, reason)
    columns = {name: _text(property_column(name)) for name in sorted(sql_filter.properties)}
    return _Translation(sql_filter.expression, columns).outcome(sql_filter.tree)


def header_property(headers: Column, name: str) -> Column:
    """Return the text of a property from the headers column of Spark's Kafka source.

    The rules are those of the consumers. The first header of the name counts. An empty value is a missing property. A
    user's own property with a reserved name is read from its `USER.` header, except for `TAGS`, `KEYS` and `UNIQ_KEY`.
    Bytes that are not UTF-8 become U+FFFD.

    Args:
        headers: column of `array<struct<key: string, value: binary>>` (option `includeHeaders`), null without headers.
        name: name of the property.

    Returns:
        A string column, null where the record has no such property.
    """
    value = _first_value(headers, name)
    if name in RESERVED - SENT_TEXTS:
        own = USER_PREFIX + name
        has_own = F.exists(headers, lambda header: header["key"] == own)
        value = F.when(has_own, _first_value(headers, own)).otherwise(value)
    return _text(F.make_valid_utf8(value.cast("string")))


def _first_value(headers: Column, name: str) -> Column:
    named = F.filter(headers, lambda header: header["key"] == name)
    return F.try_element_at(named, F.lit(1))["value"]


def _text(column: Column) -> Column:
    return F.when(column != "", column)


class _Translation:
    """The translation of one SQL92 tree, by recursive descent; `outcome` translates a node."""

    def __init__(self, source: str, columns: dict[str, Column]) -> None:
        self._source = source
        self._columns = columns

    def outcome(self, node: Expression) -> SqlOutcome:
        if not property_names(node):
            return self._constant_outcome(node)
        match node:
            case And(terms=terms):
                return _chain([self.outcome(term) for term in terms], _and)
            case Or(terms=terms):
                return _chain([self.outcome(term) for term in terms], _or)
            case Not(operand=operand):
                inner = self.outcome(operand)
                return SqlOutcome(~inner.value, inner.failed)
            case Truth(operand=Property(name=name)):
                return SqlOutcome(F.when(self._columns[name].isNotNull(), F.lit(False)))  # noqa: FBT003
            case Compare(operator=operator, left=left, right=right):
                return self._compare(operator, left, right, node)
            case Between():
                return self._between(node)
            case _:
                return self._test(node)

    def _test(self, node: Expression) -> SqlOutcome:
        match node:
            case In(operand=Property(name=name), values=values, negated=negated):
                found = self._columns[name].isin(*map(self._string, values))
                return SqlOutcome(~found if negated else found)
            case TextTest():
                return self._text_test(node)
            case IsNull(operand=operand, negated=negated):
                return self._is_null(operand, negated)
            case _:
                raise self._refusal(node, "is not a condition")

    def _constant_outcome(self, node: Expression) -> SqlOutcome:
        try:
            value = compile_test(node, self._source)(lambda _name: None)
        except FilterEvaluationError:
            return SqlOutcome(_unknown(), F.lit(True))  # noqa: FBT003
        return SqlOutcome(F.lit(value).cast("boolean"))

    def _is_null(self, operand: Expression, negated: bool) -> SqlOutcome:
        if isinstance(operand, Property):
            inner = SqlOutcome(self._columns[operand.name])
        elif is_boolean(operand):
            inner = self.outcome(operand)
        else:
            raise self._refusal(operand, "is not a property or a condition")
        return SqlOutcome(inner.value.isNotNull() if negated else inner.value.isNull(), inner.failed)

    def _text_test(self, node: TextTest) -> SqlOutcome:
        if not node.search:
            return SqlOutcome(F.lit(False))  # noqa: FBT003
        if not isinstance(node.operand, Property):
            raise self._refusal(node.operand, "is not a property with a text to search in")
        text, search = self._columns[node.operand.name], self._string(node.search)
        found = {
            TextOperation.CONTAINS: text.contains,
            TextOperation.STARTSWITH: text.startswith,
            TextOperation.ENDSWITH: text.endswith,
        }[node.operation](F.lit(search))
        return SqlOutcome(F.coalesce(~found if node.negated else found, F.lit(False)))  # noqa: FBT003

    # --- comparisons ---------------------------------------------------------------------------------------------

    def _between(self, node: Between) -> SqlOutcome:
        above, below = (
            (Operator.LESS, Operator.GREATER) if node.negated else (Operator.GREATER_OR_EQUAL, Operator.LESS_OR_EQUAL)
        )
        halves = [
            self._compare(above, node.operand, node.low, node),
            self._compare(below, node.operand, node.high, node),
        ]
        return _chain(halves, _or if node.negated else _and)

    def _compare(self, operator: Operator, left: Expression, right: Expression, whole: Expression) -> SqlOutcome:
        lhs, rhs = self._operand(left), self._operand(right)
        if isinstance(lhs, Column):
            if isinstance(rhs, Column):
                return _ordered_texts(operator, lhs, rhs) if operator.is_ordering else _equal_texts(operator, lhs, rhs)
            return self._compare_with_constant(operator, lhs, rhs, None)
        if isinstance(rhs, Column):
            if lhs.type is LiteralType.BOOLEAN:
                # RocketMQ cannot compare a truth value on the left with a text: it fails if there is one.
                return SqlOutcome(F.lit(operator is Operator.NOT_EQUAL), rhs.isNotNull())
            missing = None if operator.is_ordering else operator is Operator.NOT_EQUAL
            return self._compare_with_constant(_MIRRORED.get(operator, operator), rhs, lhs, missing)
        # Two constants: one half of a BETWEEN whose other half has a property.
        folded = Compare(operator, left, right, start=whole.start, end=whole.end)
        return self._constant_outcome(folded)

    def _operand(self, node: Expression) -> Column | Literal:
        match node:
            case Property(name=name):
                return self._columns[name]
            case Literal():
                return node
            case Negate(operand=operand):
                inner = self._operand(operand)
                if isinstance(inner, Literal) and isinstance(inner.value, int | float) and inner.type in PARSERS:
                    return replace(inner, value=-inner.value)
                raise self._refusal(node, "is a minus before something that is not a number")
            case _:
                raise self._refusal(node, "is a comparison of a truth value")

    def _compare_with_constant(
        self, operator: Operator, text: Column, constant: Literal, missing: bool | None
    ) -> SqlOutcome:
        """Compare a text with a constant; `missing` is the result where there is no text."""
        if isinstance(constant.value, str):
            return SqlOutcome(
                _with_value_if_missing(
                    text, _apply_operator(operator, text, F.lit(self._string(constant.value))), missing
                )
            )
        if constant.type is LiteralType.BOOLEAN:
            return SqlOutcome(
                _with_value_if_missing(
                    text, _apply_operator(operator, text.rlike(_TRUE), F.lit(constant.value)), missing
                )
            )
        number = PARSERS[constant.type](text)
        value = _apply_operator(operator, number, _number_literal(constant))
        return SqlOutcome(_with_value_if_missing(text, value, missing), text.isNotNull() & number.isNull())

    # --- refusals ------------------------------------------------------------------------------------------------

    def _string(self, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise FilterNotTranslatedError(value, "has a lone surrogate, which a Spark column cannot hold") from error
        return value

    def _refusal(self, node: Expression, reason: str) -> FilterNotTranslatedError:
        return FilterNotTranslatedError(self._source[node.start : node.end], reason)


_MIRRORED = {
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_OR_EQUAL: Operator.LESS_OR_EQUAL,
    Operator.LESS: Operator.GREATER,
    Operator.LESS_OR_EQUAL: Operator.GREATER_OR_EQUAL,
}
_TRUE = r"\A(?i:true)\z"


def _unknown() -> Column:
    return F.lit(None).cast("boolean")


# --- logic --------------------------------------------------------------------------------------------------------


def _chain(outcomes: Sequence[SqlOutcome], join: Callable[[SqlOutcome, SqlOutcome], SqlOutcome]) -> SqlOutcome:
    """Join the terms of a chain into a balanced tree, in their order."""
    if len(outcomes) == 1:
        return outcomes[0]
    middle = len(outcomes) // 2
    return join(_chain(outcomes[:middle], join), _chain(outcomes[middle:], join))


def _and(left: SqlOutcome, right: SqlOutcome) -> SqlOutcome:
    continues = F.coalesce(left.value, F.lit(True))  # noqa: FBT003
    return SqlOutcome(left.value & right.value, _failed_in_sequence(left.failed, continues, right.failed))


def _or(left: SqlOutcome, right: SqlOutcome) -> SqlOutcome:
    continues = ~F.coalesce(left.value, F.lit(False))  # noqa: FBT003
    return SqlOutcome(left.value | right.value, _failed_in_sequence(left.failed, continues, right.failed))


def _failed_in_sequence(left: Column | None, continues: Column, right: Column | None) -> Column | None:
    if right is None:
        return left
    return continues & right if left is None else left | (continues & right)


# --- comparisons --------------------------------------------------------------------------------------------------


def _apply_operator(operator: Operator, left: Column, right: Column) -> Column:
    match operator:
        case Operator.EQUAL:
            return left == right
        case Operator.NOT_EQUAL:
            return left != right
        case Operator.GREATER:
            return left > right
        case Operator.GREATER_OR_EQUAL:
            return left >= right
        case Operator.LESS:
            return left < right
        case Operator.LESS_OR_EQUAL:
            return left <= right


def _with_value_if_missing(text: Column, value: Column, missing: bool | None) -> Column:
    if missing is None:
        return value  # null where the text is null
    return F.when(text.isNull(), F.lit(missing)).otherwise(value)


def _equal_texts(operator: Operator, left: Column, right: Column) -> SqlOutcome:
    """Compare two properties. Both missing: equal; only the left missing: unknown; only the right missing: unequal."""
    equal = F.when(right.isNull(), left.isNull()).otherwise(left == right)
    equal = F.when(left.isNull() & right.isNotNull(), _unknown()).otherwise(equal)
    return SqlOutcome(equal if operator is Operator.EQUAL else ~equal)


def _ordered_texts(operator: Operator, left: Column, right: Column) -> SqlOutcome:
    """Order two properties as doubles, −0.0 before 0.0. The result is unknown if one is missing."""
    both = left.isNotNull() & right.isNotNull()
    lhs, rhs = to_double(left), to_double(right)
    value = _apply_operator(operator, java_order(left, lhs), java_order(right, rhs))
    return SqlOutcome(F.when(lhs.isNotNull() & rhs.isNotNull(), value), both & (lhs.isNull() | rhs.isNull()))


# --- numbers ------------------------------------------------------------------------------------------------------


def _number_literal(constant: Literal) -> Column:
    return F.lit(constant.value).cast("double" if constant.type is LiteralType.DOUBLE else "bigint")
