"""Measured results of RocketMQ 5.3.3's filter module: `[expression, properties, answer, left-over position?]`.

An answer is TRUE, FALSE, NULL (unknown), ERROR (evaluation fails) or SYNTAX (does not compile). A fourth column marks
the one intended difference: RocketMQ ignores the text from that position on and gives the answer for the text before
it; here it is a syntax error at that position.
"""

import json
from pathlib import Path

import pytest

from rocketshim.errors import FilterEvaluationError, FilterSyntaxError
from rocketshim.filters import SqlFilter

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "golden" / "rocketmq_5.3.3_sql92.jsonl").read_text("utf-8").splitlines()
]
SAME = [case for case in CASES if len(case) == 3]
LEFT_OVER = [case for case in CASES if len(case) == 4]


def answer(expression: str, properties: dict[str, str]) -> str:
    try:
        selected = SqlFilter(expression)
    except FilterSyntaxError:
        return "SYNTAX"
    try:
        return {True: "TRUE", False: "FALSE", None: "NULL"}[selected.evaluate(properties)]
    except FilterEvaluationError:
        return "ERROR"


@pytest.mark.parametrize("outcome", ["TRUE", "FALSE", "NULL", "ERROR", "SYNTAX"])
def test_answers_are_those_of_rocketmq(outcome: str) -> None:
    cases = [case for case in SAME if case[2] == outcome]
    assert len(cases) > 200
    differing = [(case, got) for case in cases if (got := answer(case[0], case[1])) != outcome]
    assert differing == []


def test_only_true_selects_and_headers_give_the_same_result() -> None:
    for expression, properties, outcome in SAME:
        if outcome == "SYNTAX":
            continue
        selected = SqlFilter(expression)
        headers = [(name, text.encode()) for name, text in properties.items()]
        assert selected.matches(properties) is (outcome == "TRUE")
        assert selected.matches_headers(headers) is (outcome == "TRUE")


@pytest.mark.parametrize(("expression", "properties", "outcome", "position"), LEFT_OVER)
def test_text_that_rocketmq_ignores_is_a_syntax_error(
    expression: str, properties: dict[str, str], outcome: str, position: int
) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        SqlFilter(expression)
    assert caught.value.position == position
    assert answer(expression[:position], properties) == outcome
