"""Java's conversion of text to numbers, compared with a second implementation of the rules with exact arithmetic."""

import math
import unicodedata
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketshim.filters.java_text import double_key, parse_bool, parse_double, parse_int32, parse_int64


def read_integer(text: str, bits: int) -> int | None:
    """`Integer.parseInt`, character by character."""
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") and text else ("", text)
    if not digits:
        return None
    value = 0
    for character in digits:
        digit = unicodedata.decimal(character, None)
        if digit is None or ord(character) > 0xFFFF:
            return None
        value = value * 10 + digit
    value = -value if sign == "-" else value
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def read_double(text: str) -> float | None:
    """`Double.parseDouble`, with fractions; None where it fails."""
    rest = text.strip("".join(map(chr, range(33))))
    negative = rest.startswith("-")
    rest = rest[1:] if rest[:1] in ("+", "-") and rest else rest
    if rest in ("NaN", "Infinity"):
        return math.nan if rest == "NaN" else -math.inf if negative else math.inf
    if rest[-1:] and rest[-1] in "fFdD" and rest[:2].lower() != "0x":
        rest = rest[:-1]
    value = read_hexadecimal(rest) if rest[:2].lower() == "0x" else read_decimal(rest)
    if value is None:
        return None
    try:
        magnitude = float(value)
    except OverflowError:
        magnitude = math.inf
    return -magnitude if negative else magnitude


def read_decimal(text: str) -> Fraction | None:
    mantissa, found, exponent = text.replace("E", "e").partition("e")
    power = read_power(exponent) if found else 0
    return None if power is None else read_scaled(mantissa, "0123456789", 10, 10, power)


def read_hexadecimal(text: str) -> Fraction | None:
    mantissa, found, exponent = text[2:].replace("P", "p").partition("p")
    if exponent[-1:] and exponent[-1] in "fFdD":
        exponent = exponent[:-1]
    power = read_power(exponent) if found else None
    return None if power is None else read_scaled(mantissa.lower(), "0123456789abcdef", 16, 2, power)


def read_power(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("+", "-") and text else text
    if not digits or not set(digits) <= set("0123456789"):
        return None
    return max(-5000, min(5000, int(text)))


def read_scaled(mantissa: str, alphabet: str, base: int, power_base: int, power: int) -> Fraction | None:
    whole, _, part = mantissa.partition(".")
    digits = whole + part
    if not digits or not set(digits) <= set(alphabet):
        return None
    return Fraction(int(digits, base)) / Fraction(base) ** len(part) * Fraction(power_base) ** power


digit_texts = st.text("0123456789", max_size=24)
number_texts = st.one_of(
    st.text("0123456789+-.eEdDfFxXpPabc ", max_size=16),
    st.builds(
        "{}{}{}{}{}{}".format,
        st.sampled_from(["", "+", "-", " ", "\t-"]),
        digit_texts,
        st.sampled_from(["", ".", "."]),
        digit_texts,
        st.sampled_from(["", "e5", "E+12", "e-310", "e308", "e", "E99999999999"]),
        st.sampled_from(["", "d", "F", "\n", " ", "L", "dd"]),
    ),
    st.builds(
        "{}0{}{}{}{}p{}{}".format,
        st.sampled_from(["", "+", "-", " "]),
        st.sampled_from("xX"),
        st.text("0123456789abcdefABCDEF", max_size=16),
        st.sampled_from(["", "."]),
        st.text("0123456789abcdefABCDEF", max_size=16),
        st.integers(-1200, 1200) | st.just(10**12) | st.just(-(10**12)),
        st.sampled_from(["", "d", "f"]),
    ),
    st.sampled_from(["NaN", "Infinity", "+NaN", "-Infinity", "nan", "inf", "INFINITY", "NaNd", "1_000", "٣", "५", "𝟓"]),
    st.floats().map(repr),
    st.integers().map(str),
    st.text(max_size=6),
)


@given(number_texts)
@example("0000000000000000000000000000000000000000000005")
@example("٣" * 5000)
@example("0" * 5000 + "7")
@example("2147483648")
@example("-2147483648")
@example("+")
def test_integers_are_read_as_java_reads_them(text: str) -> None:
    for parse, bits in ((parse_int32, 32), (parse_int64, 64)):
        expected = read_integer(text, bits)
        if expected is None:
            with pytest.raises(ValueError, match=f"is not a {bits}-bit integer"):
                parse(text)
        else:
            assert parse(text) == expected


@given(number_texts)
@example("0x.8p1")
@example("0x1.p3")
@example("0x0p99999999999")
@example("-0x1p-99999999999")
@example("0x1p1024")
@example("1.f")
@example(".")
@example("\x00 5")
@example("\u00a05")
@example("-0.0")
def test_doubles_are_read_as_java_reads_them(text: str) -> None:
    expected = read_double(text)
    if expected is None:
        with pytest.raises(ValueError, match="is not a double"):
            parse_double(text)
    else:
        assert double_key(parse_double(text)) == double_key(expected)


@pytest.mark.parametrize("text", ["true", "TRUE", "True", "tRuE"])
def test_true_in_any_case_is_true(text: str) -> None:
    assert parse_bool(text)


@pytest.mark.parametrize("text", ["", "false", "yes", "1", " true", "true ", "t", "truly", "truee"])
def test_every_other_text_is_false(text: str) -> None:
    assert not parse_bool(text)


def test_doubles_are_ordered_as_java_orders_them() -> None:
    ordered = [-math.inf, -1.0, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan]
    keys = [double_key(value) for value in ordered]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert double_key(math.nan) == double_key(-math.nan)


def test_error_messages_contain_only_the_start_of_a_long_text() -> None:
    with pytest.raises(ValueError, match="is not") as caught:
        parse_int32("x" * 100_000)
    assert len(str(caught.value)) < 120


@pytest.mark.timeout(120)
@pytest.mark.parametrize("text", ["{}x", ".{}x", "{}.{}x", "0x{}g", "0x{}.{}g", "{}e{}x", "0x{}p{}x", "1e{}x", "- {}x"])
def test_a_long_text_is_rejected_in_linear_time(text: str) -> None:
    """Any sender chooses the properties of a message. With quadratic work this text would take half an hour."""
    with pytest.raises(ValueError, match="is not a double"):
        parse_double(text.replace("{}", "1" * 200_000))
