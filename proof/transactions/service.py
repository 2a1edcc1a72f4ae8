"""A service that pays orders: it writes a database and sends a message in one transaction, and dies at a given point.

Each process handles one order. What it has paid stands in the database with the id of the transaction.
"""

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from proof.timers.stage import TARGET
from rocketshim import MessageView
from rocketshim.transactions import LocalTransactionState, TransactionMQProducer

__all__ = ["GROUP", "Point", "database", "died", "is_paid", "pay"]

GROUP: Final = "shop"
_CHECK_AFTER: Final = "10s"
_LONGEST_S: Final = 8.0  # of a local transaction: so the check never asks about one that still runs
_AT_ONCE_S: Final = 0.004
_LOCK_S: Final = 60.0


class Point(IntEnum):
    """Where a process dies. From `PAID` on, the local transaction has committed."""

    BEFORE = 1  # nothing is sent
    SENDING_HALF = 2
    HALF = 3  # it is stored
    PAYING = 4  # in the transaction of the database
    PAID = 5
    COMMITTING = 6  # the COMMIT is on its way
    COMMITTED = 7


def database(path: Path) -> sqlite3.Connection:
    """Open the database; it outlives processes, not machines."""
    found = sqlite3.connect(path, timeout=_LOCK_S, isolation_level=None, check_same_thread=False)
    found.execute("PRAGMA synchronous = OFF")
    found.execute("CREATE TABLE IF NOT EXISTS paid (number INTEGER PRIMARY KEY, id TEXT UNIQUE)")
    return found


def is_paid(path: Path) -> Callable[[MessageView], LocalTransactionState]:
    """Return the listener."""
    found = database(path)

    def check(message: MessageView) -> LocalTransactionState:
        row = found.execute("SELECT 1 FROM paid WHERE id = ?", [message.msg_id]).fetchone()
        return LocalTransactionState.ROLLBACK_MESSAGE if row is None else LocalTransactionState.COMMIT_MESSAGE

    return check


def died(path: Path) -> Path:
    """Return the file with the numbers of orders whose processes have died at their point."""
    return path.with_suffix(".died")


def pay(bootstrap: str, path: Path, number: int, point: Point) -> None:
    """Pay one order, and die at a point."""

    def die(here: Point) -> None:
        if here is point:
            with died(path).open("a") as file:
                file.write(f"{number}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    class Doomed(TransactionMQProducer):
        """A producer that may die while a record is on its way."""

        def _stored(self, *args: Any) -> Any:
            if point is on_its_way:
                time.sleep(random.uniform(0, _AT_ONCE_S))  # noqa: S311 - any moment
                die(point)
            return super()._stored(*args)

    on_its_way = Point.SENDING_HALF
    with Doomed(bootstrap, group=GROUP, listener=is_paid(path)) as producer:
        die(Point.BEFORE)
        began_s = time.monotonic()
        transaction = producer.transaction(TARGET, b"%d" % number, check_after=_CHECK_AFTER, timeout_s=_LONGEST_S)
        die(Point.HALF)
        mine = database(path)
        mine.execute("BEGIN IMMEDIATE")
        mine.execute("INSERT INTO paid VALUES (?, ?)", [number, transaction.msg_id])
        die(Point.PAYING)
        if time.monotonic() - began_s > _LONGEST_S:
            return  # the check may have asked
        mine.execute("COMMIT")
        die(Point.PAID)
        on_its_way = Point.COMMITTING
        transaction.commit(timeout_s=60.0)
        die(Point.COMMITTED)
