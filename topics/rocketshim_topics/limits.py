"""Limits that several modules keep: of numbers, of texts, and of what one request or record contains."""

import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

__all__ = ["CONTROL_CHARACTERS", "EPOCH_SECONDS", "FIRST_RETRY_LEVEL", "INT_MAX", "LONG_MAX", "in_batches"]

_T = TypeVar("_T")

INT_MAX: Final = 2**31 - 1
"""Largest `int` of Java."""

LONG_MAX: Final = 2**63 - 1
"""Largest `long` of Java."""

CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""One control character of ASCII or Latin-1."""

EPOCH_SECONDS: Final = range(1_000_000_000, 100_000_000_000)
"""Times in seconds from 2001 on; as milliseconds they would be in 1970 to 1973."""

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry. Source: `AbstractSendMessageProcessor#sendBack` of RocketMQ."""


def in_batches(weighted: Iterable[tuple[_T, int]], most: int) -> Iterator[list[_T]]:
    """Split weighted items, in order, into batches that weigh `most` at most; a heavier item is alone in its batch."""
    batch: list[_T] = []
    sum_of_weights = 0
    for each, weight in weighted:
        if batch and sum_of_weights + weight > most:
            yield batch
            batch, sum_of_weights = [], 0
        batch.append(each)
        sum_of_weights += weight
    if batch:
        yield batch
