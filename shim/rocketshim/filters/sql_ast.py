"""The syntax tree of an SQL92 filter expression.

A tree is what the parser accepted: every compile-time rule of RocketMQ has been checked, so whoever walks a tree
(the evaluator, the translation for Spark, a tool that prints a subscription) need not check again. Parentheses and the
plus sign have left no trace, because in RocketMQ they have none: `(a) IN ('x')` is a legal test of the property `a`.

Two things are kept apart that a reader of SQL would take for one:

* a `Property` and its use as a truth value, `Truth(Property)`: a message's properties are always text, and text is
  never true, so the latter is FALSE where the property exists and unknown where it does not;
* 32-bit and 64-bit integers: the size of a literal decides which property texts it can be compared with.

Chains of one logical operator are flat (`a AND b AND c` is one `And` with three terms): evaluation from left to right
is the same, and a subscription with a thousand alternatives is not a thousand levels deep.

`start` and `end` are 0-based character positions in the expression as given, `end` exclusive, and say where a node
stands; they do not count when nodes are compared.
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
    """Type of a literal. The type, not the look, decides how a property is converted before it is compared."""

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
        """True for the four that ask which is larger; False for `=` and `<>`."""
        return self not in (Operator.EQUAL, Operator.NOT_EQUAL)


class TextOperation(Enum):
    """A search in a text."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What every node has: where it stands in the expression, 0-based, `end` exclusive. Not compared."""

    start: int = field(default=0, compare=False, repr=False)
    end: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A constant: str, int, float (never 0.0, NaN or infinite), bool, or None for NULL."""

    value: str | int | float | bool | None
    type: LiteralType


@dataclass(frozen=True, slots=True)
class Property(Node):
    """The text of a message property; unknown where the message has none of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class Negate(Node):
    """`- operand`: the number with the other sign; unknown for anything that is not a number, a property included."""

    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Truth(Node):
    """A property where a truth value is asked for: FALSE if the message has it, unknown if not. Never TRUE."""

    operand: Property


@dataclass(frozen=True, slots=True)
class Not(Node):
    """`NOT operand`; binds to its operand alone, tighter than any comparison."""

    operand: "Expression"


@dataclass(frozen=True, slots=True)
class And(Node):
    """Two or more boolean terms: the first FALSE ends it; else unknown if any is; else TRUE."""

    terms: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    """Two or more boolean terms: the first TRUE ends it; else unknown if any is; else FALSE."""

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
    """`operand [NOT] BETWEEN low AND high`: `>= low AND <= high`, or `< low OR > high`, with their short circuit."""

    operand: "Expression"
    low: "Expression"
    high: "Expression"
    negated: bool


@dataclass(frozen=True, slots=True)
class In(Node):
    """`operand [NOT] IN (values)`: at least one value; repeated values are kept as written."""

    operand: Property
    values: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class TextTest(Node):
    """`operand [NOT] CONTAINS|STARTSWITH|ENDSWITH search`: FALSE, negated or not, where there is no text to search."""

    operation: TextOperation
    operand: "Expression"
    search: str
    negated: bool


Expression = Literal | Property | Negate | Truth | Not | And | Or | Compare | IsNull | Between | In | TextTest
"""Any node of the tree. The root of a parsed expression is always one for which `is_boolean` holds."""


def is_boolean(node: Expression) -> bool:
    """Whether a node yields a truth value (TRUE, FALSE or unknown), as RocketMQ types it: NULL does, a property not."""
    match node:
        case Literal(type=kind):
            return kind in (LiteralType.BOOLEAN, LiteralType.NULL)
        case Property() | Negate():
            return False
        case _:
            return True


def children(node: Expression) -> tuple[Expression, ...]:
    """The nodes directly below one, in the order in which they are evaluated."""
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
    """A node and every node below it, parents first, without recursion."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(children(current)))


def property_names(node: Expression) -> frozenset[str]:
    """The names of all properties that an expression asks for."""
    return frozenset(found.name for found in walk(node) if isinstance(found, Property))
