"""Tables: ids, addresses, names, times and numbers stay whole at every width; texts give way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rocketshim.cli.kinds import DEAD, DELAYED, PARKED, RETRY, TOPIC
from rocketshim.cli.table import table_lines

ID = "b5593c3f6e7c4aa189b1000000000001"
CELLS = {
    "partition/offset": "11/90210",
    "stored (UTC)": "2026-11-29 13:53:55",
    "due (UTC)": "2026-11-29 13:53:55.115",
    "id": ID,
    "state": "redriven",
    "failures": "16",
    "origin topic": "customer-orders-of-the-north",
    "target": "customer-orders-of-the-north",
    "group": "payments-service",
    "park from": "SCHEDULE_TOPIC_XXXX/12/1048576",
    "bytes": "4096",
    "key": "customer-4711",
    "tag": "created",
    "cause": "billing.errors.CardDeclinedError",
    "park reason": "target-refused:MSG_SIZE_TOO_LARGE",
    "text": "the bank does not answer for order 4711, tried https://bank.example.com/api/v1/charges/4711",
    "trouble": "missing-header:REAL_TOPIC",
    "body": "x" * 200,
}
TEXTS = {"cause", "park reason", "text", "trouble", "body"}


@pytest.mark.parametrize("kind", [DEAD, RETRY, DELAYED, PARKED, TOPIC], ids=lambda kind: kind.command)
@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_each_listing_fits_the_terminal_with_whole_ids_and_addresses(kind: object, width: int) -> None:
    columns = kind.columns  # type: ignore[attr-defined]
    head, lines = table_lines(columns, [[CELLS[name] for name in columns]], width)
    assert all(cell_len(line) <= width for line in [*head, *lines])
    assert len(lines) == len(head) <= 3
    for name in columns:
        assert any(f" {CELLS[name]} " in f" {line} " for line in lines) or name in TEXTS
        assert any(name in line for line in head)


def test_a_text_is_shortened_and_says_so() -> None:
    _, (line,) = table_lines(("id", "text"), [["m1", "one two three four five six and then more"]], 36)
    assert line == "m1  one two three four five six and…"


def test_a_text_that_is_wrapped_keeps_its_addresses_whole() -> None:
    text = "waits 10000 ms for rmq.retry.payments-service-of-the-whole-company, and fails"
    _, lines = table_lines(("id", "what"), [[ID, text]], 40, wraps=True)
    assert lines == [
        ID,
        "  waits 10000 ms for",
        "  rmq.retry.payments-service-of-the-whole-company,",
        "  and fails",
    ]


def test_in_a_pipe_each_row_is_one_line_and_nothing_is_cut() -> None:
    columns = DEAD.columns
    head, lines = table_lines(columns, [[CELLS[name] for name in columns], [""] * len(columns)], None)
    assert len(head) == 1
    assert lines[0].endswith(CELLS["text"])
    assert lines[1] == "", "a row in which nothing stands stays a row"


def test_columns_in_which_nothing_stands_are_left_out_on_a_terminal() -> None:
    assert table_lines(("id", "key", "tag"), [["m1", "", "a"], ["m2", "", ""]], 80) == (
        ["id  tag"],
        ["m1  a", "m2"],
    )


def test_numbers_are_aligned_on_the_right() -> None:
    rows = [["orders/0", "7", "+1"], ["orders/1", "1100", ""], ["orders/2", "gone", "-20"]]
    assert table_lines(("queue", "end", "change"), rows, 80)[1] == [
        "orders/0     7      +1",
        "orders/1  1100",
        "orders/2  gone     -20",
    ]


@given(
    st.lists(st.tuples(st.text(max_size=90), st.text(max_size=90), st.text(max_size=90)), max_size=4),
    st.integers(min_value=1, max_value=200),
)
def test_at_no_width_is_a_name_cut(rows: list[tuple[str, str, str]], width: int) -> None:
    _, lines = table_lines(("id", "text", "name"), [("a", "b", "c"), *rows], width)
    for whole, _, name in rows:
        if whole.isprintable() and name.isprintable():
            assert any(whole.rstrip() in line for line in lines)
            assert any(name.rstrip() in line for line in lines)
