r"""The words of an SQL92 filter expression, cut exactly as RocketMQ 5.3's token manager cuts them.

At each place the longest word wins, and there is no look at what the grammar would like to see next. What follows
from that and surprises people:

* `5.`, `.5`, `5E3` and `5.E3` are floats; `007.5` is one, too; `5l` and `5L` are integers, `0L` is `0` and a name;
* `5AND` is `5` and `AND`, but `ANDa` is a name; keywords in any case, names case-sensitive, both plain ASCII;
* a name has letters, digits, `_` and `$`; a dot or a dash ends it; a minus never belongs to a number;
* `--` begins a comment only if a line end follows somewhere. Without one it is two minus signs;
* `/* */` comments do not nest; blanks are space, tab, line feed, carriage return and form feed, nothing else;
* a string runs to the next single quote that is not doubled, over line ends too.

Anything else (`!`, `"`, `.`, `%`, letters outside ASCII, an unclosed string or comment) becomes an `ILLEGAL` token,
which ends the scan and which the parser refuses.

The lexer is a generator: the parser pulls one token at a time, so the error reported is the first from the left. No
character is looked at more than a fixed number of times: what a comment may run to is known beforehand (the last line
end of the text), repetitions in the pattern are possessive, and a zero followed by digits, which no grammar rule
allows, ends the scan instead of being cut zero by zero. Opening parentheses are counted, so that nesting is refused
where it gets too deep and not after everything was read.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from lark import Token
from lark.lexer import Lexer

from rocketshim.errors import FilterSyntaxError

__all__ = ["ILLEGAL", "KEYWORDS", "MAX_NESTING", "SYMBOLS", "SqlLexer", "syntax_error"]

MAX_NESTING: Final = 100
"""Levels an expression may be deep: open parentheses at one place, and operators inside one another."""

KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
"""Reserved words; in any case they are never property names."""

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

_TOKEN = re.compile(
    r"""
    (?P<BLANK> [ \t\n\r\f]++ )
  | (?P<FLOAT> (?: [0-9]++ \. [0-9]*+ | \. [0-9]++ ) (?: [eE] [+-]? [0-9]++ )?+ | [0-9]++ [eE] [+-]? [0-9]++ )
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
"""Type of the token made of what is none. No grammar rule has it, so the parser refuses it and says what it wanted."""

_SHOWN_CHARACTERS: Final = 40


def syntax_error(expression: str, position: int, token: str, expected: str, hint: str = "") -> FilterSyntaxError:
    """The error for a token that may not stand where it stands; `hint` says what its author may have meant."""
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
    """Cuts an expression into lark tokens. Stateless: one object serves all threads."""

    def __init__(self, _lexer_conf: Any = None) -> None:
        """Lark hands over its configuration of terminals, of which nothing is needed: they are all declared here."""

    def lex(self, text: str) -> Iterator[Token]:  # type: ignore[override]  # lark's interface for custom lexers
        """The tokens of a text from left to right, without blanks and comments.

        Where no token begins, the last one yielded is of type `ILLEGAL`.

        Raises:
            FilterSyntaxError: parentheses are nested too deep.
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
    """Where the comment that begins here ends, or None if none does."""
    if text.startswith("--", position) and position < last_line_end:
        line_end = _LINE_END.search(text, position)
        return line_end.end() if line_end else None
    if text.startswith("/*", position):
        end = text.find("*/", position + 2)
        return end + 2 if end >= 0 else None
    return None
