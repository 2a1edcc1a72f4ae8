"""The tokens of an expression are those of RocketMQ's token manager."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.errors import FilterSyntaxError
from rocketshim.filters.sql_parser import ILLEGAL, KEYWORDS, MAX_NESTING, SYMBOLS, SqlLexer


def cut(text: str) -> list[tuple[str, str]]:
    return [(token.type, str(token)) for token in SqlLexer().lex(text)]


def kinds(text: str) -> list[str]:
    return [token.type for token in SqlLexer().lex(text)]


@pytest.mark.parametrize("text", ["5.5", "5.", ".5", "5E3", "5e-3", "5.E+3", ".5e3", "007.5", "00E1", "0.0"])
def test_floats(text: str) -> None:
    assert cut(text) == [("FLOAT", text)]


@pytest.mark.parametrize("text", ["0", "5", "1234567890123456789012", "5l", "5L"])
def test_integers_with_an_optional_suffix(text: str) -> None:
    assert cut(text) == [("INTEGER", text)]


def test_zero_has_no_suffix() -> None:
    assert cut("0L") == [("INTEGER", "0"), ("NAME", "L")]


def test_the_longest_possible_number_is_taken() -> None:
    assert cut("5E") == [("INTEGER", "5"), ("NAME", "E")]
    assert cut("5.E") == [("FLOAT", "5."), ("NAME", "E")]
    assert cut("5..5") == [("FLOAT", "5."), ("FLOAT", ".5")]
    assert cut("5lx") == [("INTEGER", "5l"), ("NAME", "x")]
    assert cut("1.5f") == [("FLOAT", "1.5"), ("NAME", "f")]
    assert cut("5AND") == [("INTEGER", "5"), ("AND", "AND")]


def test_digits_with_leading_zeros_are_not_an_integer() -> None:
    assert cut("007") == [("INTEGER", "0"), (ILLEGAL, "07")]


def test_a_minus_is_never_part_of_a_number() -> None:
    assert cut("-5") == [("MINUS", "-"), ("INTEGER", "5")]
    assert cut("a-5") == [("NAME", "a"), ("MINUS", "-"), ("INTEGER", "5")]


@pytest.mark.parametrize("keyword", sorted(KEYWORDS))
def test_keywords_are_case_insensitive(keyword: str) -> None:
    for text in (keyword, keyword.lower(), keyword.title()):
        assert cut(text) == [(keyword, text)]


@pytest.mark.parametrize("text", ["ANDa", "_and", "and_", "IN5", "$", "_", "a$1", "NULLS", "LIKE", "now", "A9_$z"])
def test_names(text: str) -> None:
    assert cut(text) == [("NAME", text)]


@pytest.mark.parametrize("text", ["é", "ſ", "ı", "\u212a", "\uff21", "𝐚", "½"])
def test_names_are_ascii(text: str) -> None:
    assert cut(text) == [(ILLEGAL, text)]
    assert cut(f"a{text}") == [("NAME", "a"), (ILLEGAL, text)]


@pytest.mark.parametrize("symbol", sorted(SYMBOLS))
def test_symbols(symbol: str) -> None:
    assert cut(symbol) == [(SYMBOLS[symbol], symbol)]


def test_the_longest_symbol_is_taken() -> None:
    assert kinds("<=>") == ["LESS_OR_EQUAL", "GREATER"]
    assert kinds("<>=") == ["NOT_EQUAL", "EQUAL"]
    assert kinds("><") == ["GREATER", "LESS"]


@pytest.mark.parametrize("text", ["''", "'x'", "'it''s'", "''''", "'a -- b'", "'/*'", "'x\ny'", "'é😀'", "'\"'"])
def test_strings_run_to_the_next_single_quote_that_is_not_doubled(text: str) -> None:
    assert cut(text) == [("STRING", text)]


@pytest.mark.parametrize("text", ["'", "'x", "'''", "'it''s"])
def test_a_string_that_is_not_closed_is_illegal_as_a_whole(text: str) -> None:
    assert cut(text) == [(ILLEGAL, text)]


@pytest.mark.parametrize("character", ["!", '"', ".", "%", "*", "/", "[", "\\", "\x00", "\x0b", "\xa0", "\u2028", ";"])
def test_other_characters_are_illegal_and_end_the_scan(character: str) -> None:
    assert cut(f"a {character} b") == [("NAME", "a"), (ILLEGAL, character)]


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\r", "\f", " \n\r\t "])
def test_blanks(blank: str) -> None:
    assert kinds(f"{blank}a{blank}b{blank}") == ["NAME", "NAME"]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_line_comment_runs_to_the_line_end(end: str) -> None:
    assert cut(f"a -- b 'c /* {end}d") == [("NAME", "a"), ("NAME", "d")]
    assert cut(f"a --{end}") == [("NAME", "a")]


def test_without_a_line_end_there_is_no_line_comment() -> None:
    assert kinds("a --b") == ["NAME", "MINUS", "MINUS", "NAME"]
    assert kinds("\na --b") == ["NAME", "MINUS", "MINUS", "NAME"]
    assert kinds("a --b\fc") == ["NAME", "MINUS", "MINUS", "NAME", "NAME"]
    assert kinds("--") == ["MINUS", "MINUS"]


@pytest.mark.parametrize("comment", ["/**/", "/* x */", "/***/", "/* ** / */", "/* 'x */", "/* \n */", "/* /* */"])
def test_block_comments_do_not_nest(comment: str) -> None:
    assert cut(f"a{comment}b") == [("NAME", "a"), ("NAME", "b")]


@pytest.mark.parametrize("text", ["/*", "/*/", "/* *", "/* x"])
def test_a_block_comment_that_is_not_closed_is_illegal(text: str) -> None:
    assert cut(f"a {text}") == [("NAME", "a"), (ILLEGAL, "/")]


def test_tokens_have_their_positions() -> None:
    tokens = list(SqlLexer().lex(" a /* */ >= 'x' "))
    assert [(token.start_pos, token.end_pos) for token in tokens] == [(1, 2), (9, 11), (12, 15)]


def test_the_limit_counts_open_parentheses_at_one_position_not_in_the_whole_text() -> None:
    deepest = "(" * MAX_NESTING + ")" * MAX_NESTING
    assert len(cut(deepest * 3)) == 6 * MAX_NESTING
    with pytest.raises(FilterSyntaxError, match="at most 100 nested levels") as caught:
        cut(" " + "(" * (MAX_NESTING + 1))
    assert caught.value.position == MAX_NESTING + 1
    assert (caught.value.token,) == ("(",)


@given(st.text(st.sampled_from("ab05lLeE.'-/*\n\r \t()<>=,+_$é\x00")) | st.text())
def test_the_text_between_tokens_is_blanks_and_comments(text: str) -> None:
    position = 0
    for token in SqlLexer().lex(text):
        assert text[token.start_pos : token.end_pos] == str(token)
        between = text[position : token.start_pos]
        assert between == "" or between[0] in " \t\n\r\f-/"
        position = token.end_pos or 0
