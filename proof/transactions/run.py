"""A run with transactions: producers are killed at each point of one, and the database says what has to come."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import AdminClient

from proof.chaos.children import start_module
from proof.timers.stage import NAMES, open_stage
from proof.transactions.service import GROUP, Point, database, died, is_paid, paid_numbers, point_of
from rocketshim.transactions import TransactionMQProducer
from rocketshim_topics import DelayLevels, Layout, provision

if TYPE_CHECKING:
    import subprocess

__all__ = ["Course", "Findings", "judged", "transactions"]

_LOOK_S: Final = 1.0
_END_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Course:
    """What a run does.

    Attributes:
        times: how often a producer is killed at each point.
        kills: how often the worker is killed meanwhile.
        exactly_once: how the worker delivers.
        at_once: how many producers run at a time.
    """

    times: int = 200
    kills: int = 3
    exactly_once: bool = True
    at_once: int = 6


@dataclass(frozen=True, slots=True)
class Findings:
    """What was counted; `wrong` is what breaks a promise."""

    by_point: dict[Point, tuple[int, int, int]]  # orders, of these paid, of these delivered
    repeats: int
    seconds: float  # from the last kill until every outcome was known
    wrong: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the figures for a person."""
        rows = [
            f"killed at {point.name.lower():<13} {orders} orders, {paid} paid, {delivered} delivered"
            for point, (orders, paid, delivered) in self.by_point.items()
        ]
        ended = f"{self.repeats} repeats, {len(self.wrong)} promises broken"
        return [*rows, f"every outcome was known {self.seconds:.0f} s after the last kill", ended]


def transactions(folder: Path, course: Course, report: Callable[[str], None]) -> Findings:
    """Make a run on a broker of its own, and judge it."""
    with open_stage(folder, exactly_once=course.exactly_once) as stage:
        admin = AdminClient({"bootstrap.servers": stage.bootstrap})
        provision.ensure_topics(admin, [Layout(NAMES, DelayLevels.default()).check(GROUP)])
        stage.start_worker("1")
        path, wrong = folder / "shop.db", list[str]()
        database(path).close()
        died(path).touch()
        orders = {number: point_of(number) for number in range(course.times * len(Point))}
        every = max(1, len(orders) // (course.kills + 1))
        words = ["proof.transactions.service", stage.bootstrap, str(path), str(len(orders)), str(course.at_once)]
        nursery = start_module(words, folder / "service.log")
        for kill in range(1, course.kills + 1):
            until = partial(_has_died, nursery, path, kill * every)
            stage.until(until, _END_S, "the deaths of producers")
            stage.kill("1")
            stage.start_worker("1")
            report(f"kill -9 of the worker after {kill * every} orders")
        nursery.wait(_END_S)
        report(f"{len(orders)} producers are killed")
        began_s = time.monotonic()
        with TransactionMQProducer(stage.bootstrap, group=GROUP, listener=is_paid(path)):
            while unknown := len(stage.pending()) + stage.unapplied():
                if time.monotonic() > began_s + _END_S:
                    wrong.append(f"{unknown} outcomes are not known after {_END_S:.0f} s")
                    break
                report(f"{unknown} outcomes are not known")
                time.sleep(_LOOK_S)
        seconds = time.monotonic() - began_s
        stage.end()
        paid = paid_numbers(path)
        told = {int(line) for line in died(path).read_text().split()}
        wrong += [
            f"order {number}: the process did not die at {orders[number].name}" for number in orders.keys() - told
        ]
        delivered = Counter(int(arrived.body) for arrived in stage.arrived())
        return judged(orders, paid, delivered, seconds, [*stage.wrong, *wrong], exactly_once=course.exactly_once)


def _has_died(nursery: "subprocess.Popen[bytes]", path: Path, count: int) -> bool:
    """Whether this number of processes have died, or no more will."""
    return nursery.poll() is not None or len(died(path).read_text().split()) >= count


def judged(
    orders: dict[int, Point], paid: set[int], delivered: Counter[int], seconds: float, wrong: list[str],
    *, exactly_once: bool,
) -> Findings:  # fmt: skip
    """Compare what the database has with what was delivered. Pure."""
    lost, phantom = sorted(paid - delivered.keys()), sorted(delivered.keys() - paid)
    repeats = delivered.total() - len(delivered)
    wrong += [f"lost: order {number}, killed at {orders[number].name}" for number in lost]
    wrong += [f"phantom: order {number}, killed at {orders[number].name}" for number in phantom]
    if exactly_once and repeats:
        wrong.append(f"{repeats} repeats")
    by_point = {}
    for point in Point:
        of_it = {number for number, at in orders.items() if at is point}
        by_point[point] = len(of_it), len(of_it & paid), len(of_it & delivered.keys())
        if by_point[point][1] != (len(of_it) if point >= Point.PAID else 0):
            wrong.append(f"{point.name}: {by_point[point][1]} of {len(of_it)} are paid: not killed there")
    return Findings(by_point, repeats, seconds, tuple(wrong))
