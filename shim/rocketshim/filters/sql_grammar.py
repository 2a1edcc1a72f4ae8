"""The grammar of filter expressions, and the error for a text that does not fit it."""

from typing import Final

from lark.exceptions import UnexpectedToken

from rocketshim.errors import FilterSyntaxError
from rocketshim.filters.sql_lexer import ILLEGAL, KEYWORDS, SYMBOLS, syntax_error

__all__ = ["DECLARATION", "GRAMMAR", "unexpected"]

GRAMMAR: Final = r"""
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
DECLARATION: Final = "%declare " + " ".join(
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


def unexpected(expression: str, error: UnexpectedToken) -> FilterSyntaxError:
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
    return syntax_error(expression, position, word, expected, hint)
