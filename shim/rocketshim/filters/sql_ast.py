"""The syntax tree of an SQL92 filter expression.

The parser has checked every compile-time rule of RocketMQ, so code that walks a tree (the compiler, the translation
for Spark, a tool that prints a subscription) does not check them again. The tree has no nodes for parentheses and the
plus sign, because they have no meaning in RocketMQ: `(a) IN ('x')` is a valid test of the property `a`.

Two distinctions may surprise a reader who knows SQL:

* A `Property` differs from its use as a truth value, `Truth(Property)`. Properties are always text, and text is never
  true, so `Truth` is FALSE if the property exists and unknown if it does not.
* 32-bit and 64-bit integers differ: the size of a literal determines which property texts it can be compared with.

A chain of one logical operator is flat (`a AND b AND c` is one `And` with three terms). Evaluation from left to right
gives the same result, and a subscription with a thousand alternatives is not a thousand levels deep.

`start` and `end` are the 0-based character positions of a node in the given expression; `end` is exclusive. They are
ignored when nodes are compared.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

__all__ = [
    "And",
    "Between",
    "Compare",
    "Expression",
    "In",
    "IsNull",
    "Literal",
    "LiteralType",
    "Negate",
    "Node",
    "Not",
    "Operator",
    "Or",
    "Property",
    "TextOperation",
    "TextTest",
    "Truth",
    "children",
    "is_boolean",
    "property_names",
    "walk",
]


class LiteralType(Enum):
    """The type of a literal. It determines how a property is converted before it is compared with the literal."""

    STRING = "string"
    INTEGER = "32-bit integer"
    LONG = "64-bit integer"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    NULL = "null"


class Operator(Enum):
    """A comparison of two values."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="

    @property
    def is_ordering(self) -> bool:
        """Whether the operator compares by order; False for `=` and `<>`."""
        return self not in (Operator.EQUAL, Operator.NOT_EQUAL)


class TextOperation(Enum):
    """A search in a text."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The base of every node: its position in the expression, 0-based, `end` exclusive. Ignored in comparisons."""

    start: int = field(default=0, compare=False, repr=False)
    end: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A constant: str, int, float (never 0.0, NaN or infinite), bool, or None for NULL."""

    value: str | int | float | bool | None
    type: LiteralType


@dataclass(frozen=True, slots=True)
class Property(Node):
    """The text of a message property; unknown if the message does not have the property."""

    name: str


@dataclass(frozen=True, slots=True)
class Negate(Node):
    """`- operand`: the negated number; unknown for anything that is not a number, including a property."""

    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Truth(Node):
    """A property that is used as a truth value: FALSE if the message has it, unknown if not. Never TRUE."""

    operand: Property


@dataclass(frozen=True, slots=True)
class Not(Node):
    """`NOT operand`; it binds more tightly than any comparison."""

    operand: "Expression"


@dataclass(frozen=True, slots=True)
class And(Node):
    """Two or more boolean terms. The first FALSE ends the evaluation; else unknown if any term is; else TRUE."""

    terms: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    """Two or more boolean terms. The first TRUE ends the evaluation; else unknown if any term is; else FALSE."""

    terms: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Compare(Node):
    """`left operator right`."""

    operator: Operator
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class IsNull(Node):
    """`operand IS [NOT] NULL`. Never unknown."""

    operand: "Expression"
    negated: bool


@dataclass(frozen=True, slots=True)
class Between(Node):
    """`operand [NOT] BETWEEN low AND high`: `>= low AND <= high`, or `< low OR > high`, with short-circuiting."""

    operand: "Expression"
    low: "Expression"
    high: "Expression"
    negated: bool


@dataclass(frozen=True, slots=True)
class In(Node):
    """`operand [NOT] IN (values)`, with at least one value; repeated values are kept."""

    operand: Property
    values: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class TextTest(Node):
    """`operand [NOT] CONTAINS|STARTSWITH|ENDSWITH search`: FALSE, negated or not, if there is no text to search."""

    operation: TextOperation
    operand: "Expression"
    search: str
    negated: bool


Expression = Literal | Property | Negate | Truth | Not | And | Or | Compare | IsNull | Between | In | TextTest
"""Any node of the tree. The root of a parsed expression is always one for which `is_boolean` holds."""


def is_boolean(node: Expression) -> bool:
    """Return whether a node has a truth value (TRUE, FALSE or unknown) in RocketMQ: NULL has one, a property not."""
    match node:
        case Literal(type=kind):
            return kind in (LiteralType.BOOLEAN, LiteralType.NULL)
        case Property() | Negate():
            return False
        case _:
            return True


def children(node: Expression) -> tuple[Expression, ...]:
    """Return the direct children of a node in evaluation order."""
    match node:
        case Literal() | Property():
            return ()
        case And(terms=terms) | Or(terms=terms):
            return terms
        case Compare(left=left, right=right):
            return (left, right)
        case Between(operand=operand, low=low, high=high):
            return (operand, low, high)
        case _:
            return (node.operand,)


def walk(node: Expression) -> Iterator[Expression]:
    """Yield a node and all its descendants, parents first, without recursion."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(children(current)))


def property_names(node: Expression) -> frozenset[str]:
    """Return the names of all properties in an expression."""
    return frozenset(found.name for found in walk(node) if isinstance(found, Property))
