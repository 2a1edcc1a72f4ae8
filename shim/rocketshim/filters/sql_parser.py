r"""Parse the text of an SQL92 filter expression into a tree, with RocketMQ 5.3's grammar and compile-time rules.

The grammar is LALR(1) and small: no arithmetic, no LIKE, no functions. Precedence from low to high: OR, AND,
equality (`=`, `<>`, `IS [NOT] NULL`), comparison (`<`, `BETWEEN`, `IN`, `CONTAINS` …), unary (`+`, `-`, `NOT`). NOT is
unary, which is easy to get wrong: `NOT a = 1` is `(NOT a) = 1`.

The tree is built while the text is read, in the order of the grammar's reductions and without recursion. Each step
checks what RocketMQ's constructors check, so a parsed tree is valid:

* AND, OR, NOT and the whole expression need truth values: a bare property becomes `Truth`, anything else is an error.
* An ordering operator and BETWEEN accept no string, boolean or NULL literal and no truth value.
* `=` and `<>` accept no NULL literal, and no TRUE or FALSE on the left of a string or number literal.
* If both bounds of BETWEEN are literals, the lower one must not exceed the upper one.
* IN needs a property on its left. IN, CONTAINS, STARTSWITH and ENDSWITH accept only string literals on their right (the
  grammar ensures that).
* An integer literal must fit into 64 bits. A float literal must be finite and at least 4.9E-324, so `0.0` is invalid.

Only *literals* are checked: `-5` is an operator and a literal, so `a BETWEEN -5 AND -10` is valid, as in RocketMQ.

Different on purpose: text after a complete expression is an error (RocketMQ ignores it, so that `a LIKE 'x%'` silently
selects nothing), and there are limits on length and nesting (RocketMQ has none).

Lark's parser object is built at its first use and then shared; it keeps no state between texts.

The lexer (`SqlLexer`) produces exactly the tokens of RocketMQ 5.3's token manager. At each position the longest token
is taken, independent of what the grammar expects next. Some consequences are surprising:

* `5.`, `.5`, `5E3`, `5.E3` and `007.5` are floats; `5l` and `5L` are integers; `0L` is `0` and a name.
* `5AND` is `5` and `AND`, but `ANDa` is a name. Keywords are case-insensitive, names case-sensitive; both are ASCII.
* A name has letters, digits, `_` and `$`; a dot or a dash ends it. A minus is never part of a number.
* `--` starts a comment only if the text has a line end after it. Otherwise it is two minus signs.
* `/* */` comments do not nest. Blanks are only space, tab, line feed, carriage return and form feed.
* A string ends at the next single quote that is not doubled; it may contain line ends.

Anything else (`!`, `"`, `.`, `%`, letters outside ASCII, an unclosed string or comment) becomes an `ILLEGAL` token. It
ends the scan, and the parser raises an error.

The lexer is a generator: the parser takes one token at a time, so the first error from the left is reported. Each
character is read at most a fixed number of times: the last line end of the text is known in advance, so a comment is
not searched in vain; repetitions in the pattern are possessive; and a zero followed by digits, which no grammar
rule allows, ends the scan instead of producing one token per zero. Open parentheses are counted, so that too deep
nesting is reported at its position and not after the whole text was read.
"""

import functools
import math
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedToken
from lark.lexer import Lexer

from rocketshim.errors import FilterSyntaxError
from rocketshim.filters.java_text import INT32_MAX, INT64_MAX
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
)

__all__ = [
    "ILLEGAL",
    "KEYWORDS",
    "MAX_EXPRESSION_CHARACTERS",
    "MAX_NESTING",
    "SYMBOLS",
    "SqlLexer",
    "parse",
]

MAX_NESTING: Final = 100
"""Maximum depth of an expression: open parentheses at one position, and nested operators."""

KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
"""Reserved words, case-insensitive; they cannot be property names."""

SYMBOLS: Final = {
    "=": "EQUAL",
    "<>": "NOT_EQUAL",
    ">": "GREATER",
    ">=": "GREATER_OR_EQUAL",
    "<": "LESS",
    "<=": "LESS_OR_EQUAL",
    "+": "PLUS",
    "-": "MINUS",
    "(": "LEFT_PARENTHESIS",
    ")": "RIGHT_PARENTHESIS",
    ",": "COMMA",
}
"""Operator text -> terminal name in the grammar."""

# No possessive quantifier on a group that can fail after its first character: Python 3.11.2 counts that character in.
_TOKEN = re.compile(
    r"""
    (?P<BLANK> [ \t\n\r\f]++ )
  | (?P<FLOAT> (?: [0-9]++ \. [0-9]*+ | \. [0-9]++ ) (?: [eE] [+-]? [0-9]++ )? | [0-9]++ [eE] [+-]? [0-9]++ )
  | (?P<ZEROS> 0 [0-9]++ )
  | (?P<INTEGER> 0 | [1-9] [0-9]*+ [lL]? )
  | (?P<WORD> [A-Za-z_$] [A-Za-z0-9_$]*+ )
  | (?P<STRING> ' [^']*+ (?: '' [^']*+ )*+ ' )
  | (?P<SYMBOL> <> | <= | >= | [=<>+\-(),] )
    """,
    re.VERBOSE | re.ASCII,
)

_LINE_END = re.compile(r"[\n\r]")

ILLEGAL: Final = "ILLEGAL"
"""Type of a token of invalid text. No grammar rule has it, so the parser raises an error and says what it expected."""

_SHOWN_CHARACTERS: Final = 40


def _syntax_error(expression: str, position: int, token: str, expected: str, hint: str = "") -> FilterSyntaxError:
    """Return the error for a token at a wrong position; `hint` says what its author may have meant."""
    shown = token if len(token) <= _SHOWN_CHARACTERS else token[: _SHOWN_CHARACTERS - 1] + "…"
    found = f"{shown!r}" if token else "the end of the expression"
    message = f"SQL92 filter, position {position}: found {found}, expected {expected}"
    return FilterSyntaxError(
        f"{message} ({hint})" if hint else message,
        expression=expression,
        position=position,
        token=token,
        expected=expected,
    )


class SqlLexer(Lexer):
    """A lexer that splits an expression into lark tokens. It has no state: all threads may share one object."""

    def __init__(self, _lexer_conf: Any = None) -> None:
        """Ignore lark's configuration of terminals: all terminals are declared in this module."""

    def lex(self, text: str) -> Iterator[Token]:  # type: ignore[override]  # lark's interface for custom lexers
        """Yield the tokens of a text from left to right, without blanks and comments.

        At a position where no token begins, it yields a token of type `ILLEGAL` and stops.

        Raises:
            FilterSyntaxError: parentheses are nested too deeply.
        """
        position = 0
        open_count = 0
        last_line_end = max(text.rfind("\n"), text.rfind("\r"))
        while position < len(text):
            after_comment = _comment_end(text, position, last_line_end)
            if after_comment is not None:
                position = after_comment
                continue
            match = _TOKEN.match(text, position)
            if match is None:
                word = text[position:] if text[position] == "'" else text[position]
                yield Token(ILLEGAL, word, start_pos=position, end_pos=position + len(word))
                return
            kind, word, end = str(match.lastgroup), match.group(), match.end()
            if kind == "ZEROS":
                yield Token("INTEGER", "0", start_pos=position, end_pos=position + 1)
                yield Token(ILLEGAL, word[1:], start_pos=position + 1, end_pos=end)
                return
            if kind == "WORD":
                kind = upper if (upper := word.upper()) in KEYWORDS else "NAME"
            elif kind == "SYMBOL":
                kind = SYMBOLS[word]
                open_count += (word == "(") - (word == ")")
                if open_count > MAX_NESTING:
                    raise _syntax_error(text, position, word, f"at most {MAX_NESTING} nested levels")
            if kind != "BLANK":
                yield Token(kind, word, start_pos=position, end_pos=end)
            position = end


def _comment_end(text: str, position: int, last_line_end: int) -> int | None:
    """Return the end of the comment that begins at this position; None if no comment begins here."""
    if text.startswith("--", position) and position < last_line_end:
        line_end = _LINE_END.search(text, position)
        return line_end.end() if line_end else None
    if text.startswith("/*", position):
        end = text.find("*/", position + 2)
        return end + 2 if end >= 0 else None
    return None


MAX_EXPRESSION_CHARACTERS: Final = 32_768
"""Maximum length of an expression in characters. RocketMQ has no limit."""

_SMALLEST_DOUBLE: Final = math.ulp(0.0)
"""4.9E-324: RocketMQ compares a float literal with Java's `Double.MIN_VALUE`, the smallest *positive* double."""
_INT64_DIGITS: Final = 19


_GRAMMAR: Final = r"""
start: disjunction

?disjunction: conjunction
            | conjunction (OR conjunction)+                                -> disjunction

?conjunction: equality
            | equality (AND equality)+                                     -> conjunction

?equality: comparison
         | equality (EQUAL | NOT_EQUAL) comparison                         -> compare
         | equality IS NULL                                                -> is_null
         | equality IS NOT NULL                                            -> is_null

?comparison: unary
           | comparison (GREATER | GREATER_OR_EQUAL | LESS | LESS_OR_EQUAL) unary   -> compare
           | comparison (CONTAINS | STARTSWITH | ENDSWITH) STRING          -> text_test
           | comparison NOT (CONTAINS | STARTSWITH | ENDSWITH) STRING      -> not_text_test
           | comparison BETWEEN unary AND unary                            -> between
           | comparison NOT BETWEEN unary AND unary                        -> not_between
           | comparison IN strings                                         -> in_list
           | comparison NOT IN strings                                     -> not_in_list

strings: LEFT_PARENTHESIS STRING (COMMA STRING)* RIGHT_PARENTHESIS

?unary: primary
      | PLUS unary                                                         -> plus
      | MINUS unary                                                        -> minus
      | NOT unary                                                          -> negation

?primary: STRING                                                           -> string
        | INTEGER                                                          -> integer
        | FLOAT                                                            -> float_number
        | TRUE                                                             -> true
        | FALSE                                                            -> false
        | NULL                                                             -> null
        | NAME                                                             -> name
        | LEFT_PARENTHESIS disjunction RIGHT_PARENTHESIS                   -> parenthesised
"""
_DECLARATION: Final = "%declare " + " ".join(
    ["STRING", "INTEGER", "FLOAT", "NAME", *sorted(KEYWORDS), *sorted(SYMBOLS.values())]
)
_NAMES_OF_TERMINALS: Final = (
    {"NAME": "a property name", "STRING": "a string in single quotes", "INTEGER": "an integer", "FLOAT": "a float"}
    | {name: symbol for symbol, name in SYMBOLS.items()}
    | {keyword: keyword for keyword in ("TRUE", "FALSE", "NULL", "NOT", "IS", "IN", "BETWEEN")}
    | {keyword: keyword for keyword in ("CONTAINS", "STARTSWITH", "ENDSWITH", "AND", "OR")}
    | {"$END": "the end of the expression"}
)
"""Terminal name -> its name in error messages, in the order in which error messages list them."""

_LEFT_OVER: Final = "a complete expression ends before this; RocketMQ ignores what follows"
_COMMENT: Final = "a comment -- needs a line end; without one it is two minus signs"
_LEFT_OVER_HINTS: Final = {
    "LIKE": "there is no LIKE: see CONTAINS, STARTSWITH and ENDSWITH",
    "(": "there are no functions",
    "-": "there is no arithmetic, and a property name has no dashes",
    "+": "there is no arithmetic",
}
_ILLEGAL_HINTS: Final = {
    '"': "strings take single quotes",
    "'": "the string is not closed",
    "!": "unequal is written <>",
    ".": "a property name has letters, digits, _ and $ only",
    "%": "there is no arithmetic",
    "*": "there is no arithmetic",
    "/": "there is no arithmetic, and a comment /* needs its */",
} | dict.fromkeys("0123456789", "an integer has no leading zeros")


class _Part(NamedTuple):
    """A node under construction, with the position of its text (including parentheses) and its depth."""

    node: Expression
    start: int
    end: int
    depth: int


class _RefusedError(Exception):
    """The text fits the grammar but breaks a compile-time rule; `parse` turns this into a `FilterSyntaxError`."""

    def __init__(self, start: int, end: int, expected: str, hint: str = "") -> None:
        super().__init__(expected)
        self.start = start
        self.end = end
        self.expected = expected
        self.hint = hint


def parse(expression: str) -> Expression:
    """Parse an SQL92 filter expression; the root of the tree is boolean.

    Raises:
        FilterSyntaxError: the expression is invalid; only the first error is reported.

    Thread-safety: any thread.
    Source: RocketMQ 5.3.3 `SelectorParser.jj`, `ComparisonExpression`, `UnaryExpression`, `ConstantExpression`.
    """
    if len(expression) > MAX_EXPRESSION_CHARACTERS:
        token = expression[MAX_EXPRESSION_CHARACTERS : MAX_EXPRESSION_CHARACTERS + 20]
        expected = f"the end: at most {MAX_EXPRESSION_CHARACTERS:,} characters, not {len(expression):,}"
        raise _syntax_error(expression, MAX_EXPRESSION_CHARACTERS, token, expected)
    try:
        root: Any = _parser().parse(expression)
    except UnexpectedToken as error:
        raise _unexpected(expression, error) from None
    except _RefusedError as refused:
        token = expression[refused.start : refused.end]
        raise _syntax_error(expression, refused.start, token, refused.expected, refused.hint) from None
    node: Expression = root
    return node


@functools.cache
def _parser() -> Lark:
    """Return the LALR parser. It is built once (about 10 ms) and kept until the process ends."""
    grammar = f"{_GRAMMAR}\n{_DECLARATION}"
    return Lark(grammar, parser="lalr", lexer=SqlLexer, transformer=_TreeBuilder(), maybe_placeholders=False)


@v_args(inline=True)
class _TreeBuilder(Transformer[Token, Expression]):
    """A transformer with one method per form of the grammar, which returns a node for its children. Stateless."""

    # --- values --------------------------------------------------------------------------------------------------

    def string(self, token: Token) -> _Part:
        return _literal(token, _unquoted(token), LiteralType.STRING)

    def integer(self, token: Token) -> _Part:
        digits = token.rstrip("lL")
        if len(digits) > _INT64_DIGITS or int(digits) > INT64_MAX:
            raise _RefusedError(*_span(token), f"an integer of at most 64 bit ({INT64_MAX})")
        value = int(digits)
        return _literal(token, value, LiteralType.INTEGER if value <= INT32_MAX else LiteralType.LONG)

    def float_number(self, token: Token) -> _Part:
        value = float(token)
        if value == math.inf or value < _SMALLEST_DOUBLE:
            hint = "0.0 is not a float literal in RocketMQ: compare with 0" if value == 0.0 else ""
            raise _RefusedError(*_span(token), f"a float between {_SMALLEST_DOUBLE} and {sys.float_info.max}", hint)
        return _literal(token, value, LiteralType.DOUBLE)

    def true(self, token: Token) -> _Part:
        return _literal(token, value=True, kind=LiteralType.BOOLEAN)

    def false(self, token: Token) -> _Part:
        return _literal(token, value=False, kind=LiteralType.BOOLEAN)

    def null(self, token: Token) -> _Part:
        return _literal(token, None, LiteralType.NULL)

    def name(self, token: Token) -> _Part:
        start, end = _span(token)
        return _Part(Property(str(token), start=start, end=end), start, end, 1)

    # --- unary ---------------------------------------------------------------------------------------------------

    def parenthesised(self, opening: Token, inner: _Part, closing: Token) -> _Part:
        return _Part(inner.node, _span(opening)[0], _span(closing)[1], inner.depth)

    def plus(self, sign: Token, operand: _Part) -> _Part:
        return _Part(operand.node, _span(sign)[0], operand.end, _deeper(_span(sign)[0], operand))

    def minus(self, sign: Token, operand: _Part) -> _Part:
        start, end = _span(sign)[0], operand.end
        return _Part(Negate(operand.node, start=start, end=end), start, end, _deeper(start, operand))

    def negation(self, keyword: Token, operand: _Part) -> _Part:
        start, end = _span(keyword)[0], operand.end
        node = Not(_condition(operand, "after NOT"), start=start, end=end)
        return _Part(node, start, end, _deeper(start, operand))

    # --- logic ---------------------------------------------------------------------------------------------------

    def disjunction(self, *items: _Part | Token) -> _Part:
        return _logic(Or, [item for item in items if isinstance(item, _Part)])

    def conjunction(self, *items: _Part | Token) -> _Part:
        return _logic(And, [item for item in items if isinstance(item, _Part)])

    # --- comparisons ---------------------------------------------------------------------------------------------

    def compare(self, left: _Part, symbol: Token, right: _Part) -> _Part:
        operator = Operator(str(symbol))
        if operator.is_ordering:
            _check_number(left, f"beside {symbol}")
            _check_number(right, f"beside {symbol}")
        else:
            _check_equality(left, right)
        start, end = left.start, right.end
        node = Compare(operator, left.node, right.node, start=start, end=end)
        return _Part(node, start, end, _deeper(start, left, right))

    def is_null(self, operand: _Part, *keywords: Token) -> _Part:
        start, end = operand.start, _span(keywords[-1])[1]
        node = IsNull(operand.node, negated=len(keywords) > len(("IS", "NULL")), start=start, end=end)
        return _Part(node, start, end, _deeper(start, operand))

    def between(self, operand: _Part, _between: Token, low: _Part, _and: Token, high: _Part) -> _Part:
        part = _between_part(operand, low, high, negated=False)
        _check_bounds(low, high)
        return part

    def not_between(self, operand: _Part, _not: Token, _between: Token, low: _Part, _and: Token, high: _Part) -> _Part:
        return _between_part(operand, low, high, negated=True)

    def in_list(self, operand: _Part, _in: Token, strings: list[Token]) -> _Part:
        return _in_part(operand, strings, negated=False)

    def not_in_list(self, operand: _Part, _not: Token, _in: Token, strings: list[Token]) -> _Part:
        return _in_part(operand, strings, negated=True)

    def text_test(self, operand: _Part, operation: Token, search: Token) -> _Part:
        return _text_part(operand, operation, search, negated=False)

    def not_text_test(self, operand: _Part, _not: Token, operation: Token, search: Token) -> _Part:
        return _text_part(operand, operation, search, negated=True)

    def strings(self, *tokens: Token) -> list[Token]:
        return list(tokens)

    def start(self, whole: _Part) -> Expression:
        return _condition(whole, "as the whole expression")


# --- rules for several forms --------------------------------------------------------------------------------------


def _span(token: Token) -> tuple[int, int]:
    return int(token.start_pos or 0), int(token.end_pos or 0)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _literal(token: Token, value: str | float | None, kind: LiteralType) -> _Part:
    start, end = _span(token)
    return _Part(Literal(value, kind, start=start, end=end), start, end, 1)


def _deeper(start: int, *operands: _Part) -> int:
    depth = 1 + max(operand.depth for operand in operands)
    if depth > MAX_NESTING:
        raise _RefusedError(start, operands[-1].end, f"at most {MAX_NESTING} nested levels")
    return depth


def _condition(part: _Part, where: str) -> Expression:
    """Return the part as a truth value; raise if it is not one."""
    node = part.node
    if isinstance(node, Property):
        return Truth(node, start=part.start, end=part.end)
    if not is_boolean(node):
        raise _RefusedError(part.start, part.end, f"a condition {where}")
    return node


def _logic(form: type[And | Or], parts: list[_Part]) -> _Part:
    where = f"beside {form.__name__.upper()}"
    terms = tuple(_condition(part, where) for part in parts)
    start, end = parts[0].start, parts[-1].end
    return _Part(form(terms, start=start, end=end), start, end, _deeper(start, *parts))


def _check_number(part: _Part, where: str) -> None:
    """Check an operand of an ordering operator: a literal must be a number, and a truth value is an error."""
    refused = is_boolean(part.node) or (isinstance(part.node, Literal) and part.node.type is LiteralType.STRING)
    if refused:
        raise _RefusedError(part.start, part.end, f"a number or a property {where}")


def _check_equality(left: _Part, right: _Part) -> None:
    for part in (left, right):
        if _literal_type(part) is LiteralType.NULL:
            raise _RefusedError(part.start, part.end, "a value beside = or <>", "ask with IS NULL or IS NOT NULL")
    if _literal_type(left) is LiteralType.BOOLEAN and _literal_type(right) not in (None, LiteralType.BOOLEAN):
        raise _RefusedError(right.start, right.end, "TRUE, FALSE or a property beside a boolean literal")


def _literal_type(part: _Part) -> LiteralType | None:
    return part.node.type if isinstance(part.node, Literal) else None


def _between_part(operand: _Part, low: _Part, high: _Part, *, negated: bool) -> _Part:
    for part in (operand, low, high):
        _check_number(part, "in BETWEEN")
    start, end = operand.start, high.end
    node = Between(operand.node, low.node, high.node, negated, start=start, end=end)
    return _Part(node, start, end, _deeper(start, operand, low, high))


def _check_bounds(low: _Part, high: _Part) -> None:
    """Check that the lower of two literal bounds does not exceed the upper one; mixed types are compared as floats."""
    if isinstance(low.node, Literal) and isinstance(high.node, Literal):
        least, most = low.node.value, high.node.value
        if isinstance(least, float) or isinstance(most, float):
            least, most = float(least or 0), float(most or 0)
        if isinstance(least, int | float) and isinstance(most, int | float) and most < least:
            raise _RefusedError(high.start, high.end, "an upper bound that is not below the lower one")


def _in_part(operand: _Part, strings: list[Token], *, negated: bool) -> _Part:
    if not isinstance(operand.node, Property):
        raise _RefusedError(operand.start, operand.end, "a property before IN")
    values = tuple(_unquoted(token) for token in strings if token.type == "STRING")
    start, end = operand.start, _span(strings[-1])[1]
    return _Part(In(operand.node, values, negated, start=start, end=end), start, end, _deeper(start, operand))


def _text_part(operand: _Part, operation: Token, search: Token, *, negated: bool) -> _Part:
    start, end = operand.start, _span(search)[1]
    node = TextTest(TextOperation(operation.upper()), operand.node, _unquoted(search), negated, start=start, end=end)
    return _Part(node, start, end, _deeper(start, operand))


def _unexpected(expression: str, error: UnexpectedToken) -> FilterSyntaxError:
    """Return the error for a token that does not fit, with the tokens that would."""
    accepted = error.accepts or error.expected
    expected = ", ".join(shown for name, shown in _NAMES_OF_TERMINALS.items() if name in accepted)
    position = len(expression) if error.token.type == "$END" else int(error.token.start_pos or 0)
    word = str(error.token)
    if expression.startswith("--", position):
        hint = _COMMENT
    elif error.token.type == ILLEGAL:
        hint = _ILLEGAL_HINTS.get(word[0], "")
    elif "$END" in accepted:
        hint = _LEFT_OVER_HINTS.get(word.upper(), _LEFT_OVER)
    else:
        hint = ""
    return _syntax_error(expression, position, word, expected, hint)
