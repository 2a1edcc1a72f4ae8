"""The SQL filter as consumers use it: headers, cache, equality and digests; it loads no Kafka client."""

import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Never

import pytest

from rocketshim.errors import FilterError, FilterSyntaxError
from rocketshim.filters import SqlFilter, TagFilter
from rocketshim.filters import sql as sql_module
from rocketshim.filters.sql import CACHED_EXPRESSIONS
from rocketshim_topics.wire import decode, encode


def test_headers_are_properties() -> None:
    selected = SqlFilter("price > 10 AND region = 'EU'")
    assert selected.matches_headers([("price", b"11"), ("region", b"EU")])
    assert not selected.matches_headers([("price", b"9"), ("region", b"EU")])
    assert not selected.matches_headers([("price", b"11")])
    assert not selected.matches_headers([])


def test_a_record_without_headers_has_no_properties() -> None:
    assert SqlFilter("a IS NULL").matches_headers(None)
    assert not SqlFilter("a IS NOT NULL").matches_headers(None)


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "UNIQ_KEY", "RETRY_TOPIC", "CONSUMER_GROUP"])
def test_the_headers_of_the_wire_format_are_visible_as_properties(name: str) -> None:
    assert SqlFilter(f"{name} = 'x'").matches_headers([(name, b"x")])


def test_the_first_header_of_a_name_counts() -> None:
    headers = [("a", b"1"), ("b", b"0"), ("a", b"2")]
    assert SqlFilter("a = 1").matches_headers(headers)
    assert not SqlFilter("a = 2").matches_headers(headers)


@pytest.mark.parametrize("value", [None, b""])
def test_a_first_header_without_a_value_is_a_missing_property(value: bytes | None) -> None:
    assert SqlFilter("a IS NULL").matches_headers([("a", value)])
    assert SqlFilter("a IS NULL").matches_headers([("a", value), ("a", b"1")])


def test_names_are_case_sensitive() -> None:
    assert SqlFilter("a = 1 AND A = 2").matches_headers([("A", b"2"), ("a", b"1")])


def test_a_user_property_with_a_reserved_name_is_visible_under_its_name() -> None:
    assert SqlFilter("DELAY = 'mine'").matches_headers([("USER.DELAY", b"mine")])
    both = [("RECONSUME_TIMES", b"2"), ("USER.RECONSUME_TIMES", b"mine")]
    assert SqlFilter("RECONSUME_TIMES = 'mine'").matches_headers(both)
    assert SqlFilter("RECONSUME_TIMES = 'mine'").matches_headers(both[::-1])
    assert SqlFilter("RECONSUME_TIMES = 2").matches_headers(both[:1])


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "UNIQ_KEY", "RECONSUME_TIMES"])
@pytest.mark.parametrize("values", [[b"a", b"b"], [None, b"b"], [b"", b"b"], [b"a"]])
def test_a_message_is_selected_by_the_same_values_on_its_retry(name: str, values: list[bytes | None]) -> None:
    first = [(name, value) for value in values]
    envelope = decode(first, trusted=False)
    retried = encode(replace(envelope, reconsume_times=1, uniq_key=envelope.uniq_key or "made at the first hop"))
    retried += envelope.user
    if name == "UNIQ_KEY" and envelope.uniq_key is None:
        return  # it has one only from then on
    for value in "ab":
        for each in (SqlFilter(f"{name} = '{value}'"), TagFilter(value)):
            assert each.matches_headers(first) == each.matches_headers(retried)


def test_other_names_with_the_prefix_are_ordinary_names() -> None:
    assert SqlFilter("a IS NULL").matches_headers([("USER.a", b"1")])


def test_bytes_that_are_not_utf8_are_replaced_and_raise_no_error() -> None:
    assert SqlFilter("a CONTAINS 'x'").matches_headers([("a", b"\xffx")])
    assert SqlFilter("b = 1").matches_headers([("a", b"\xff"), ("b", b"1")])


class Unreadable(bytes):
    def decode(self, *_arguments: object) -> Never:
        raise AssertionError("a header that the expression does not name was decoded")


def test_only_the_headers_that_the_expression_names_are_decoded() -> None:
    assert SqlFilter("a = 1").matches_headers([("b", Unreadable(b"1")), ("a", b"1"), ("a", Unreadable(b"2"))])


def test_an_evaluation_error_is_not_a_match() -> None:
    assert not SqlFilter("a > 5").matches_headers([("a", b"x")])
    assert not SqlFilter("NOT (a > 5)").matches_headers([("a", b"x")])
    assert SqlFilter("a > 5").matches({"a": "x"}) is False


def test_a_filter_has_the_names_of_its_properties() -> None:
    assert SqlFilter("a > 5 AND (b = c OR NOT d)").properties == {"a", "b", "c", "d"}
    assert SqlFilter("TRUE").properties == frozenset()


def test_filters_are_equal_if_their_texts_are() -> None:
    assert SqlFilter("a = 1") == SqlFilter("a = 1")
    assert hash(SqlFilter("a = 1")) == hash(SqlFilter("a = 1"))
    assert SqlFilter("a = 1") != SqlFilter("a  = 1")
    assert SqlFilter("a = 1") != "a = 1"
    assert SqlFilter("a = 1").digest() != SqlFilter("a  = 1").digest()


def test_str_and_repr_of_a_filter() -> None:
    selected = SqlFilter("a = 1")
    assert str(selected) == "a = 1"
    assert repr(selected) == "SqlFilter('a = 1')"
    assert selected.expression_type == "SQL92"
    assert selected.tree is SqlFilter("a = 1").tree


def test_the_error_for_an_invalid_expression_is_a_value_error_and_a_rocketshim_error() -> None:
    with pytest.raises(ValueError, match="position 4") as caught:
        SqlFilter("a > 'x'")
    assert isinstance(caught.value, FilterSyntaxError)
    assert isinstance(caught.value, FilterError)


def test_the_cache_of_compiled_and_invalid_expressions_is_limited() -> None:
    for number in range(2 * CACHED_EXPRESSIONS):
        SqlFilter(f"a = {number}")
    assert sql_module._compile.cache_info().currsize == CACHED_EXPRESSIONS
    hits = sql_module._compile.cache_info().hits
    SqlFilter(f"a = {2 * CACHED_EXPRESSIONS - 1}")
    assert sql_module._compile.cache_info().hits == hits + 1


def test_a_cached_invalid_expression_raises_a_new_equal_error() -> None:
    caught = []
    for _ in range(3):
        hits = sql_module._compile.cache_info().hits
        with pytest.raises(FilterSyntaxError) as error:
            SqlFilter("a = = 1")
        caught.append(error.value)
    assert sql_module._compile.cache_info().hits == hits + 1
    assert len({id(error) for error in caught}) == 3
    assert len({(str(error), error.position, error.token, error.expected, error.expression) for error in caught}) == 1
    assert caught[2].__context__ is None


def test_very_long_expressions_are_not_cached() -> None:
    size = sql_module._compile.cache_info().currsize
    SqlFilter("a = '" + "x" * 5_000 + "'")
    assert sql_module._compile.cache_info().currsize == size


def test_threads_may_compile_and_match_at_the_same_time() -> None:
    failures = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for round_ in range(200):
            wanted = (number * 31 + round_) % 150
            if not SqlFilter(f"a = {wanted} OR b BETWEEN {wanted} AND 1000").matches({"a": str(wanted)}):
                failures.append((number, round_))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_filters_can_be_pickled() -> None:
    for each in (SqlFilter("a > 5"), TagFilter("a || b")):
        assert pickle.loads(pickle.dumps(each)) == each  # noqa: S301  # what was written one line before


def test_filters_load_no_kafka_client() -> None:
    program = (
        "import sys, rocketshim.filters as f; f.SqlFilter('a > 5').matches({}); "
        "sys.exit('confluent_kafka' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)  # noqa: S603  # our own interpreter
