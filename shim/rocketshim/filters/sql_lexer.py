r"""The lexer of SQL92 filter expressions. It produces exactly the tokens of RocketMQ 5.3's token manager.

At each position the longest token is taken, independent of what the grammar expects next. Some consequences are
surprising:

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

import re
from collections.abc import Iterator
from typing import Any, Final

from lark import Token
from lark.lexer import Lexer

from rocketshim.errors import FilterSyntaxError

__all__ = ["ILLEGAL", "KEYWORDS", "MAX_NESTING", "SYMBOLS", "SqlLexer", "syntax_error"]

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


def syntax_error(expression: str, position: int, token: str, expected: str, hint: str = "") -> FilterSyntaxError:
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
                    raise syntax_error(text, position, word, f"at most {MAX_NESTING} nested levels")
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
