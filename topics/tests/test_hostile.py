"""Mutated records given to the decoder: each is an envelope or a `MalformedRecordError`, and nothing else happens."""

import random

import pytest

from rocketshim_topics import decode
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.wire import Envelope
from test_support.mutated_records import Header, mutated


def outcome(headers: list[Header], *, trusted: bool) -> str:
    """Decode one record; the reason of a refusal, or an empty text."""
    try:
        assert isinstance(decode(headers, trusted=trusted), Envelope)
    except MalformedRecordError as error:
        assert trusted, "what others write is never refused"
        return error.reason.partition(":")[0]
    return ""


@pytest.mark.parametrize(
    "count", [20_000, pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(1_200)])]
)
def test_a_mutated_record_is_decoded_or_refused_with_a_reason(count: int) -> None:
    draw, found = random.Random(19), set()  # noqa: S311 - the same records in each run
    for _, headers in zip(range(count), mutated(draw), strict=False):
        before = list(headers)
        found.add(outcome(headers, trusted=True))
        outcome(headers, trusted=False)
        assert headers == before
    assert found >= {"", "duplicate-header", "bad-number", "null-header", "unknown-version"}
