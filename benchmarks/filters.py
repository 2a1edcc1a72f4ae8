"""What a filter costs a message, beyond reading the headers: `python -m benchmarks.filters`.

Each row is one filter over the headers of 1,000 records (what one `consume` call gives), five headers each. Every round
makes them again, strings and bytes as a Kafka client makes them, times the bare loop and then the filtered loop in CPU
time of this thread, and takes the difference. The figure is the median of the rounds, the spread their quartiles.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from rocketshim.filters import SqlFilter, TagFilter

RECORDS = 1_000
ROUNDS = 200
THREE_TERMS = "price > 10 AND region = 'EU' AND amount >= 2.5"

Headers = list[tuple[str, bytes | None]]


class Figure(NamedTuple):
    """Nanoseconds a message."""

    name: str
    median_ns: float
    quartiles_ns: tuple[float, float]
    selected_share: float
    allowed_ns: float | None


def records(price: Callable[[int], int]) -> list[Headers]:
    """Headers as they come from a client; `price` decides how many of them the expressions select."""
    return [
        [
            (name.decode(), value)
            for name, value in (
                (b"UNIQ_KEY", b"7F0000010A2C18B4AAC2%08d" % number),
                (b"TAGS", b"created" if price(number) > 10 else b"shipped"),
                (b"price", b"%d" % price(number)),
                (b"region", b"EU"),
                (b"amount", b"%d.75" % (number % 90 + 3)),
            )
        ]
        for number in range(RECORDS)
    ]


def all_selected(number: int) -> int:
    return number + 11


def tenth_selected(number: int) -> int:
    return 11 if number % 10 == 0 else 9


def measure(name: str, chosen: TagFilter | SqlFilter, price: Callable[[int], int], allowed_ns: float | None) -> Figure:
    """One row."""
    matches = chosen.matches_headers
    costs = []
    for _ in range(ROUNDS):
        batch = records(price)
        began = time.thread_time_ns()
        for _headers in batch:
            pass
        between = time.thread_time_ns()
        for headers in batch:
            matches(headers)
        ended = time.thread_time_ns()
        costs.append(((ended - between) - (between - began)) / RECORDS)
    low, median, high = statistics.quantiles(costs, n=4)
    share = sum(map(matches, records(price))) / RECORDS
    return Figure(name, median, (low, high), share, allowed_ns)


def figures() -> list[Figure]:
    """All rows, in the order in which they are printed."""
    gc.freeze()
    tags, sql = TagFilter("created || paid"), SqlFilter(THREE_TERMS)
    return [
        measure("tag, two tags, all selected", tags, all_selected, 250),
        measure("tag, two tags, 90 % filtered", tags, tenth_selected, 250),
        measure("sql, three terms, all selected", sql, all_selected, 2_000),
        measure("sql, three terms, 90 % filtered", sql, tenth_selected, 2_000),
        measure("sql, one term", SqlFilter("region = 'EU'"), all_selected, None),
        measure("sql, evaluation error", SqlFilter("region > 5"), all_selected, None),
    ]


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'filter':34} {'selected':>9} {'median':>9} {'quartiles':>17} {'allowed':>9}")
    for figure in figures():
        low_ns, high_ns = figure.quartiles_ns
        spread = f"{low_ns / 1000:.3f} … {high_ns / 1000:.3f}"
        allowed = f"{figure.allowed_ns / 1000:.2f} µs" if figure.allowed_ns is not None else "–"
        median = f"{figure.median_ns / 1000:.3f} µs"
        print(f"{figure.name:34} {figure.selected_share:>9.0%} {median:>9} {spread:>17} {allowed:>9}")


if __name__ == "__main__":
    main()
