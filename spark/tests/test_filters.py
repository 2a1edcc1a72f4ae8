"""Filters translated into Spark columns have the same outcome for every record as the filters, or are refused."""

import random
from collections.abc import Callable, Sequence

import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim.errors import FilterError, FilterEvaluationError
from rocketshim.filters import CallableFilter, SqlFilter, TagFilter
from rocketshim_spark.filters import FilterNotTranslatedError, header_property, selects, sql_outcome

NAMES = ["a", "b", "c"]
TEXTS = [
    *("", "x", "it's", "xyz", "true", "TRUE", "False", "yes", "é😀", "NULL", "%", "_", "\\", "x\ny"),
    *("0", "5", "+5", "-5", "6", "007", "-0", "2147483647", "2147483648", "-2147483648", "-2147483649", "3000000000"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "0" * 40 + "5", "٣", "５", "𝟓", "१२"),
    *(" 5", "5 ", "5\n", "\t5", "5\x00", "\xa05", "5.0", "6.5", "5.", ".5", ".", "+", "-", "1_000", "5L", "0x5"),
    *("5d", "5F", "5dd", "5e", "5e3", "5E-3", "1e400", "-1e400", "1e-400", "4.9E-324", "0.0", "-0.0", " -0.0 ", "-0"),
    *("NaN", "+NaN", "-NaN", "nan", "NaNd", "Infinity", "-Infinity", "+Infinity", "inf", "infinity", "Infinityd"),
    *("0x1p3", "0x1.8P1d", "-0x0p0", "0x.8p1", "0x1p", "0x1p99999", "9007199254740993", "9007199254740992", "٣.٥"),
]
INTEGERS = [
    "0",
    "5",
    "6L",
    "-5",
    "- -5",
    "2147483647",
    "2147483648",
    "3000000000",
    "9223372036854775807",
    "-3000000000",
]
FLOATS = ["5.0", "6.5", ".5", "-5.5", "4.9E-324", "1e308", "9007199254740992.0"]
STRINGS = ["'x'", "''", "'it''s'", "'5'", "'true'", "'é😀'", "'%'", "'\\'", "'y'"]


def random_condition(source: random.Random, depth: int) -> str:
    """Return a random expression that can be translated."""
    if depth > 0 and source.random() < 0.6:
        terms = [random_condition(source, depth - 1) for _ in range(source.randint(2, 4))]
        joined = f" {source.choice(['AND', 'OR'])} ".join(f"({term})" for term in terms)
        return source.choice([joined, joined, f"NOT ({joined})", f"({joined}) IS NULL", f"({joined}) IS NOT NULL"])
    name, other, number = source.choice(NAMES), source.choice(NAMES), source.choice(INTEGERS + FLOATS)
    ordering, equality = source.choice(["<", "<=", ">", ">="]), source.choice(["=", "<>"])
    negation = source.choice(["", "NOT "])
    return source.choice(
        [
            f"{name} {ordering} {number}",
            f"{number} {ordering} {name}",
            f"{name} {equality} {number}",
            f"{number} {equality} {name}",
            f"{name} {ordering} {other}",
            f"{name} {equality} {other}",
            f"{name} {equality} {source.choice(STRINGS)}",
            f"{source.choice(STRINGS)} {equality} {name}",
            f"{name} {equality} {source.choice(['TRUE', 'FALSE'])}",
            f"{source.choice(['TRUE', 'FALSE'])} {equality} {name}",
            f"{name} {negation}BETWEEN {source.choice(['-5 AND 6', '-5.5 AND 6.5', '0 AND 3000000000', 'b AND c'])}",
            f"{number} {negation}BETWEEN {source.choice(['b AND c', 'b AND 6', '- 5 AND c'])}",
            f"{name} {negation}IN ({', '.join(source.sample(STRINGS, source.randint(1, 5)))})",
            f"{name} {negation}{source.choice(['CONTAINS', 'STARTSWITH', 'ENDSWITH'])} {source.choice(STRINGS)}",
            f"{name} IS {negation}NULL",
            source.choice(["TRUE", "FALSE", "NULL", "5 > 3", "'5' = 5", "5 = 'x'", name, f"NOT {name}"]),
        ]
    )


def random_records(source: random.Random, count: int) -> list[dict[str, str]]:
    return [{name: source.choice(TEXTS) for name in NAMES if source.random() < 0.85} for _ in range(count)]


def as_frame(spark: SparkSession, records: Sequence[dict[str, str]]) -> DataFrame:
    return spark.createDataFrame(
        [tuple(record.get(name) for name in NAMES) for record in records], ", ".join(f"{name} string" for name in NAMES)
    ).coalesce(1)


def expected(expression: str, record: dict[str, str]) -> bool | str | None:
    try:
        return SqlFilter(expression).evaluate(record)
    except FilterEvaluationError:
        return "failed"


def column_of(expression: str) -> Column:
    """Return the outcome as one text column: true, false, null, failed."""
    outcome = sql_outcome(SqlFilter(expression), F.col)
    value = outcome.value.cast("string")
    return value if outcome.failed is None else F.when(outcome.failed, "failed").otherwise(value)


def assert_same(spark: SparkSession, expressions: Sequence[str], records: Sequence[dict[str, str]]) -> set[object]:
    """Compare every expression on every record, and return the set of outcomes."""
    frame = as_frame(spark, records)
    columns = [column_of(expression).alias(f"e{number}") for number, expression in enumerate(expressions)]
    met: set[object] = set()
    differing = []
    for record, row in zip(records, frame.select(*columns).collect(), strict=True):
        for expression, got in zip(expressions, row, strict=True):
            wanted = expected(expression, record)
            met.add(wanted)
            if got != (str(wanted).lower() if isinstance(wanted, bool) else wanted):
                differing.append((expression, record, wanted, got))
    assert differing == []
    return met


def test_single_comparisons_have_the_same_outcome_for_every_text(spark: SparkSession) -> None:
    expressions = [
        *(f"a {operator} {number}" for operator in ("<", ">=", "=", "<>") for number in ("5", "3000000000", "5.0")),
        *("5 < a", "5.0 >= a", "5 = a", "5 <> a", "a > 4.9E-324", "a = 9007199254740992.0", "a = 2147483648"),
        *("a = TRUE", "a <> FALSE", "TRUE = a", "FALSE <> a", "a = '5'", "'x' <> a", "a IN ('x', '5', '')"),
        *("a NOT IN ('x', '5')", "a BETWEEN -5 AND 6", "a NOT BETWEEN -5.5 AND 6.5", "a IS NULL", "a IS NOT NULL"),
        *("a CONTAINS 'x'", "a NOT CONTAINS 'x'", "a STARTSWITH '5'", "a NOT ENDSWITH '5'", "a CONTAINS ''"),
        *("a", "NOT a", "NOT a IS NULL", "a CONTAINS '%'", "a CONTAINS '_'", "a ENDSWITH '\\'"),
    ]
    records = [{}, *({"a": text} for text in TEXTS)]
    assert assert_same(spark, expressions, records) == {True, False, None, "failed"}


def test_two_properties_have_the_same_outcome_for_every_pair_of_texts(spark: SparkSession) -> None:
    texts = [
        None,
        "",
        "x",
        "5",
        "5.0",
        "05",
        "-0.0",
        "0.0",
        "0",
        "-0",
        "-0x0p0",
        "NaN",
        "-NaN",
        "Infinity",
        "1e400",
        "6",
    ]
    records = [
        {name: text for name, text in (("a", left), ("b", right)) if text is not None}
        for left in texts
        for right in texts
    ]
    expressions = [f"a {operator} b" for operator in ("=", "<>", "<", "<=", ">", ">=")]
    assert assert_same(spark, expressions, records) == {True, False, None, "failed"}


def test_failures_count_from_left_to_right_with_short_circuit(spark: SparkSession) -> None:
    expressions = [
        *("a > 5 OR b = 'x'", "b = 'x' OR a > 5", "a > 5 AND b = 'x'", "b = 'x' AND a > 5"),
        *("b = 'x' OR c = 'x' OR a > 5", "NOT (b = 'x' OR a > 5)", "(a > 5) IS NULL", "(b = 'x' OR a > 5) IS NOT NULL"),
        *("a BETWEEN b AND c", "a NOT BETWEEN b AND c", "a > 5 AND b > 5 AND c > 5", "a > 5 OR b > 5 OR c > 5"),
        *("TRUE OR a > 5", "5 = 'x' OR a = 'x'", "a = 'x' OR 5 = 'x'", "5 BETWEEN b AND 6"),
    ]
    texts = [None, "x", "5", "9"]
    records = [
        {name: text for name, text in zip(NAMES, (one, two, three), strict=True) if text is not None}
        for one in texts
        for two in texts
        for three in texts
    ]
    assert assert_same(spark, expressions, records) == {True, False, None, "failed"}


@pytest.mark.parametrize("seed", [1, 2])
def test_random_conditions_have_the_same_outcome_on_random_records(spark: SparkSession, seed: int) -> None:
    source = random.Random(seed)  # noqa: S311  # a test's, not a secret's
    records = random_records(source, 120)
    expressions = [random_condition(source, depth=2) for _ in range(30)]
    assert assert_same(spark, expressions, records) == {True, False, None, "failed"}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_random_conditions_have_the_same_outcome_on_random_records(spark: SparkSession, seed: int) -> None:
    source = random.Random(seed)  # noqa: S311  # a test's, not a secret's
    records = random_records(source, 400)
    assert_same(spark, [random_condition(source, depth=2) for _ in range(40)], records)


def test_selects_is_never_null_and_selects_what_the_filter_selects(spark: SparkSession) -> None:
    source = random.Random(3)  # noqa: S311  # a test's, not a secret's
    records = random_records(source, 200)
    frame = as_frame(spark, records)
    for expression in ("a > 5 OR b = 'x'", "NOT (a CONTAINS 'x')", "a = b"):
        selected = SqlFilter(expression)
        got = [row.selected for row in frame.select(selects(selected, F.col).alias("selected")).collect()]
        assert got == [selected.matches(record) for record in records]


def test_conditions_with_more_comparisons_than_spark_can_compile_are_refused(spark: SparkSession) -> None:
    selected = SqlFilter(" OR ".join(f"a = {number}" for number in range(60)))
    frame = as_frame(spark, [{"a": "59"}, {"a": "60"}, {"a": "x"}, {}])
    assert [row.a for row in frame.where(selects(selected, F.col)).collect()] == ["59"]
    with pytest.raises(FilterNotTranslatedError, match=r"use IN"):
        selects(SqlFilter(" OR ".join(f"a = {number}" for number in range(1_000))), F.col)


@pytest.mark.parametrize("expression", ["A || B", "*", " * ", " ", None])
def test_tag_filters_select_the_same_records(spark: SparkSession, expression: str | None) -> None:
    selected = TagFilter(expression)
    tags = ["A", "B", "C", "*", "", " ", "A || B", None]
    frame = spark.createDataFrame([(tag,) for tag in tags], "TAGS string").coalesce(1)
    got = [row.selected for row in frame.select(selects(selected, F.col).alias("selected")).collect()]
    assert got == [selected.matches(tag) for tag in tags]


HEADERS = [
    None,
    [],
    [("a", b"1")],
    [("a", b"2"), ("a", b"1")],
    [("a", None), ("a", b"1")],
    [("a", b""), ("a", b"1")],
    [("A", b"1"), ("b", b"1")],
    [("USER.a", b"1")],
    [("DELAY", b"1")],
    [("DELAY", b"2"), ("USER.DELAY", b"1")],
    [("DELAY", b"1"), ("USER.DELAY", b"")],
    [("USER.DELAY", b"1"), ("USER.DELAY", b"2")],
    [("a", b"\xff1")],
    [("a", b"\xe2\x82"), ("DELAY", b"\xf0\x9f\x98x")],
    [("TAGS", b"A"), ("TAGS", b"B")],
    [("TAGS", b"A"), ("USER.TAGS", b"B")],
    [("TAGS", None)],
    [("TAGS", b"\xffA")],
]


@pytest.mark.parametrize(
    "chosen",
    [
        *map(SqlFilter, ("a = 1", "a IS NULL", "DELAY = '1'", "DELAY IS NULL", "a = '\ufffd1'", "a = '\ufffd'")),
        *map(SqlFilter, ("DELAY = '\ufffdx'", "TAGS = 'A'", "a = DELAY")),
        *map(TagFilter, ("A", "B", "A || B", "*")),
    ],
    ids=str,
)
def test_record_headers_are_read_by_the_rules_of_the_runtime(
    spark: SparkSession, chosen: SqlFilter | TagFilter
) -> None:
    frame = spark.createDataFrame(
        [(headers,) for headers in HEADERS], "headers array<struct<key: string, value: binary>>"
    ).coalesce(1)
    column = selects(chosen, lambda name: header_property(F.col("headers"), name))
    got = [row.selected for row in frame.select(column.alias("selected")).collect()]
    assert got == [chosen.matches_headers(headers) for headers in HEADERS]


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("(a = 1) = TRUE", "a = 1"),
        ("TRUE = (a = 1)", "a = 1"),
        ("b = 'x' AND a = 1 = TRUE", "a = 1"),
        ("NOT a = 1", "NOT a"),
        ("-a = 5", "-a"),
        ("b = 'x' OR a > -b", "-b"),
        ("a = -'x'", "-'x'"),
        ("-a IS NULL", "-a"),
        ("a BETWEEN -b AND 5", "-b"),
        ("(a = 1) CONTAINS 'x'", "a = 1"),
        ("-a CONTAINS 'x'", "-a"),
    ],
)
def test_the_refusal_of_an_expression_names_the_part(spark: SparkSession, expression: str, part: str) -> None:
    assert spark.version.startswith("4.")
    with pytest.raises(FilterNotTranslatedError) as caught:
        selects(SqlFilter(expression), F.col)
    assert caught.value.part == part
    assert part in str(caught.value)
    assert isinstance(caught.value, FilterError)


def keep_all(_message: Row) -> bool:
    return True


@pytest.mark.parametrize(
    "make",
    [lambda: selects(CallableFilter(keep_all), F.col), lambda: selects(SqlFilter("a = '\ud800'"), F.col)],
)
def test_python_filters_and_lone_surrogates_are_refused(spark: SparkSession, make: Callable[[], Column]) -> None:
    assert spark.version.startswith("4.")
    with pytest.raises(FilterNotTranslatedError):
        make()
